"""Each fault is found from defaults, by a fixed seed, in few trials, and made small."""

from __future__ import annotations

import contextlib
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from parity.cases import OPS
from parity.cases.draw import TensorPlan, Uniform
from parity.config.plan import CasePlan, WrittenAt
from parity.config.tolerances import DEFAULT_TOLERANCES
from parity.engine import EngineOptions
from parity.hunt.bench import Bench, TimeUp, TrialCase, judged, whole_ratios
from parity.hunt.reduce import reduce_case
from parity.hunt.search import Search, cut_after
from parity.hunt.subject import subject_of
from parity.judge.failures import Failures
from parity.outcome import CellOutcome, Outcome, Output

KERNELS = Path(__file__).parent / "kernels.py"
DTYPES = ("float32", "float64")
MOST_TRIALS = 400


@pytest.fixture(scope="module")
def subject():
    return subject_of(str(KERNELS), (), DTYPES)


@pytest.fixture(scope="module")
def bench(subject, tmp_path_factory):
    with Bench(subject.backends, subject.cases, EngineOptions(), tmp_path_factory.mktemp("hunt") / "log.txt") as bench:
        yield bench


def test_a_hunt_for_a_users_file_judges_its_kernels_alone(subject):
    assert (subject.judged, subject.judges("mine"), subject.judges("torch")) == (("mine",), True, False)
    assert subject_of("relu", (), DTYPES).judges("paddle")


def searched(bench, subject, op, *, diagnose=False, trials=MOST_TRIALS):
    """A search for one op."""
    bench.most_trials = bench.n_trials + trials
    bases = [base for base in subject.bases if base.case.op == op]
    search = Search(bench, bases, DTYPES, until=float("inf") if diagnose else 0.0)
    with contextlib.suppress(TimeUp):
        while not search.findings:
            search.round()
    return search


@pytest.mark.process
@pytest.mark.parametrize(
    ("op", "tensor", "most"),
    [
        ("relu", "y", 1),
        pytest.param("tanh", "y", 1, marks=pytest.mark.exhaustive),
        pytest.param("softmax", "y", 2, marks=pytest.mark.exhaustive),
        pytest.param("gelu", "y", 1, marks=pytest.mark.exhaustive),
        ("adam", "param", 4),
        pytest.param("layer_norm", "y", 9, marks=pytest.mark.exhaustive),
    ],
)
def test_a_fault_is_found_and_made_small(bench, subject, op, tensor, most):
    search = searched(bench, subject, op)
    assert [(f.backend, f.op, f.tensor) for f in search.findings] == [("mine", op, tensor)]
    assert search.findings[0].n_numbers <= most
    assert search.findings[0].ratio >= 8


def shown(op, inputs, **values):
    """What a trial of an op shows in float32 where a kernel returns these values."""
    inputs = {name: np.array(each, np.float32) for name, each in inputs.items()}
    tensors = tuple(TensorPlan(name, each.shape, Uniform()) for name, each in inputs.items())
    case = CasePlan(op, op, OPS[op].params(), ("float32",), tensors, DEFAULT_TOLERANCES, WrittenAt("", 0))
    outputs = {name: Output("float32", np.shape(v), np.array(v, np.float32)) for name, v in values.items()}
    outcome = CellOutcome(op, "float32", "mine", Outcome.OK, outputs=outputs)
    with np.errstate(all="ignore"):
        return judged(TrialCase(case, "float32", inputs), [outcome], whole_ratios).faults


def divided_by_one_less(trial):
    """What a LayerNorm shows that needs a weight and divides by n - 1, which is NaN for one element."""
    x, weight, bias = (trial.inputs.get(name) for name in ("x", "weight", "bias"))
    if weight is None:
        outcome = CellOutcome("layer_norm", "float32", "mine", Outcome.ERROR, message="no weight")
    else:
        centred = x - x.mean(-1, keepdims=True)
        var = np.square(centred).sum(-1, keepdims=True) / np.float32(x.shape[-1] - 1)
        y = centred / np.sqrt(var + np.float32(1e-5)) * weight + (0 if bias is None else bias)
        outcome = CellOutcome("layer_norm", "float32", "mine", Outcome.OK, outputs={"y": Output("float32", y.shape, y)})
    return judged(trial, [outcome], whole_ratios)


def test_a_smaller_case_fails_in_the_same_way():
    rng = np.random.default_rng(0)
    shapes = {"x": (6, 12), "weight": (12,), "bias": (12,)}
    inputs = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    tensors = tuple(TensorPlan(name, shape, Uniform()) for name, shape in shapes.items())
    params = OPS["layer_norm"].params((12,))
    case = CasePlan(
        "c", "layer_norm", params, ("float32",), tensors, DEFAULT_TOLERANCES, WrittenAt("", 0), gradients=False
    )
    with np.errstate(all="ignore"):
        seen = divided_by_one_less(TrialCase(case, "float32", inputs))
        fault = ("mine", "y")
        small = reduce_case(seen, fault, seen.faults[fault], divided_by_one_less, Failures())
    assert {name: values.shape for name, values in small.inputs.items()} == {"x": (2,), "weight": (2,)}


def test_what_is_flushed_to_zero_on_the_way_is_no_fault():
    """exp(-100) is a subnormal number in float32, a million times that is none."""
    inputs = {"x": [-100.0], "grad.y": [1e6]}
    assert not shown("expm1", inputs, **{"y": [-1.0], "grad.x": [0.0]})
    assert ("mine", "grad.x") in shown("expm1", inputs, **{"y": [-1.0], "grad.x": [1e-30]})


def test_an_infinity_excuses_no_error_and_is_none():
    inputs = {"x": [1e4, -1e4, 1.0]}
    assert not shown("exp", inputs, y=[np.inf, 1e-39, np.exp(1.0)])
    assert ("mine", "y") in shown("exp", inputs, y=[np.inf, 1e-39, 2.7])


def test_a_diagnosis_is_cut_in_the_judge_alone():
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(TimeUp), cut_after(0.05):
        end = time.monotonic() + 60
        while time.monotonic() < end:
            shown("softmax", {"x": np.ones((4, 9))}, y=np.full((4, 9), 1 / 9))
    with cut_after(float("inf")), cut_after(60.0):
        pass
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
