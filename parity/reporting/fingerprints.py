"""Fingerprints as they are stored, untrusted: the drift plot, and the claims about each kernel."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct, structs

from parity.reporting.blocks import Block, Figures, Grid, GridCell, GridColumn, Sentence
from parity.reporting.plots.drift import DriftPlot, Line
from parity.reporting.results.results import read_json
from parity.reporting.results.rows import ResultsError
from parity.reporting.results.strict_json import problem
from parity.reporting.text.words import grouped

FORMAT = 1
FILE_NAME = "fingerprint.json"
MAX_BYTES = 16 << 20
MAX_LINES, MAX_POINTS = 24, 400
DRAWABLE = 1e100
"""Values that are larger, or smaller than its inverse, are left out of plots."""

Points = list[tuple[float, float]]


class ClaimRow(Struct, frozen=True):
    """An answer about one backend in one dtype."""

    aspect: str = "?"
    answer: str = "?"
    reason: str | None = None
    decided: bool = False
    measured: bool = True


class KernelRow(Struct, frozen=True):
    """The answers about one backend in one dtype, and its line in the plot."""

    backend: str
    dtype: str = "?"
    claims: Annotated[list[ClaimRow], Meta(max_length=1000)] = []
    drift: Points = []


class TheoryRow(Struct, frozen=True):
    """A line of the theory."""

    name: str
    dtype: str
    points: Points = []


class PlotRow(Struct, frozen=True):
    """The plot apart from the lines of the backends."""

    axes: tuple[str, str] = ("conditioning or size", "error")
    theory: list[TheoryRow] = []


class FingerprintFile(Struct, frozen=True):
    """What fingerprint.json holds, as far as it is shown."""

    op: str = "?"
    fingerprints: list[KernelRow] = []
    plot: PlotRow = PlotRow()


def fingerprints(run_dir: Path, given: Sequence[Path]) -> list[tuple[str, list[Block]]]:
    """The named ones, and those inside the run directory, each with its op or its folder."""
    inside = sorted(path.parent for path in run_dir.glob(f"fingerprint*/{FILE_NAME}"))
    return [stored_blocks(folder) for folder in dict.fromkeys((*given, *inside))]


def stored_blocks(folder: Path) -> tuple[str, list[Block]]:
    """A stored fingerprint, or why there is nothing to show."""
    try:
        stored = read(folder)
    except ResultsError as error:
        return str(folder), [Sentence(f"Nothing to show: {error}.", "quiet")]
    lines = list(drawable(Line(row.backend, row.dtype, tuple(row.drift)) for row in stored.fingerprints))
    theory = list(drawable(Line(row.name, row.dtype, tuple(row.points)) for row in stored.plot.theory))
    title = f"Drift of {stored.op}"
    note = f"The answers for each kernel of {stored.op}, from {folder.name}."
    lacking = "This fingerprint has no curves of the theory; run it again to get them."
    return stored.op, [
        Figures([DriftPlot(title, stored.plot.axes, lines, theory)], title),
        *([] if theory else [Sentence(lacking, "quiet")]),
        replace(claims_grid(stored.fingerprints), note=note),
    ]


def read(folder: Path) -> FingerprintFile:
    """A stored fingerprint; raises ResultsError where it cannot be shown."""
    path = folder / FILE_NAME
    try:
        document = read_json(path, MAX_BYTES)
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise ResultsError(f"{path}: not a fingerprint of format {FORMAT}")
        return msgspec.convert(document, FingerprintFile, strict=False)
    except OSError as error:
        raise ResultsError(f"{path}: {error.strerror or error}") from error
    except msgspec.ValidationError as error:
        raise ResultsError(f"{path}: {problem(error)}") from error
    except (ValueError, RecursionError) as error:
        raise ResultsError(f"{path}: not JSON: {error}") from error


def drawable(lines: Iterable[Line]) -> Iterator[Line]:
    """The first lines with points that can be drawn, and these points."""
    kept = (Line(line.name, line.dtype, tuple(point for point in line.points if is_drawable(*point))) for line in lines)
    usable = [line for line in kept if line.points]
    yield from (Line(line.name, line.dtype, line.points[:MAX_POINTS]) for line in usable[:MAX_LINES])


def is_drawable(x: float, y: float) -> bool:
    """Whether a point is of a usable size."""
    return 1 / DRAWABLE < x < DRAWABLE and (y == 0 or (not math.isnan(y) and 1 / DRAWABLE < y < DRAWABLE))


COLUMNS = (
    GridColumn("aspect"),
    GridColumn("backend", prose=True, share=3),
    GridColumn("answer", prose=True, share=4),
    GridColumn("because", prose=True, share=5, style="quiet"),
)


def claims_grid(rows: Sequence[KernelRow]) -> Grid:
    """The answers by aspect, with one row for backends that share one; two reasons for `cannot tell` are two."""
    groups = grouped(
        ((claim.aspect, claim.answer if claim.decided else f"- {claim.reason}"), (row, claim))
        for row in rows
        for claim in displayed(row)
    )
    by_aspect = grouped((aspect, members) for (aspect, _), members in groups.items())
    n_dtypes = len({row.dtype for row in rows})
    shown = [
        answer_row("" if i else aspect, members, n_dtypes)
        for aspect, answers in by_aspect.items()
        for i, members in enumerate(answers)
    ]
    return Grid(COLUMNS, shown, kind="claims")


def answer_row(aspect: str, members: Sequence[tuple[KernelRow, ClaimRow]], n_dtypes: int) -> list[GridCell]:
    """An answer with its backends."""
    claim = members[0][1]
    answer = GridCell(claim.answer, "" if claim.decided else "quiet")
    return [
        GridCell(aspect),
        GridCell(named([row for row, _ in members], n_dtypes)),
        answer,
        GridCell(claim.reason or ""),
    ]


def displayed(row: KernelRow) -> Sequence[ClaimRow]:
    """The claims; if a backend returned nothing, without the reason, which is said once for all."""
    if any(claim.measured for claim in row.claims):
        return row.claims
    return [structs.replace(claim, answer="not measured", reason="") for claim in row.claims]


def named(members: Sequence[KernelRow], n_dtypes: int) -> str:
    """`torch, paddle float32`: a backend without a dtype stands for all of them."""
    dtypes = grouped((row.backend, row.dtype) for row in members)
    return ", ".join(name if len(some) == n_dtypes else f"{name} {' '.join(some)}" for name, some in dtypes.items())
