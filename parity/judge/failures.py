"""Errors of parity itself while it judges or explains a case: they cost that answer, and end nothing.

An interrupt, and the end of a hunt's time, are no errors: they pass.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any, Protocol, TypeVar

from msgspec import structs

from parity.config.plan import ORACLE, CasePlan
from parity.diagnoses import catalogue
from parity.judge.compare.verdict import Comparison, Verdict, comparison_of
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.judge.diagnose.patience import is_late

FAILED, UNEXPLAINED = "judge-failed", "unexplained"
FAILURES = "parity_failed"
"""The evidence of a diagnosis that parts of the judge have failed."""
LOG = "log.txt"
"""The file of the run directory that has the tracebacks."""
DECIDED = frozenset((Verdict.STRUCTURE, Verdict.NONFINITE, Verdict.NOT_COMPARED))
"""The verdicts that need no error bound."""
_CONTAINS: ContextVar[bool] = ContextVar("contains", default=True)


@dataclass(frozen=True)
class Failure:
    """What parity was doing, the error with its place, and the traceback."""

    doing: str
    error: str
    traceback: str

    @classmethod
    def of(cls, doing: str, error: Exception) -> Failure:
        """The failure of an error that is being handled."""
        text = " ".join(f"{type(error).__name__}: {error}".split())
        return cls(doing, f"{text} ({location(error)})", "".join(traceback.format_exception(error)))

    @property
    def message(self) -> str:
        """Why tensors are not compared."""
        return f"parity failed here, {self.doing}: {self.error}; {LOG} has the traceback, please report it"

    @property
    def evidence(self) -> dict[str, str]:
        """The failure as JSON values."""
        return {"doing": self.doing, "error": self.error, "traceback": self.traceback}


def location(error: Exception) -> str:
    """`judge/case.py:12`: the last line of parity in a traceback."""
    home = Path(__file__).parents[1]
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).is_relative_to(home)]
    return f"{Path(frames[-1].filename).relative_to(home.parent)}:{frames[-1].lineno}" if frames else "outside parity"


class RefusedInputsError(ValueError):
    """A user's reference refuses other inputs than its own: they cannot be asked, and nothing has failed in parity."""


class Failures(list[Failure]):
    """The failures so far of one part of a judgement."""

    @contextmanager
    def contained(self, doing: str, *, passing: tuple[type[Exception], ...] = ()) -> Iterator[None]:
        """Within it, an error is noted instead of raised, except those that are `passing`; what a reference refuses is
        no error."""
        try:
            yield
        except Exception as error:
            if isinstance(error, RefusedInputsError):
                return
            if isinstance(error, passing) or not _CONTAINS.get():
                raise
            self.note(Failure.of(doing, error))

    @property
    def evidence(self) -> dict[str, list[dict[str, str]]]:
        """The failures as a diagnosis's evidence; nothing if there are none."""
        return {FAILURES: [failure.evidence for failure in self]} if self else {}

    def note(self, failure: Failure) -> None:
        """Add a failure that is not known yet; it is the last one then."""
        if failure in self:
            self.remove(failure)
        self.append(failure)


@contextmanager
def uncontained() -> Iterator[None]:
    """Within it, the judge's errors are raised: for tests that look for them."""
    token = _CONTAINS.set(False)
    try:
        yield
    finally:
        _CONTAINS.reset(token)


class _Explaining(Protocol):
    """What has explainers."""

    failures: Failures


Method = TypeVar("Method", bound=Callable[..., Any])


def explainer(doing: str, otherwise: Callable[[], Any] = tuple) -> Callable[[Method], Method]:
    """A method that returns `otherwise()` where it fails, so that the other explainers go on."""

    def contained(method: Method) -> Method:
        @wraps(method)
        def explained(self: _Explaining, *operands: Any, **keywords: Any) -> Any:
            with self.failures.contained(doing):
                if is_late():
                    return otherwise()
                return method(self, *operands, **keywords)
            return otherwise()

        return explained  # type: ignore[return-value]

    return contained


def with_failures(
    cell: tuple[str, str, str], rows: Sequence[Diagnosis], failures: Failures, tensors: Sequence[str] = ()
) -> list[Diagnosis]:
    """The diagnoses of a backend in a cell, which say what has failed.

    What is unexplained has the failures as its cause; so have `tensors` without a diagnosis. An explanation keeps its
    place, and mentions them.
    """
    if not failures:
        return list(rows)
    evidence, title = failures.evidence, catalogue()[FAILED].title
    if not any(row.explained for row in rows) and not any(row.id == UNEXPLAINED for row in rows):
        return [*rows, Diagnosis(*cell, FAILED, title, tuple(tensors), False, evidence=evidence)]
    named = [replace(row, id=FAILED, title=title) if row.id == UNEXPLAINED else row for row in rows]
    return [replace(row, evidence={**row.evidence, **evidence}) for row in named]


def unjudged(comparison: Comparison, failure: Failure) -> Comparison:
    """The comparison, with its numbers, without a verdict that needs more than them."""
    if comparison.verdict in DECIDED:
        return comparison
    return structs.replace(comparison, verdict=Verdict.NOT_COMPARED, message=failure.message)


def unknown(case: CasePlan, dtype: str, backends: Iterable[str], failure: Failure) -> Iterator[Comparison]:
    """A comparison without a verdict for each backend, where nothing could be compared."""
    for name in backends:
        of = (case.id, dtype, "output", name, ORACLE)
        yield comparison_of(*of, Verdict.NOT_COMPARED, 0.0, 0.0, message=failure.message)


def of_failed_case(
    case: CasePlan, dtype: str, backends: Sequence[str], failures: Failures
) -> tuple[list[Comparison], list[Diagnosis]]:
    """The comparisons and diagnoses of a case in a dtype of which nothing could be compared."""
    rows = list(unknown(case, dtype, backends, failures[-1]))
    return rows, [row for n in backends for row in with_failures((case.id, dtype, n), (), failures, ("output",))]


def logged(diagnoses: Sequence[Diagnosis]) -> Iterator[str]:
    """The tracebacks of the failures among these diagnoses, for the run's log."""
    seen: set[Any] = set()
    for row in diagnoses:
        given: Sequence[Mapping[str, str]] = row.evidence.get(FAILURES, ())
        for failure in given:
            text = f"parity failed in {row.case} {row.dtype} {row.backend}, {failure['doing']}\n{failure['traceback']}"
            if text not in seen:
                seen.add(text)
                yield text
