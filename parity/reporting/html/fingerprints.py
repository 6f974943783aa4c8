"""Fingerprints beside a run, read without trust: the drift plot and what is claimed about each kernel."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from parity.reporting.plots.drift import Line, drawing
from parity.reporting.results.results import Row, read_json

FORMAT = 1
FILE_NAME = "fingerprint.json"
MAX_BYTES = 16 << 20
MAX_LINES, MAX_POINTS, MAX_CLAIMS = 24, 400, 1000
DRAWABLE = 1e100
"""What is larger, or smaller than its inverse, has no place in a plot."""

AXES = ("conditioning or size", "error")
"""What is said where a document does not name its axes."""

NOTHING = Markup()


@dataclass(frozen=True)
class Claim:
    """An answer that one or several backends share, with the dtypes of each."""

    answer: str
    reason: str
    who: tuple[str, ...]
    decided: bool


@dataclass(frozen=True)
class Fingerprint:
    """A section of the report; `problem` says why there is nothing to show."""

    folder: str
    op: str = ""
    plot: Markup = NOTHING
    has_theory: bool = False
    claims: tuple[tuple[str, tuple[Claim, ...]], ...] = ()
    problem: str = ""


class FingerprintError(Exception):
    """A file that is no fingerprint; the message says why."""


def fingerprints(run_dir: Path, given: Sequence[Path]) -> list[Fingerprint]:
    """Those that were named, and those inside the run directory."""
    inside = sorted(path.parent for path in run_dir.glob(f"fingerprint*/{FILE_NAME}"))
    return [fingerprint(folder, f"drift-{i}") for i, folder in enumerate(dict.fromkeys((*given, *inside)))]


def fingerprint(folder: Path, name: str) -> Fingerprint:
    """A stored fingerprint, or why it cannot be shown; `name` tells its plot from others."""
    try:
        document = read(folder / FILE_NAME)
    except FingerprintError as error:
        return Fingerprint(str(folder), problem=str(error))
    rows = [row for row in objects(document.get("fingerprints")) if isinstance(row.get("backend"), str)]
    lines = [line for row in rows if (line := line_of(row["backend"], row.get("dtype"), row.get("drift")))]
    plot = document.get("plot")
    plot = plot if isinstance(plot, Mapping) else {}
    found = (line_of(row.get("name"), row.get("dtype"), row.get("points")) for row in objects(plot.get("theory")))
    theory = [line for line in found if line][:MAX_LINES]
    op = str(document.get("op", "?"))
    drawn = drawing(f"Drift of {op}", axes(plot.get("axes")), lines[:MAX_LINES], theory, name)
    return Fingerprint(folder.name, op, Markup(drawn), bool(theory), tuple(claims(rows)))  # noqa: S704 - drift_plot escapes


def read(path: Path) -> Row:
    """The document; raises FingerprintError."""
    try:
        document = read_json(path, MAX_BYTES)
    except OSError as error:
        raise FingerprintError(f"{path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise FingerprintError(f"{path}: not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise FingerprintError(f"{path}: not a fingerprint of format {FORMAT}")
    return document


def objects(value: Any) -> list[Mapping[str, Any]]:
    """The objects of a list; nothing for anything else."""
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def axes(value: Any) -> tuple[str, str]:
    """The names of both axes."""
    return (str(value[0]), str(value[1])) if isinstance(value, list) and len(value) == 2 else AXES


def line_of(name: Any, dtype: Any, points: Any) -> Line | None:
    """A line of the plot, with the points that have a place in it; None where there is none."""
    pairs = points if isinstance(points, list) else []
    usable = [pair for pair in pairs if isinstance(pair, list) and len(pair) == 2 and all(map(drawable, pair))]
    drawn = tuple((float(x), float(y)) for x, y in usable[:MAX_POINTS] if x > 0)
    return Line(str(name), str(dtype), drawn) if drawn else None


def drawable(value: Any) -> bool:
    """Whether a coordinate is a number of a usable size."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return value == 0 or (not math.isnan(value) and 1 / DRAWABLE < value < DRAWABLE)


def claims(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, tuple[Claim, ...]]]:
    """The answers to each question; backends that give the same one for the same reason stand together."""
    said: dict[str, dict[tuple[str, str, bool], dict[str, list[str]]]] = {}
    for row in rows:
        for claim in objects(row.get("claims"))[:MAX_CLAIMS]:
            key = (str(claim.get("answer", "?")), str(claim.get("reason") or ""), bool(claim.get("decided")))
            who = said.setdefault(str(claim.get("aspect", "?")), {}).setdefault(key, {})
            who.setdefault(row["backend"], []).append(str(row.get("dtype", "?")))
    for aspect, answers in said.items():
        yield aspect, tuple(Claim(a, why, tuple(names(who)), ok) for (a, why, ok), who in answers.items())


def names(who: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """`torch float32, float64` for each backend."""
    yield from (f"{backend} {', '.join(dtypes)}" for backend, dtypes in who.items())
