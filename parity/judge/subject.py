"""Whose errors count: those of the backends that a run judges, its subject. What others do wrong is a warning."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from msgspec.structs import replace

from parity.config.plan import ORACLE
from parity.judge.compare.verdict import Comparison, Verdict


def marked(comparisons: Sequence[Comparison], subject: Collection[str]) -> Iterator[Comparison]:
    """The comparisons, each with the backends against which it counts; all comparisons of a case belong together.

    A comparison counts against those of its culprits that are of the subject. One without a culprit counts if it is
    the subject's with the exact answer, or with the baseline where a tensor has no exact answer, as in models. So a
    baseline that is wrong, or has no result, says nothing about the subject; one that is the subject and was compared
    with nothing else is not judged, which counts. An empty `subject` is all backends.
    """
    exact = {(c.dtype, c.tensor, c.actual) for c in comparisons if c.expected == ORACLE}
    for c in comparisons:
        blamed = [name for name in c.culprit if name in (c.actual, c.expected)]
        others = {c.expected} - {ORACLE, *subject} if (c.dtype, c.tensor, c.actual) in exact else set()
        unjudged = c.verdict is Verdict.NOT_COMPARED and (c.dtype, c.tensor, c.expected) not in exact
        meant = blamed or ([] if others else [c.actual]) + ([c.expected] if unjudged else [])
        yield replace(c, counted=tuple(name for name in meant if name in subject)) if subject else c
