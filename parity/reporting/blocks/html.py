"""Blocks as HTML, by one template, which escapes what it prints."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace

from markupsafe import Markup

from parity.reporting.blocks import Block, BlockReport, CaseAnswer, Chapter, Figures, Folded, cell_of
from parity.reporting.blocks import in_every_format as columns_of
from parity.reporting.html.templates import n_bytes, rendered, source
from parity.reporting.text.safe import arrowed

BUDGET = 600_000
"""Limit in bytes for all answers of a chapter; those that would exceed it get their sentences."""
MAX_TRIED = 3
"""After so many answers without space, the rest get their sentences without being tried."""
MAX_LED = 200
"""Lines below a sentence."""


def page(report: BlockReport) -> str:
    """A report as one self-contained page: no script, no request."""
    style = source("blocks.css")
    return str(
        rendered(
            "blocks",
            report=report,
            style=Markup(style),  # noqa: S704 - a file of this package
            style_hash=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
            blocks=blocks_html(report.blocks, report.heading),
        )
    )


def chapter_html(chapter: Chapter) -> Markup:
    """A chapter of the report."""
    left, parts, n_brief = BUDGET, [], 0
    for answer in chapter.answers:
        part = answer_html(answer, chapter.kind) if n_brief < MAX_TRIED else Markup()
        if not part or n_bytes(part) > left:
            part, n_brief = answer_html(replace(answer, blocks=(), facts=()), chapter.kind), n_brief + 1
        left -= n_bytes(part)
        parts.append(part)
    return rendered("chapter", chapter=chapter, parts=parts, n_brief=n_brief)


def answer_html(answer: CaseAnswer, kind: str) -> Markup:
    """An answer as a section of its chapter."""
    return rendered("answer", answer=answer, kind=kind, blocks=blocks_html(answer.blocks, answer.title))


def blocks_html(blocks: Iterable[Block], label: str = "") -> Markup:
    """Blocks one after the other; `label` names their tables for screen readers."""
    return Markup().join(block_html(block, label) for block in blocks)


def block_html(block: Block, label: str = "") -> Markup:
    """A block."""
    if isinstance(block, CaseAnswer):
        return answer_html(block, "answer")
    inner = blocks_html(block.blocks, label) if isinstance(block, Folded) else Markup()
    plots: Sequence[Markup] = [plot.drawn() for plot in block.plots] if isinstance(block, Figures) else ()
    tools = {"cell_of": cell_of, "columns_of": columns_of, "classes": classes, "arrowed": arrowed, "max_led": MAX_LED}
    return rendered("block", name=type(block).__name__, block=block, inner=inner, plots=plots, label=label, **tools)


def classes(*names: str) -> Markup:
    """The attribute `class`, of names in this package, or nothing."""
    used = " ".join(name for name in names if name)
    return Markup(' class="{}"').format(used) if used else Markup()
