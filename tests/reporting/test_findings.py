"""Findings: what is one, what it says, and since when it shows."""

from __future__ import annotations

import msgspec
import pytest

from parity.reporting.results.results import read_results
from parity.reporting.results.rows import BackendRow
from parity.reporting.text.answer import answer, warnings
from parity.reporting.text.findings import LONGEST, condition, findings, short, telling, tolerated
from tests.reporting.stored_runs import CASE, backend_row, case_row, comparison, diagnosis, stored, unstable
from tests.reporting.test_explain import bare

BOTH = ("float32", "float64")
SHAPES = {"a": [4, 3], "b": [4, 1], "c": [4, 2]}


def run_of(tmp_path, rows, diagnoses=(), cases=()):
    return read_results(stored(tmp_path / "run", rows, list(diagnoses), list(cases)))


def test_a_cause_is_one_finding_in_all_backends_cases_and_dtypes(tmp_path):
    cases = [case_row(f"gn-offset={n}") for n in (0, 100, 10000)]
    rows = [
        unstable(case=f"gn-offset={n}", dtype=dtype, actual=name, culprit=[name], expected="torch")
        for n in (100, 10000)
        for dtype in ("float32", "float64")
        for name in ("paddle", "oneflow")
    ]
    rows.append(comparison(case="gn-offset=0"))
    causes = [diagnosis(case=row["case"], dtype=row["dtype"], backend=row["actual"]) for row in rows[:-1]]
    [finding] = findings(run_of(tmp_path, rows, causes, cases))
    assert finding.sentence().plain == "paddle and oneflow: the variance is E[x^2] - E[x]^2 (variance-naive)"
    assert finding.scope() == "in y of group_norm, float32 and float64, from offset=100 on (4 tensors)"
    assert finding.values() == "gn-offset=100 float32 y [0, 1, 2, 3]: paddle 162.93, exact 0.53, torch 0.530001"


def test_different_causes_are_findings_of_their_own(tmp_path):
    rows = [unstable(), unstable(tensor="grad.x"), unstable(tensor="grad.bias")]
    causes = [diagnosis(tensors=["y"]), diagnosis("scaled", title="off by one factor", tensors=["grad.x"])]
    found = findings(run_of(tmp_path, rows, causes))
    assert {finding.id for finding in found} == {"variance-naive", "scaled", "unexplained"}
    assert all(finding.n_tensors == 1 for finding in found)


def lossy(name, **changed):
    """A diagnosis of digits lost in bfloat16."""
    return diagnosis(name, title=name, evidence={"parameters": {"format": "bfloat16"}}, **changed)


def test_narrow_sums_and_narrow_steps_in_one_format_are_one_cause(tmp_path):
    rows = [unstable(tensor=name) for name in ("y", "grad.x", "grad.weight")]
    causes = [
        lossy("reduced-precision", tensors=["grad.weight"]),
        lossy("narrow-accumulation", tensors=["y", "grad.x", "grad.weight"]),
    ]
    [finding] = findings(run_of(tmp_path, rows, causes))
    assert (finding.id, finding.n_tensors) == ("narrow-accumulation", 3)


def test_a_cause_that_explains_some_cases_in_part_is_one_finding(tmp_path):
    rows = [unstable(), unstable(dtype="float64")]
    part = diagnosis(dtype="float64", explained=False, evidence={"expression": "a part"})
    [finding] = findings(run_of(tmp_path, rows, [part, diagnosis(evidence={"expression": "the whole"})]))
    assert (finding.id, finding.n_tensors) == ("variance-naive", 2)
    assert finding.formula() == "computes the whole"
    [finding] = findings(run_of(tmp_path / "other", rows[1:], [part]))
    assert finding.id == "variance-naive in part"


def test_the_tensors_of_findings_add_up_to_those_of_the_first_line(tmp_path):
    rows = [unstable(tensor=name) for name in ("y", "grad.x", "grad.bias")]
    causes = [
        diagnosis(tensors=["y", "grad.x"]),
        diagnosis("scaled", title="off by one factor", tensors=["grad.x", "grad.bias"]),
    ]
    results = run_of(tmp_path, rows, causes)
    first, second = findings(results)
    assert first.scope().endswith("(2 tensors)")
    assert second.scope().endswith("(2 tensors, 1 of them above)")
    assert answer(results).plain == "FAIL  2 findings in 3 of 3 tensors: paddle"


def test_what_has_a_cause_comes_first_and_of_these_what_most_shows(tmp_path):
    rows = [unstable(tensor=name, dtype=dtype) for name in ("y", "grad.x", "grad.bias") for dtype in BOTH]
    rows.append(unstable(tensor="grad.weight"))
    causes = [
        *(diagnosis("unexplained", tensors=[name], dtype=dtype) for name in ("y", "grad.x") for dtype in BOTH),
        diagnosis("scaled", tensors=["grad.weight"]),
        *(diagnosis(tensors=["grad.bias"], dtype=dtype) for dtype in BOTH),
    ]
    found = findings(run_of(tmp_path, rows, causes))
    assert [finding.id for finding in found] == ["variance-naive", "scaled", "unexplained"]


def test_what_depends_on_earlier_calls_comes_first(tmp_path):
    rows = [unstable(tensor=name) for name in ("y", "grad.x", "grad.bias")]
    causes = [diagnosis(tensors=["y", "grad.x"]), diagnosis("stateful", tensors=["grad.bias"])]
    assert [finding.id for finding in findings(run_of(tmp_path, rows, causes))] == ["stateful", "variance-naive"]


def test_an_edit_without_a_name_is_told_by_its_formula(tmp_path):
    edits = [
        diagnosis("reference-edit", title="one step differs", dtype=dtype, tensors=["y"], evidence={"expression": text})
        for dtype, text in (("float32", "a, where the reference has b"), ("float64", "c, where the reference has b"))
    ]
    found = findings(run_of(tmp_path, [unstable(), unstable(dtype="float64")], edits))
    assert {finding.formula() for finding in found} == {
        "computes a, where the reference has b",
        "computes c, where the reference has b",
    }


def test_the_formula_is_that_of_a_plain_case(tmp_path):
    cases = [case_row(name, inputs={"x": {"shape": shape, "draw": "", "file": None}}) for name, shape in SHAPES.items()]
    rows = [{**unstable(case="a"), "verdict": "nonfinite"}, unstable(case="b", required_rtol=999.0), unstable(case="c")]
    causes = [diagnosis(case=name, evidence={"expression": f"{name}, where the reference has d"}) for name in SHAPES]
    [finding] = findings(run_of(tmp_path, rows, causes, cases))
    assert [d.row.case for d in finding.differences] == ["a", "b", "c"]
    assert finding.formula() == "computes c, where the reference has d"


def test_what_passes_or_is_accepted_is_no_finding(tmp_path):
    rows = [
        comparison(),
        unstable(tensor="grad.x", known="agreed"),
        comparison(tensor="z", suspect=True, culprit=["paddle"]),
    ]
    results = run_of(tmp_path, rows)
    assert findings(results) == []
    [hidden] = tolerated(results)
    assert hidden.tensors == ["z"]
    assert "1 tensor passes only because the tolerance is loose: paddle" in "".join(
        line.plain for line in warnings(results)
    )


def test_the_first_line_counts_findings_and_tensors(tmp_path):
    rows = [unstable(), unstable(expected="oracle"), comparison(tensor="grad.x")]
    assert answer(run_of(tmp_path, rows)).plain == "FAIL  1 finding in 1 of 2 tensors: paddle"


@pytest.mark.parametrize(
    ("having", "cases", "told"),
    [
        ("a-n=2 a-n=3", "a-n=1 a-n=2 a-n=3", "from n=2 on"),
        ("a-n=1", "a-n=1 a-n=2 a-n=3", "up to n=1"),
        ("a-n=2", "a-n=1 a-n=2 a-n=3", "only with n=2"),
        (
            "a-on=true-n=1 a-on=true-n=2",
            "a-on=true-n=1 a-on=true-n=2 a-on=false-n=1 a-on=false-n=2",
            "only with on=true",
        ),
        ("a-n=1 a-n=3", "a-n=1 a-n=2 a-n=3", "in 2 of 3 cases"),
        ("a-n=1 a-n=2", "a-n=1 a-n=2", "in all 2 cases"),
        ("b", "a-n=1 b", "in 1 of 2 cases"),
        ("a", "a", ""),
        ("a-x=1e-3", "a-x=1e-3 a-x=1e-6 b-x=1", "from x=1e-3 on"),
        ("a-n=2", "a-n=1 a-n=2 a-eps=3 a", "from n=2 on"),
    ],
)
def test_since_when_it_shows(having, cases, told):
    assert condition(having.split(), bare([case_row(name) for name in cases.split()]).cases) == told


def test_values_have_the_digits_that_tell_them_apart():
    assert telling(1.0, 2.0) == 6
    assert telling(1.00000001, 1.0) == 11
    assert telling(1.0, 1.0) == telling(None, None) == 17


def test_without_a_diagnosis_there_is_advice(tmp_path):
    [finding] = findings(run_of(tmp_path, [unstable()]))
    assert finding.sentence().plain == "paddle: no cause was found (unexplained)"
    assert finding.advice().startswith("unstable: look for a subtraction that cancels")
    [named] = findings(run_of(tmp_path / "named", [unstable()], [diagnosis(case=CASE)]))
    assert named.advice() == ""


def test_a_backend_that_is_right_is_not_blamed_beside_one_that_is_wrong(tmp_path):
    rows = [
        unstable(culprit=["paddle", "torch"]),
        unstable(expected="oracle"),
        comparison(actual="torch", expected="oracle", suspect=True, culprit=["torch"]),
    ]
    [finding] = findings(run_of(tmp_path, rows))
    assert finding.backends == ["paddle"]


def test_another_structure_is_one_finding_whatever_was_diagnosed(tmp_path):
    rows = [comparison("structure", tensor=name, message="paddle returned out, not y") for name in ("y", "grad.x")]
    [finding] = findings(run_of(tmp_path, rows, [diagnosis("missing-gradient", tensors=["grad.x"])]))
    assert finding.sentence().plain == "paddle: paddle returned out, not y"


def test_a_condition_speaks_of_the_cases_that_were_run(tmp_path):
    cases = [case_row("gn-offset=0"), case_row("gn-offset=100")]
    [finding] = findings(run_of(tmp_path, [unstable(case="gn-offset=0")], [], cases))
    assert finding.scope() == "in y of group_norm, float32 (1 tensor)"


def test_a_part_of_an_edit_is_not_told_by_another_edits_formula(tmp_path):
    partly = {"explained": False, "residual_after": 50.0, "title": "one step differs"}
    edits = [
        diagnosis("reference-edit", tensors=["y"], evidence={}, **partly),
        diagnosis("reference-edit", dtype="float64", tensors=["y"], evidence={"expression": "a"}, **partly),
    ]
    found = findings(run_of(tmp_path, [unstable(), unstable(dtype="float64")], edits))
    assert {finding.formula() for finding in found} == {"", "computes a"}


RELEASES = [("paddle==2.6.2", "2.6.2"), ("paddle==3.0.0", "3.0.0"), ("paddle", "3.3.1"), ("torch", "2.13.0+cpu")]


@pytest.mark.parametrize(
    ("wrong", "computed", "text"),
    [
        (["paddle==3.0.0", "paddle"], ["paddle==2.6.2"], "paddle: came between 2.6.2 and 3.0.0"),
        (["paddle==2.6.2"], ["paddle==3.0.0", "paddle"], "paddle: went between 2.6.2 and 3.0.0"),
        (
            ["paddle==3.0.0"],
            ["paddle==2.6.2", "paddle"],
            "paddle: came between 2.6.2 and 3.0.0, went between 3.0.0 and 3.3.1",
        ),
        (["paddle==2.6.2", "paddle==3.0.0", "paddle"], [], "paddle: in 2.6.2, 3.0.0 and 3.3.1"),
        (["paddle"], ["paddle==3.0.0"], "paddle: came between 3.0.0 and 3.3.1, not known of 2.6.2"),
        (["torch"], [], ""),
    ],
)
def test_a_finding_says_between_which_releases_it_came_or_went(tmp_path, wrong, computed, text):
    rows = [unstable(actual=name, culprit=[name], expected="oracle") for name in wrong]
    rows += [comparison(actual=name, expected="oracle") for name in computed]
    backends = [{**backend_row(name), "framework": name.partition("==")[0], "version": v} for name, v in RELEASES]
    found = run_of(tmp_path, rows, [diagnosis(backend=name) for name in wrong])
    [finding] = findings(
        msgspec.structs.replace(found, backends=[msgspec.convert(row, BackendRow) for row in backends])
    )
    assert finding.history() == text


def test_long_expressions_are_cut_to_where_they_differ():
    shared = "reshape(sum(where(inside, rows_of(rows, index), 0) * weights, axis=3), (2, 5, 4))"
    text = f"grad.x = 10 * ({shared} + {shared}), where the reference has 6 * ({shared} + {shared})"
    assert short(text).startswith("grad.x = 10 * (reshape(...")
    assert ", where the reference has 6 * (reshape(..." in short(text)
    inner = f"y = {shared} * ({shared} + eps), where the reference has {shared} * ({shared} - eps)"
    assert short(inner) == "y = ... (2, 5, 4)) + eps), where the reference has ... (2, 5, 4)) - eps)"
    assert short("y = x") == "y = x"
    assert short("x" * 300) == "x" * (LONGEST - 3) + "..."
