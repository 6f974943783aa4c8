"""The report: one HTML file that makes no request and can be read without JavaScript."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from parity.reporting.blocks import Block, Chapter
from parity.reporting.blocks.html import blocks_html, chapter_html
from parity.reporting.console.run import left_out, lineup
from parity.reporting.fingerprints import fingerprints as read_fingerprints
from parity.reporting.html import summary
from parity.reporting.html.detail import Detail, Space
from parity.reporting.html.every_cell import every_cell
from parity.reporting.html.findings import FindingRenderer, case_anchors, glossary
from parity.reporting.html.table import filters, table_rows
from parity.reporting.html.templates import n_bytes, rendered, source
from parity.reporting.html.tolerances import tolerances
from parity.reporting.kinds import anchors_of, chapters_of, leads_of, reports_of
from parity.reporting.plots.figures import status_bar
from parity.reporting.results.cells import LABELS, TENSOR_LABELS, CellResult, Status, cells, counts, tally
from parity.reporting.results.resume import stored
from parity.reporting.results.rows import Results

MINUTES = len("2026-01-31T10:00")
FINDINGS_HERE = "<!-- findings -->"
BUDGET = 980_000
"""Bytes of the whole file; findings beyond it get one line each."""
LEAST_FOR_MORE = 150_000
"""Bytes for findings beyond a line each, even if the rest of the file exceeds the budget."""
N_FIRST = 12
"""Number of the most urgent findings that get pictures before others get more than a line."""

MORE = (Detail.TEXT, Detail.PICTURE, Detail.PICTURES)


def html_report(results: Results, run_dir: Path, *, fingerprints: Sequence[Path] = ()) -> str:
    """The whole report; `run_dir` is where the tensors are, `fingerprints` are directories of `parity fingerprint`."""
    all_cells, chapters = cells(results), chapters_of(results)
    page = rendered("report", **context(results, run_dir, all_cells, chapters, fingerprints))
    part = findings(all_cells, FindingRenderer(results, run_dir, anchors_of(chapters)), BUDGET - n_bytes(page))
    return str(page.replace(FINDINGS_HERE, part, 1))


def context(
    results: Results,
    run_dir: Path,
    all_cells: Sequence[CellResult],
    chapters: Sequence[Chapter],
    fingerprints: Sequence[Path],
) -> dict[str, Any]:
    """The page without its findings."""
    numbers = tally(results)
    every, curves = of_all_rows(results, run_dir)
    script = source("report.js") + (source("every_cell.js") if every else "")
    rows = table_rows(all_cells, anchors_of(chapters))
    return {
        "parity": results.run.parity,
        "name": results.run.id or run_dir.name,
        "started": results.run.started[:MINUTES].replace("T", " "),
        "answer": summary.answer_parts(results),
        "leads": blocks_html(leads_of(results)),
        "n_tensors": sum(numbers.values()),
        "tally": [(status, TENSOR_LABELS[status], n) for status, n in numbers.items()],
        "share": status_bar(numbers) if numbers else "",
        "lineup": lineup(results).plain,
        "gate": summary.gate(results),
        **summary.top(results, all_cells),
        "matrix": summary.matrix(all_cells, results),
        "left_out": left_out(results),
        "rows": rows,
        "every": every,
        "tolerances": blocks_html(curves),
        "n_passed": sum(cell.status is Status.PASSED for cell in all_cells),
        "statuses": [(status, LABELS[Status(status)]) for status in counts(all_cells)],
        "filters": filters(all_cells),
        "n_findings": sum(cell.finding for cell in all_cells),
        "chapters": chapters,
        "answers": Markup().join(map(chapter_html, chapters)),
        "legends": "".join(report.legend for report in reports_of(results)),
        "no_results": summary.no_results(all_cells),
        "max_listed": summary.MAX_LISTED,
        "fingerprints": [(name, blocks_html(part, name)) for name, part in read_fingerprints(run_dir, fingerprints)],
        "known": blocks_html([summary.known(results)], "Known deviations") if results.known else "",
        "words": summary.words(),
        "environment": blocks_html([summary.environment(results.backends)], "Environment") if results.backends else "",
        "facts": list(summary.facts_of_run(results.run)),
        "configs": results.run.configs,
        "glossary": glossary(cause for cell in all_cells if cell.finding for cause in cell.causes),
        "style": Markup(source("report.css")),  # noqa: S704 - a file of this package
        "script": Markup(script),  # noqa: S704
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    }


def of_all_rows(results: Results, run_dir: Path) -> tuple[dict[str, Any] | None, list[Block]]:
    """The parts that need the rows of all cells, which a large run keeps in its store: the table of cells, and the
    tolerances that would pass."""
    if not results.left_out:
        return None, tolerances(results, None)
    with stored(run_dir) as store:
        return every_cell(store), tolerances(results, store)


def findings(all_cells: Sequence[CellResult], renderer: FindingRenderer, budget: int) -> Markup:
    """All findings in about `budget` bytes: a line each, then more of the most urgent ones while there is space."""
    shown = [cell for cell in all_cells if cell.finding]
    space = Space(renderer, case_anchors(all_cells), budget)
    for cell in shown:
        space.show(cell, Detail.LINE)
    space.left = max(space.left, LEAST_FOR_MORE)
    for group, detail in ((shown[:N_FIRST], Detail.PICTURES), *((shown, detail) for detail in MORE)):
        all(space.show(cell, detail) for cell in group)  # until there is no space
    details = Counter(space.details.values())
    numbers = {"n_findings": len(shown), "n_line": details[Detail.LINE], "n_text": details[Detail.TEXT]}
    return rendered("findings", cases=space.cases(), **numbers)
