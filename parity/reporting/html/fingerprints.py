"""Untrusted fingerprints beside a run: the drift plot and the claims about each kernel."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from parity.reporting.plots.drift import Line, drawing
from parity.reporting.results.results import read_json
from parity.reporting.results.rows import ResultsError
from parity.reporting.results.strict_json import problem

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


def fingerprints(run_dir: Path, given: Sequence[Path]) -> list[dict[str, Any]]:
    """The named ones, and those inside the run directory; `problem` says why there is nothing to show."""
    inside = sorted(path.parent for path in run_dir.glob(f"fingerprint*/{FILE_NAME}"))
    sections = []
    for folder in dict.fromkeys((*given, *inside)):
        try:
            sections.append(section(folder))
        except ResultsError as error:
            sections.append({"folder": str(folder), "op": "", "problem": str(error)})
    return sections


def section(folder: Path) -> dict[str, Any]:
    """A stored fingerprint; raises ResultsError where it cannot be shown."""
    path = folder / FILE_NAME
    try:
        document = read_json(path, MAX_BYTES)
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise ResultsError(f"{path}: not a fingerprint of format {FORMAT}")
        stored = msgspec.convert(document, FingerprintFile, strict=False)
    except OSError as error:
        raise ResultsError(f"{path}: {error.strerror or error}") from error
    except msgspec.ValidationError as error:
        raise ResultsError(f"{path}: {problem(error)}") from error
    except (ValueError, RecursionError) as error:
        raise ResultsError(f"{path}: not JSON: {error}") from error
    lines = list(drawable(Line(row.backend, row.dtype, tuple(row.drift)) for row in stored.fingerprints))
    theory = list(drawable(Line(row.name, row.dtype, tuple(row.points)) for row in stored.plot.theory))
    return {
        "folder": folder.name,
        "op": stored.op,
        "plot": drawing(f"Drift of {stored.op}", stored.plot.axes, lines, theory),
        "has_theory": bool(theory),
        "claims": list(shared_answers(stored.fingerprints)),
        "problem": "",
    }


def drawable(lines: Iterable[Line]) -> Iterator[Line]:
    """The first lines with points that can be drawn, and these points."""
    kept = (Line(line.name, line.dtype, tuple(point for point in line.points if is_drawable(*point))) for line in lines)
    usable = [line for line in kept if line.points]
    yield from (Line(line.name, line.dtype, line.points[:MAX_POINTS]) for line in usable[:MAX_LINES])


def is_drawable(x: float, y: float) -> bool:
    """Whether a point is of a usable size."""
    return 1 / DRAWABLE < x < DRAWABLE and (y == 0 or (not math.isnan(y) and 1 / DRAWABLE < y < DRAWABLE))


def shared_answers(rows: Sequence[KernelRow]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The answers to each question; backends with the same answer and reason are grouped."""
    aspects: dict[str, dict[tuple[str, str, bool], dict[str, list[str]]]] = {}
    for row in rows:
        for claim in row.claims:
            key = (claim.answer, claim.reason or "", claim.decided)
            backends = aspects.setdefault(claim.aspect, {}).setdefault(key, {})
            backends.setdefault(row.backend, []).append(row.dtype)
    for aspect, answers in aspects.items():
        yield (
            aspect,
            [
                {
                    "answer": answer,
                    "reason": reason,
                    "decided": decided,
                    "backends": [f"{name} {', '.join(dtypes)}" for name, dtypes in backends.items()],
                }
                for (answer, reason, decided), backends in answers.items()
            ],
        )
