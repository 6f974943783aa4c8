"""The drift plot: error over conditioning or size, log-log, as an SVG file or as a part of a page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from parity.config.nodes import printable
from parity.reporting.plots.svg import COLOURS, DASHES, Frame, Scale, grid, svg, ticks, words
from parity.reporting.text.words import cut

WIDTH, HEIGHT = 940, 560
LEFT, TOP, RIGHT, BOTTOM = 84, 48, 664, 488
LEGEND_X = 690
ROW = 19
MAX_NAME = 22
MAX_TICKS = 10
FLOOR = 1e-18
STYLE = """
.drift { background: #ffffff; color: #1f2328; font: 13px system-ui, sans-serif; }
.drift .title { font-size: 15px; font-weight: 600; }
.drift .line { stroke: #1f2328; stroke-opacity: .12; fill: none; }
.drift .axis { stroke: #1f2328; stroke-opacity: .6; fill: none; }
.drift .theory { stroke: #6e7781; fill: none; stroke-width: 1.2; }
.drift text { fill: #1f2328; }
.drift .small, .drift .dim { font-size: 12px; }
.drift .middle { text-anchor: middle; }
.drift .end { text-anchor: end; }
.drift tspan { font-size: 10px; }
@media (prefers-color-scheme: dark) {
  .drift { background: #0d1117; }
  .drift text { fill: #e6edf3; }
  .drift .line, .drift .axis { stroke: #e6edf3; }
  .drift .theory { stroke: #9aa4ae; }
}
"""
"""The style of the standalone file; pages style the same classes themselves."""


@dataclass(frozen=True)
class Line:
    """Points (x, y) of one backend (or algorithm) in one dtype; both positive."""

    name: str
    dtype: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class DriftPlot:
    """Lines of backends over those of the theory, with the names of both axes."""

    title: str
    axes: tuple[str, str]
    lines: Sequence[Line]
    theory: Sequence[Line] = ()

    def drawn(self, style: str = "") -> Markup:
        """The plot as an SVG element that begins with `style`."""
        return drawing(self, style)


def drift_file(title: str, axes: tuple[str, str], lines: Sequence[Line], theory: Sequence[Line]) -> str:
    """The plot as a standalone SVG file."""
    drawn = DriftPlot(title, axes, lines, theory).drawn(f"<style>{STYLE}</style>\n")
    return str(drawn).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1) + "\n"


def drawing(plot: DriftPlot, style: str) -> Markup:
    """The plot as an element that begins with `style`."""
    title, axes, theory = plot.title, plot.axes, plot.theory
    shown = [Line(line.name, line.dtype, usable(line.points)) for line in plot.lines]
    shown = [line for line in shown if line.points]
    frame = frame_of(shown or theory)
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(dict.fromkeys(line.name for line in shown))}
    dashes = {name: DASHES[i % len(DASHES)] for i, name in enumerate(dict.fromkeys(line.name for line in theory))}
    rows = max(len(shown) + len(dashes) + 3, 1)
    middle, w, h = (TOP + BOTTOM) / 2, RIGHT - LEFT, BOTTOM - TOP
    parts = [
        f"{style}<title>{escape(printable(title))}</title>",
        words(LEFT, 28, title, "title"),
        *grid(frame, ticks(frame.x, MAX_TICKS), ticks(frame.y, MAX_TICKS), upright=True),
        f'<rect x="{LEFT}" y="{TOP}" width="{w}" height="{h}" class="axis"/>',
        words((LEFT + RIGHT) / 2, BOTTOM + 46, axes[0], "middle"),
        words(24, middle, axes[1], "middle", f' transform="rotate(-90 24 {middle:g})"'),
        # The inner svg element clips what is outside of the frame.
        f'<svg role="img" aria-label="lines" x="{LEFT}" y="{TOP}" '
        f'width="{w}" height="{h}" viewBox="{LEFT} {TOP} {w} {h}">',
        *(theory_path(line, frame, dashes[line.name]) for line in theory),
        *(part for line in shown for part in drawn(line, frame, colours[line.name])),
        "</svg>",
        *legend(shown, colours, dashes),
    ]
    return svg(WIDTH, max(HEIGHT, TOP + rows * ROW + 30), title, parts, "drift")


def usable(points: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """The points that a logarithmic plot can show; an error of zero is drawn at the bottom."""
    return tuple((x, max(y, FLOOR)) for x, y in points if math.isfinite(x) and math.isfinite(y) and x > 0 and y >= 0)


def frame_of(lines: Sequence[Line]) -> Frame:
    """Whole decades around all points, with room if there is only one."""
    xs = [math.log10(x) for line in lines for x, _ in line.points] or [0.0, 1.0]
    ys = [math.log10(max(y, FLOOR)) for line in lines for _, y in line.points] or [-16.0, 0.0]
    x0, x1 = math.floor(min(xs) + 1e-9), math.ceil(max(xs) - 1e-9)
    # Errors above 100 are equally wrong.
    y0, y1 = math.floor(min(ys)), min(math.ceil(max(ys)) + 1, 2)
    across = Scale(x0, max(x1, x0 + 1), LEFT, RIGHT, log=True, room=9)
    up = Scale(y0, max(y1, y0 + 1), BOTTOM, TOP, log=True, room=9)
    return Frame(across, up)


def path(frame: Frame, points: Sequence[tuple[float, float]]) -> str:
    """The `d` of a path through the points."""
    return "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in frame.points(points))


def theory_path(line: Line, frame: Frame, dash: str) -> str:
    """A line of the theory."""
    return f'<path d="{path(frame, usable(line.points))}" class="theory" stroke-dasharray="{dash or "none"}"/>'


def drawn(line: Line, frame: Frame, colour: str) -> Iterator[str]:
    """A backend's line with its marks: circles for float32, squares for every other dtype."""
    points = usable(line.points)
    yield f'<path d="{path(frame, points)}" fill="none" stroke="{colour}" stroke-width="1.8"/>'
    yield from (mark(x, y, line.dtype, colour) for x, y in frame.points(points))


def mark(x: float, y: float, dtype: str, colour: str) -> str:
    """A point of a backend's line."""
    if dtype == "float32":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.2" fill="{colour}"/>'
    return f'<rect x="{x - 2.9:.1f}" y="{y - 2.9:.1f}" width="5.8" height="5.8" fill="{colour}"/>'


def legend(lines: Sequence[Line], colours: Mapping[str, str], dashes: Mapping[str, str]) -> Iterator[str]:
    """The legend, at the right."""
    y = TOP + 10.0
    for line in lines:
        colour = colours[line.name]
        yield f'<path d="M{LEGEND_X} {y:g}h26" stroke="{colour}" stroke-width="1.8"/>'
        yield mark(LEGEND_X + 13, y, line.dtype, colour)
        yield words(LEGEND_X + 34, y + 4, f"{cut(line.name, MAX_NAME)} {line.dtype}", "small")
        y += ROW
    if not lines:
        yield words(LEGEND_X, y + 4, "nothing was measured", "small")
        y += ROW
    y += ROW / 2
    if dashes:
        yield words(LEGEND_X, y + 4, "theory, for each dtype", "small")
    for name, dash in dashes.items():
        y += ROW
        yield f'<path d="M{LEGEND_X} {y:g}h26" class="theory" stroke-dasharray="{dash or "none"}"/>'
        yield words(LEGEND_X + 34, y + 4, name, "small")
