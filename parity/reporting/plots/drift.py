"""The drift plot: error over conditioning or size, log-log, as SVG: a file of its own, or a part of a page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from parity.reporting.text.words import cut

WIDTH, HEIGHT = 940, 560
LEFT, TOP, RIGHT, BOTTOM = 84, 48, 664, 488
LEGEND_X = 690
ROW = 19
MAX_NAME = 22
MAX_TICKS = 9
FLOOR = 1e-18
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#7f7f00")
"""Okabe and Ito's, which colour-blind readers tell apart, less black and yellow; then two more."""
DASHES = ("", "7 4", "2 3", "9 3 2 3")
"""Of the theory's lines, one for each algorithm."""
STYLE = """
.drift { background: #ffffff; color: #1f2328; font: 13px system-ui, sans-serif; }
.drift .title { font-size: 15px; font-weight: 600; }
.drift .grid { stroke: #1f2328; stroke-opacity: .12; }
.drift .axis { stroke: #1f2328; stroke-opacity: .6; fill: none; }
.drift .theory { stroke: #6e7781; fill: none; stroke-width: 1.2; }
.drift text { fill: #1f2328; }
.drift .small { font-size: 12px; }
@media (prefers-color-scheme: dark) {
  .drift { background: #0d1117; }
  .drift text { fill: #e6edf3; }
  .drift .grid, .drift .axis { stroke: #e6edf3; }
  .drift .theory { stroke: #9aa4ae; }
}
"""
"""Of the file of its own; a page styles the same classes itself."""


@dataclass(frozen=True)
class Line:
    """Points (x, y) of one backend (or algorithm) in one dtype; both positive."""

    name: str
    dtype: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Frame:
    """The ranges of the plot as decimal logarithms."""

    x0: float
    x1: float
    y0: float
    y1: float

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Where a point stands on the page."""
        across = (math.log10(x) - self.x0) / (self.x1 - self.x0)
        up = (math.log10(max(y, FLOOR)) - self.y0) / (self.y1 - self.y0)
        return LEFT + across * (RIGHT - LEFT), BOTTOM - up * (BOTTOM - TOP)


def svg(title: str, axes: tuple[str, str], lines: Sequence[Line], theory: Sequence[Line]) -> str:
    """The whole file."""
    return drawing(title, axes, lines, theory, style=f"<style>{STYLE}</style>\n") + "\n"


def drawing(
    title: str,
    axes: tuple[str, str],
    lines: Sequence[Line],
    theory: Sequence[Line],
    ident: str = "drift",
    *,
    style: str = "",
) -> str:
    """The plot as an element; `ident` makes its ids unique in a page, `style` stands at its beginning."""
    shown = [Line(line.name, line.dtype, usable(line.points)) for line in lines]
    shown = [line for line in shown if line.points]
    frame = frame_of(shown or theory)
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(dict.fromkeys(line.name for line in shown))}
    dashes = {name: DASHES[i % len(DASHES)] for i, name in enumerate(dict.fromkeys(line.name for line in theory))}
    rows = max(len(shown) + len(dashes) + 3, 1)
    height = max(HEIGHT, TOP + rows * ROW + 30)
    area = f"{ident}-area"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="drift" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img" aria-label="{clean(title)}">',
        f"<title>{clean(title)}</title>",
        style + f'<clipPath id="{area}"><rect x="{LEFT}" y="{TOP}" width="{RIGHT - LEFT}" '
        f'height="{BOTTOM - TOP}"/></clipPath>',
        text(LEFT, 28, title, "title"),
        *grid(frame),
        *labels(axes),
        f'<g clip-path="url(#{area})">',
        *(theory_path(line, frame, dashes[line.name]) for line in theory),
        *(part for line in shown for part in drawn(line, frame, colours[line.name])),
        "</g>",
        *legend(shown, colours, dashes),
        "</svg>",
    ]
    return "\n".join(parts)


def usable(points: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """The points that a logarithmic plot can show; an error of zero stands at the bottom."""
    return tuple((x, max(y, FLOOR)) for x, y in points if math.isfinite(x) and math.isfinite(y) and x > 0 and y >= 0)


def frame_of(lines: Sequence[Line]) -> Frame:
    """Whole decades around all points, with room where there is only one."""
    xs = [math.log10(x) for line in lines for x, _ in line.points] or [0.0, 1.0]
    ys = [math.log10(max(y, FLOOR)) for line in lines for _, y in line.points] or [-16.0, 0.0]
    x0, x1 = math.floor(min(xs) + 1e-9), math.ceil(max(xs) - 1e-9)
    # An error above 100 is no less wrong than one of 100.
    y0, y1 = math.floor(min(ys)), min(math.ceil(max(ys)) + 1, 2)
    return Frame(x0, max(x1, x0 + 1), y0, max(y1, y0 + 1))


def clean(value: str) -> str:
    """Text as XML may hold it: escaped, without control characters and lone surrogates."""
    printable = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in value)
    return escape(printable, {'"': "&quot;"})


def text(x: float, y: float, value: str, style: str = "", anchor: str = "start", turn: str = "") -> str:
    """A line of text."""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style}" text-anchor="{anchor}"{turn}>{clean(value)}</text>'


def ticks(low: float, high: float) -> range:
    """Exponents of the decades that get a line, at most MAX_TICKS or so."""
    step = max(1, math.ceil((high - low) / MAX_TICKS))
    return range(math.ceil(low), math.floor(high) + 1, step)


def grid(frame: Frame) -> Iterator[str]:
    """Lines and numbers of both axes."""
    for exponent in ticks(frame.x0, frame.x1):
        x, _ = frame.place(10.0**exponent, 10.0**frame.y0)
        yield f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{BOTTOM}" class="grid"/>'
        yield power(x, BOTTOM + 19, exponent, "middle")
    for exponent in ticks(frame.y0, frame.y1):
        _, y = frame.place(10.0**frame.x0, 10.0**exponent)
        yield f'<line x1="{LEFT}" y1="{y:.1f}" x2="{RIGHT}" y2="{y:.1f}" class="grid"/>'
        yield power(LEFT - 8, y + 4, exponent, "end")
    yield f'<rect x="{LEFT}" y="{TOP}" width="{RIGHT - LEFT}" height="{BOTTOM - TOP}" class="axis"/>'


def power(x: float, y: float, exponent: int, anchor: str) -> str:
    """10 with its exponent."""
    raised = f'10<tspan dy="-5" font-size="10">{exponent}</tspan>'
    return f'<text x="{x:.1f}" y="{y:.1f}" class="small" text-anchor="{anchor}">{raised}</text>'


def labels(axes: tuple[str, str]) -> Iterator[str]:
    """What the axes are."""
    yield text((LEFT + RIGHT) / 2, BOTTOM + 46, axes[0], "", "middle")
    x, y = 24, (TOP + BOTTOM) / 2
    yield text(x, y, axes[1], "", "middle", f' transform="rotate(-90 {x} {y})"')


def path(points: Sequence[tuple[float, float]], frame: Frame) -> str:
    """The `d` of a path through the points."""
    placed = [frame.place(x, y) for x, y in points]
    return "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in placed)


def theory_path(line: Line, frame: Frame, dash: str) -> str:
    """A line of the theory."""
    d = path(usable(line.points), frame)
    return f'<path d="{d}" class="theory" stroke-dasharray="{dash or "none"}"/>'


def drawn(line: Line, frame: Frame, colour: str) -> Iterator[str]:
    """A backend's line with its marks: circles for float32, squares for every other dtype."""
    points = usable(line.points)
    yield f'<path d="{path(points, frame)}" fill="none" stroke="{colour}" stroke-width="1.8"/>'
    yield from (mark(*frame.place(x, y), line.dtype, colour) for x, y in points)


def mark(x: float, y: float, dtype: str, colour: str) -> str:
    """A point of a backend's line."""
    if dtype == "float32":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.2" fill="{colour}"/>'
    return f'<rect x="{x - 2.9:.1f}" y="{y - 2.9:.1f}" width="5.8" height="5.8" fill="{colour}"/>'


def legend(lines: Sequence[Line], colours: Mapping[str, str], dashes: Mapping[str, str]) -> Iterator[str]:
    """Who is who, at the right."""
    y = TOP + 10.0
    for line in lines:
        colour = colours[line.name]
        yield f'<line x1="{LEGEND_X}" y1="{y}" x2="{LEGEND_X + 26}" y2="{y}" stroke="{colour}" stroke-width="1.8"/>'
        yield mark(LEGEND_X + 13, y, line.dtype, colour)
        name = cut(line.name, MAX_NAME)
        yield text(LEGEND_X + 34, y + 4, f"{name} {line.dtype}", "small")
        y += ROW
    if not lines:
        yield text(LEGEND_X, y + 4, "nothing was measured", "small")
        y += ROW
    y += ROW / 2
    if dashes:
        yield text(LEGEND_X, y + 4, "theory, for each dtype", "small")
    for name, dash in dashes.items():
        y += ROW
        dashed = f'class="theory" stroke-dasharray="{dash or "none"}"'
        yield f'<line x1="{LEGEND_X}" y1="{y}" x2="{LEGEND_X + 26}" y2="{y}" {dashed}/>'
        yield text(LEGEND_X + 34, y + 4, name, "small")
