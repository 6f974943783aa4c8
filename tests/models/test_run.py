"""Cases of `kind: model` with the real wheels."""

import re
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET

import psutil
import pytest
from msgspec.structs import replace

from parity.reporting.results.results import read_results
from tests.conftest import CONFIGS, call, ended, started, waited_for
from tests.models.ports import TWO, config_of, config_of_cases

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


def seeded(text, *changes):
    """A model whose weights are always the same, changed by some lines."""
    return text.replace(
        "    return Net()", "\n".join(["    torch.manual_seed(0)", "    net = Net()", *changes, "    return net"])
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
    "size": (
        IMAGES,
        IMAGES.replace("nn.MaxPool2d(3, 2)", "nn.MaxPool2d(3, 2, ceil_mode=True)"),
        "layer pool",
        "ceil_mode is False in ours and True in theirs",
    ),
    "marks": (
        IMAGES,
        IMAGES.replace('batch["labels"])\n', 'batch["labels"], reduction="sum") / 3\n'),
        "the loss",
        "",
    ),
    "listed": (
        LISTED,
        LISTED.replace(".mean(1))", "[:, 0])"),
        "the code of the model",
        "head gets act[:, 0], where ours gives it mean(act, 1)",
    ),
    "doubled": (
        TWO,
        TWO.replace(
            "x + self.attention(self.norm(x))",
            "x + (lambda y: 2 * y - y.detach())(self.attention(self.norm(x)))",
        ),
        "the code of the model",
        "passes back a wrong gradient: the gradient of attention.v.bias, attention.v.weight",
    ),
    "called": (
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


FORWARD = "    def forward(self, x):\n        return self.head"
HELD = "import time\nfrom pathlib import Path\n\nHERE = Path(__file__).parent\n" + TWO.replace(
    FORWARD,
    FORWARD.replace(
        "        return",
        """        while (HERE / "hold").exists():
            (HERE / "held").touch()
            time.sleep(0.01)
        return""",
    ),
).replace("nn.LayerNorm(8)", "nn.LayerNorm(8, eps=1e-2)")
"""Another eps; it waits as long as there is a file `hold`."""
POOLED = TWO.replace("self.act = nn.GELU()", "self.act = nn.ReLU()\n        self.pool = nn.MaxPool1d(3, 1, 1)")
ACT = "self.act(x + self.attention(self.norm(x)))"
LOSS = {"targets": ["labels"], "loss": "loss"}
FULL = {**LOSS, "metric": "accuracy"}
CASES = {
    "two": (TWO, TWO.replace("nn.LayerNorm(8)", "nn.LayerNorm(8, eps=1e-2)").replace(" / 8**0.5", ""), FULL),
    **{name: (*texts, LOSS) for name, (*texts, _, _) in DIFFERENT.items()},
    "transposed": (
        seeded(TWO),
        # A layer called as a function: with the right weights nothing differs, so this is no cause.
        seeded(TWO, "    net.attention.v.weight.data = net.attention.v.weight.data.T.clone()").replace(
            "self.norm(x)", "nn.functional.layer_norm(x, (8,), self.norm.weight, self.norm.bias)"
        ),
        {**FULL, "weights": "own"},
    ),
    "unloaded": (
        seeded(TWO, "    nn.init.uniform_(net.norm.weight, 0.9, 1.1)"), seeded(TWO), {**FULL, "weights": "own"},
    ),
    "shifted": (
        seeded(IMAGES), seeded(IMAGES, "    net.head.weight.data = net.head.weight.data.roll(1, 1)"),
        {"targets": ["labels"], "weights": "own"},
    ),
    "commuting": (
        POOLED.replace(ACT, "self.pool(self.act(x + self.attention(self.norm(x))))"),
        POOLED.replace(ACT, "self.act(self.pool(x + self.attention(self.norm(x))))"),
        FULL,
    ),
    "smoothed": (TWO, TWO.replace('batch["labels"])\n', 'batch["labels"], label_smoothing=0.1)\n', 1), FULL),
    "healthy": (TWO, TWO, {"targets": ["labels"]}),
    "held": (TWO, HELD, {"targets": ["labels"]}),
    "nan": (*[TWO.replace("self.head(self.act", "float('nan') * self.head(self.act")] * 2, {"targets": ["labels"]}),
    "random": (*[TWO.replace("self.head(self.act", "torch.rand(3) + self.head(self.act")] * 2, {"targets": ["labels"]}),
    "mistyped": (TWO, TWO, {"targets": ["label"]}),
    "wider": (TWO, TWO.replace("nn.Linear(8, 3)", "nn.Linear(8, 4)"), FULL),
    "double": (TWO, TWO.replace(".mean(1))", ".mean(1)).double()"), {"targets": ["labels"]}),
    "zeros": (*[TWO.replace(".mean(1))", ".mean(1)) * 0")] * 2, {"targets": ["labels"]}),
    "unbuilt": (TWO, TWO.replace("def build_model", "def build_modell"), FULL),
    "crash": (*[TWO + "\nimport os\nmake_batch = lambda: os._exit(3)\n"] * 2, {"targets": ["labels"]}),
}  # fmt: skip


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shared")
    outputs = ["--markdown", folder / "report.md", "--junit-xml", folder / "junit.xml"]
    done = call("run", config_of_cases(folder, CASES), "--out", folder / "out", *outputs)
    return folder, done, read_results(folder / "out")


def diagnoses(results, case):
    return [row for row in results.diagnoses if row.case == case]


def places(results, case):
    return {row.evidence["place"]: row for row in diagnoses(results, case)}


def test_a_fault_does_not_hide_another_behind_it(shared):
    _, done, results = shared
    assert done.returncode == 1
    layer, code = places(results, "two")["layer norm"], places(results, "two")["the code of attention"]
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


def of_cases(folder, names):
    """The rows of these cases, without times and their folders."""
    results = read_results(folder)
    outcomes = [replace(row, seconds=0.0) for row in results.outcomes]
    rows = [row for row in (*outcomes, *results.comparisons, *results.diagnoses) if row.case in names]
    return sorted(re.sub(rf"{folder}/tensors/\d+", "", repr(row)) for row in rows)


def test_a_run_that_is_terminated_goes_on_to_the_same_rows(shared):
    folder, out = shared[0], shared[0] / "cut"
    options = (folder / "cases.yaml", "-k", "healthy or held", "--out", out)
    (folder / "hold").touch()
    with started("run", *options) as running:
        waited_for(lambda: running.poll() is not None or (folder / "held").exists())
        workers = psutil.Process(running.pid).children(recursive=True)
        running.send_signal(signal.SIGTERM)
        _, said = running.communicate()
    (folder / "hold").unlink()
    assert running.returncode == 130, said
    assert "Traceback" not in said
    assert workers
    assert all(map(ended, workers))
    assert of_cases(out, ("healthy", "held")) == of_cases(folder / "out", ("healthy",))
    assert call("run", *options, "--resume").returncode == 1
    assert of_cases(out, ("healthy", "held")) == of_cases(folder / "out", ("healthy", "held"))


def test_outputs_of_another_dtype_do_not_agree(shared):
    _, _, results = shared
    (row,) = (row for row in results.comparisons if row.case == "double" and row.tensor == "output")
    assert (row.verdict, row.culprit) == ("structure", ("theirs",))
    assert row.message == "theirs returns float64, ours float32"


def test_outputs_of_zeros_are_a_suspect_pass(shared):
    _, _, results = shared
    (row,) = (row for row in results.comparisons if row.case == "zeros" and row.tensor == "output")
    assert row.suspect
    assert row.verdict in ("equal", "close")


def test_every_format_has_the_answer(shared):
    folder, done, _ = shared
    texts = [done.stdout, *((folder / name).read_text() for name in ("report.md", "junit.xml", "out/report.html"))]
    for text in texts:
        assert "eps is 1e-05 in ours and 0.01 in theirs" in text
    assert "once fixed, the difference at the output is rounding" in done.stdout
    explained = call("explain", folder / "out", "two")
    assert "layer norm" in explained.stdout
    assert explained.returncode == 0, explained.stderr


def test_a_script_shows_the_layer_alone(shared):
    script = places(shared[2], "two")["layer norm"].evidence["script"]
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    value, exact = (float(word) for word in done.stdout.split("theirs: ")[1].split(" at ")[0].split(" exact: "))
    assert abs(value - exact) > 1e-3


def test_weights_of_their_own_that_were_not_moved(shared):
    _, _, results = shared
    (row,) = diagnoses(results, "transposed")
    assert (row.id, row.title) == ("weights-differ", "attention.v.weight: ours's transposed")
    assert row.evidence["share"] == pytest.approx(1)
    assert "weights.attention.v.weight" in row.tensors
    (own,) = (one for one in results.comparisons if one.case == "transposed" and one.tensor.startswith("weights."))
    assert (own.tensor, own.verdict, own.culprit) == ("weights.attention.v.weight", "semantic", ("theirs",))
    assert own.n_mismatched == 56  # all but the diagonal of 8 by 8
    assert own.max_abs_diff > 0.01


def test_weights_that_kept_their_first_value(shared):
    titles = {row.title for row in diagnoses(shared[2], "unloaded")}
    assert "norm.weight: all 1: it was not loaded from ours's" in titles


def test_rows_of_a_weight_that_are_shifted(shared):
    (row,) = diagnoses(shared[2], "shifted")
    assert row.title == "head.weight: ours's shifted by 1 along axis 1"


def test_layers_that_commute_are_no_difference(shared):
    _, _, results = shared
    assert {row.outcome for row in results.outcomes if row.case == "commuting"} == {"ok"}
    assert {row.verdict for row in results.comparisons if row.case == "commuting"} <= {"equal", "close"}
    assert not diagnoses(results, "commuting")


def test_a_loss_with_another_option(shared):
    (row,) = diagnoses(shared[2], "smoothed")
    assert (row.id, row.evidence["place"]) == ("label-smoothing", "the loss")
    assert row.evidence["shares"]["loss"] == pytest.approx(1)


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_differs_is_named_where_it_is(shared, name):
    _, done, results = shared
    *_, place, words = DIFFERENT[name]
    assert done.returncode == 1, done.stdout + done.stderr
    (row,) = diagnoses(results, name)
    assert row.evidence["place"] == place
    assert words in f"{row.title}: {row.evidence.get('expression')}"


def test_what_a_port_lacks_is_told(shared):
    said = {row.case: row.message for row in shared[2].outcomes if row.backend == "theirs"}
    assert "head.weight [4, 8] cannot be made of head.weight [3, 8]" in said["wider"] or "no partner" in said["wider"]
    assert said["unbuilt"] == ("theirs.py: it has no function build_model_unbuilt; did you mean build_modell_unbuilt?")


def test_a_healthy_port_is_no_error_in_junit(shared):
    folder, _, results = shared
    assert {row.verdict for row in results.comparisons if row.case == "healthy"} == {"equal"}
    cases = [one for one in ET.parse(folder / "junit.xml").iter("testcase") if "healthy" in str(one.attrib)]
    assert cases
    assert not [part for one in cases for part in one if part.tag in ("error", "failure")]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nan", "output: no exact value is finite"),
        ("random", "the model is random"),
        ("mistyped", "targets: the batch has no 'label'; it has labels, x"),
        ("crash", "exited with status 3"),
    ],
)
def test_a_case_without_a_result_is_not_compared(shared, name, message):
    _, done, results = shared
    assert (name, "not-compared") in {(row.case, row.verdict) for row in results.comparisons}
    assert message in done.stdout


def test_a_case_without_a_result_does_not_pass_beside_one_that_has_it(tmp_path):
    cases = {name: CASES[name] for name in ("healthy", "nan")}
    assert call("run", config_of_cases(tmp_path, cases), "--out", tmp_path / "out").returncode == 3
