"""Random references and kernels, in which nothing in the judge raises; benchmarks/fuzz.py runs thousands."""

from __future__ import annotations

from functools import partial

import pytest

from benchmarks.fuzz import drawn, reduced
from parity.judge import case as judging
from parity.judge.diagnose import edits, inquiry
from tests.exhaustive import one_of_each
from tests.judge.test_failures import fails

pytestmark = pytest.mark.slow

COUNT, BATCH = 200, 25


@pytest.fixture(autouse=True)
def short_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same explainers with a twentieth of their work; the benchmark has all of it."""
    budget = partial(edits.WorkBudget, left=40_000, most=10_000)
    for module in (judging, inquiry, edits):
        monkeypatch.setattr(module, "WorkBudget", budget)


@pytest.mark.parametrize("first", one_of_each(lambda _: "", ((first,) for first in range(0, COUNT, BATCH))))
def test_nothing_raises(first: int):
    cases = [drawn(seed) for seed in range(first, first + BATCH)]
    answers = [case.judged() for case in cases]
    assert sum(answer is not None for answer in answers) > BATCH // 3
    assert any(answer is not None and answer.diagnoses for answer in answers)


def test_an_exception_is_seen_and_its_program_made_small(monkeypatch: pytest.MonkeyPatch):
    case = next(case for case in map(drawn, range(COUNT)) if (answer := case.judged()) and answer.diagnoses)
    monkeypatch.setattr(inquiry, "unaltered", fails)
    assert "StopIteration: injected" in case.error
    small = reduced(case, case.error)
    assert "StopIteration: injected" in small.error
    assert len(small.reference.calls) <= len(case.reference.calls)
