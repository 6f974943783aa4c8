"""The report's curve of tolerances: for each rtol the smallest atol with which all tensors of a backend pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from parity.judge.compare.frontier import NEVER, Frontier, Point, chain
from parity.reporting.blocks import Block, Figures, Sentence
from parity.reporting.judge import FRONTIER
from parity.reporting.plots.drift import FLOOR, DriftPlot, Line
from parity.reporting.results.rows import Results
from parity.reporting.results.store import Store
from parity.reporting.text.words import plural

RTOLS = 10.0 ** np.arange(-16, 0.01, 0.25)
MAX_LINES = 20
TITLE = "Which tolerances pass: the smallest atol for each rtol"
AXES = ("rtol", "atol with which every tensor passes")
AGAINST_BASELINE = "SELECT actual, dtype, frontier FROM comparisons WHERE expected = ? AND frontier IS NOT NULL"

Kernel = tuple[str, str]
"""A backend in a dtype."""


def tolerances(results: Results, store: Store | None) -> list[Block]:
    """The plot, and what it lacks; nothing if no comparison kept its frontier.

    `store` has all rows of a large run, of which `results` are a part.
    """
    frontiers: dict[Kernel, Frontier] = {}
    n_never: dict[Kernel, int] = {}
    for kernel, points in pairs(results, store):
        if NEVER in points:
            n_never[kernel] = n_never.get(kernel, 0) + 1
        elif points:
            frontiers[kernel] = chain([*frontiers.get(kernel, ()), *points])
    lines = [Line(*kernel, curve(frontier)) for kernel, frontier in frontiers.items()]
    return [Figures([DriftPlot(TITLE, AXES, lines[:MAX_LINES])], TITLE), *notes(n_never, len(lines))] if lines else []


def notes(n_never: Mapping[Kernel, int], n_lines: int) -> Iterator[Sentence]:
    """What the plot does not show."""
    if n_never:
        texts = ", ".join(f"{plural(n, 'tensor')} of {name} in {dtype}" for (name, dtype), n in n_never.items())
        yield Sentence(f"No tolerance accepts {texts}: values that are not finite, or integers that differ.", "quiet")
    if n_lines > MAX_LINES:
        yield Sentence(f"{n_lines - MAX_LINES} more lines are not shown.", "quiet")


def pairs(results: Results, store: Store | None) -> Iterator[tuple[Kernel, Sequence[Point]]]:
    """The frontier of each comparison with the baseline."""
    if store is None:
        rows: Iterable[Any] = ((r.actual, r.dtype, r.frontier) for r in results.comparisons if is_pair(r, results))
    else:
        asked = store.db.execute(AGAINST_BASELINE, (results.run.baseline,))
        rows = ((actual, dtype, FRONTIER.decode(frontier)) for actual, dtype, frontier in asked)
    for actual, dtype, frontier in rows:
        yield (actual, dtype), frontier


def is_pair(row: Any, results: Results) -> bool:
    """Whether a comparison is one with the baseline and kept its frontier."""
    return row.expected == results.run.baseline and row.frontier is not None


def curve(frontier: Frontier) -> tuple[tuple[float, float], ...]:
    """The atol that is needed at each rtol: the largest `difference - rtol * expected`; up to where none is needed."""
    expected, difference = np.array(frontier, dtype=np.float64).T
    with np.errstate(over="ignore", invalid="ignore"):
        needed = np.max(difference - RTOLS[:, None] * expected, axis=1)
    n = int(np.count_nonzero(needed > 0))
    points = list(zip(RTOLS[:n].tolist(), needed[:n].tolist(), strict=True))
    return (*points, *([(float(RTOLS[n]), FLOOR)] if n < len(RTOLS) else []))
