"""Each fault is found from defaults, by a fixed seed, in few trials, and made small."""

from __future__ import annotations

from pathlib import Path

import pytest

from parity.engine import EngineOptions
from parity.hunt.bench import Bench
from parity.hunt.search import Search
from parity.hunt.subject import subject_of

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


def searched(bench, subject, op, *, diagnose=False, trials=MOST_TRIALS):
    """A search for one op."""
    bench.most_trials = bench.n_trials + trials
    bases = [base for base in subject.bases if base.case.op == op]
    search = Search(bench, bases, DTYPES, until=float("inf") if diagnose else 0.0)
    search.run_until_found()
    return search


@pytest.mark.process
@pytest.mark.parametrize(
    ("op", "tensor", "most"),
    [
        ("relu", "y", 1),
        ("tanh", "y", 1),
        ("softmax", "y", 2),
        ("gelu", "y", 1),
        ("adam", "param", 4),
        ("layer_norm", "y", 6),
    ],
)
def test_a_fault_is_found_and_made_small(bench, subject, op, tensor, most):
    search = searched(bench, subject, op)
    assert [(f.backend, f.op, f.tensor) for f in search.findings] == [("mine", op, tensor)]
    assert search.findings[0].n_numbers <= most
    assert search.findings[0].ratio >= 8
