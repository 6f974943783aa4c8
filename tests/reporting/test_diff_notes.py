"""What `parity diff` says of the runs themselves: versions, host, inputs, tolerances, the ledger."""

from __future__ import annotations

import numpy as np
import pytest

from parity.reporting.diff.compare import compare
from tests.reporting.stored_runs import CASE, case_row
from tests.reporting.test_diff import ACCEPTED, diffed, fails, kinds, passes, run

__all__ = ["diffed"]


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
    wanted += ["A was interrupted; its unfinished cases were not compared"]
    assert sorted(diff.run_notes) == sorted(wanted)


CHANGED_INPUTS = {
    "param eps 1e-05 -> 0.001": {"params": {"num_groups": 4, "eps": 1e-3}},
    "param eps 1e-05 -> none": {"params": {"num_groups": 4}},
    "op group_norm -> layer_norm": {"op": "layer_norm"},
    "input x: shape [4] -> [5]": {"inputs": {"x": {"shape": [5], "draw": "normal()", "file": None}}},
    "input x: normal() -> normal() + 100": {"inputs": {"x": {"shape": [4], "draw": "normal() + 100", "file": None}}},
    "input x is only in A": {"inputs": {}},
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
    a, b = (run(tmp_path / name / "run", [passes()], cases=[given]) for name in "ab")
    for path in (a, b):
        (path.parent / "secret.npy").write_text(f"the secret of {path.parent.name}")
    assert compare(a, b).not_alike == {}


@pytest.mark.parametrize("name", ["x\0y", "n" * 5000, "loop.npy", "folder", ""])
def test_a_stored_input_that_cannot_be_read_is_as_good_as_none(tmp_path, name):
    given = case_row(dtypes=["float32"], inputs={"x": {"shape": [2], "draw": "values()", "file": name}})
    a, b = (run(tmp_path / side, [passes()], cases=[given]) for side in "ab")
    for path in (a, b):
        (path / "loop.npy").symlink_to("loop.npy")
        (path / "folder").mkdir()
    assert compare(a, b).not_alike == {}


def test_another_tolerance_is_told_beside_the_finding(diffed):
    diff = diffed([passes(rtol=1.0)], [fails()])
    assert diff.changes[0].notes == ("tolerance rtol 1 atol 1e-05 -> rtol 1.3e-06 atol 1e-05",)


def test_entries_of_the_ledger_that_became_stale_are_told(diffed):
    entry = {"case": CASE, "backend": "paddle", "reason": ACCEPTED, "state": "matched", "message": "c.yaml:9: matched"}
    stale = entry | {"state": "stale", "message": "c.yaml:9: stale: remove the entry"}
    diff = diffed([fails(known=ACCEPTED)], [passes()], a_parts={"known": [entry]}, b_parts={"known": [stale]})
    [change] = diff.known_changes
    assert (change.before, change.after, change.fails, kinds(diff)) == ("matched", "stale", True, ["fixed"])
    same = diffed([passes()], [passes()], a_parts={"known": [entry] * 2}, b_parts={"known": [entry]})
    assert [(change.before, change.after) for change in same.known_changes] == [("matched", None)]
