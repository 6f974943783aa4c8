"""JUnit XML: what readers of the format take from it, and that it is red wherever the exit code is not 0."""

from __future__ import annotations

import re

import pytest
from junitparser import Error, Failure, JUnitXml, Skipped
from lxml import etree

from parity.reporting import junit
from parity.reporting.junit import TEXT_LIMIT, junit_xml
from parity.reporting.results.cells import cells, counts
from parity.reporting.results.results import read_results
from tests.conftest import ROOT
from tests.reporting import ci_runs
from tests.reporting.stored_runs import backend_row, changed, comparison, diagnosis, finding, plain, stored, unstable

SCHEMA = etree.XMLSchema(etree.parse(ROOT / "tests" / "schemas" / "junit.xsd"))
RUNS = {
    name: getattr(ci_runs, name)
    for name in ("every_status", "healthy", "only_unsupported", "only_ledger", "below", "interrupted", "hostile")
}


def tree(results):
    return etree.fromstring(junit_xml(results).encode())


def element(results, name, classname):
    return next(t for t in tree(results).iter("testcase") if (t.get("name"), t.get("classname")) == (name, classname))


@pytest.mark.parametrize("name", RUNS)
def test_every_document_is_valid(name):
    SCHEMA.assertValid(tree(RUNS[name]()))


@pytest.mark.parametrize(
    "damage",
    [
        lambda root: root[0].set("tests", "-1"),
        lambda root: root[0].set("time", "1e-3"),
        lambda root: root[0][1].set("line", "3"),
        lambda root: root[0][1].append(etree.Element("failed")),
        lambda root: root[0].append(etree.fromstring(etree.tostring(root[0][1]))),
        lambda root: root[0].attrib.pop("failures"),
    ],
)
def test_the_schema_refuses_a_broken_document(damage):
    root = tree(ci_runs.every_status())
    SCHEMA.assertValid(root)
    damage(root)
    assert not SCHEMA.validate(root)


@pytest.mark.parametrize("name", RUNS)
def test_the_counts_are_those_of_the_test_cases(name):
    text = junit_xml(RUNS[name]())
    read = JUnitXml.fromstring(text.encode())
    written = (read.tests, read.failures, read.errors)
    suites = [(s.tests, s.failures, s.errors, s.skipped) for s in read]
    read.update_statistics()
    assert written == (read.tests, read.failures, read.errors)
    assert suites == [(s.tests, s.failures, s.errors, s.skipped) for s in read]


@pytest.mark.parametrize("name", RUNS)
def test_it_is_red_exactly_where_the_exit_code_is_not_0(name):
    results = RUNS[name]()
    read = JUnitXml.fromstring(junit_xml(results).encode())
    assert bool(read.failures + read.errors) == bool(results.summary.exit_code)


def test_each_status_has_its_element():
    results = ci_runs.every_status()
    kinds = {(t.get("name"), t.get("classname")): t[0].tag if len(t) else "" for t in tree(results).iter("testcase")}
    of = {name: kinds[f"{name} [float32]", "parity.group_norm.paddle"] for name in ("differs", "crashes", "cannot")}
    of |= {name: kinds[f"{name} [float32]", "parity.group_norm.paddle"] for name in ("accepted", "hides", "agrees")}
    wanted = {"differs": "failure", "crashes": "error", "cannot": "skipped", "accepted": "skipped"}
    assert of == {**wanted, "hides": "system-out", "agrees": ""}
    assert kinds["never [float32]", "parity.group_norm.torch"] == "error"
    assert [kind for (_, classname), kind in kinds.items() if classname == "parity.known"] == ["failure"] * 3


def test_a_failure_says_the_cause_first_then_the_numbers_and_what_to_type():
    failure = element(ci_runs.every_status(), "differs [float32]", "parity.group_norm.paddle")[0]
    assert failure.get("type") == "unstable"
    assert (
        failure.get("message")
        == "paddle float32: the variance is E[x^2] - E[x]^2 (variance-naive): unstable in y, error ratio 81234"
    )
    for part in (
        "configs/a.yaml:3: differs",
        "paddle 162.93 against torch 0.530001",
        "oracle 0.53",
        "at [0, 1, 2, 3]",
        "why: the error of paddle is 8.12e+04 times that of a careful implementation in float32",
        "explains it: error ratio 8.12e+04 before, 0.91",
        "parity explain 'out dir' differs",
        "parity repro 'out dir' differs",
    ):
        assert part in failure.text


def test_what_is_accepted_says_why_and_until_when():
    skipped = element(ci_runs.every_status(), "accepted [float32]", "parity.group_norm.paddle")[0]
    assert skipped.get("message") == "known: naive variance (until 2027-06-30)"


def test_a_crash_says_what_happened():
    error = element(ci_runs.every_status(), "crashes [float32]", "parity.group_norm.paddle")[0]
    assert (error.get("type"), error.get("message")) == (
        "crash",
        "paddle float32: crash: killed by SIGSEGV | second line",
    )
    assert "\nsecond line\n" in error.text


def test_what_cannot_be_computed_at_all_is_still_seen():
    case = element(ci_runs.only_unsupported(), "everything asked for was compared", "parity.run")
    assert case[0].tag == "error"
    assert case[0].get("message") == "INCOMPLETE  no findings, but 1 tensor lacks the result of some backend"


def test_a_suite_is_a_config_with_its_environment():
    suites = {suite.get("name"): suite for suite in tree(ci_runs.every_status())}
    assert list(suites) == ["configs/a.yaml", "configs/b.yaml", "known deviations"]
    assert [suite.get("file") for suite in suites.values()] == ["configs/a.yaml", "configs/b.yaml", None]
    properties = {p.get("name"): p.get("value") for p in suites["configs/b.yaml"].iter("property")}
    assert properties["paddle"] == "paddle 1.2.3 eager cpu Python 3.11.7"
    assert (properties["baseline"], properties["seed"], properties["host cpu"]) == ("torch", "7", "some cpu")
    assert suites["configs/a.yaml"].get("time") == "2.000"


def test_the_parser_reads_ids_and_results():
    read = JUnitXml.fromstring(junit_xml(ci_runs.every_status()).encode())
    found = {
        case.name: {type(r) for r in case.result} for suite in read for case in suite if "paddle" in case.classname
    }
    assert found["differs [float32]"] == {Failure}
    assert found["crashes [float32]"] == {Error}
    assert found["cannot [float32]"] == {Skipped}


def test_the_counts_are_those_of_the_cells():
    results = ci_runs.every_status()
    read = JUnitXml.fromstring(junit_xml(results).encode())
    numbers = counts(cells(results))
    assert read.errors == numbers["error"] + numbers["not-run"]
    assert sum(s.skipped for s in read) == numbers["unsupported"] + numbers["known"]
    assert read.failures == numbers["failed"] + 3
    assert read.tests == sum(numbers.values()) + 3


def test_no_character_that_xml_cannot_hold():
    text = junit_xml(ci_runs.hostile())
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]", text)
    names = [case.name for suite in JUnitXml.fromstring(text.encode()) for case in suite]
    assert any(name.startswith("3 </details><script>alert(1)</script>") for name in names)


def test_no_name_of_a_backend_makes_a_package_or_meets_another():
    results = ci_runs.healthy()
    names = ("paddle==2.6", "paddle==2_6")
    results = changed(results, backends=[backend_row(name) for name in names])
    assert junit.class_names(results) == {"paddle==2.6": "paddle==2_6", "paddle==2_6": "paddle==2_6_"}


def test_texts_are_bounded(monkeypatch):
    results = ci_runs.run_of(
        [ci_runs.case("big")],
        [unstable(case="big", tensor=f"tensor{i}") for i in range(100)],
        [],
        [diagnosis(case="big")],
    )
    failure = element(results, "big [float32]", "parity.group_norm.paddle")[0]
    assert TEXT_LIMIT - 400 < len(failure.text) <= TEXT_LIMIT
    assert failure.text.endswith(f"... cut after {TEXT_LIMIT} bytes")
    monkeypatch.setattr(junit, "TOTAL_LIMIT", 9_000)
    texts = [t.text for t in tree(ci_runs.many(50)).iter("failure")]
    assert texts[0] != junit.LEFT_OUT
    assert texts[-1] == junit.LEFT_OUT
    assert sum(map(len, texts)) < 9_000 + 50 * len(junit.LEFT_OUT)


def test_a_run_that_was_stored_before_is_read(tmp_path):
    rows = [*finding(), comparison(tensor="grad.weight")]
    root = tree(read_results(stored(tmp_path, rows, [diagnosis()])))
    SCHEMA.assertValid(root)
    assert root.find(".//failure").get("type") == "unstable"
    assert "parity explain RUN_DIR group-norm-offset=10000" in root.find(".//failure").text


def test_a_message_tells_verdicts_apart():
    rows = [
        comparison("nonfinite", ["paddle"], case="mixed", tensor="y"),
        unstable(case="mixed", tensor="grad.x"),
        unstable(case="mixed", tensor="grad.x", expected="oracle"),
        comparison(case="mixed", tensor="grad.bias", suspect=True, culprit=["paddle"]),
    ]
    failure = element(ci_runs.run_of([ci_runs.case("mixed")], rows, []), "mixed [float32]", "parity.group_norm.paddle")[
        0
    ]
    assert failure.get("message").startswith(
        "paddle float32: nonfinite in y; unstable in grad.x; grad.bias passes only because the tolerance is loose, "
        "error ratio 81234"
    )


def test_what_a_stored_run_may_leave_out_or_overstate_is_no_obstacle():
    results = ci_runs.every_status()
    run = {"baseline": "torch", "fail_on": "mismatch", "seconds": float("inf")}
    outcomes = plain(results.outcomes)
    for row, seconds in zip(outcomes, (-1, float("nan"), float("inf"), 1e300), strict=False):
        row["seconds"] = seconds
    del outcomes[-1]["seconds"]
    known = plain(results.known)
    for row, source in zip(known, (None, None, {"file": "", "line": 0}, {"file": "x", "line": -1}), strict=True):
        row.update(source=source, until="some day")
    SCHEMA.assertValid(tree(changed(results, run=run, outcomes=outcomes, known=known)))
