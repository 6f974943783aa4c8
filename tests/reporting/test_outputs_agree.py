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
from parity.reporting.results.results import FILE_NAME, as_json, read_results, write_atomically
from tests.conftest import FAKES, three_cases, user_config
from tests.reporting import ci_runs
from tests.reporting.stored_runs import changed, plain
from tests.reporting.test_markdown import rendered

GROUPS = {"failed": "red", "error": "missing", "not-run": "missing", "unsupported": "skipped", "known": "skipped"}
"""What JUnit can tell apart; all else passes."""

BY_LABEL = {label: status.value for status, label in LABELS.items()}
VERDICTS = exit_codes.FAILING["mismatch"]


@dataclass(frozen=True)
class View:
    """What a format says: the cells that fail the run, and how many cells of each kind there are.

    Where a format speaks of tensors, `failing` has no backends.
    """

    failing: frozenset[tuple[str, ...]]
    counts: dict[str, int]

    def without_backends(self):
        return replace(self, failing=frozenset(cell[:2] for cell in self.failing))


def grouped(counts):
    found = Counter()
    for status, n in counts.items():
        found[GROUPS.get(status, "passed")] += n
    return dict(found)


def counted(line):
    """`4 failed, 2 known` as numbers by status."""
    pairs = (part.split(" ", 1) for part in line.removeprefix("cells: ").split(", "))
    return {BY_LABEL[label]: int(n) for n, label in pairs}


def from_json(results):
    level = exit_codes.FAILING[results.run.fail_on]
    rows = [row for row in results.comparisons if row.verdict in level and row.known is None]
    failing = {(row.case, row.dtype, name) for row in rows for name in row.culprit or [row.actual]}
    return View(frozenset(failing), grouped(results.summary.cells))


def from_console(results):
    out = io.StringIO()
    render(results, Console(file=out, width=250), verbosity=1)
    lines = out.getvalue().splitlines()
    rows = [re.split(r"\s{2,}", line.strip()) for line in lines]
    found = [row for row in rows if len(row) > 3 and row[3] in VERDICTS and not row[-1].endswith("(known)")]
    return View(
        frozenset((row[0], row[1]) for row in found),
        grouped(counted(next(line for line in lines if line.startswith("cells: ")))),
    )


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
    return View(frozenset(failing), grouped(counted(re.search("^cells: .*$", text, re.MULTILINE)[0])))


def from_html(results):
    page = lxml.html.fromstring(html_report(results, Path("nowhere")))
    rows = [[cell.text_content() for cell in row] for row in page.get_element_by_id("table").xpath(".//tr[td]")]
    failing = {(row[2], row[4], row[5]) for row in rows if row[0] == LABELS[Status.FAILED]}
    return View(frozenset(failing), grouped(Counter(BY_LABEL[row[0]] for row in rows)))


FORMATS = {
    "html": from_html,
    "json": from_json,
    "junit": from_junit,
    "markdown": from_markdown,
    "console": from_console,
}
"""How each format is read back; a format that tells cells apart is compared with JSON by backend as well."""

BY_TENSOR = ("console",)


def agree(results):
    """The formats that do not say what results.json says."""
    told = from_json(results)
    assert told.failing == {(c.id, c.dtype, c.backend) for c in cells(results) if c.status == "failed"}
    wanted = {name: told.without_backends() if name in BY_TENSOR else told for name in FORMATS}
    return [name for name, read in FORMATS.items() if read(results) != wanted[name]]


@pytest.mark.parametrize("name", ["every_status", "healthy", "only_unsupported", "only_ledger", "accepted_unsupported"])
def test_a_stored_run_is_the_same_in_every_format(name, tmp_path):
    write_atomically(tmp_path / FILE_NAME, as_json(getattr(ci_runs, name)()))
    assert agree(read_results(tmp_path)) == []


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
    assert out.getvalue().startswith("PASS  3 tensors of 3 cases agree; 4 comparisons cannot be made, as known")


@pytest.mark.parametrize("fake", ["nan", "raises", "wrong_shape"])
def test_a_real_run_is_the_same_in_every_format(parity_run, fake):
    done = parity_run(user_config(FAKES / f"{fake}.py", cases=three_cases()))
    results = read_results(done.run_dir)
    assert agree(results) == []
    assert from_json(results).counts["passed"] > 0
    assert from_junit(results).counts.keys() - {"passed"} == {"missing" if fake == "raises" else "red"}


def test_a_format_that_says_something_else_is_found(monkeypatch):
    results = ci_runs.every_status()
    dishonest = changed(results, comparisons=[{**row, "verdict": "close"} for row in plain(results.comparisons)])
    for name in ("html", "junit", "markdown", "console"):
        read = FORMATS[name]
        monkeypatch.setitem(FORMATS, name, lambda _, read=read: read(dishonest))
        assert name in agree(results)
