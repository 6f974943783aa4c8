"""`parity accept`, from a run over the config to the run that passes."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.conftest import FAKES, call, user_config

OPS = """from parity.adapters.base import Unsupported

def layer_norm(x, weight, bias, normalized_shape, eps):
    if x.shape[-1] == 5:
        raise Unsupported("no such kernel")
    if x.shape[-1] == 4:
        raise RuntimeError("it broke")
    mean = x.mean(-1, keepdims=True)
    d = x - mean
    var = (d * d).mean(-1, keepdims=True)
    return GAIN * (d / (var + eps) ** 0.5 * weight + bias)

def relu(x):
    return FLOOR + x * (x > 0)
"""
CASES = """# ours
version: 1
backends: [numpy, {name: mine, adapter: numpy, ops: ./ops.py}]  # two
cases:
  - {op: layer_norm, gradients: false, params: {normalized_shape: [8]}, inputs: {x: {shape: [4, 8]}}, sweep: {params.eps: [0.1, 0.2]}}
  - {id: other, op: relu, gradients: false, inputs: {x: {shape: [9], uniform: {low: 1, high: 2}}}}
"""
NO_KERNEL = (
    "  - {id: five, op: layer_norm, gradients: false, params: {normalized_shape: [5]}, inputs: {x: {shape: [4, 5]}}}\n"
)
BREAKS = NO_KERNEL.replace("five", "four").replace("5", "4")
SOON = (datetime.date.today() + datetime.timedelta(30)).isoformat()


LINEAR = """import numpy as np

def linear(x, weight, bias):
    y = x @ weight.T + bias
    return OUTPUT

def linear_backward(grad_y, x, weight, bias):
    return GRADIENTS(single=x.dtype == "float32", x=grad_y @ weight, weight=grad_y.T @ x, bias=grad_y.sum(0))
"""
LINEAR_CASE = """version: 1
backends: [numpy, {name: mine, adapter: numpy, ops: ./ops.py}]
cases:
  - {id: a, op: linear, inputs: {x: {shape: [4, 8]}, weight: {shape: [5, 8]}}}
"""
RIGHT = "lambda single, x, weight, bias: {'x': x, 'weight': weight, 'bias': bias}"
WRONG = "lambda single, x, weight, bias: {'x': X * x, 'weight': W * weight, 'bias': B * bias} if single else RIGHT"


def gradients(x=1, weight=1, bias=1):
    """Gradients that are wrong by these factors, in float32 only."""
    rest = RIGHT.partition(": ")[2]
    factors = {"X": x, "W": weight, "B": bias, "RIGHT": rest}
    text = WRONG
    for name, value in factors.items():
        text = text.replace(name, str(value))
    return text


@dataclass(frozen=True)
class Work:
    """A folder with a config and its ops; `run` and `accept` give the exit code and the output."""

    folder: Path

    @property
    def config(self):
        return self.folder / "mine.yaml"

    def write(self, cases=CASES, gain="1.5", floor="0"):
        self.config.write_text(cases)
        (self.folder / "ops.py").write_text(OPS.replace("GAIN", gain).replace("FLOOR", floor))

    def write_linear(self, output, backward=RIGHT):
        ops = LINEAR.replace("OUTPUT", output).replace("GRADIENTS", f"({backward})")
        (self.folder / "ops.py").write_text(ops)

    def run(self, *more):
        return call("run", "mine.yaml", "--out", "run", *more, cwd=self.folder)

    def accept(self, *more):
        return call("accept", "run", *more, cwd=self.folder)

    @property
    def known(self):
        return yaml.safe_load(self.config.read_text()).get("known")


@pytest.fixture
def work(tmp_path):
    return Work(tmp_path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run with findings; nothing in it may be changed."""
    work = Work(tmp_path_factory.mktemp("finished"))
    work.write()
    work.run()
    return work


def test_a_run_passes_once_its_findings_are_accepted(work):
    work.write(floor="1")
    assert work.run().returncode == 1
    done = work.accept("--reason", "as agreed", "--until", SOON)
    assert done.returncode == 0
    assert done.stdout.startswith("mine.yaml: 4 entries added\n  - {case: ")
    assert work.config.read_text().startswith(CASES)
    dtypes = ("float32", "float64")
    by_case = {(entry["case"], entry["dtype"]): entry for entry in work.known}
    assert list(by_case) == [(case, dtype) for case in ("layer_norm-4x8-eps=*", "other") for dtype in dtypes]
    assert {entry["reason"] for entry in work.known} == {"as agreed"}
    assert {str(entry["until"]) for entry in work.known} == {SOON}
    small, large = (by_case["layer_norm-4x8-eps=*", dtype] for dtype in dtypes)
    assert (small["diagnosis"], small["tensor"]) == (large["diagnosis"], large["tensor"]) == ("scaled", "y")
    assert small["error_ratio"] < 1e8 < large["error_ratio"]
    again = work.run()
    assert again.returncode == 0, again.stdout
    assert work.accept("--reason", "again").stdout == "nothing to accept\n"


def test_an_entry_that_cannot_be_limited_any_more_is_replaced(work):
    work.config.write_text(LINEAR_CASE)
    work.write_linear("y")
    work.config.write_text(f"{LINEAR_CASE}known:\n  - {{case: a, backend: mine, error_ratio: 9, reason: all of it}}\n")
    work.write_linear("np.concatenate([y[:1] + np.nan, y[1:]])", gradients(weight=3))
    assert work.run().returncode == 1
    assert "1 entry dropped" in work.accept("--reason", "as agreed").stdout
    assert {(entry["tensor"], "error_ratio" in entry) for entry in work.known} == {("y", False), ("grad.weight", True)}
    assert work.run().returncode == 0


ONE_ROW = "np.concatenate([1.02 * y[:1], y[1:]])"


@pytest.mark.parametrize(
    ("accepted", "output", "backward"),
    [
        ("y + 0.3 * np.sin(7 * y**2) * np.cos(y)", "(-100 if x.dtype == 'float32' else 1) * y", gradients(-1, 7, 9)),
        ("y + 0.3 * np.sin(7 * y**2) * np.cos(y)", "y + 9 * (x.dtype == 'float32') * np.sin(7 * y**2)", RIGHT),
        ("1.02 * y", "y", gradients(bias=5, weight=3)),
        ("1.02 * y", "(900 if x.dtype == 'float32' else 1.02) * y", RIGHT),
        (ONE_ROW, "y", gradients(bias=5, weight=3)),
        (ONE_ROW, ONE_ROW, gradients(x=-1)),
        ("y + 0 * np.log(-1 - y**2)", "y + 0 * np.log(-1 - y**2)", gradients(weight=3)),
    ],
)
def test_what_was_accepted_hides_no_other_fault(work, accepted, output, backward):
    work.config.write_text(LINEAR_CASE)
    work.write_linear(accepted)
    assert work.run().returncode == 1
    assert work.accept("--reason", "as agreed").returncode == 0
    assert {(entry["tensor"], "diagnosis" in entry) for entry in work.known} == {("y", True)}
    again = work.run()
    assert again.returncode == 0, again.stdout
    work.write_linear(output, backward)
    changed = work.run()
    assert changed.returncode == 1, changed.stdout


def test_a_case_a_backend_a_dtype_or_a_cause_alone_is_accepted_and_the_rest_is_told(work):
    work.write(floor="1")
    work.run()
    done = work.accept("other", "--reason", "r", "--dtype", "float64", "-b", "mine")
    assert [(entry["case"], entry["dtype"]) for entry in work.known] == [("other", "float64")]
    assert "remaining: 5 tensors still differ" in done.stdout
    work.accept("--reason", "r", "--diagnosis", "scaled")
    assert [entry["case"] for entry in work.known] == ["other", "layer_norm-4x8-eps=*", "layer_norm-4x8-eps=*"]
    work.accept("--reason", "r")
    assert [entry["dtype"] for entry in work.known] == ["float64", "float32", "float64", "float32"]
    assert work.run().returncode == 0


def test_a_dry_run_shows_a_patch_and_writes_nothing(finished):
    done = finished.accept("--reason", "r", "--dry-run")
    assert done.stdout.startswith("--- mine.yaml\n+++ mine.yaml\n@@")
    assert (
        '+  - {case: "layer_norm-4x8-eps=*", backend: mine, dtype: float32, tensor: "y", diagnosis: scaled'
        in done.stdout
    )
    assert finished.config.read_text() == CASES


def test_what_is_unsupported_is_accepted_when_asked_and_an_error_never(work):
    work.write(CASES + NO_KERNEL, gain="1")
    assert work.run().returncode == 3
    assert "remaining: 2 tensors unsupported; --unsupported accepts them" in work.accept("--reason", "r").stdout
    assert work.known is None
    assert work.accept("--unsupported").returncode == 0
    (entry,) = work.known
    assert (entry["case"], entry["outcome"], entry["reason"]) == ("five", "unsupported", "no such kernel")
    assert work.run().returncode == 0
    work.write(CASES + BREAKS, gain="1")
    assert work.run().returncode == 3
    done = work.accept("--unsupported", "--reason", "r")
    assert done.stdout.startswith(
        "nothing to accept\nremaining: 2 tensors not compared, which is never accepted (mine: error: "
    )


def test_what_no_longer_deviates_is_dropped_and_what_grew_is_renewed(work):
    work.write(gain="1", floor="1")
    work.run()
    work.accept("--reason", "r")
    ledger = work.config.read_text().replace("known:\n", "known:\n  # why\n")
    work.write(ledger)
    assert work.run().returncode == 1
    assert "remove the entry; --expired drops it" in work.accept("--unsupported").stdout
    done = work.accept("--expired")
    assert "2 entries dropped" in done.stdout
    assert work.known == []
    assert "  # why\n" in work.config.read_text()
    assert "remaining: 4 tensors still differ; --reason TEXT accepts them" in done.stdout
    work.accept("--reason", "r")
    before = work.known[0]
    work.write(work.config.read_text(), gain="7")
    assert work.run().returncode == 1
    assert "2 entries renewed" in work.accept("--reason", "it grew").stdout
    after = work.known[0]
    assert (after["case"], after["reason"]) == (before["case"], "it grew")
    assert after["error_ratio"] > 5 * before["error_ratio"]
    assert work.run().returncode == 0


def test_entries_go_into_the_config_that_was_named_and_not_into_its_includes(work):
    work.write()
    common = work.config.with_name("common.yaml")
    common.write_text(CASES)
    work.config.write_text("version: 1\ninclude: [common.yaml]\n")
    assert work.run().returncode == 1
    assert work.accept("--reason", "r").returncode == 0
    assert (len(work.known), common.read_text()) == (2, CASES)
    assert work.run().returncode == 0


def test_a_config_that_changed_is_refused_unless_it_still_fits(work):
    work.write()
    work.run()
    work.config.write_text(CASES.replace("# ours", "# still ours"))
    assert work.accept("--reason", "r", "--dry-run").returncode == 0
    work.config.write_text(CASES.replace("[4, 8]", "[5, 8]"))
    done = work.accept("--reason", "r")
    assert done.returncode == 2
    assert (
        "mine.yaml changed since the run: it has no case layer_norm-4x8-eps=0.1 any more; run it again" in done.stderr
    )
    work.config.write_text(CASES.replace("name: mine", "name: yours"))
    assert "it has no backend mine any more" in work.accept("--reason", "r").stderr
    work.config.write_text(CASES.replace("[9]", "[10]"))
    assert "its case other is another one" in work.accept("--reason", "r").stderr
    work.config.write_text("version: [")
    assert "the config has errors, so nothing was written" in work.accept("--reason", "r").stderr
    work.config.unlink()
    done = work.accept("--reason", "r")
    assert (done.returncode, "the config of this run, is not there" in done.stderr) == (2, True)


def test_a_config_that_cannot_be_written_is_named(work):
    work.write()
    work.run()
    work.config.chmod(0o444)
    done = work.accept("--reason", "r")
    assert (done.returncode, done.stderr) == (2, "mine.yaml is read-only; nothing was written\n")
    work.config.chmod(0o640)
    assert work.accept("--reason", "r").returncode == 0
    assert work.config.stat().st_mode & 0o777 == 0o640


def test_a_config_in_braces_is_left_alone_and_the_entries_are_printed(work):
    work.write()
    config = yaml.safe_load(CASES)
    work.config.write_text(yaml.safe_dump(config, default_flow_style=True))
    work.run()
    done = work.accept("--reason", "r")
    assert done.returncode == 2
    assert "paste these entries yourself\n  - {case: " in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "nothing to do: give"),
        (["--reason", " "], "a reason must be one line of text"),
        (["--reason", "WHY IS IT ACCEPTED?"], "a reason must be one line of text"),
        (["--reason", "r", "--until", "2020-01-01"], "2020-01-01 is not in the future"),
        (["--reason", "r", "--until", "soon"], '"soon" is not a date such as 2027-06-30'),
        (["no-such", "--reason", "r"], 'this run has no case "no-such"'),
        (["--reason", "r", "-b", "mime"], 'this run has no backend "mime"; did you mean "mine"?'),
        (["--reason", "r", "--dtype", "float16"], 'this run has no dtype "float16"'),
        (["--reason", "r", "--diagnosis", "scale"], 'this run has no diagnosis "scale"; did you mean "scaled"?'),
    ],
)
def test_mistakes_are_named_and_nothing_is_written(finished, arguments, said):
    done = finished.accept(*arguments)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    assert finished.config.read_text() == CASES


def test_what_is_no_run_is_named(tmp_path):
    for path in (tmp_path, tmp_path / "none"):
        done = call("accept", str(path), "--reason", "r")
        assert (done.returncode, "a run directory?" in done.stderr) == (2, True)


@pytest.mark.parametrize("fake", ["nan", "wrong_shape"])
def test_what_has_no_size_is_accepted_without_one(parity_run, fake):
    finished = parity_run(
        user_config(
            FAKES / f"{fake}.py",
            cases=[
                "{id: bad, op: layer_norm, gradients: false, params: {normalized_shape: [13]}, inputs: {x: {shape: [4, 13]}}}"
            ],
        )
    )
    assert finished.code == 1
    config = finished.results["run"]["configs"][0]["path"]
    assert call("accept", str(finished.run_dir), "--reason", "r").returncode == 0
    (entry,) = yaml.safe_load(Path(config).read_text())["known"]
    assert "error_ratio" not in entry
    assert call("run", config, "--out", str(finished.run_dir)).returncode == 0


TRAINING = """version: 1
backends: [numpy, {name: mine, adapter: numpy, ops: ops.py}]
dtypes: [float32]
cases:
  - id: tiny
    kind: train
    model: [{linear: {out_features: 3}}]
    data: {name: classification, features: [5], classes: 3, rows: 32}
    optimizer: {name: sgd, lr: 0.1}
    ensemble: {members: 2, of: baseline}
    batch_size: 8
    steps: 4
"""


def test_a_training_that_diverges_is_accepted(work):
    work.write(TRAINING)
    work.config.with_name("ops.py").write_text("def batch(step, rows):\n    return 0 * rows\n")
    done = work.run()
    assert done.returncode == 1, done.stdout + done.stderr
    done = work.accept("tiny", "--reason", "r")
    assert {entry["case"] for entry in work.known} == {"tiny"}
    again = work.run()
    assert again.returncode == 0, done.stdout + again.stdout
