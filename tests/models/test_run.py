"""Cases of `kind: model` with the real wheels."""

import subprocess
import sys

import pytest

from parity.reporting.results.results import read_results
from tests.conftest import CONFIGS, call
from tests.models.ports import TWO, config_of

CASE = "id: net, kind: model, targets: [labels], loss: loss, metric: accuracy"


def run_case(folder, ports, case=CASE, *more):
    done = call("run", config_of(folder, ports, case), "--out", folder / "out", *more)
    return done, read_results(folder / "out") if (folder / "out").exists() else None


def found(results):
    return {row.evidence["place"]: row for row in results.diagnoses}


def test_the_shipped_encoder_is_aligned_in_torch_and_paddle(tmp_path):
    done = call("run", CONFIGS / "models" / "encoder.yaml", "--out", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "aligned with torch; the difference at the output is rounding" in done.stdout
    results = read_results(tmp_path)
    assert {row.verdict for row in results.comparisons} <= {"equal", "close"}
    compared = {row.tensor for row in results.comparisons}
    assert {"output", "loss", "metric.accuracy", "grad.encoder.1.attention.query.weight"} <= compared
    assert (
        "encoder.0.up.weight: {axes: [1, 0], from: encoder.0.up.weight}"
        in next(tmp_path.rglob("mapping.yaml")).read_text()
    )


@pytest.fixture(scope="module")
def two_faults(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two-faults")
    wrong = TWO.replace("nn.LayerNorm(8)", "nn.LayerNorm(8, eps=1e-2)").replace(" / 8**0.5", "")
    outputs = ["--markdown", folder / "report.md", "--junit-xml", folder / "junit.xml"]
    return folder, *run_case(folder, {"ours": TWO, "theirs": wrong}, CASE, *outputs)


def test_a_fault_does_not_hide_another_behind_it(two_faults):
    _, done, results = two_faults
    assert done.returncode == 1
    layer, code = found(results)["layer norm"], found(results)["the code of attention"]
    assert layer.id == "layer-options"
    assert layer.title == "layer norm: eps is 1e-05 in ours and 0.01 in theirs"
    assert layer.evidence["verified"] is True
    assert (code.id, code.explained) == ("layer-code", True)
    assert (
        code.evidence["expression"]
        == "scores = q @ transpose(k, -1, -2), where ours has q @ transpose(k, -1, -2) / 2.828427125"
    )
    assert layer.evidence["share"] + code.evidence["share"] == pytest.approx(1, abs=1e-4)
    assert code.evidence["left"] < 8


def test_every_format_has_the_answer(two_faults):
    folder, done, _ = two_faults
    texts = [done.stdout, *((folder / name).read_text() for name in ("report.md", "junit.xml", "out/report.html"))]
    for text in texts:
        assert "eps is 1e-05 in ours and 0.01 in theirs" in text
    assert "with that mended, the difference at the output is rounding" in done.stdout
    explained = call("explain", folder / "out", "net")
    assert "layer norm" in explained.stdout
    assert explained.returncode == 0, explained.stderr


def test_a_script_shows_the_layer_alone(two_faults):
    _, _, results = two_faults
    script = found(results)["layer norm"].evidence["script"]
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    value, exact = (float(word) for word in done.stdout.split("theirs: ")[1].split(" at ")[0].split(" exact: "))
    assert abs(value - exact) > 1e-3


def test_weights_of_their_own_that_were_not_moved(tmp_path):
    seeded = TWO.replace("    return Net()", "    torch.manual_seed(0)\n    return Net()")
    wrong = seeded.replace(
        "    return Net()",
        "    net = Net()\n    net.attention.v.weight.data = net.attention.v.weight.data.T.clone()\n    return net",
    )
    # Called as a function: with the right weights nothing differs, so this is no cause.
    wrong = wrong.replace("self.norm(x)", "nn.functional.layer_norm(x, (8,), self.norm.weight, self.norm.bias)")
    _, results = run_case(tmp_path, {"ours": seeded, "theirs": wrong}, f"{CASE}, weights: own")
    (row,) = results.diagnoses
    assert (row.id, row.title) == ("weights-differ", "attention.v.weight: ours's transposed")
    assert row.evidence["share"] == pytest.approx(1)
    assert "weights.attention.v.weight" in row.tensors
    (own,) = (one for one in results.comparisons if one.tensor.startswith("weights."))
    assert (own.tensor, own.verdict, own.culprit) == ("weights.attention.v.weight", "semantic", ["theirs"])
    assert own.n_mismatched == 56  # all but the diagonal of 8 by 8
    assert own.max_abs_diff > 0.01


def test_weights_that_kept_their_first_value(tmp_path):
    moved = "    net = Net()\n    nn.init.uniform_(net.norm.weight, 0.9, 1.1)\n    return net"
    seeded = TWO.replace("    return Net()", "    torch.manual_seed(0)\n    return Net()")
    learnt = seeded.replace("    return Net()", moved)
    _, results = run_case(tmp_path, {"ours": learnt, "theirs": seeded}, f"{CASE}, weights: own")
    assert "norm.weight: all 1: it was not loaded from ours's" in {row.title for row in results.diagnoses}


def test_layers_that_commute_are_no_difference(tmp_path):
    pooled = TWO.replace("self.act = nn.GELU()", "self.act = nn.ReLU()\n        self.pool = nn.MaxPool1d(3, 1, 1)")
    first = pooled.replace(
        "self.act(x + self.attention(self.norm(x)))", "self.pool(self.act(x + self.attention(self.norm(x))))"
    )
    later = pooled.replace(
        "self.act(x + self.attention(self.norm(x)))", "self.act(self.pool(x + self.attention(self.norm(x))))"
    )
    done, results = run_case(tmp_path, {"ours": first, "theirs": later})
    assert done.returncode == 0, done.stdout
    assert not results.diagnoses


def test_a_loss_with_another_option(tmp_path):
    wrong = TWO.replace('batch["labels"])\n', 'batch["labels"], label_smoothing=0.1)\n', 1)
    _, results = run_case(tmp_path, {"ours": TWO, "theirs": wrong})
    (row,) = results.diagnoses
    assert (row.id, row.evidence["place"]) == ("label-smoothing", "the loss")
    assert row.evidence["shares"]["loss"] == pytest.approx(1)


def test_what_a_port_lacks_is_told_before_anything_runs(tmp_path):
    ports = {
        "ours": TWO,
        "other": TWO.replace("nn.Linear(8, 3)", "nn.Linear(8, 4)"),
        "without": TWO.replace("def build_model", "def build_modell"),
    }
    done, results = run_case(tmp_path, ports)
    said = {row.backend: row.message for row in results.outcomes}
    assert done.returncode == 3
    assert "head.weight [4, 8] cannot be made of head.weight [3, 8]" in said["other"] or "no partner" in said["other"]
    assert said["without"] == "without.py: it has no function build_model; did you mean build_modell?"


FAILING = {
    "nan": (TWO.replace("self.head(self.act", "float('nan') * self.head(self.act"), "output: no exact value is finite"),
    "random": (TWO.replace("self.head(self.act", "torch.rand(3) + self.head(self.act"), "the model is random"),
    "crash": (TWO + "\nimport os\nmake_batch = lambda: os._exit(3)\n", "exited with status 3"),
}


@pytest.mark.parametrize("name", FAILING)
def test_a_case_without_a_result_does_not_pass_beside_one_that_has_it(tmp_path, name):
    (tmp_path / "first").mkdir()
    config = config_of(tmp_path / "first", {"ours": TWO, "theirs": TWO}, "id: good, kind: model, targets: [labels]")
    text, message = FAILING[name]
    second = {f"{n}_{name}": text for n in ("ours", "theirs")}
    (tmp_path / "second").mkdir()
    other = config_of(tmp_path / "second", second, "id: bad, kind: model, targets: [labels]")
    done = call("run", config, other, "--out", tmp_path / "out")
    assert done.returncode == 3, done.stdout
    assert {(row.case, row.verdict) for row in read_results(tmp_path / "out").comparisons} >= {
        ("good", "equal"),
        ("bad", "not-compared"),
    }
    assert message in done.stdout


def test_a_healthy_port_is_no_error_in_junit(tmp_path):
    config = config_of(tmp_path, {"ours": TWO, "theirs": TWO}, "id: net, kind: model, targets: [labels]")
    done = call("run", config, "--out", tmp_path / "out", "--junit-xml", tmp_path / "junit.xml")
    assert done.returncode == 0, done.stdout
    assert 'errors="0"' in (tmp_path / "junit.xml").read_text()


def test_a_target_that_the_batch_lacks_is_told(tmp_path):
    config = config_of(tmp_path, {"ours": TWO, "theirs": TWO}, "id: net, kind: model, targets: [label]")
    assert (
        "targets: the batch has no 'label'; it has labels, x" in call("run", config, "--out", tmp_path / "out").stdout
    )


LISTED = TWO.replace(
    "self.attention = Attention()", "self.parts = nn.ModuleList([Attention()])\n        self.attention = self.parts[0]"
)
IMAGES = """
import numpy as np
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.pool = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.MaxPool2d(3, 2)
        self.second, self.head = nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4, 3)

    def forward(self, x):
        x = self.pool(self.norm(self.conv(x)))
        return self.head(torch.relu(self.second(x)).mean((2, 3)))


def build_model():
    return Net()


def make_batch():
    rng = np.random.default_rng(0)
    return {"x": rng.normal(size=(3, 2, 8, 8)).astype(np.float32), "labels": np.array([1, -100, 2])}


def loss(output, batch):
    return nn.functional.cross_entropy(output, batch["labels"])
"""
DIFFERENT = {
    "a layer that returns another size": (
        IMAGES,
        IMAGES.replace("nn.MaxPool2d(3, 2)", "nn.MaxPool2d(3, 2, ceil_mode=True)"),
        "layer pool",
        "ceil_mode is False in ours and True in theirs",
    ),
    "a loss with marks below 0": (
        IMAGES,
        IMAGES.replace('batch["labels"])\n', 'batch["labels"], reduction="sum") / 3\n'),
        "the loss",
        "",
    ),
    "code around a list of layers": (
        LISTED,
        LISTED.replace(".mean(1))", "[:, 0])"),
        "the code of the model",
        "head gets act[:, 0], where ours gives it mean(act, 1)",
    ),
    "a gradient that is doubled": (
        TWO,
        TWO.replace(
            "x + self.attention(self.norm(x))",
            "x + (lambda y: 2 * y - y.detach())(self.attention(self.norm(x)))",
        ),
        "the code of the model",
        "passes back another gradient: the gradient of attention.v.bias, attention.v.weight",
    ),
    "a layer that is called for another": (
        TWO.replace("self.act = nn.GELU()", "self.act, self.last = nn.GELU(), nn.LayerNorm(8)").replace(
            "self.act(x +", "self.last(x +"
        ),
        TWO.replace("self.act = nn.GELU()", "self.act, self.last = nn.GELU(), nn.LayerNorm(8)").replace(
            "self.act(x +", "self.norm(x +"
        ),
        "the code of the model",
        "calls norm twice, ours once; calls last not at all, ours once",
    ),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_differs_is_named_where_it_is(tmp_path, name):
    ours, theirs, place, words = DIFFERENT[name]
    done, results = run_case(
        tmp_path, {"ours": ours, "theirs": theirs}, "id: net, kind: model, targets: [labels], loss: loss"
    )
    assert done.returncode == 1, done.stdout + done.stderr
    row = found(results)[place]
    assert words in f"{row.title}: {row.evidence.get('expression')}"
    assert list(found(results)) == [place]


def test_rows_of_a_weight_that_are_shifted(tmp_path):
    seeded = IMAGES.replace("    return Net()", "    torch.manual_seed(0)\n    return Net()")
    wrong = seeded.replace(
        "    return Net()",
        "    net = Net()\n    net.head.weight.data = net.head.weight.data.roll(1, 1)\n    return net",
    )
    done, results = run_case(
        tmp_path, {"ours": seeded, "theirs": wrong}, "id: net, kind: model, targets: [labels], weights: own"
    )
    (row,) = results.diagnoses
    assert row.title == "head.weight: ours's shifted by 1 along axis 1", done.stdout
