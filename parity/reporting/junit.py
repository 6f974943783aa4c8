"""JUnit XML for the CI servers that show test results: GitLab, Jenkins, and the reporters of GitHub.

One test suite for each config file, whose path is the suite's `file`: GitHub's reporters group by suite, and the format
of Jenkins' xUnit plugin has no `file` and `line` for a test case (the lines are in the texts and in the annotations).
GitLab and Jenkins show class names instead of suites, so these say op and backend: `parity.layer_norm.paddle`.

The document is red (a failure or an error) wherever the exit code is not 0:

- `failure`: a cell that differs; an entry of `known` that is out of date (suite `known deviations`);
- `error`: a cell without a result. If nothing else is red and the exit code is not 0, as where all that is missing
  cannot be computed at all, one case of the suite `run` is an error that says so;
- `skipped`: a cell that is unsupported, or whose difference is accepted.

A difference below the level that fails and a suspect pass are passes with a note in `system-out`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as Xml

from parity import exit_codes
from parity.config.nodes import printable
from parity.reporting.results.cells import LABELS, CellResult, Status, cells
from parity.reporting.results.rows import Results
from parity.reporting.text.answer import answer
from parity.reporting.text.cell_text import (
    accepted_text,
    cell_findings,
    commands,
    config_location,
    details,
    environment,
    failing_entries,
    headline,
    run_dir_of,
)
from parity.reporting.text.reasons import case_rows
from parity.reporting.text.safe import bounded
from parity.reporting.text.words import grouped

TEXT_LIMIT = 8_000
"""Bytes of one text."""
TOTAL_LIMIT = 8_000_000
"""Bytes of all texts together; GitLab reads files below 30 MB."""
MESSAGE_LIMIT = 500
LEFT_OUT = "left out, since the file would become too large"

RED = ("failure", "error")


@dataclass(frozen=True)
class TestCase:
    """One test case; `kind` is the element for its outcome, empty for a pass."""

    suite: str
    classname: str
    name: str
    seconds: float = 0.0
    kind: str = ""
    type: str = ""
    message: str = ""
    text: str = ""


@dataclass
class TextBudget:
    """How many bytes of text may still be written."""

    left: int

    def take(self, lines: Iterable[str]) -> str:
        """The lines as one text, as far as they fit."""
        text = bounded(lines, TEXT_LIMIT)
        size = len(text.encode())
        if size > self.left:
            return LEFT_OUT
        self.left -= size
        return text


def junit_xml(results: Results) -> str:
    """The document; characters that XML cannot hold are escaped as Python spells them."""
    tests = list(cases_of(results))
    root = Xml.Element(
        "testsuites", {"name": "parity", **numbers(tests), "time": seconds_text(seconds_of(results.run.seconds))}
    )
    files = {printable(case.source.file) for case in results.cases}
    for name, group in grouped((test.suite, test) for test in tests).items():
        root.append(suite_element(name, group, results, files))
    Xml.indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{Xml.tostring(root, encoding="unicode")}\n'


def cases_of(results: Results) -> Iterator[TestCase]:
    """The cells, the most urgent first; then the failing entries of `known`, then an error that no cell shows."""
    red = False
    for test in (*cell_cases(results), *known_cases(results)):
        red = red or test.kind in RED
        yield test
    if not red and results.summary.exit_code != exit_codes.PASSED:
        said = printable(answer(results).plain)
        kind = f"exit code {results.summary.exit_code}"
        yield TestCase("run", "parity.run", "everything asked for was compared", 0.0, "error", kind, said, said)


def cell_cases(results: Results) -> Iterator[TestCase]:
    """A test case for each cell."""
    rows, run_dir, classes, budget = (
        case_rows(results),
        run_dir_of(results),
        class_names(results),
        TextBudget(TOTAL_LIMIT),
    )
    by_cell = cell_findings(results)
    for cell in cells(results):
        kind, type_, message = element_of(cell, results)
        file, line = config_location(cell.case.source)
        more = list(details(cell, rows[cell.id], by_cell.get((cell.id, cell.dtype, cell.backend), ())))
        body = (printable(f"{file}:{line}: {cell.id}"), headline(cell), *([""] if more else []), *more, "")
        lines = (*body, *commands(cell.case, run_dir)) if cell.status is not Status.PASSED else ()
        yield TestCase(
            suite=printable(file) or "cases",
            classname=f"parity.{printable(cell.op)}.{classes[cell.backend]}",
            name=printable(f"{cell.id} [{cell.dtype}]"),
            seconds=0.0 if cell.ended is None else seconds_of(cell.ended.seconds),
            kind=kind,
            type=type_,
            message=bounded([message], MESSAGE_LIMIT),
            text=budget.take(lines),
        )


def element_of(cell: CellResult, results: Results) -> tuple[str, str, str]:
    """The element for a cell's outcome, with its type and message; empty texts for a pass."""
    status = cell.status
    if status is Status.FAILED:
        return "failure", cell.verdict, headline(cell)
    if status in (Status.ERROR, Status.NOT_RUN):
        return "error", printable(cell.outcome) or status.value, headline(cell)
    if status is Status.UNSUPPORTED:
        return "skipped", status.value, headline(cell)
    if status is Status.KNOWN:
        return "skipped", status.value, accepted_text(cell, results)
    return ("", "", "") if status is Status.PASSED else ("system-out", "", LABELS[status])


def known_cases(results: Results) -> Iterator[TestCase]:
    """A failing test case for each entry of `known` that is out of date."""
    for row in failing_entries(results):
        name = printable(f"{row.case} ({':'.join(map(str, config_location(row.source)))})")
        message = printable(row.message)
        text = bounded([message, printable(f"reason given: {row.reason}")], TEXT_LIMIT)
        message = bounded([message], MESSAGE_LIMIT)
        yield TestCase("known deviations", "parity.known", name, 0.0, "failure", printable(row.state), message, text)


def class_names(results: Results) -> dict[str, str]:
    """The last part of each backend's class name: no dot, which would make a package, and no two alike."""
    names: dict[str, str] = {}
    for row in results.backends:
        name = printable(row.name).replace(".", "_")
        while name in names.values():
            name += "_"
        names[row.name] = name
    return names


def suite_element(name: str, group: Sequence[TestCase], results: Results, files: Iterable[str]) -> Xml.Element:
    """A test suite with the environment as its properties."""
    attributes = {"name": name, **numbers(group), "skipped": str(count(group, "skipped"))}
    attributes["time"] = seconds_text(sum(test.seconds for test in group))
    attributes["timestamp"] = printable(results.run.started)
    attributes |= {"file": name} if name in files else {}
    element = Xml.Element("testsuite", attributes)
    properties = Xml.SubElement(element, "properties")
    for key, value in environment(results).items():
        Xml.SubElement(properties, "property", {"name": key, "value": bounded([value], MESSAGE_LIMIT)})
    for test in group:
        add_case(element, test)
    return element


def add_case(suite: Xml.Element, test: TestCase) -> None:
    """A test case with the element for its outcome."""
    attributes = {"classname": test.classname, "name": test.name, "time": seconds_text(test.seconds)}
    element = Xml.SubElement(suite, "testcase", attributes)
    if test.kind == "system-out":
        Xml.SubElement(element, test.kind).text = f"{test.message}\n{test.text}"
    elif test.kind:
        Xml.SubElement(element, test.kind, {"type": test.type, "message": test.message}).text = test.text


def numbers(tests: Sequence[TestCase]) -> dict[str, str]:
    """The number of test cases, and of those that fail."""
    return {"tests": str(len(tests)), "failures": str(count(tests, "failure")), "errors": str(count(tests, "error"))}


def count(tests: Iterable[TestCase], kind: str) -> int:
    """How many test cases are of a kind."""
    return sum(test.kind == kind for test in tests)


def seconds_text(seconds: float) -> str:
    """Seconds as Surefire writes them."""
    return f"{seconds:.3f}"


def seconds_of(value: float | None) -> float:
    """A duration that can be added up, whatever was stored."""
    return value if value is not None and math.isfinite(value) and value > 0 else 0.0
