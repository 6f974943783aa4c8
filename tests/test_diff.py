"""What `parity diff` says of two stored runs: new, worse, vanished, fixed, better, and what forbids to compare."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parity.reporting.diff import Diff, Kind, compare
from parity.reporting.diff_sides import DiffError, mapping
from parity.reporting.results import FILE_NAME, ResultsError, Row
from tests.stored_runs import CASE, case_row, comparison, diagnosis, stored, unstable

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
    assert kinds(diffed([hidden(10.0)], [hidden(99.0)], level="degraded")) == ["tolerated"]


def test_a_change_of_the_cause_alone_is_told(diffed):
    causes = {"diagnoses": [diagnosis(tensors=["y"])]}, {"diagnoses": [diagnosis("eps-value", tensors=["y"])]}
    diff = diffed([fails()], [fails()], a_parts=causes[0], b_parts=causes[1])
    [change] = diff.of(Kind.CAUSE)
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
    [change] = [change for change in diff.of(Kind.VANISHED) if change.backend == "paddle"]
    assert change.after.reason == reason
    assert change.was_finding == (before["verdict"] == "unstable")
    assert (diff.exit_code, diff.of(Kind.FIXED)) == (3, ())


def test_a_rounding_difference_is_not_fixed_where_the_two_are_not_compared_any_more(diffed):
    against_torch = rounding(expected="torch")
    diff = diffed([against_torch, passes()], [passes()])
    assert kinds(diff) == ["vanished"]
    assert diff.changes[0].after.reason == "no longer compared with torch"
    assert kinds(diffed([against_torch, passes()], [passes(), passes(expected="torch")])) == ["fixed"]


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
    assert (change.kind, change.before.reason) == (Kind.NEW, "the case is not in A")
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


def test_what_differs_between_the_runs_is_on_top(diffed):
    newer = [
        {"name": "torch", "framework": "torch", "version": "2.14.0", "numpy": "2.1.0"},
        {"name": "paddle", "framework": "paddle", "version": "1.2.3", "mode": "eager", "numpy": "2.2.0"},
    ]
    older = [{**row, "version": "1.2.3", "mode": "eager", "numpy": "2.1.0"} for row in newer]
    before = {"parity": "0.1.0", "seed": 0, "host": {"threads": 1}, "configs": [{"path": "x.yaml", "sha256": "1"}]}
    after = {"parity": "0.2.0", "seed": 1, "host": {"threads": 4}, "configs": [{"path": "x.yaml", "sha256": "2"}]}
    diff = diffed(
        [passes()],
        [passes()],
        a_parts={"run": before, "backends": older, "summary": {"exit_code": 130}},
        b_parts={"run": after, "backends": newer},
    )
    wanted = ["torch 1.2.3 -> 2.14.0", "paddle numpy 2.1.0 -> 2.2.0", "parity 0.1.0 -> 0.2.0", "seed 0 -> 1"]
    wanted += ["threads 1 -> 4", "config x.yaml changed", "torch mode eager -> none"]
    wanted += ["A was interrupted; what it had not finished was not compared"]
    assert sorted(diff.run_notes) == sorted(wanted)


CHANGED_INPUTS = {
    "param eps 1e-05 -> 0.001": {"params": {"num_groups": 4, "eps": 1e-3}},
    "param eps 1e-05 -> none": {"params": {"num_groups": 4}},
    "op group_norm -> layer_norm": {"op": "layer_norm"},
    "input x: shape [4] -> [5]": {"inputs": {"x": {"shape": [5], "draw": "normal()", "file": None}}},
    "input x: normal() -> normal() + 100": {"inputs": {"x": {"shape": [4], "draw": "normal() + 100", "file": None}}},
    "input x is given in A only": {"inputs": {}},
}


@pytest.mark.parametrize("note", CHANGED_INPUTS)
def test_a_finding_on_other_inputs_says_so(tmp_path, note):
    given = case_row(dtypes=["float32"], inputs={"x": {"shape": [4], "draw": "normal()", "file": None}})
    a = run(tmp_path / "a", [passes()], cases=[given])
    b = run(tmp_path / "b", [fails()], cases=[given | CHANGED_INPUTS[note]])
    diff = compare(a, b)
    assert diff.changes[0].notes == (note,)
    assert diff.not_alike == {CASE: (note,)}


def test_another_seed_is_another_input(diffed):
    diff = diffed([passes()], [fails()], a_parts={"run": {"seed": 0}}, b_parts={"run": {"seed": 1}})
    assert diff.changes[0].notes == ("input x has other values", "input weight has other values")


@pytest.mark.parametrize(("values", "notes"), [([1.0, 2.0], ()), ([1.0, 3.0], ("input x has other values",))])
def test_literal_inputs_are_compared_by_what_was_stored(tmp_path, values, notes):
    given = case_row(dtypes=["float32"], inputs={"x": {"shape": [2], "draw": "values(shape=(2,))", "file": "t/x.npy"}})
    runs = [run(tmp_path / name, rows, cases=[given]) for name, rows in (("a", [passes()]), ("b", [fails()]))]
    for path, stored_values in zip(runs, ([1.0, 2.0], values), strict=True):
        (path / "t").mkdir()
        np.save(path / "t" / "x.npy", np.array(stored_values))
    assert compare(*runs).changes[0].notes == notes


def test_a_stored_input_outside_the_run_is_not_read(tmp_path):
    given = case_row(dtypes=["float32"], inputs={"x": {"shape": [2], "draw": "values()", "file": "../secret.npy"}})
    (tmp_path / "secret.npy").write_text("secret")
    a, b = (run(tmp_path / name / "run", [passes()], cases=[given]) for name in "ab")
    (tmp_path / "a" / "secret.npy").write_text("other")
    assert compare(a, b).not_alike == {}


def test_another_tolerance_is_told_beside_the_finding(diffed):
    diff = diffed([passes(rtol=1.0)], [fails()])
    assert diff.changes[0].notes == ("tolerance rtol 1 atol 1e-05 -> rtol 1.3e-06 atol 1e-05",)


def test_entries_of_the_ledger_that_became_stale_are_told(diffed):
    entry = {"case": CASE, "backend": "paddle", "reason": ACCEPTED, "state": "matched", "message": "c.yaml:9: matched"}
    stale = entry | {"state": "stale", "message": "c.yaml:9: stale: remove the entry"}
    diff = diffed([fails(known=ACCEPTED)], [passes()], a_parts={"known": [entry]}, b_parts={"known": [stale]})
    [change] = diff.ledger
    assert (change.before, change.after, change.fails, kinds(diff)) == ("matched", "stale", True, ["fixed"])
    same = diffed([passes()], [passes()], a_parts={"known": [entry] * 2}, b_parts={"known": [entry]})
    assert [(change.before, change.after) for change in same.ledger] == [("matched", None)]


NAMES = ["torch", "paddle", "paddle==2.6.2", "a=b"]


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("paddle==2.6.2=paddle", ("paddle==2.6.2", "paddle")),
        ("paddle=paddle==2.6.2", ("paddle", "paddle==2.6.2")),
        ("paddle==2.6.2=paddle==2.6.2", ("paddle==2.6.2", "paddle==2.6.2")),
        ("a=b=torch", ("a=b", "torch")),
    ],
)
def test_a_map_is_split_where_both_sides_are_backends(text, pair):
    assert mapping(text, NAMES, NAMES) == pair


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("torch", "is not OLD=NEW"),
        ("torch==2", "is not OLD=NEW"),
        ("padle=torch", 'RUN_A has no backend "padle"; did you mean "paddle"? It has torch'),
        ("torch=padle", 'RUN_B has no backend "padle"; did you mean "paddle"?'),
        ("zzz=\x1b[31m", 'RUN_A has no backend "zzz"; It has torch'),
    ],
)
def test_a_map_that_names_nobody_is_told_with_the_nearest(text, said):
    with pytest.raises(DiffError) as error:
        mapping(text, NAMES, NAMES)
    assert said in str(error.value)
    assert str(error.value).isprintable()


def test_an_ambiguous_map_is_refused():
    with pytest.raises(DiffError, match="2 ways"):
        mapping("a=b=c", ["a", "a=b"], ["c", "b=c"])


def renamed_backends(*names: str) -> list[Row]:
    return [{"name": name, "framework": name.partition("=")[0], "version": "1.2.3"} for name in names]


def test_a_mapped_backend_is_compared_under_its_new_name(tmp_path):
    old = run(
        tmp_path / "a",
        [fails(actual="paddle==2.6.2", culprit=["paddle==2.6.2"])],
        [outcome("torch"), outcome("paddle==2.6.2")],
        backends=renamed_backends("torch", "paddle==2.6.2"),
    )
    new = run(tmp_path / "b", [passes()])
    assert kinds(compare(old, new)) == ["vanished"]
    diff = compare(old, new, maps=["paddle==2.6.2=paddle"])
    assert [(change.kind, change.backend) for change in diff.changes] == [(Kind.FIXED, "paddle")]
    assert "paddle==2.6.2 in A (1.2.3) is compared with paddle in B (1.2.3)" in diff.run_notes


def both_releases(path: Path) -> Path:
    rows = [passes(actual="paddle==2.6.2"), fails()]
    outcomes = [outcome(name) for name in ("torch", "paddle==2.6.2", "paddle")]
    return run(path, rows, outcomes, backends=renamed_backends("torch", "paddle==2.6.2", "paddle"))


def test_two_backends_of_one_run(tmp_path):
    path = both_releases(tmp_path / "a")
    diff = compare(path, tmp_path / "." / "a", maps=["paddle==2.6.2=paddle"])
    assert ([(c.kind, c.backend) for c in diff.changes], diff.same) == ([(Kind.NEW, "paddle")], 0)
    back = compare(path, path, maps=["paddle=paddle==2.6.2"])
    assert [(c.kind, c.backend) for c in back.changes] == [(Kind.FIXED, "paddle==2.6.2")]


def test_a_backend_whose_name_is_given_away_is_told(tmp_path):
    a, b = both_releases(tmp_path / "a"), both_releases(tmp_path / "b")
    diff = compare(a, b, maps=["paddle==2.6.2=paddle"])
    assert "paddle of A is not compared: --map gives its name to another backend" in diff.run_notes


def test_a_backend_has_one_counterpart(tmp_path):
    path = both_releases(tmp_path / "a")
    with pytest.raises(DiffError, match="names a backend twice"):
        compare(path, path, maps=["paddle==2.6.2=paddle", "torch=paddle"])


def test_a_directory_that_is_no_run(tmp_path):
    path = run(tmp_path / "a", [passes()])
    with pytest.raises(ResultsError, match=r"is .* the directory of a run"):
        compare(path, tmp_path / "nowhere")


def test_five_thousand_cells_take_less_than_two_seconds(tmp_path):
    names = [f"case-{i}" for i in range(2500)]
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
    began = time.process_time()
    diff = compare(a, b)
    assert time.process_time() - began < 2.0
    assert (diff.counts["new"], diff.same) == (2500, 2500)
