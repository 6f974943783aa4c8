"""Where parity itself fails at a case, the run goes on, and every command reads what it leaves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parity import preflight
from parity.hunt import bench, hunt, search
from parity.judge import contained
from parity.judge.diagnose import inquiry
from parity.judge.failures import FAILED
from parity.models.pair import PortPair
from parity.training.judge.inquiry import StageInquiry
from parity.training.judge.judge import TrainingJudge
from tests.conftest import Finished, call, run_in, user_config
from tests.models.ports import TWO, config_of

pytestmark = pytest.mark.process

KERNEL = """
import numpy as np


def tanh(x):
    return np.tanh(x) * (1 + x.size % 7) + 0.01 * x ** 3


def tanh_backward(grad_y, x):
    return grad_y * (1 - np.tanh(x) ** 2)


relu = lambda x: np.maximum(x, 0)
relu_backward = lambda grad_y, x: grad_y * (x > 0)
"""
CASES = ["{id: wrong, op: tanh, inputs: {x: {shape: [3, 4]}}}", "{id: right, op: relu, inputs: {x: {shape: [3, 4]}}}"]
TRAINING = """
version: 1
backends: [torch, {name: faulty, adapter: torch, ops: ./layers.py}]
dtypes: [float32]
cases:
  - id: net
    kind: train
    model: [{linear: {out_features: 6}}, {activation: tanh}, {linear: {out_features: 2}}]
    data: {name: regression, features: [5], targets: 2, rows: 32}
    optimizer: {name: sgd, lr: 0.05}
    batch_size: 8
    steps: 4
  - {id: after, op: relu, inputs: {x: {shape: [3, 4]}}}
"""
LAYERS = "def tanh(x):\n    return 1.01 * x.tanh()\n"


def fails(*_: Any, **__: Any) -> Any:
    raise StopIteration("injected")


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Finished]:
    (tmp_path / "mine.py").write_text(KERNEL)
    return lambda *more: run_in(tmp_path, user_config(tmp_path / "mine.py", cases=CASES), *more)


def diagnosed(done: Finished) -> set[tuple[str, str]]:
    return {(row["case"], row["id"]) for row in done.results["diagnoses"]}


def test_an_explainer_that_fails_costs_its_answer(run: Callable[..., Finished], monkeypatch: pytest.MonkeyPatch):
    comparisons = run().results["comparisons"]
    for explainer in ("edit_causes", "fitted_causes", "formulas_of", "approximated", "search", "behaviours"):
        monkeypatch.setattr(inquiry, explainer, fails)
    done = run()
    assert done.code == 1
    assert ("wrong", FAILED) in diagnosed(done)
    assert done.results["comparisons"] == comparisons
    log = (done.run_dir / "log.txt").read_text()
    assert "parity failed in wrong float64 mine, trying edits of the reference\nTraceback" in log
    assert "parity failed searching the known causes" in call("explain", done.run_dir, "wrong", "-v").stdout


def test_a_case_that_cannot_be_judged_costs_that_case(run: Callable[..., Finished], monkeypatch: pytest.MonkeyPatch):
    consult = contained.consult_oracle
    broken = lambda case, inputs: fails() if case.id == "right" else consult(case, inputs)  # noqa: E731
    monkeypatch.setattr(contained, "consult_oracle", broken)
    done = run("-k", "right")
    assert done.code == 3
    assert diagnosed(done) == {("right", FAILED)}
    assert "warning: parity itself failed in right, computing the exact answer: StopIteration: injected" in done.stdout
    assert {row["outcome"] for row in done.results["outcomes"]} == {"ok"}
    assert done.select(case="right")
    both = run()
    assert both.code == 1
    assert both.failing(case="wrong")
    assert "StopIteration: injected" in (both.run_dir / "log.txt").read_text()


@pytest.mark.parametrize("command", ["explain", "html", "repro", "diff", "accept", "merge", "resume"])
def test_every_command_reads_such_a_run(
    command: str, run: Callable[..., Finished], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(contained.CaseJudge, "judged", fails)
    done = run()
    assert done.code == 3
    words: dict[str, list[Any]] = {
        "explain": ["explain", done.run_dir, "wrong", "-v"],
        "html": ["report", done.run_dir],
        "repro": ["repro", done.run_dir, "--all"],
        "diff": ["diff", done.run_dir, done.run_dir],
        "accept": ["accept", done.run_dir, "wrong", "--reason", "known"],
        "merge": ["merge", done.run_dir, "--out", tmp_path / "merged"],
        "resume": ["run", tmp_path / "config.yaml", "--out", done.run_dir, "--resume"],
    }
    again = call(*words[command], cwd=tmp_path)
    assert again.returncode in (0, 1, 2, 3)
    assert "Traceback" not in again.stdout + again.stderr


@pytest.mark.frameworks
@pytest.mark.parametrize(
    ("where", "name"), [(StageInquiry, "explained"), (TrainingJudge, "judged"), (TrainingJudge, "observe")]
)
def test_a_training_goes_on(where: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "layers.py").write_text(LAYERS)
    monkeypatch.setattr(where, name, fails)
    done = run_in(tmp_path, TRAINING)
    assert done.code == (1 if name == "explained" else 3)
    # The op alone still shows the cause.
    assert ("net", "scaled" if name == "explained" else FAILED) in diagnosed(done)
    assert done.select(case="after", verdict="equal")
    assert "StopIteration: injected" in (done.run_dir / "log.txt").read_text()
    assert "parity failed" in call("explain", done.run_dir, "net", "-v").stdout


@pytest.mark.frameworks
@pytest.mark.parametrize("name", ["_diagnose", "judged", "_measure"])
def test_a_model_goes_on(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(PortPair, name, fails)
    faulty = TWO.replace("nn.LayerNorm(8)", "nn.LayerNorm(8, eps=0.1)")
    config = config_of(tmp_path, {"torch": TWO, "other": faulty}, "id: net, kind: model, targets: [labels], loss: loss")
    done = call("run", config, "--out", tmp_path / "out")
    assert done.returncode == 1
    rows = json.loads((tmp_path / "out" / "results.json").read_text())
    assert rows["comparisons"]
    assert "StopIteration: injected" in (tmp_path / "out" / "log.txt").read_text()
    assert "parity failed" in call("explain", tmp_path / "out", "net", "-v").stdout


@pytest.mark.parametrize(
    ("where", "name", "found"), [(bench, "measured", False), (search, "trial_of", False), (search, "reduce_case", True)]
)
def test_a_hunt_goes_on_and_says_so(
    where: Any, name: str, found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "mine.py").write_text(KERNEL)
    monkeypatch.setattr(where, name, fails)
    limits = ("--trials", "20", "--minutes", "1" if found else "0.1")
    done = call("hunt", tmp_path / "mine.py", *limits, "--out", tmp_path / "hunt", cwd=tmp_path)
    assert done.returncode == (1 if found else 3), done.stdout + done.stderr
    assert f"parity: {FAILED} in " in done.stdout
    assert "StopIteration: injected" in (tmp_path / "hunt" / "log.txt").read_text()
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["prepare", "write_scripts"])
def test_a_finding_that_cannot_be_recorded_is_told(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "mine.py").write_text(KERNEL)
    monkeypatch.setattr(hunt, name, fails)
    done = call("hunt", tmp_path / "mine.py", "--trials", "20", "--out", tmp_path / "hunt", cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert "FOUND" in done.stdout
    shown = (tmp_path / "hunt" / "log.txt").read_text() if name == "prepare" else done.stdout
    assert "StopIteration: injected" in shown


STRANGE = """
import numpy as np

FORMS = {
    "masked": lambda y: np.ma.masked_array(y, mask=y > 1),
    "text": lambda y: y.astype(str),
    "dates": lambda y: np.zeros(y.shape, "datetime64[s]"),
    "complex": lambda y: y.astype(complex),
    "axes": lambda y: y.reshape(y.shape + (1,) * 40),
    "more": lambda y: {"y": y, **{f"z{i}": y for i in range(250)}},
    "list": lambda y: {"y": y, "z": [y] * 250},
    "reshaped": lambda y: y,
}


def tanh(x):
    y = np.tanh(x)
    form = list(FORMS)[x.shape[0] - 2]
    if form == "reshaped":
        x.shape = (x.size,)
    return FORMS[form](y)
"""


def test_a_strange_output_is_one_finding_about_who_returned_it(tmp_path: Path):
    (tmp_path / "mine.py").write_text(STRANGE)
    names = ("masked", "text", "dates", "complex", "axes", "more", "list", "reshaped")
    cases = [
        f"{{id: {name}, op: tanh, gradients: false, inputs: {{x: {{shape: [{n}, 4]}}}}}}"
        for n, name in enumerate(names, 2)
    ]
    done = run_in(tmp_path, user_config(tmp_path / "mine.py", cases=cases, backends=()), "--dtype", "float32")
    assert done.code == 1
    rows = [(row["case"], row["verdict"], row["culprit"]) for row in done.failing()]
    assert rows == [(name, "structure", ["mine"]) for name in names]
    assert FAILED not in {row["id"] for row in done.results["diagnoses"]}


LAZY = """
import numpy as np
import torch


def tanh(x):
    return torch.complex(torch.zeros_like(x), -x.tanh()).conj().imag


def sin(x):
    return x.sin().detach().numpy()


def cos(x):
    return x.cos().double()
"""


@pytest.mark.frameworks
def test_a_lazy_negative_has_its_values_and_an_array_is_no_tensor(tmp_path: Path):
    (tmp_path / "mine.py").write_text(LAZY)
    cases = [f"{{id: {op}, op: {op}, inputs: {{x: {{shape: [3, 4]}}}}}}" for op in ("tanh", "sin", "cos")]
    done = run_in(
        tmp_path, user_config(tmp_path / "mine.py", cases=cases, backends=(), adapter="torch"), "--dtype", "float32"
    )
    assert [(row["case"], row["tensor"], row["message"]) for row in done.failing()] == [
        ("sin", "y", "mine returns a numpy.ndarray for y, not a tensor"),
        ("cos", "y", "mine has dtype float64, oracle float32"),
    ]
    assert "y = nothing" not in done.stdout


def test_an_array_of_no_numbers_is_a_structure(tmp_path: Path):
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n\n\ndef sin(x):\n    return np.sin(x).astype(object)\n\n\n"
        "def cos(x):\n    return np.zeros(x.shape, [('a', float), ('b', int)])\n\n\n"
        "def tanh(x):\n    return np.tanh(x).astype(str)\n"
    )
    cases = [
        f"{{id: {op}, op: {op}, gradients: false, inputs: {{x: {{shape: [3, 4]}}}}}}" for op in ("sin", "cos", "tanh")
    ]
    done = run_in(tmp_path, user_config(tmp_path / "mine.py", cases=cases, backends=()), "--dtype", "float32")
    assert [(row["case"], row["message"].partition(",")[0]) for row in done.failing()] == [
        ("sin", "mine has dtype object"),
        ("cos", "mine has dtype void128"),
        ("tanh", "mine has dtype str1024"),
    ]


ROUNDED = """
import torch


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return torch.nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        gw = g.reshape(-1, g.shape[-1]).t() @ x.reshape(-1, x.shape[-1])
        return g @ weight, gw.bfloat16().to(gw.dtype), g.reshape(-1, g.shape[-1]).sum(0)


def linear(x, weight, bias=None):
    return Rounded.apply(x, weight, bias)
"""
LARGE_MODEL = """
version: 1
backends: [torch, {name: rounded, adapter: torch, ops: ./layers.py}]
dtypes: [float32]
cases:
  - id: net
    kind: train
    model: [{linear: {out_features: 256}}, {activation: relu}, {linear: {out_features: 256}}, {linear: {out_features: 10}}]
    data: {name: classification, features: [64], classes: 10, rows: 128}
    optimizer: {name: sgd, lr: 0.05}
    batch_size: 64
    steps: 3
"""


@pytest.mark.frameworks
def test_weight_gradients_of_a_large_model_in_bfloat16_are_named(tmp_path: Path):
    (tmp_path / "layers.py").write_text(ROUNDED)
    done = run_in(tmp_path, LARGE_MODEL)
    assert diagnosed(done) == {("net", "reduced-precision")}
    assert "parity failed" not in (done.run_dir / "log.txt").read_text()


RIGHT = ["{id: right, op: relu, inputs: {x: {shape: [3, 4]}}}"]


@pytest.mark.parametrize(
    ("target", "lost", "kept"),
    [
        ("parity.reporting.html.page.html_report", "report.html", "junit.xml"),
        ("parity.reporting.junit.junit_xml", "junit.xml", "report.html"),
        ("parity.reporting.console.run.render", "the tables", "report.html"),
    ],
)
def test_a_report_that_cannot_be_made_costs_no_other(
    target: str, lost: str, kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "mine.py").write_text(KERNEL)
    monkeypatch.setattr(target, fails)
    done = run_in(tmp_path, user_config(tmp_path / "mine.py", cases=RIGHT))
    assert done.code == 3
    assert f"parity failed here, making {lost}: StopIteration: injected" in done.stderr
    assert "Traceback" not in done.stderr
    assert (done.run_dir / kept).is_file()
    assert not (done.run_dir / lost).exists()
    assert f"parity failed, making {lost}\nTraceback" in (done.run_dir / "log.txt").read_text()
    assert {row["verdict"] for row in done.results["comparisons"]} <= {"equal", "close"}


def test_inputs_at_which_a_remark_fails_cost_the_remark(run: Callable[..., Finished], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(preflight, "small_inputs", fails)
    done = run("-k", "right")
    assert done.code == 0
    assert "right: nothing is said of its inputs: StopIteration: injected" in done.stderr
