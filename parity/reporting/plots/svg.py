"""Common parts of plots: pictures, texts, scales and axis ticks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import ArrayLike, NDArray

from parity.config.nodes import printable

Floats = NDArray[np.float64]


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
