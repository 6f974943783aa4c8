"""References of kinds that `benchmarks/fuzz.py` does not draw: nothing raises, and who is wrong is found."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from benchmarks.fuzz import FuzzKernel
from parity.cases.brought import ReferenceFile
from parity.config import ConfigError, load_plan
from parity.config.plan import ORACLE
from parity.judge import case as judging
from parity.judge.case import CaseJudge, Judged
from parity.judge.compare.cell import consult_oracle
from parity.judge.compare.verdict import Verdict
from parity.judge.diagnose import edits, inquiry
from parity.judge.failures import uncontained

pytestmark = pytest.mark.slow

ODD: dict[str, tuple[str, str, str]] = {
    "trace": ("[4, 4]", "np.sum(np.diagonal(x))", "np.sum(x)"),
    "diagonal": ("[2, 4, 4]", "np.diagonal(x, axis1=1, axis2=2)", "np.sum(np.diagonal(x, axis1=1, axis2=2), axis=1, keepdims=True) + 0 * x[:, 0]"),
    "batched": ("[2, 3, 3]", "np.einsum('bij,bij->b', x, x)", "np.einsum('bij,bji->b', x, x)"),
    "constant_output": ("[3, 4]", "{'y': 2 * x, 'z': np.ones(3)}", "{'y': 3 * x, 'z': np.ones(3)}"),
    "constant_wrong": ("[3, 4]", "{'y': 2 * x, 'z': np.ones(3)}", "{'y': 2 * x, 'z': np.zeros(3)}"),
    "boolean": ("[3, 4]", "{'y': x * x, 'm': x > 0}", "{'y': x * x, 'm': x >= 0.5}"),
    "boolean_alone": ("[3, 4]", "x > 0", "x < 0"),
    "scalar": ("[1]", "x[0] * x[0]", "x[0] + x[0]"),
    "sort_ties": ("[6]", "np.sort(np.round(x))", "-np.sort(-np.round(x))"),
    "take_along": (
        "[3, 4]", "np.take_along_axis(x, np.argsort(x, axis=1), axis=1)",
        "np.take_along_axis(x, np.argsort(-x, axis=1), axis=1)",
    ),
    "clip_min_above_max": ("[3, 4]", "np.clip(x, 1.0, -1.0)", "np.clip(x, -1.0, 1.0)"),
    "dead_nan": ("[3, 4]", "np.where(x > 0, np.sqrt(np.where(x > 0, x, 1.0)), 0.0)", "np.where(x > 0, x, 0.0)"),
    "dead_nan_gradient": ("[3, 4]", "np.where(x > 0, np.sqrt(x), 0.0)", "np.where(x > 0, np.sqrt(2 * x), 0.0)"),
    "integer_division": ("[3, 4]", "x * (np.arange(4) // 2)", "x * (np.arange(4) / 2)"),
    "modulo": ("[3, 4]", "x * (np.arange(4) % 3)", "x * (np.arange(4) % 2)"),
    "argmax_ties": ("[3, 4]", "np.argmax(np.round(x), axis=1)", "np.argmin(x, axis=1)"),
    "argmax_and_value": ("[3, 4]", "{'i': np.argmax(x, axis=1), 'v': np.max(x, axis=1)}",
        "{'i': np.argmax(x, axis=1) + 1, 'v': np.max(x, axis=1)}",
    ),
    "inverse": ("[3, 3]", "np.linalg.inv(x + 4 * np.eye(3))", "np.linalg.inv(x + 3 * np.eye(3))"),
    "solve": ("[3, 3]", "np.linalg.solve(x + 4 * np.eye(3), np.ones(3))", "np.linalg.solve(x.T + 4 * np.eye(3), np.ones(3))"),
    "near_singular": ("[3, 3]", "np.linalg.inv(x @ x.T + 1e-9 * np.eye(3))", "np.linalg.inv(x @ x.T + np.eye(3))"),
    "norm": ("[3, 4]", "np.linalg.norm(x, axis=1)", "np.linalg.norm(x, axis=1) ** 2"),
    "spectrum": ("[8]", "np.abs(np.fft.fft(x))", "np.abs(np.fft.fft(x)) / 8"),
    "real_part": ("[8]", "np.real(np.fft.fft(x))", "np.imag(np.fft.fft(x))"),
    "outer": ("[4]", "np.outer(x, x)", "np.outer(x, -x)"),
    "kron": ("[2, 2]", "np.kron(x, x)", "np.kron(x, x.T)"),
    "floor_only": ("[3, 4]", "np.floor(x)", "np.ceil(x)"),
    "zero_output": ("[3, 4]", "0 * x", "0 * x + 1e-3"),
    "histogram": ("[3, 4]", "np.sum((np.floor(x)[..., None] == np.arange(3)) * 1.0, axis=(0, 1))",
        "np.sum((np.ceil(x)[..., None] == np.arange(3)) * 1.0, axis=(0, 1))",
    ),
    "log_of_zero": ("[3, 4]", "np.log(np.maximum(x, 0.0))", "np.log(np.maximum(x, 1e-3))"),
    "huge": ("[3, 4]", "np.exp(100 * x)", "np.exp(99 * x)"),
}  # fmt: skip
"""By name: the shape of x, the reference, and a wrong kernel."""
REFUSED = {
    "np.einsum('ii->', x)": "where an axis occurs twice",
    "np.cumprod(x)": "cumprod",
    "np.linalg.eigvalsh(x + x.T)": "eigvalsh",
}
"""References that are refused where the config is read, and what the message names."""
NO_VERDICT = frozenset(("dead_nan_gradient", "log_of_zero", "huge"))
"""Those whose reference is not finite in places."""


@pytest.fixture(autouse=True)
def short_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    budget = partial(edits.WorkBudget, left=40_000, most=10_000)
    for module in (judging, inquiry, edits):
        monkeypatch.setattr(module, "WorkBudget", budget)


def judged(folder: Path, shape: str, reference: str, kernel: str, dtypes: str = "float32, float64") -> Judged:
    """The judge's answer about a kernel; raises whatever it raises. A refused reference raises ConfigError."""
    (folder / "ref.py").write_text(reference)
    (folder / "case.yaml").write_text(
        f"version: 1\nbackends: [numpy]\ndtypes: [{dtypes}]\ncases:\n"
        f"  - {{id: odd, op: mine, reference: ./ref.py, inputs: {{x: {{shape: {shape}}}}}}}\n"
    )
    (case,) = load_plan([folder / "case.yaml"]).cases
    mine = FuzzKernel(ReferenceFile(folder / "mine.py", kernel.encode()), lambda outputs: outputs)
    inputs = {plan.name: plan.sample(0, case.id, *case.dtypes) for plan in case.tensors}
    with uncontained():
        judge = CaseJudge(case, inputs, consult_oracle(case, inputs), ORACLE, ask=mine.ask)
        for dtype in case.dtypes:
            judge.take(dtype, [mine.outcome(case, dtype, inputs)])
        return judge.judged()


def source(expression: str) -> str:
    return f"import numpy as np\n\n\ndef mine(x):\n    return {expression}\n"


@pytest.mark.parametrize("name", ODD)
def test_a_right_kernel_is_right_and_a_wrong_one_is_not(name: str, tmp_path: Path):
    shape, right, wrong = ODD[name]
    same = judged(tmp_path, shape, source(right), source(right))
    assert name in NO_VERDICT or not any(c.verdict.fails and c.culprit for c in same.comparisons)
    other = judged(tmp_path, shape, source(right), source(wrong))
    assert any(c.verdict.fails and c.culprit == ("mine",) for c in other.comparisons)
    assert any(c.verdict is not Verdict.NOT_COMPARED for c in other.comparisons)


@pytest.mark.parametrize("expression", REFUSED)
def test_a_reference_that_cannot_be_differentiated_is_refused(expression: str, tmp_path: Path):
    with pytest.raises(ConfigError, match=REFUSED[expression]):
        judged(tmp_path, "[3, 3]", source(expression), source(expression))


@pytest.mark.parametrize("dtypes", ["float64", "float16", "bfloat16"])
def test_linear_algebra_is_judged_in_every_dtype(dtypes: str, tmp_path: Path):
    right, wrong = "np.linalg.inv(x + 4 * np.eye(3))", "np.linalg.inv(x + 3 * np.eye(3))"
    same, other = (judged(tmp_path, "[3, 3]", source(right), source(kernel), dtypes) for kernel in (right, wrong))
    assert not any(c.verdict.fails for c in same.comparisons)
    assert any(c.verdict.fails for c in other.comparisons)
