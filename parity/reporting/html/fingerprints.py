"""Fingerprints beside a run, read without trust: the drift plot and what is claimed about each kernel."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from markupsafe import Markup
from msgspec import Meta, Struct

from parity.reporting.plots.drift import Line, drawing
from parity.reporting.results.results import problem, read_json

FORMAT = 1
FILE_NAME = "fingerprint.json"
MAX_BYTES = 16 << 20
MAX_LINES, MAX_POINTS = 24, 400
DRAWABLE = 1e100
"""What is larger, or smaller than its inverse, has no place in a plot."""

Points = list[tuple[float, float]]
NOTHING = Markup()


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
    """What the plot has besides the lines of the backends."""

    axes: tuple[str, str] = ("conditioning or size", "error")
    theory: list[TheoryRow] = []


class FingerprintFile(Struct, frozen=True):
    """What fingerprint.json holds, as far as it is shown."""

    op: str = "?"
    fingerprints: list[KernelRow] = []
    plot: PlotRow = PlotRow()


@dataclass(frozen=True)
class SharedAnswer:
    """An answer that one or several backends share, with the dtypes of each."""

    answer: str
    reason: str
    who: tuple[str, ...]
    decided: bool


@dataclass(frozen=True)
class FingerprintSection:
    """A section of the report; `problem` says why there is nothing to show."""

    folder: str
    op: str = ""
    plot: Markup = NOTHING
    has_theory: bool = False
    claims: tuple[tuple[str, tuple[SharedAnswer, ...]], ...] = ()
    problem: str = ""


def fingerprints(run_dir: Path, given: Sequence[Path]) -> list[FingerprintSection]:
    """Those that were named, and those inside the run directory."""
    inside = sorted(path.parent for path in run_dir.glob(f"fingerprint*/{FILE_NAME}"))
    return [fingerprint(folder, f"drift-{i}") for i, folder in enumerate(dict.fromkeys((*given, *inside)))]


def fingerprint(folder: Path, name: str) -> FingerprintSection:
    """A stored fingerprint, or why it cannot be shown; `name` tells its plot from others."""
    path = folder / FILE_NAME
    try:
        document = read_json(path, MAX_BYTES)
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            return FingerprintSection(str(folder), problem=f"{path}: not a fingerprint of format {FORMAT}")
        found = msgspec.convert(document, FingerprintFile, strict=False)
    except OSError as error:
        return FingerprintSection(str(folder), problem=f"{path}: {error.strerror or error}")
    except msgspec.ValidationError as error:
        return FingerprintSection(str(folder), problem=f"{path}: {problem(error)}")
    except (ValueError, RecursionError) as error:
        return FingerprintSection(str(folder), problem=f"{path}: not JSON: {error}")
    lines = list(drawable(Line(row.backend, row.dtype, tuple(row.drift)) for row in found.fingerprints))
    theory = list(drawable(Line(row.name, row.dtype, tuple(row.points)) for row in found.plot.theory))
    drawn = drawing(f"Drift of {found.op}", found.plot.axes, lines, theory, name)
    claims = tuple(shared_answers(found.fingerprints))
    return FingerprintSection(folder.name, found.op, Markup(drawn), bool(theory), claims)  # noqa: S704 - it escapes


def drawable(lines: Iterable[Line]) -> Iterator[Line]:
    """The first lines with points that have a place in the plot, and these points."""
    kept = (Line(line.name, line.dtype, tuple(point for point in line.points if has_place(*point))) for line in lines)
    usable = [line for line in kept if line.points]
    yield from (Line(line.name, line.dtype, line.points[:MAX_POINTS]) for line in usable[:MAX_LINES])


def has_place(x: float, y: float) -> bool:
    """Whether a point is of a usable size."""
    return 1 / DRAWABLE < x < DRAWABLE and (y == 0 or (not math.isnan(y) and 1 / DRAWABLE < y < DRAWABLE))


def shared_answers(rows: Sequence[KernelRow]) -> Iterator[tuple[str, tuple[SharedAnswer, ...]]]:
    """The answers to each question; backends that give the same one for the same reason stand together."""
    aspects: dict[str, dict[tuple[str, str, bool], dict[str, list[str]]]] = {}
    for row in rows:
        for claim in row.claims:
            key = (claim.answer, claim.reason or "", claim.decided)
            backends = aspects.setdefault(claim.aspect, {}).setdefault(key, {})
            backends.setdefault(row.backend, []).append(row.dtype)
    for aspect, answers in aspects.items():
        named = {
            key: tuple(f"{name} {', '.join(dtypes)}" for name, dtypes in who.items()) for key, who in answers.items()
        }
        yield aspect, tuple(SharedAnswer(text, why, who, decided) for (text, why, decided), who in named.items())
