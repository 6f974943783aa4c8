"""Curves of a training over its steps as inline SVG, whose size does not grow with the number of steps.

A curve is drawn from the smallest and largest value in each column of the page, in relative coordinates.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from parity.judge.bound.envelope import ERROR_BOUND
from parity.reporting.plots.svg import COLOURS, DASHES, Floats, Frame, Scale, grid, round_numbers, svg, ticks, words
from parity.reporting.text.words import cut, factor, number

WIDTH, LEFT, RIGHT = 484, 52, 464
FOOT, LABEL_ROW, HEAD = 30, 13, 20
MAX_TICKS = 5
SCALE = 2
"""A curve's coordinates are whole numbers, in units of 1 / SCALE."""
N_COLUMNS = 208
MAX_LABELS, LETTER = 4, 6.2
"""At most so many divergences get a label; the width of a letter."""
MARKS_PER_CURVE = 3
LOG_FROM = 20.0
"""The axis is logarithmic if the largest value is at least so many times the smallest."""
LEAST_RATIO, MOST_RATIO = 1e-2, 1e18
SHAPES = (
    "m-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0",
    "m-2.7-2.7h5.4v5.4h-5.4z",
    "m0-3.6 3.3 5.9h-6.6z",
    "m0-3.8 3.8 3.8-3.8 3.8-3.8-3.8z",
    "m0 3.6 3.3-5.9h-6.6z",
    "m-1-3.4h2v2.4h2.4v2h-2.4v2.4h-2v-2.4h-2.4v-2h2.4z",
    "m-3.6 0 3.6-1.9 3.6 1.9-3.6 1.9z",
    "m-2-3.6h4v7.2h-4z",
)
"""The marks of backends, as paths around a point."""


@dataclass(frozen=True)
class Look:
    """The look of the `n`-th backend in every plot; the `baseline` is a broad line below all others."""

    n: int
    baseline: bool = False

    @property
    def colour(self) -> str:
        """The colour of the backend."""
        return COLOURS[self.n % len(COLOURS)]

    @property
    def dash(self) -> str:
        """The dashes of the line, through which other lines show; none for the baseline."""
        return "" if self.baseline else DASHES[(self.n + self.n // len(COLOURS)) % len(DASHES)]

    @property
    def shape(self) -> str:
        """The path of its mark."""
        return SHAPES[self.n % len(SHAPES)]


@dataclass(frozen=True)
class DrawnCurve:
    """A curve: a value for each step from 1 on; `look` is None for the oracle."""

    name: str
    values: Floats
    look: Look | None


@dataclass(frozen=True)
class Mark:
    """A divergence: its step, the curve's value there (NaN if unknown), and its label."""

    step: int
    value: float
    text: str
    look: Look


@dataclass(frozen=True)
class Band:
    """The error bound around a curve: from `low` to `high` in each step."""

    low: Floats
    high: Floats


@dataclass(frozen=True)
class Panel:
    """A plot. One of ratios has the threshold and a logarithmic axis; others have such an axis if they `may_log` and
    their values need it.
    """

    title: str
    curves: Sequence[DrawnCurve]
    marks: Sequence[Mark] = ()
    band: Band | None = None
    height: int = 180
    ratio: bool = False
    may_log: bool = True

    def drawn(self) -> Markup:
        """The plot as an SVG element, with a description for screen readers."""
        return plot(self)


def plot(panel: Panel) -> Markup:
    """The plot as an SVG element, with a description for screen readers."""
    shown = [curve for curve in panel.curves if len(curve.values)]
    rows = min(len(panel.marks), MAX_LABELS + 1)
    top = HEAD + LABEL_ROW * rows
    n_steps = max((len(curve.values) for curve in shown), default=1)
    frame = frame_of(panel, shown, n_steps, top)
    steps = [(float(frame.x.at(step)), f"{step:,}") for step in step_ticks(n_steps)]
    parts = [
        words(LEFT, 12, panel.title, "head"),
        *grid(frame, steps, ticks(frame.y, MAX_TICKS)),
        words((LEFT + RIGHT) / 2, frame.bottom + 27, "step", "middle dim"),
        *(threshold(frame) if panel.ratio else ()),
        *(band(panel.band, frame) if panel.band else ()),
        *(part for curve in sorted(shown, key=depth) for part in drawn(curve, frame, len(shown))),
        *divergences(panel.marks, frame),
    ]
    return svg(WIDTH, frame.bottom + FOOT, spoken(panel, shown), parts, "curves")


def depth(curve: DrawnCurve) -> int:
    """The order of drawing, from the bottom: the oracle, the baseline, solid lines, dashed lines."""
    if curve.look is None:
        return 0
    return 1 if curve.look.baseline else 3 if curve.look.dash else 2


def frame_of(panel: Panel, shown: Sequence[DrawnCurve], n_steps: int, top: float) -> Frame:
    """The ranges of a plot: all finite values, and the threshold for ratios."""
    every = np.concatenate([curve.values for curve in shown]) if shown else np.zeros(0)
    usable = np.clip(every[np.isfinite(every)], -1e300, 1e300)
    bottom = top + panel.height
    # A single step is in the middle.
    steps = Scale(1, n_steps, LEFT, RIGHT) if n_steps > 1 else Scale(0, 2, LEFT, RIGHT)
    if panel.ratio:
        inside = np.clip(usable[usable > 0], LEAST_RATIO, MOST_RATIO)
        low = min(math.log10(float(inside.min())) if inside.size else 0.0, -1.0)
        high = max(math.log10(float(inside.max())) if inside.size else 0.0, 1.5)
        low = math.floor(low)
        return Frame(steps, Scale(low, high + 0.08 * (high - low), bottom, top, log=True))
    low, high = (float(usable.min()), float(usable.max())) if usable.size else (0.0, 1.0)
    log = panel.may_log and low > 0 and high / low >= LOG_FROM
    if log:
        low, high = math.log10(low), math.log10(high)
    room = 0.06 * (high - low) or 0.5 * abs(high) or 0.5
    return Frame(steps, Scale(low - room, high + room, bottom, top, log))


def step_ticks(n_steps: int) -> list[int]:
    """The steps that get a number: the first, the last, and round ones between."""
    inner = [round(tick) for tick in round_numbers(1, n_steps, 5) if tick == round(tick)]
    room = n_steps / 12
    return sorted({1, n_steps, *(tick for tick in inner if 1 + room < tick < n_steps - room)})


def threshold(frame: Frame) -> Iterator[str]:
    """The area beyond the error bound, and the envelope itself, 1."""
    bound, one = float(frame.y.at(ERROR_BOUND)), float(frame.y.at(1.0))
    yield f'<rect class="off" x="{LEFT}" y="{frame.top:g}" width="{RIGHT - LEFT}" height="{bound - frame.top:.1f}"/>'
    yield f'<path class="one" d="M{LEFT} {one:.1f}H{RIGHT}"/><path class="eight" d="M{LEFT} {bound:.1f}H{RIGHT}"/>'
    yield words(RIGHT - 3, round(bound - 3, 1), f"error bound {ERROR_BOUND:g}", "end eight")


def band(area: Band, frame: Frame) -> Iterator[str]:
    """The error bound as an area."""
    high, low = np.fmax.reduce(columns(area.high), axis=1), np.fmin.reduce(columns(area.low), axis=1)
    usable = ~(np.isnan(high) | np.isnan(low))
    if usable.any():
        steps = np.linspace(1, len(area.high), len(high))[usable]
        xs, above, below = frame.x.at(steps), frame.y.at(high[usable]), frame.y.at(low[usable])
        edge = [*zip(xs, above, strict=True), *zip(xs[::-1], below[::-1], strict=True)]
        yield f'<g transform="scale({1 / SCALE:g})"><path class="band" d="{relative(edge)}z"/></g>'


def columns(values: Floats) -> Floats:
    """The values by column of the page, [columns, steps], padded with NaN."""
    width = max(-(-len(values) // N_COLUMNS), 1) if len(values) > 2 * N_COLUMNS else 1
    n_columns = -(-len(values) // width)
    padded = np.full(n_columns * width, np.nan)
    padded[: len(values)] = values
    return padded.reshape(n_columns, width)


def thinned(values: Floats) -> list[list[tuple[float, float]]]:
    """The (step, value) points that draw a curve: the smallest and largest of each column, in order.

    A column with only NaN ends a stretch.
    """
    table = columns(values)
    lost = np.isnan(table)
    least, largest = np.where(lost, np.inf, table).argmin(axis=1), np.where(lost, -np.inf, table).argmax(axis=1)
    ends = np.sort(np.stack([least, largest], axis=1), axis=1)
    rows = np.arange(len(table))[:, None]
    steps, values_at = rows * table.shape[1] + ends + 1, table[rows, ends]
    stretches: list[list[tuple[float, float]]] = [[]]
    empty_ones = np.asarray(lost.all(axis=1))
    for empty, at, numbers in zip(empty_ones, steps.tolist(), values_at.tolist(), strict=True):
        if empty:
            stretches.append([])
        else:
            stretches[-1] += dict(zip(at, numbers, strict=True)).items()
    return [stretch for stretch in stretches if stretch]


def drawn(curve: DrawnCurve, frame: Frame, n_curves: int) -> Iterator[str]:
    """A curve with its marks, which are at other steps than those of other curves."""
    look = curve.look
    colour = 'class="exact"' if look is None else f'stroke="{look.colour}"'
    dash = f' stroke-dasharray="{scaled(look.dash)}"' if look and look.dash else ""
    style = " broad" if look and look.baseline else ""
    stretches = thinned(curve.values)
    placed = [frame.points(stretch) for stretch in stretches]
    lines = "".join(relative(stretch) for stretch in placed)
    yield f'<g class="curve{style}" transform="scale({1 / SCALE:g})"><path {colour}{dash} d="{lines}"/></g>'
    if look is not None:
        points = [point for stretch in placed for point in stretch]
        shapes = "".join(f"M{x:.0f} {y:.1f}{look.shape}" for x, y in marked(points, look.n % n_curves, n_curves))
        yield f'<path class="mark" fill="{look.colour}" d="{shapes}"/>'


def marked(points: Sequence[tuple[float, float]], n: int, n_curves: int) -> list[tuple[float, float]]:
    """The points of the `n`-th curve that get a mark."""
    if not points:
        return []
    xs = np.array([x for x, _ in points])
    every = (RIGHT - LEFT) / MARKS_PER_CURVE
    wanted = [LEFT + every * (k + (n + 0.5) / n_curves) for k in range(MARKS_PER_CURVE)]
    return [points[i] for i in dict.fromkeys(int(np.abs(xs - x).argmin()) for x in wanted)]


def relative(points: Sequence[tuple[float, float]]) -> str:
    """The `d` of a path through points, in whole numbers of 1 / SCALE; a single point is a dot."""
    whole = [(round(SCALE * x), round(SCALE * y)) for x, y in points]
    (x, y), *rest = whole
    moves = []
    for to_x, to_y in rest:
        dx, dy = to_x - x, to_y - y
        x, y = to_x, to_y
        moves.append((dx, dy))
    texts = [f"{dx}{dy}" if dy < 0 else f"{dx} {dy}" for dx, dy in level(moves)]
    first_x, first_y = whole[0]
    return f"M{first_x} {first_y}" + (f"l{joined(texts)}" if texts else "h0")


def level(moves: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The moves, with consecutive horizontal ones merged."""
    merged: list[tuple[int, int]] = []
    for dx, dy in moves:
        if merged and dy == 0 == merged[-1][1]:
            merged[-1] = (merged[-1][0] + dx, 0)
        else:
            merged.append((dx, dy))
    return merged


def joined(texts: Sequence[str]) -> str:
    """The numbers of a path, separated by a space unless a sign separates them."""
    return "".join(text if i == 0 or text.startswith("-") else f" {text}" for i, text in enumerate(texts))


def scaled(dash: str) -> str:
    """A pattern of dashes in a curve's coordinates."""
    return " ".join(str(SCALE * int(part)) for part in dash.split())


def divergences(marks: Sequence[Mark], frame: Frame) -> Iterator[str]:
    """A vertical line at each divergence, with a ring on the curve and, for the first ones, a label above."""
    for i, mark in enumerate(marks):
        x, y = float(frame.x.at(mark.step)), HEAD + LABEL_ROW * min(i, MAX_LABELS) + 6
        look = f'stroke="{mark.look.colour}"'
        yield f'<path class="parting" {look} d="M{x:.1f} {y + 3}V{frame.bottom}"/>'
        if not math.isnan(mark.value):
            yield f'<circle class="parted" {look} cx="{x:.1f}" cy="{float(frame.y.at(mark.value)):.1f}" r="5"/>'
        if i <= MAX_LABELS:
            yield label(x, y + 4, mark.text if i < MAX_LABELS else f"and {len(marks) - MAX_LABELS} more")


def label(x: float, y: float, text: str) -> str:
    """A text beside a vertical line, where there is more room."""
    left = x > (LEFT + RIGHT) / 2
    room = int((x - LEFT if left else RIGHT - x) / LETTER)
    return words(x - 4 if left else x + 4, y, cut(text, room), "end label" if left else "label")


def key(look: Look | None) -> Markup:
    """The line and the mark of a backend, for a legend."""
    if look is None:
        return svg(34, 12, "the oracle's line", ['<path class="exact" d="M1 6h32"/>'], "key-line")
    dash = f' stroke-dasharray="{look.dash}"' if look.dash else ""
    style = ' class="broad"' if look.baseline else ""
    line = f'<path{style} stroke="{look.colour}"{dash} d="M1 6h32"/>'
    mark = f'<path class="mark" fill="{look.colour}" d="M17 6{look.shape}"/>'
    return svg(34, 12, "its line", [line, mark], "key-line")


def spoken(panel: Panel, shown: Sequence[DrawnCurve]) -> str:
    """A plot in words."""
    n_steps = max((len(curve.values) for curve in shown), default=0)
    sentences = [f"{panel.title} over {n_steps:,} {'step' if n_steps == 1 else 'steps'}"]
    sentences += [curve_text(curve, peak=panel.ratio) for curve in shown] or ["nothing was measured"]
    return "; ".join([*sentences, *(f"{mark.text}" for mark in panel.marks)])


def curve_text(curve: DrawnCurve, *, peak: bool) -> str:
    """`torch from 2.31 to 0.12`, or of ratios the largest."""
    first, last, n_lost = curve.values[0], curve.values[-1], int(np.count_nonzero(~np.isfinite(curve.values)))
    if peak:
        known = curve.values[~np.isnan(curve.values)]
        return f"{curve.name} at most {factor(float(known.max()))}" if known.size else f"{curve.name} unknown"
    lost = f", not finite in {n_lost} of them" if n_lost else ""
    return f"{curve.name} from {number(float(first))} to {number(float(last))}{lost}"
