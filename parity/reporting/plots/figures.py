"""The report's small pictures as inline SVG; colours are the page's own, so that they follow its theme."""

from __future__ import annotations

import math
from collections.abc import Mapping

from markupsafe import Markup, escape

from parity.judge.bound.envelope import ERROR_BOUND
from parity.reporting.plots.svg import Scale, svg, tick, ticks, words
from parity.reporting.plots.tensors import N_LEVELS, NOT_FINITE, Histogram, LogBins, Map, runs
from parity.reporting.results.cells import TENSOR_LABELS, Status
from parity.reporting.text.words import cut, factor

NAME_WIDTH, PLOT_WIDTH, MARGIN, BAND, FOOT = 84, 254, 14, 30, 30
MAX_NAME = 11
BAR_HEIGHT = 22
MAX_TICKS = 8
MAP_WIDTH, MAX_BLOCK, STRIP = 336, 12, 16
KEY = 12
RESIDUAL_WIDTH = 200
RESIDUALS = (0.1, 1e18)
"""What bars of residuals can show; the shortest and the longest."""


def status_bar(numbers: Mapping[Status, int]) -> Markup:
    """How many of the tensors have each status."""
    total = sum(numbers.values())
    parts, x = [], 0.0
    for status, n in numbers.items():
        width = 1000 * n / total
        parts.append(f'<rect class="fill-{status}" x="{x:.1f}" width="{max(width - 2, 1):.1f}" height="10"/>')
        x += width
    said = ", ".join(f"{n} {TENSOR_LABELS[status]}" for status, n in numbers.items())
    head = (
        f'<svg class="share" viewBox="0 0 1000 10" preserveAspectRatio="none" role="img" aria-label="{escape(said)}">'
    )
    return Markup(f"{head}{''.join(parts)}</svg>")  # noqa: S704


def histograms(
    rows: Mapping[str, tuple[Histogram, float | None]], axis: LogBins, own: str, *, measured: bool
) -> Markup:
    """A band for each backend over one axis: how many elements have which error, in units of the envelope.

    `rows` holds a histogram and the error ratio by backend; `own` is the one that the finding is about. Where the unit
    was not `measured`, the axis is that of the errors themselves.
    """
    bottom = BAND * len(rows)
    scale = Scale(axis.low, axis.high, NAME_WIDTH, NAME_WIDTH + PLOT_WIDTH, log=True)
    numbers = ticks(scale, MAX_TICKS)
    parts = [*marks(scale, bottom)] if measured else []
    for i, (name, (counted, ratio)) in enumerate(rows.items()):
        base = BAND * (i + 1) - 4
        shown = cut(name, MAX_NAME)
        parts.append(words(NAME_WIDTH - 8, base - 11, shown, "end own" if name == own else "end"))
        parts.append(words(NAME_WIDTH - 8, base, extra_text(counted, ratio), "end dim"))
        parts.append(bars(counted, axis, base, "bars own" if name == own else "bars"))
    lines = [f"M{NAME_WIDTH} {BAND * (i + 1) - 3.5}h{PLOT_WIDTH}" for i in range(len(rows))]
    lines += [f"M{x:.1f} {bottom - 3}v4" for x, _ in numbers]
    parts += [f'<path class="line" d="{"".join(lines)}"/>']
    parts += [tick(x, bottom + 12, label, "middle") for x, label in numbers]
    unit = "|error| ÷ envelope" if measured else "|error|"
    parts.append(words(NAME_WIDTH + PLOT_WIDTH / 2, bottom + FOOT - 3, unit, "middle dim"))
    said = "; ".join(f"{name}: {spoken(counted, ratio, axis, measured)}" for name, (counted, ratio) in rows.items())
    return svg(NAME_WIDTH + PLOT_WIDTH + MARGIN, bottom + FOOT, f"Sizes of the errors. {said}", parts, "hist")


def marks(scale: Scale, bottom: int) -> list[str]:
    """The error bound, and the envelope itself (1)."""
    one, bound = float(scale.at(1.0)), float(scale.at(ERROR_BOUND))
    return [
        f'<rect class="off" x="{bound:.1f}" width="{NAME_WIDTH + PLOT_WIDTH - bound:.1f}" height="{bottom}"/>',
        f'<path class="one" d="M{one:.1f} 0v{bottom}"/><path class="eight" d="M{bound:.1f} 0v{bottom}"/>',
        words(bound + 3, 8, "error bound", "eight"),
    ]


def bars(counted: Histogram, axis: LogBins, base: int, style: str) -> str:
    """All bars of a band, as lines as wide as a bar; heights grow with the square root, so that one element shows."""
    most = max(counted.counts, default=0) or 1
    heights = ((i, max(round(BAR_HEIGHT * math.sqrt(n / most)), 1)) for i, n in enumerate(counted.counts) if n)
    drawn = "".join(f"M{i} 0v-{height}" for i, height in heights)
    width = PLOT_WIDTH / axis.n
    where = f"matrix({width:g} 0 0 1 {NAME_WIDTH + width / 2:g} {base})"
    return f'<path class="{style}" transform="{where}" d="{drawn}"/>' if drawn else ""


def extra_text(counted: Histogram, ratio: float | None) -> str:
    """The text below a backend's name: its error ratio."""
    if counted.n_infinite:
        return f"{counted.n_infinite} NaN/Inf"
    if counted.n_exact == counted.total:
        return "exact"
    return "" if ratio is None else f"ratio {factor(ratio)}"


def spoken(counted: Histogram, ratio: float | None, axis: LogBins, measured: bool) -> str:
    """A histogram in words."""
    if counted.n_exact == counted.total:
        return "exact"
    used = [i for i, n in enumerate(counted.counts) if n]
    width = (axis.high - axis.low) / axis.n
    said = [f"{counted.n_infinite} of {counted.total} finite in one of the two only"] if counted.n_infinite else []
    if used:
        ends = (10 ** (axis.low + width * end) for end in (used[0], used[-1] + 1))
        said.append(f"errors from {' to '.join(map(factor, ends))}{' envelopes' if measured else ''}")
    return ", ".join([*said, *([] if ratio is None else [f"ratio {factor(ratio)}"])])


def mismatch(error_map: Map, unit: float, *, measured: bool) -> Markup:
    """A map of the errors: the larger a block's largest error, the darker it is."""
    n_rows, n_columns = error_map.levels.shape
    block = min(MAP_WIDTH / n_columns, MAX_BLOCK)
    high = STRIP if n_rows == 1 else block
    width, height = n_columns * block, n_rows * high
    paths: dict[int, str] = {}
    for level, row, column, length in runs(error_map.levels):
        if level:
            paths[level] = paths.get(level, "") + f"M{column} {row}h{length}"
    drawn = "".join(f'<path class="l{level}" d="{d}"/>' for level, d in sorted(paths.items()))
    ground = f'<rect class="ground" x=".5" y=".5" width="{width:g}" height="{height:g}"/>'
    blocks = f'<g class="blocks" transform="translate(.5 {high / 2 + 0.5:g}) scale({block:g} {high:g})">{drawn}</g>'
    shades = legend(height + 9, error_map, unit, paths, measured=measured)
    total = max(width, MAP_WIDTH) + 1
    said = map_text(error_map, unit, paths, measured=measured)
    foot = 42 if NOT_FINITE in paths else 26
    return svg(total, height + foot, said, [ground, blocks, *shades], "map")


def legend(y: float, error_map: Map, unit: float, used: Mapping[int, str], *, measured: bool) -> list[str]:
    """The legend: the shades with the errors at both ends."""
    keys = [f'<path class="l{level}" d="M{KEY * (level - 1)} {y + 5:g}h{KEY}"/>' for level in range(1, N_LEVELS + 1)]
    low, high = factor(error_map.low / unit), factor(error_map.high / unit)
    said = f"{low} to {high}" + (" envelopes" if measured else "")
    texts = [words(KEY * N_LEVELS + 6, y + 9, said, "dim")]
    if NOT_FINITE in used:
        keys.append(f'<path class="l{NOT_FINITE}" d="M0 {y + 21:g}h{KEY}"/>')
        texts.append(words(KEY + 6, y + 25, "NaN or Inf in one of the two", "dim"))
    return [f'<g class="key">{"".join(keys)}</g>', *texts]


def map_text(error_map: Map, unit: float, used: Mapping[int, str], *, measured: bool) -> str:
    """A map in words."""
    n_rows, n_columns = error_map.levels.shape
    worst = [int(i) for i in divmod(int(error_map.levels.argmax()), n_columns)]
    unit_text = " envelopes" if measured else ""
    text = f"Where the errors sit, {n_rows} by {n_columns} blocks: from {factor(error_map.low / unit)} to "
    text += f"{factor(error_map.high / unit)}{unit_text}, a largest one in row {worst[0] + 1}, column {worst[1] + 1}"
    return text + (", some finite in one of the two only" if NOT_FINITE in used else "")


def residuals(before: float, after: float) -> Markup:
    """What an explanation leaves of the error ratio: two bars on a logarithmic scale, with the error bound marked."""
    least, most = RESIDUALS
    lengths = [math.log10(min(max(value, least), most) / least) for value in (before, after, ERROR_BOUND)]
    one, two, mark = (max(RESIDUAL_WIDTH * length / max(lengths), 2) for length in lengths)
    parts = [
        f'<rect class="before" y="1" width="{one:.0f}" height="7"/>',
        f'<rect class="after" y="11" width="{two:.0f}" height="7"/>',
        f'<path class="eight" d="M{mark:.1f} 0v19"/>',
    ]
    said = f"error ratio {factor(before)} before, {factor(after)} after; the error bound is {ERROR_BOUND:g}"
    return svg(RESIDUAL_WIDTH + 1, 19, said, parts, "residual")
