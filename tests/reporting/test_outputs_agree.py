"""One run tells the same in every format: which cells differ, and how many there are of each kind."""

from __future__ import annotations

import io
import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import lxml.html
import pytest
from junitparser import JUnitXml
from rich.console import Console

from parity import exit_codes
from parity.reporting.console.run import render
from parity.reporting.html.page import html_report
from parity.reporting.junit import junit_xml
from parity.reporting.markdown import markdown
from parity.reporting.results.cells import LABELS, Status, cells
from parity.reporting.results.results import as_json, read_results, write_atomically
from parity.reporting.results.rows import FILE_NAME
from tests.conftest import FAKES, three_cases, user_config
from tests.reporting import ci_runs
from tests.reporting.stored_runs import changed, plain
from tests.reporting.test_markdown import rendered

GROUPS = {"failed": "red", "error": "missing", "not-run": "missing", "unsupported": "skipped", "known": "skipped"}
"""What JUnit can tell apart; all else passes."""

BY_LABEL = {label: status.value for status, label in LABELS.items()}
TALLY = re.compile(r"^\d+ tensors?: (.*)$", re.MULTILINE)
TABLE_INDENT = 2
VERDICTS = exit_codes.FAILING["mismatch"]


@dataclass(frozen=True)
class View:
    """What a format says: the cells that fail the run, and how many cells or tensors of each kind there are."""

    failing: frozenset[tuple[str, ...]]
    counts: dict[str, int]

    def by_tensor(self, results, *, backends):
        failing = self.failing if backends else frozenset(cell[:2] for cell in self.failing)
        return replace(self, failing=failing, counts=tensor_counts(results))


def grouped(counts):
    found = Counter()
    for status, n in counts.items():
        found[GROUPS.get(status, "passed")] += n
    return dict(found)


def counted(text):
    """`3 tensors: 1 fail, 2 agree` as numbers by word."""
    pairs = (part.split(" ", 1) for part in TALLY.search(text)[1].split(", "))
    return {word: int(n) for n, word in pairs}


def tensor_counts(results):
    """The words for each tensor, from the rows alone."""
    level, tensors = exit_codes.FAILING[results.run.fail_on], {}
    for row in results.comparisons:
        tensors.setdefault(row.tensor_key, []).append(row)
    found = Counter()
    for rows in tensors.values():
        judged = [row for row in rows if row.counts]
        rows = [row for row in judged if row.compared or row.known is None] or judged
        words = {"known" if row.known is not None else word_of(row, level) for row in rows} or {"warn"}
        order = ("fail", "lack a result", "known", "warn", "suspect", "agree")
        found[next(word for word in order if word in words)] += 1
    return dict(found)


def word_of(row, level):
    if row.verdict == "not-compared":
        return "lack a result"
    if row.verdict in VERDICTS:
        return "fail" if row.verdict in level else "warn"
    return "suspect" if row.suspect else "agree"


def from_json(results):
    level = exit_codes.FAILING[results.run.fail_on]
    rows = [row for row in results.comparisons if row.verdict in level and row.known is None and row.counts]
    failing = {(row.case, row.dtype, name) for row in rows for name in row.counted or row.culprit or [row.actual]}
    return View(frozenset(failing), grouped(results.summary.cells))


def from_console(results):
    out = io.StringIO()
    render(results, Console(file=out, width=250), verbosity=1)
    case, failing = "", set()
    for line in out.getvalue().splitlines():
        indent, words = len(line) - len(line.lstrip()), re.split(r"\s{2,}", line.strip())
        if indent == TABLE_INDENT and len(words) == 1:
            case = words[0]
        elif (
            indent > TABLE_INDENT
            and len(words) > 2
            and words[2] in VERDICTS
            and not words[-1].endswith(("(known)", "(not counted)"))
        ):
            failing.add((case, words[0]))
    return View(frozenset(failing), counted(out.getvalue()))


def from_junit(results):
    document = JUnitXml.fromstring(junit_xml(results).encode())
    cases = [case for suite in document for case in suite if case.classname not in ("parity.known", "parity.run")]
    failing = set()
    for case in cases:
        name, _, dtype = case.name.removesuffix("]").rpartition(" [")
        if case.is_failure:
            failing.add((name, dtype, case.classname.rpartition(".")[2]))
    kinds = (
        "red" if c.is_failure else "missing" if c.is_error else "skipped" if c.is_skipped else "passed" for c in cases
    )
    return View(frozenset(failing), dict(Counter(kinds)))


def from_markdown(results):
    text = markdown(results, limit=900_000)
    rows = [[cell.text_content() for cell in row] for row in rendered(text).xpath("//tr[td]")]
    failing = {(row[1], row[2], row[3]) for row in rows if row[4] in VERDICTS}
    return View(frozenset(failing), counted(text))


def from_html(results):
    page = lxml.html.fromstring(html_report(results, Path("nowhere")))
    rows = [[cell.text_content() for cell in row] for row in page.get_element_by_id("table").xpath(".//tr[td]")]
    failing = {(row[2], row[4], row[5]) for row in rows if row[0] == LABELS[Status.FAILED]}
    cells_of = (max(len(row.xpath("td[3]//span")), 1) for row in page.get_element_by_id("table").xpath(".//tr[td]"))
    found = Counter()
    for row, n in zip(rows, cells_of, strict=True):
        found[BY_LABEL[row[0]]] += n
    return View(frozenset(failing), grouped(found))


FORMATS = {
    "html": from_html,
    "json": from_json,
    "junit": from_junit,
    "markdown": from_markdown,
    "console": from_console,
}
"""How each format is read back; a format that tells cells apart is compared with JSON by backend as well."""

BY_TENSOR = ("console", "markdown")


def agree(results):
    """What a format says and what results.json says, for the formats that do not say the same."""
    told = from_json(results)
    assert told.failing == {(c.id, c.dtype, c.backend) for c in cells(results) if c.status == "failed"}
    tensors = {name: told.by_tensor(results, backends=name != "console") for name in BY_TENSOR}
    wanted = {name: tensors.get(name, told) for name in FORMATS}
    views = {name: read(results) for name, read in FORMATS.items()}
    return {name: (view, wanted[name]) for name, view in views.items() if view != wanted[name]}


@pytest.mark.parametrize("name", ["every_status", "healthy", "only_unsupported", "only_ledger", "accepted_unsupported"])
def test_a_stored_run_is_the_same_in_every_format(name, tmp_path):
    write_atomically(tmp_path / FILE_NAME, as_json(getattr(ci_runs, name)()))
    assert agree(read_results(tmp_path)) == {}


def test_what_is_accepted_as_unsupported_is_known_in_every_format(tmp_path):
    results = ci_runs.accepted_unsupported()
    assert results.summary.exit_code == exit_codes.PASSED
    status = {(cell.id, cell.backend): cell.status for cell in cells(results)}
    known = {("cannot", "paddle"), ("no-baseline", "torch")}
    assert {cell for cell, found in status.items() if found is Status.KNOWN} == known
    assert set(status.values()) == {Status.KNOWN, Status.PASSED}
    document = JUnitXml.fromstring(junit_xml(results).encode())
    skipped = {(c.classname, c.result[0].message) for suite in document for c in suite if c.is_skipped}
    assert skipped == {
        (f"parity.group_norm.{backend}", "known: no kernel (until 2027-06-30)") for backend in ("paddle", "torch")
    }
    assert "unsupported: no such op; known: no kernel" in markdown(results).replace("\\", "")
    page = lxml.html.fromstring(html_report(results, Path("nowhere"))).text_content()
    assert "not-compared" not in page
    assert page.count("no such op; accepted: no kernel") == 2
    out = io.StringIO()
    render(results, Console(file=out, width=250))
    assert out.getvalue().startswith("PASS  no findings; 3 tensors agree; 2 lack the result of some backend, as known")


@pytest.mark.parametrize("fake", ["nan", "raises", "wrong_shape"])
def test_a_real_run_is_the_same_in_every_format(parity_run, fake):
    done = parity_run(user_config(FAKES / f"{fake}.py", cases=three_cases()))
    results = read_results(done.run_dir)
    assert agree(results) == {}
    assert from_json(results).counts["passed"] > 0
    assert from_junit(results).counts.keys() - {"passed"} == {"missing" if fake == "raises" else "red"}


def test_a_format_that_says_something_else_is_found(monkeypatch):
    results = ci_runs.every_status()
    dishonest = changed(results, comparisons=[{**row, "verdict": "close"} for row in plain(results.comparisons)])
    for name in ("html", "junit", "markdown", "console"):
        read = FORMATS[name]
        monkeypatch.setitem(FORMATS, name, lambda _, read=read: read(dishonest))
        assert name in agree(results)
