"""Ports of Keras against PyTorch, with the real wheels."""

import json
import re

import pytest

from parity.reporting.results.results import read_results
from tests.conftest import CONFIGS, call
from tests.models.ports import TWO, config_of_cases

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


WRONG = PORT.replace("epsilon=1e-5", "").replace('layers.Activation("gelu")', 'layers.Activation("silu")')
TANH = "layers.Dense(3, activation=lambda x: keras.activations.gelu(x, approximate=True))"
IMAGES = (CONFIGS / "models" / "resnet_keras.py").read_text()
OPTIONS = {"targets": ["labels"], "loss": "loss"}
CASES = {
    "faults": (TWO, WRONG.replace(" / 8**0.5", ""), OPTIONS),
    "activation": (
        TWO.replace("self.act(x + self.attention(self.norm(x))).mean(1)", "x + self.attention(self.norm(x))")
        .replace("self.head(x + self", "self.act(self.head(x + self")
        .replace("norm(x)))", "norm(x)))).mean(1)"),
        PORT.replace('        self.act = layers.Activation("gelu")\n', "")
        .replace(
            "self.head(ops.mean(self.act(x + self.attention(self.norm(x))), 1))",
            "ops.mean(self.head(x + self.attention(self.norm(x))), 1)",
        )
        .replace("layers.Dense(3)", TANH),
        OPTIONS,
    ),
    "dtypes": (  # The GELU of TensorFlow 2.21.0 has its constant in float32.
        TWO.replace("nn.GELU()", "nn.ReLU()"), PORT.replace('layers.Activation("gelu")', "layers.ReLU()"),
        {**OPTIONS, "dtypes": ["float64", "bfloat16"]},
    ),
    "uncalled": (TWO, PORT.replace('    model(np.zeros((1, 5, 8), "float32"))\n', ""), OPTIONS),
    "images": (
        (CONFIGS / "models" / "resnet_torch.py").read_text(),
        IMAGES.replace("ops.mean(x, (1, 2))", "ops.max(x, (1, 2))").replace("MaxPooling2D(", "AveragePooling2D("),
        {"forward": "forward", "loss": "loss", "metric": "accuracy"},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keras")
    config = config_of_cases(folder, CASES, adapter="keras", mode="tensorflow")
    done = call("run", config, "--out", folder / "out")
    return done, read_results(folder / "out")


def diagnoses(results, case):
    return [row for row in results.diagnoses if row.case == case]


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
def test_faults_in_two_layers_and_in_code(shared):
    done, results = shared
    assert done.returncode == 1, done.stdout
    rows = diagnoses(results, "faults")
    found = {row.evidence["place"]: row for row in rows}
    assert found["layer norm"].title == "layer norm: eps is 1e-05 in ours and 0.001 in theirs"
    assert found["layer act"].title == "layer act: its class is GELU in ours and silu in theirs"
    expression = found["the code of attention"].evidence["expression"]
    assert expression.endswith(", where ours has q @ transpose(k, -1, -2) / 2.828427125"), expression
    assert "once fixed, the difference at the output is rounding" in done.stdout
    assert sum(row.evidence["share"] for row in rows) == pytest.approx(1, abs=1e-3)


@pytest.mark.process
@pytest.mark.frameworks
def test_an_activation_of_a_layer_is_a_layer(shared):
    done, results = shared
    (row,) = diagnoses(results, "activation")
    assert (row.id, row.evidence["place"]) == ("activation-form", "the code of head_activation"), done.stdout
    assert "tanh" in row.evidence["expression"]


@pytest.mark.process
@pytest.mark.frameworks
@pytest.mark.exhaustive
def test_other_backends_of_keras(tmp_path):
    config = config_of_cases(tmp_path, {"net": (TWO, PORT, OPTIONS)}, adapter="keras", mode="torch", name="keras-torch")
    plan = json.loads(config.read_text())
    plan["backends"].append({**plan["backends"][1], "mode": "jax", "name": "keras-jax"})
    config.write_text(json.dumps(plan))
    done = call("run", config, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stdout
    assert "keras-jax computes no gradients, so none are compared" in done.stdout
    compared = {(row.actual, row.tensor.startswith("grad.")) for row in read_results(tmp_path / "out").comparisons}
    assert compared == {("keras-torch", False), ("keras-torch", True), ("keras-jax", False)}


@pytest.mark.process
@pytest.mark.frameworks
def test_other_dtypes(shared):
    rows = [row for row in shared[1].comparisons if row.case == "dtypes"]
    assert {row.verdict for row in rows} <= {"equal", "close"}
    errors = {row.dtype: row.max_abs_diff for row in rows if row.tensor == "output"}
    assert errors["float64"] < 1e-12 < errors["bfloat16"]


@pytest.mark.process
@pytest.mark.frameworks
def test_a_model_that_was_never_called_is_told(shared):
    rows = [row for row in shared[1].outcomes if row.case == "uncalled" and row.backend == "theirs"]
    assert [row.message for row in rows] == [
        "theirs.py: build_model must call the model once: the model has no weights yet"
    ]


@pytest.mark.process
@pytest.mark.frameworks
def test_images_that_are_padded_before_a_layer_are_compared_in_step(shared):
    found = {row.evidence["place"]: row for row in diagnoses(shared[1], "images")}
    assert list(found) == ["layer pool", "the code of the model"]
    assert "its class is MaxPool2d in ours and AveragePooling2D in theirs" in found["layer pool"].title
    said = found["the code of the model"].evidence["expression"]
    assert said == "head gets max(avg, [1, 2]), where ours gives it mean(avg, [2, 3])"
