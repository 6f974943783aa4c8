"""Ports of Keras against PyTorch, with the real wheels."""

import re

import pytest

from parity.reporting.results.results import read_results
from tests.conftest import CONFIGS, call
from tests.models.ports import TWO

PORT = """
import keras
import numpy as np
from keras import layers, ops


class Attention(layers.Layer):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = layers.Dense(8), layers.Dense(8), layers.Dense(8)

    def call(self, x):
        scores = ops.matmul(self.q(x), ops.transpose(self.k(x), (0, 2, 1))) / 8**0.5
        return ops.matmul(ops.softmax(scores, -1), self.v(x))


class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.norm = layers.LayerNormalization(epsilon=1e-5)
        self.attention = Attention()
        self.act = layers.Activation("gelu")
        self.head = layers.Dense(3)

    def call(self, x):
        return self.head(ops.mean(self.act(x + self.attention(self.norm(x))), 1))


def build_model():
    model = Net()
    model(np.zeros((1, 5, 8), "float32"))
    return model


def loss(output, batch):
    return ops.mean(keras.losses.sparse_categorical_crossentropy(batch["labels"], output, from_logits=True))
"""


def run_two(folder, port, ours=TWO, dtypes="float32", case="targets: [labels], loss: loss", mode="tensorflow"):
    (folder / "ours.py").write_text(ours)
    (folder / "theirs.py").write_text(port)
    (folder / "models.yaml").write_text(
        f"version: 1\ndtypes: [{dtypes}]\nbackends: [{{name: torch, adapter: torch, ops: ./ours.py}}, "
        f"{{name: keras, adapter: keras, mode: {mode}, ops: ./theirs.py}}]\ncases: [{{id: net, kind: model, {case}}}]\n"
    )
    done = call("run", folder / "models.yaml", "--out", folder / "out")
    return done, read_results(folder / "out")


@pytest.mark.process
@pytest.mark.frameworks
def test_the_shipped_encoder_is_aligned(tmp_path):
    done = call("run", CONFIGS / "models" / "keras.yaml", "--out", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "aligned with torch; the difference at the output is rounding" in done.stdout
    compared = {row.tensor for row in read_results(tmp_path).comparisons}
    assert {
        "output",
        "loss",
        "metric.accuracy",
        "grad.encoder.1.attention.query.kernel",
        "grad.words.embeddings",
    } <= compared
    mapping = next(tmp_path.rglob("mapping.yaml")).read_text()
    assert (
        "encoder.0.attention.query.kernel: {axes: [2, 0, 1], from: encoder.0.attention.query.weight, shape: [3, 8, 24]}"
        in mapping
    )


@pytest.mark.process
@pytest.mark.frameworks
def test_channels_last_is_compared_with_channels_first(tmp_path):
    done = call("run", CONFIGS / "models" / "keras_images.yaml", "--out", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    results = read_results(tmp_path)
    assert {row.verdict for row in results.comparisons if row.case == "resnet-keras"} <= {"equal", "close"}
    assert {row.id for row in results.diagnoses} == {"running-var-ddof"}
    mapping = next(tmp_path.rglob("mapping.yaml")).read_text()
    assert "stem.0.kernel: {axes: [2, 3, 1, 0], from: stem.weight}" in mapping
    assert re.search(r"# keras: axes \[0, 2, 3, 1\] of the baseline's: \d\d tensors between layers", mapping)


@pytest.mark.process
@pytest.mark.frameworks
def test_faults_in_two_layers_and_in_code(tmp_path):
    wrong = PORT.replace("epsilon=1e-5", "").replace('layers.Activation("gelu")', 'layers.Activation("silu")')
    done, results = run_two(tmp_path, wrong.replace(" / 8**0.5", ""))
    assert done.returncode == 1, done.stdout
    found = {row.evidence["place"]: row for row in results.diagnoses}
    assert found["layer norm"].title == "layer norm: eps is 1e-05 in torch and 0.001 in keras"
    assert found["layer act"].title == "layer act: its class is GELU in torch and silu in keras"
    expression = found["the code of attention"].evidence["expression"]
    assert expression.endswith(", where torch has q @ transpose(k, -1, -2) / 2.828427125"), expression
    assert "with that mended, the difference at the output is rounding" in done.stdout
    assert sum(row.evidence["share"] for row in results.diagnoses) == pytest.approx(1, abs=1e-3)


@pytest.mark.process
@pytest.mark.frameworks
def test_an_activation_of_a_layer_is_a_layer(tmp_path):
    ours = TWO.replace("self.act(x + self.attention(self.norm(x))).mean(1)", "x + self.attention(self.norm(x))")
    ours = ours.replace("self.head(x + self", "self.act(self.head(x + self").replace("norm(x)))", "norm(x)))).mean(1)")
    port = PORT.replace('        self.act = layers.Activation("gelu")\n', "").replace("self.act(x + self", "(x + self")
    port = port.replace(
        "self.head(ops.mean((x + self.attention(self.norm(x))), 1))",
        "ops.mean(self.head(x + self.attention(self.norm(x))), 1)",
    )
    tanh = "activation=lambda x: keras.activations.gelu(x, approximate=True)"
    done, results = run_two(tmp_path, port.replace("layers.Dense(3)", f"layers.Dense(3, {tanh})"), ours)
    (row,) = results.diagnoses
    assert (row.id, row.evidence["place"]) == ("activation-form", "the code of head_activation"), done.stdout
    assert "tanh" in row.evidence["expression"]


@pytest.mark.process
@pytest.mark.frameworks
@pytest.mark.parametrize(
    ("mode", "said"), [("torch", ""), ("jax", "keras computes no gradients, so none are compared")]
)
def test_other_backends_of_keras(tmp_path, mode, said):
    done, results = run_two(tmp_path, PORT, mode=mode)
    assert done.returncode == 0, done.stdout
    assert said in done.stdout
    gradients = {row.tensor for row in results.comparisons if row.tensor.startswith("grad.")}
    assert bool(gradients) is (mode == "torch")


@pytest.mark.process
@pytest.mark.frameworks
def test_other_dtypes(tmp_path):
    # The GELU of TensorFlow 2.21.0 has its constant in float32.
    port = PORT.replace('layers.Activation("gelu")', "layers.ReLU()")
    done, results = run_two(tmp_path, port, TWO.replace("nn.GELU()", "nn.ReLU()"), dtypes="float64, bfloat16")
    assert done.returncode == 0, done.stdout
    errors = {row.dtype: row.max_abs_diff for row in results.comparisons if row.tensor == "output"}
    assert errors["float64"] < 1e-12 < errors["bfloat16"]


@pytest.mark.process
@pytest.mark.frameworks
def test_a_model_that_was_never_called_is_told(tmp_path):
    done, results = run_two(tmp_path, PORT.replace('    model(np.zeros((1, 5, 8), "float32"))\n', ""))
    assert done.returncode == 3
    assert {row.message for row in results.outcomes if row.backend == "keras"} == {
        "theirs.py: build_model must call the model once: the model has no weights yet"
    }


@pytest.mark.process
@pytest.mark.frameworks
def test_images_that_are_padded_before_a_layer_are_compared_in_step(tmp_path):
    port = (CONFIGS / "models" / "resnet_keras.py").read_text()
    wrong = port.replace("ops.mean(x, (1, 2))", "ops.max(x, (1, 2))").replace("MaxPooling2D(", "AveragePooling2D(")
    (tmp_path / "theirs.py").write_text(wrong)
    config = (CONFIGS / "models" / "keras_images.yaml").read_text().replace("./resnet_keras.py", "./theirs.py")
    config = config.replace("./resnet_torch.py", str(CONFIGS / "models" / "resnet_torch.py")).partition("known:")[0]
    (tmp_path / "images.yaml").write_text(config)
    done = call("run", tmp_path / "images.yaml", "-k", "resnet-keras", "--out", tmp_path / "out")
    assert done.returncode == 1, done.stdout + done.stderr
    rows = [row for row in read_results(tmp_path / "out").diagnoses if row.case == "resnet-keras"]
    found = {row.evidence["place"]: row for row in rows}
    assert list(found) == ["layer pool", "the code of the model"]
    assert "its class is MaxPool2d in torch and AveragePooling2D in keras" in found["layer pool"].title
    said = found["the code of the model"].evidence["expression"]
    assert said == "head gets max(avg, [1, 2]), where torch gives it mean(avg, [2, 3])"
