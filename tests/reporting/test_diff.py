"""What `parity diff` says of two stored runs: new, worse, vanished, fixed, better, and what forbids to compare."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from parity.reporting.diff.compare import ChangeKind, Diff, compare
from parity.reporting.results.rows import FILE_NAME, ResultsError
from tests.reporting.stored_runs import CASE, Row, case_row, comparison, diagnosis, stored, unstable

Y = {"dtype": "float32", "expected": "oracle"}


def outcome(backend: str = "paddle", **changed: Any) -> Row:
    row = {"case": CASE, "dtype": "float32", "backend": backend, "outcome": "ok", "seconds": 0.1, "message": ""}
    return row | changed


def run(path: Path, rows: list[Row], outcomes: list[Row] | None = None, /, **changed: Any) -> Path:
    """A run of one case in float32 on torch and paddle; `changed` replaces parts of the document."""
    healthy = [comparison(actual="torch", **Y)]
    given = outcomes if outcomes is not None else [outcome("torch"), outcome()]
    cases = changed.pop("cases", [case_row(dtypes=["float32"])])
    stored(path, [*healthy, *rows], changed.pop("diagnoses", []), cases, given)
    file = path / FILE_NAME
    document = json.loads(file.read_text())
    for key, value in changed.items():
        document[key] = document[key] | value if isinstance(value, dict) else value
    file.write_text(json.dumps(document))
    return path


def passes(verdict: str = "close", **changed: Any) -> Row:
    return comparison(verdict, **{**Y, **changed})


def fails(ratio: float | None = 1000.0, verdict: str = "unstable", **changed: Any) -> Row:
    sizes = {"error_ratio": {"actual": ratio, "expected": None}, "culprit": ["paddle"]}
    return unstable(**{**Y, **sizes, **changed}) | {"verdict": verdict}


def rounding(**changed: Any) -> Row:
    return fails(0.7, "rounding", **{"culprit": [], "required_rtol": 2e-5, **changed})


def hidden(ratio: float, **changed: Any) -> Row:
    return passes(suspect=True, culprit=["paddle"], error_ratio={"actual": ratio, "expected": None}, **changed)


def renamed_backends(*names: str) -> list[Row]:
    return [{"name": name, "framework": name.partition("=")[0], "version": "1.2.3"} for name in names]


def both_releases(path: Path) -> Path:
    rows = [passes(actual="paddle==2.6.2"), fails()]
    outcomes = [outcome(name) for name in ("torch", "paddle==2.6.2", "paddle")]
    return run(path, rows, outcomes, backends=renamed_backends("torch", "paddle==2.6.2", "paddle"))


@pytest.fixture
def diffed(tmp_path):
    """The diff of two runs, each given by the comparisons of its paddle."""

    def diff(a: list[Row], b: list[Row], *, a_parts=None, b_parts=None, **options: Any) -> Diff:
        return compare(run(tmp_path / "a", a, **(a_parts or {})), run(tmp_path / "b", b, **(b_parts or {})), **options)

    return diff


def kinds(diff: Diff) -> list[str]:
    return [change.kind.value for change in diff.changes]


VACUOUS = passes(suspect=True)
ACCEPTED = "naive variance, as known"
RULES = {
    "a pass that fails is new": (passes(), fails(), "new", 1),
    "a rounding difference is new at the strictest level": (passes(), rounding(), "new", 1),
    "what is not accepted any more is new": (fails(known=ACCEPTED), fails(), "new", 1),
    "a vacuous pass that fails is new": (VACUOUS, fails(), "new", 1),
    "a worse verdict": (fails(), fails(verdict="semantic"), "worse", 1),
    "rounding that becomes unstable": (rounding(), fails(9.0), "worse", 1),
    "twice the error": (fails(1000.0), fails(2000.0), "worse", 1),
    "a bit less than twice is the same": (fails(1000.0), fails(1999.0), None, 0),
    "below 8 nobody is off": (rounding(), rounding(error_ratio={"actual": 7.0, "expected": None}), None, 0),
    "an infinite error stays infinite": (fails(float("inf")), fails(float("inf")), None, 0),
    "an error that becomes infinite": (fails(1e9), fails(float("inf")), "worse", 1),
    "hidden by the tolerance, then failing": (hidden(20.0), fails(), "worse", 1),
    "hidden by the tolerance, and twice as large": (hidden(20.0), hidden(40.0), "worse", 1),
    "newly hidden, twice of what is off": (passes(), hidden(16.0), "worse", 1),
    "newly hidden, by less": (passes(), hidden(15.9), "tolerated", 0),
    "zeros would pass now": (passes(), VACUOUS, "tolerated", 0),
    "off now, where zeros passed": (VACUOUS, hidden(9.0), "tolerated", 0),
    "fixed": (fails(), passes(), "fixed", 0),
    "accepted before, and gone": (fails(known=ACCEPTED), passes(), "fixed", 0),
    "fixed bit for bit": (fails(), passes(verdict="equal"), "fixed", 0),
    "half the error": (fails(1000.0), fails(500.0), "better", 0),
    "a bit more than half is the same": (fails(1000.0), fails(501.0), None, 0),
    "a milder verdict": (fails(verdict="semantic"), fails(), "better", 0),
    "hidden no more": (hidden(20.0), passes(), "better", 0),
    "still off, but within the same tolerance": (fails(), hidden(20.0), "better", 0),
    "hidden by a wider tolerance": (fails(), hidden(1000.0, rtol=1.0), "tolerated", 0),
    "accepted": (fails(), fails(known=ACCEPTED), "accepted", 0),
    "new, and accepted at once": (passes(), fails(known=ACCEPTED), "accepted", 0),
    "accepted in both": (fails(known=ACCEPTED), fails(known=ACCEPTED), None, 0),
    "accepted in both, and larger": (fails(known=ACCEPTED), fails(5000.0, known=ACCEPTED), "tolerated", 0),
    "equal and close are alike": (passes(verdict="equal"), passes(), None, 0),
    "structure has no ratio, and is worse": (fails(), fails(None, "structure"), "worse", 1),
}


@pytest.mark.parametrize("name", RULES)
def test_what_becomes_of_a_tensor(diffed, name):
    before, after, kind, code = RULES[name]
    diff = diffed([before], [after])
    assert (kinds(diff), diff.exit_code) == ([kind] if kind else [], code)


def test_without_a_ratio_the_excess_tells(diffed):
    worse = fails(None, actual_value=0.53 + 400.0)
    assert kinds(diffed([fails(None)], [worse])) == ["worse"]
    assert kinds(diffed([worse], [fails(None)])) == ["better"]
    assert kinds(diffed([fails(None)], [fails(None, actual_value=0.53 + 200.0)])) == []


def test_the_factor_is_chosen(diffed):
    assert kinds(diffed([fails(1000.0)], [fails(2000.0)], factor=3.0)) == []
    assert kinds(diffed([fails(1000.0)], [fails(1500.0)], factor=1.5)) == ["worse"]


def test_the_level_is_that_of_the_second_run_unless_it_is_given(diffed):
    lax = {"run": {"fail_on": "degraded"}}
    diff = diffed([passes()], [rounding()], b_parts=lax)
    assert (diff.level, kinds(diff), diff.exit_code) == ("degraded", ["tolerated"], 0)
    diff = diffed([passes()], [rounding()], b_parts=lax, level="mismatch")
    assert (kinds(diff), diff.exit_code) == (["new"], 1)
    assert kinds(diffed([rounding()], [fails()], level="semantic")) == ["tolerated"]
    assert kinds(diffed([hidden(10.0)], [hidden(99.0)], level="unstable")) == ["tolerated"]


def test_a_change_of_the_cause_alone_is_told(diffed):
    causes = {"diagnoses": [diagnosis(tensors=["y"])]}, {"diagnoses": [diagnosis("eps-value", tensors=["y"])]}
    diff = diffed([fails()], [fails()], a_parts=causes[0], b_parts=causes[1])
    [change] = diff.of(ChangeKind.CAUSE)
    assert (change.before.causes, change.after.causes, diff.exit_code) == (("variance-naive",), ("eps-value",), 0)


def test_a_cell_is_told_once_for_each_kind(diffed):
    a = [fails(), passes(tensor="grad.x"), passes(tensor="grad.weight"), passes(tensor="grad.bias")]
    b = [passes(), fails(10.0, tensor="grad.x"), fails(99.0, tensor="grad.weight"), passes(tensor="grad.bias")]
    diff = diffed(a, b)
    assert kinds(diff) == ["new", "fixed"]
    assert [item.tensor for item in diff.changes[0].tensors] == ["grad.weight", "grad.x"]
    assert diff.same == 1


def test_a_run_and_itself(diffed, tmp_path):
    diffed([fails(), hidden(50.0, tensor="grad.x")], [])
    diff = compare(tmp_path / "a", tmp_path / "a")
    assert (diff.changes, diff.same, diff.never, diff.exit_code) == ((), 2, 0, 0)


NOT_COMPARED = comparison("not-compared", **Y)
VANISHED = {
    "the case is not in B": {"comparisons": [], "cases": [case_row("another", dtypes=["float32"])], "outcomes": []},
    "B does not run it in float32": {"comparisons": [], "cases": [case_row(dtypes=["float64"])], "outcomes": []},
    "the backend is not in B": {
        "comparisons": [],
        "outcomes": [outcome("torch")],
        "backends": [{"name": "torch", "framework": "torch", "version": "1.2.3"}],
    },
    "crash: SIGSEGV": {
        "comparisons": [NOT_COMPARED],
        "outcomes": [outcome("torch"), outcome(outcome="crash", message="SIGSEGV\nin a thread")],
    },
    "timeout: 60 s": {"comparisons": [], "outcomes": [outcome("torch"), outcome(outcome="timeout", message="60 s")]},
    "unsupported: no kernel": {
        "comparisons": [NOT_COMPARED],
        "outcomes": [outcome("torch"), outcome(outcome="unsupported", message="no kernel")],
    },
    "unsupported: and accepted": {
        "comparisons": [{**NOT_COMPARED, "known": "no kernel"}],
        "outcomes": [outcome("torch"), outcome(outcome="unsupported", message="and accepted")],
    },
    "unavailable": {"comparisons": [], "outcomes": [outcome("torch"), outcome(outcome="unavailable")]},
    "the run was interrupted before it": {
        "comparisons": [],
        "outcomes": [outcome("torch")],
        "summary": {"exit_code": 130},
    },
    "it was not compared with anything": {"comparisons": [NOT_COMPARED]},
    "B has no such tensor": {"comparisons": [passes(tensor="grad.x")]},
}


@pytest.mark.parametrize("before", [passes(), fails()], ids=["pass", "finding"])
@pytest.mark.parametrize("reason", VANISHED)
def test_what_vanished_is_told_with_the_reason_and_never_fixed(tmp_path, reason, before):
    parts = dict(VANISHED[reason])
    rows = parts.pop("comparisons")
    if "cases" in parts:
        # The rows of torch belong to a case that this run does not have.
        parts["comparisons"] = []
    extra = [passes(tensor="grad.x")] if reason == "B has no such tensor" else []
    b = run(tmp_path / "b", rows, parts.pop("outcomes", None), **parts)
    diff = compare(run(tmp_path / "a", [before, *extra]), b)
    [change] = [change for change in diff.of(ChangeKind.VANISHED) if change.backend == "paddle"]
    assert change.after.reason == reason
    assert change.was_finding == (before["verdict"] == "unstable")
    assert (diff.exit_code, diff.of(ChangeKind.FIXED)) == (3, ())


def test_a_finding_is_not_fixed_by_inputs_that_may_not_show_it(diffed):
    other = case_row(dtypes=["float32"])
    other["inputs"]["x"]["draw"] = "constant(value=0.0)"
    diff = diffed([fails()], [passes()], b_parts={"cases": [other]})
    assert (kinds(diff), diff.exit_code) == (["vanished"], 3)
    assert "may hide the difference" in diff.changes[0].after.reason


def test_a_rounding_difference_is_not_fixed_where_the_two_are_not_compared_any_more(diffed):
    against_torch = rounding(expected="torch")
    diff = diffed([against_torch, passes()], [passes()])
    assert kinds(diff) == ["vanished"]
    assert diff.changes[0].after.reason == "no longer compared with torch"
    assert kinds(diffed([against_torch, passes()], [passes(), passes(expected="torch")])) == ["fixed"]


def test_a_rounding_difference_is_not_fixed_where_the_other_side_is_off_now(diffed):
    against_torch = fails(verdict="semantic", expected="torch", culprit=["torch"])
    diff = diffed([rounding(expected="torch"), passes()], [against_torch, passes()])
    assert [(change.kind, change.backend) for change in diff.changes] == [
        (ChangeKind.NEW, "torch"),
        (ChangeKind.BETTER, "paddle"),
    ]
    assert diff.changes[1].after.reason == "it still differs, because the other backend is wrong"


def test_what_rounding_leaves_once_the_other_side_is_mended_is_not_new(diffed):
    against_torch = fails(verdict="semantic", expected="torch", culprit=["torch"])
    diff = diffed([against_torch, passes()], [rounding(expected="torch"), passes()])
    assert [(change.kind, change.backend) for change in diff.changes] == [
        (ChangeKind.FIXED, "torch"),
        (ChangeKind.BETTER, "paddle"),
    ]
    assert (diff.changes[1].after.reason, diff.exit_code) == (
        "it differed in A, too, because the other backend was wrong",
        0,
    )
    accepted = diffed([against_torch | {"known": ACCEPTED}, passes()], [rounding(expected="torch"), passes()])
    assert kinds(accepted) == ["new", "fixed"]


def test_new_is_more_urgent_than_vanished(diffed):
    diff = diffed([passes(), passes(tensor="grad.x")], [fails()])
    assert (kinds(diff), diff.exit_code) == (["new", "vanished"], 1)


def test_a_finding_in_what_was_not_there_is_new_and_a_pass_counts(tmp_path):
    other = {"case": "second"}
    a = run(tmp_path / "a", [passes()])
    cases = [case_row(dtypes=["float32"]), case_row("second", dtypes=["float32"])]
    outcomes = [outcome("torch"), outcome(), outcome("torch", **other), outcome(**other)]
    b = run(tmp_path / "b", [passes(), fails(**other), passes(actual="torch", **other)], outcomes, cases=cases)
    diff = compare(a, b)
    [change] = diff.changes
    assert (change.kind, change.before.reason) == (ChangeKind.NEW, "the case is not in A")
    assert (diff.only_b, diff.same, diff.exit_code) == ({"passed": 1}, 2, 1)


def test_a_crash_that_is_gone_counts_as_compared_now(diffed):
    crashed = {"outcomes": [outcome("torch"), outcome(outcome="crash", message="SIGSEGV")]}
    diff = diffed([NOT_COMPARED], [passes()], a_parts=crashed)
    assert (kinds(diff), diff.exit_code, diff.changes[0].before.reason) == (["gained"], 0, "crash: SIGSEGV")
    diff = diffed([NOT_COMPARED], [NOT_COMPARED], a_parts=crashed, b_parts=crashed)
    assert (kinds(diff), diff.same, diff.never, diff.exit_code) == ([], 1, 1, 0)


def test_nothing_to_compare_is_no_success(tmp_path):
    crashed = [outcome(name, outcome="crash") for name in ("torch", "paddle")]
    a, b = (run(tmp_path / name, [], crashed, comparisons=[]) for name in "ab")
    diff = compare(a, b)
    assert (kinds(diff), diff.never, diff.exit_code) == ([], 2, 3)


def test_every_cell_is_in_one_place(tmp_path):
    cases = [case_row(name, dtypes=["float32"]) for name in ("same", "bad", "gone")]
    rows = [passes(case=case["id"]) for case in cases]
    a = run(tmp_path / "a", rows, [outcome(case=case["id"]) for case in cases], cases=cases, comparisons=rows)
    later = [*cases[:2], case_row("more", dtypes=["float32"])]
    rows = [passes(case="same"), fails(case="bad"), passes(case="more")]
    b = run(tmp_path / "b", rows, [outcome(case=case["id"]) for case in later], cases=later, comparisons=rows)
    diff = compare(a, b)
    changed = {(change.case, change.backend) for change in diff.changes}
    assert len(changed) + diff.same + diff.never + sum(diff.only_b.values()) == 4 * 2
    assert (changed, diff.same, diff.never) == ({("bad", "paddle"), ("gone", "paddle")}, 1, 3)


def test_a_directory_that_is_no_run(tmp_path):
    path = run(tmp_path / "a", [passes()])
    with pytest.raises(ResultsError, match=r"is .* a run directory"):
        compare(path, tmp_path / "nowhere")


@pytest.fixture
def n_calls():
    """How many Python functions a call makes."""

    def counted(function, *arguments) -> tuple[Any, int]:
        calls = 0

        def count(_frame, event, _argument) -> None:
            nonlocal calls
            calls += event == "call"

        sys.setprofile(count)
        try:
            return function(*arguments), calls
        finally:
            sys.setprofile(None)

    return counted


def test_the_work_grows_with_the_number_of_cells_and_no_faster(tmp_path, n_calls):
    small, large = (compared_runs(tmp_path / str(n), n, n_calls) for n in (50, 400))
    assert large < 9 * small


def compared_runs(tmp_path: Path, n: int, n_calls) -> int:
    """How many calls it takes to compare two runs of `n` cases, in each of which one tensor became worse."""
    names = [f"case-{i}" for i in range(n)]
    tensors = ("y", "grad.x", "grad.weight")
    sides = ("torch", "paddle")
    outcomes = [outcome(side, case=name) for name in names for side in sides]
    cases = [case_row(name, dtypes=["float32"]) for name in names]
    rows = [passes(case=n, actual=side, tensor=t) for n in names for side in sides for t in tensors]
    worse = [
        fails(case=row["case"], tensor="y") if row["tensor"] == "y" and row["actual"] == "paddle" else row
        for row in rows
    ]
    a = run(tmp_path / "a", [], outcomes, cases=cases, comparisons=rows)
    b = run(tmp_path / "b", [], outcomes, cases=cases, comparisons=worse)
    diff, calls = n_calls(compare, a, b)
    assert (diff.counts["new"], diff.same) == (n, n)
    return calls
