"""The plotter: what all plots are drawn with, from scales and ticks to the grid of a frame."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import ArrayLike, NDArray

from parity.config.nodes import printable
from parity.reporting.text.words import number

Floats = NDArray[np.float64]
Tick = tuple[float, str]
"""A coordinate, and its label as SVG."""
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#7f7f00")
"""The Okabe-Ito palette for colour-blind readers, without black and yellow, and two more colours."""
DASHES = ("", "7 4", "2 3", "9 3 2 3")


@dataclass(frozen=True)
class Scale:
    """Maps values to page coordinates, from `low` at `start` to `high` at `end`.

    With `log`, the limits and the values are decimal logarithms. Values further outside than `room` (a share of the
    scale) are clipped.
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False
    room: float = 0.0

    def at(self, values: ArrayLike) -> Floats:
        """The coordinates; that of NaN is NaN."""
        with np.errstate(all="ignore"):
            heights = np.asarray(values, dtype=np.float64)
            heights = np.log10(np.maximum(heights, 0)) if self.log else heights
            share = np.clip((heights - self.low) / (self.high - self.low), -self.room, 1 + self.room)
        return np.asarray(self.start + share * (self.end - self.start))

    def decades(self, most: int) -> range:
        """The exponents between the limits that get a line, up to a maximum number."""
        first, last = math.ceil(self.low), math.floor(self.high)
        step = max(1, math.ceil((last - first + 1) / most))
        return range(-(-first // step) * step, last + 1, step)


@dataclass(frozen=True)
class Frame:
    """The scales of both axes; values grow upwards."""

    x: Scale
    y: Scale

    @property
    def width(self) -> float:
        """Pixels across."""
        return self.x.end - self.x.start

    @property
    def top(self) -> float:
        """The upper edge."""
        return self.y.end

    @property
    def bottom(self) -> float:
        """The lower edge."""
        return self.y.start

    def points(self, values: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
        """Pairs of values in coordinates of the page."""
        xs, ys = zip(*values, strict=True) if values else ((), ())
        return list(zip(self.x.at(xs).tolist(), self.y.at(ys).tolist(), strict=True))


def ticks(scale: Scale, most: int) -> list[Tick]:
    """Where an axis has a number: whole decades where a logarithmic one has several, else round numbers."""
    exponents = scale.decades(most) if scale.log else range(0)
    if len(exponents) > 1:
        return [(float(scale.at(10.0**exponent)), power(exponent)) for exponent in exponents]
    values = [10.0**value if scale.log else value for value in round_numbers(scale.low, scale.high, most)]
    return [(float(scale.at(value)), number(value, 4)) for value in values]


def round_numbers(low: float, high: float, most: int) -> list[float]:
    """Numbers in a range: 1, 2 or 5 times a power of ten apart."""
    span = high - low
    if not 0 < span < math.inf:
        return [low]
    unit = 10.0 ** math.floor(math.log10(span / most))
    step = next((unit * n for n in (1, 2, 5, 10) if span / (unit * n) <= most), unit * 10)
    first = math.ceil(low / step)
    return [n * step for n in range(first, math.floor(high / step) + 1)]


def grid(frame: Frame, across: Sequence[Tick], up: Sequence[Tick], *, upright: bool = False) -> Iterator[str]:
    """The lines at the ticks of the values, and their numbers; those of the other axis are short, or `upright`."""
    left, bottom = frame.x.start, frame.bottom
    height = f"V{frame.top:g}" if upright else "v3"
    lines = [f"M{left:g} {y:.1f}h{frame.width:g}" for y, _ in up] + [f"M{x:.1f} {bottom:g}{height}" for x, _ in across]
    yield f'<path class="line" d="{"".join(lines)}"/>'
    yield from (tick(left - 6, y + 4, label, "end") for y, label in up)
    yield from (tick(x, bottom + (18 if upright else 14), label, "middle") for x, label in across)


def svg(width: float, height: float, label: str, parts: Iterable[str], style: str) -> Markup:
    """A picture with a label in words; `parts` are safe markup."""
    head = f'<svg class="{style}" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" role="img"'
    return Markup(f'{head} aria-label="{escape(printable(label))}">{"".join(parts)}</svg>')  # noqa: S704


def words(x: float, y: float, text: str, style: str = "", attributes: str = "") -> str:
    """A line of text; the styles `middle` and `end` align it at `x`."""
    named = f' class="{style}"' if style else ""
    return f'<text x="{x:.0f}" y="{y:g}"{named}{attributes}>{escape(printable(text))}</text>'


def power(exponent: int) -> str:
    """1, 10, and 10 with its exponent."""
    return {0: "1", 1: "10"}.get(exponent, f'10<tspan dy="-4">{exponent}</tspan>')


def tick(x: float, y: float, label: str, style: str) -> str:
    """The label of a tick, which is SVG already."""
    return f'<text class="{style} dim" x="{x:.0f}" y="{y:.0f}">{label}</text>'
