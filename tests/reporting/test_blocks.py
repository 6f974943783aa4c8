"""Blocks in every format: hostile text stays text, wide tables become lines, and what does not fit is counted."""

from __future__ import annotations

import io
import re

import lxml.html
import pytest
from rich.console import Console

from parity.reporting.blocks import (
    BlockReport,
    Bullets,
    CaseAnswer,
    CodeLines,
    Commands,
    Figures,
    Folded,
    Grid,
    GridCell,
    GridColumn,
    Listed,
    Sentence,
)
from parity.reporting.blocks.console import show
from parity.reporting.blocks.html import page
from parity.reporting.blocks.markdown import block_text, comment
from parity.reporting.plots.drift import DriftPlot, Line
from tests.reporting import ci_runs

COLUMNS = (GridColumn("case"), GridColumn("ratio", number=True), GridColumn("cause", prose=True))
WIDE = GridColumn("loss", from_width=100)


def every_block(text):
    grid = Grid((*COLUMNS, WIDE), [[GridCell(text, "off", "a"), "8", text, text]], text, text)
    return [
        Sentence(text, "warning", text),
        Listed(text, [text]),
        Bullets([text]),
        CodeLines([text]),
        grid,
        Figures([DriftPlot(text, (text, text), [Line(text, "float32", ((1.0, 1.0),))])], text),
        Commands(text, [("a", text, [text])]),
        Folded(text, text, [grid]),
        CaseAnswer(text, text, text, "b", [text], [grid], fails=True),
    ]


def report(*blocks):
    return BlockReport("parity", "FAIL", "bad", "a sentence", blocks)


def shown(*blocks, width=80, verbosity=0):
    out = io.StringIO()
    show(report(*blocks), Console(file=out, width=width), verbosity=verbosity)
    return out.getvalue()


@pytest.mark.parametrize("text", ci_runs.HOSTILE)
def test_hostile_text_is_text_in_every_format(text):
    blocks = every_block(text)
    for width in (40, 200):
        assert all(line.isprintable() for line in shown(*blocks, width=width, verbosity=1).split("\n"))
    root = lxml.html.document_fromstring(page(report(*blocks)))
    assert not root.xpath("//script | //img | //*[@onerror]")
    assert {link.get("href") for link in root.iter("a")} == {"#a", "#b"}
    outside = re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)|<code>.*?</code>", "", comment(report(*blocks)), flags=re.DOTALL)
    assert set(re.findall(r"<[^>]*>", outside)) <= {
        "<details>",
        "</details>",
        "<summary>",
        "</summary>",
        "<sub>",
        "</sub>",
    }
    assert not re.search(r"@\w|#\d|https?:|\]\(|alert|\x1b", outside)


def test_a_table_that_does_not_fit_becomes_lines():
    grid = Grid(COLUMNS, [["x" * 30, "8", "a cause"]])
    assert shown(grid, width=60).splitlines()[1].split() == ["case", "ratio", "cause"]
    assert shown(grid, width=40).splitlines()[1:] == [f"  {'x' * 30}", "    ratio 8 · a cause"]


def test_a_wide_console_has_columns_that_no_other_format_has():
    grid = Grid((*COLUMNS, WIDE), [["x", "8", "y", "▁▂"]])
    assert "▁▂" in shown(grid, width=100)
    assert "▁▂" not in shown(grid, width=99) + comment(report(grid)) + page(report(grid))


def test_what_is_asked_for_is_shown_with_v_and_on_pages():
    block = Folded("more", "of it", [Sentence("details")], asked=True)
    assert "details" in shown(block, verbosity=1)
    assert "details" in page(report(block))
    assert "details" not in shown(block) + comment(report(block))


def test_what_does_not_fit_is_counted_in_every_format():
    grid = Grid(COLUMNS, [[f"case {i}", "8", "y"] for i in range(100)], most=90, elsewhere="the report has all")
    assert "and 84 more lines (-v shows all)" in shown(grid)
    assert "more lines" not in shown(grid, verbosity=1)
    text = block_text(grid, 1_000)
    assert len(text.encode()) <= 1_000
    n = len(re.findall(r"^\| `case", text, re.MULTILINE))
    assert f"... and {100 - n} more rows left out to keep this short; the report has all" in text
    assert "... and 10 more: the report has all" in page(report(grid))
    assert block_text(grid, 10) == ""
