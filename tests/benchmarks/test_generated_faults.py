"""The generated benchmark: healthy forms are clean, faults are drawn again from their seed and detected, explanations checked."""

from __future__ import annotations

import ast
import inspect
import textwrap

import numpy as np
import pytest

from benchmarks.faults.cases import case_of, drawn
from benchmarks.faults.edits import apply, candidates, rounded
from benchmarks.faults.forms import FORMS, UNSTABLE, run
from benchmarks.faults.generate import behaviour, compiled, faults, tree_of
from benchmarks.faults.measure import Truth, detectable, effect
from benchmarks.faults.predict import fresh_inputs, predicts
from benchmarks.faults.published import PUBLISHED
from benchmarks.faults.report import published_table, tables
from benchmarks.faults.scope import scope_of
from benchmarks.faults.score import healthy_rows, score_fault, score_healthy, score_published
from parity.cases import OPS
from parity.judge.case import CaseJudge


def case_for(op):
    return case_of(op, np.random.default_rng(7), 40, f"{op}-test")


def test_every_op_has_healthy_forms():
    assert set(FORMS) == set(OPS), "an op has two forms in benchmarks/faults/forms/, and a row in settings.py there"
    assert [op for op, forms in FORMS.items() if len(forms) < 2] == []


@pytest.mark.parametrize("op", FORMS)
def test_healthy_forms_are_clean(op):
    rows = score_healthy(case_for(op), 0)
    assert {r.form for r in rows} == {form.__name__ for form in FORMS[op] if form not in UNSTABLE}
    assert len(rows) == 2 * len({r.form for r in rows})
    assert [(r.form, r.dtype, r.ratios) for r in rows if r.detected] == []


@pytest.mark.parametrize("op", FORMS)
def test_a_form_without_an_edit_compiles_to_itself(op):
    case = case_for(op)
    tensors = drawn(case, 0)
    for form in FORMS[op]:
        again = compiled(tree_of(form), form)
        one, other = (run(f, op, case.params, tensors, "float64") for f in (form, again))
        assert all(np.array_equal(one[name], other[name]) for name in one)


def test_the_same_seed_draws_the_same_faults():
    ops = ["layer_norm", "adam", "gelu"]
    one, again = ([(f.op, f.form, f.label, f.case.params) for f in faults(ops, 6, 3, 0.5)] for _ in range(2))
    assert one == again
    assert len(set(one)) == 6
    assert one != [(f.op, f.form, f.label, f.case.params) for f in faults(ops, 6, 4, 0.5)]


def test_a_fault_is_what_its_label_says_and_is_detected():
    fault = next(faults(["layer_norm"], 1, 0))
    assert fault.edits[0].before in fault.edits[0].statement
    rows = score_fault(fault, 0)
    assert [r.dtype for r in rows] == ["float32", "float64"]
    assert all(r.counts and r.detected and r.diagnoses for r in rows)
    assert "layer_norm" in tables(rows, [], {})


def test_a_judge_that_fails_costs_one_case_and_is_counted(monkeypatch):
    monkeypatch.setattr(CaseJudge, "judged", lambda _: 1 / 0)
    rows = score_fault(next(faults(["relu"], 1, 0)), 0)
    assert {r.status for r in rows} == {"crashed"}
    assert "ZeroDivisionError" in rows[0].message
    assert not rows[0].detected


def test_a_false_alarm_is_counted():
    rows = list(healthy_rows(["relu"], 6, 0))
    assert "alarms" in tables([], rows, {})
    blamed = [r.__class__(**vars(r) | {"status": "unexplained"}) for r in rows[:1]]
    alarms = tables([], [*blamed, *rows[1:]], {}).splitlines()[-1].split()
    assert alarms[:3] == ["all", str(len(rows)), "1"]


def test_no_two_faults_do_the_same():
    drawn_faults = list(faults(["flatten"], 12, 0))
    assert len({behaviour(f.kernel, "flatten") for f in drawn_faults}) == len(drawn_faults) == 12


def small_kernel(x, weight, eps):
    total = np.sqrt(np.sum(x - weight, axis=0) + eps)
    return {"y": total / 2.0}


@pytest.mark.parametrize(
    ("kind", "after"),
    [
        ("dropped term", "x"),
        ("swapped operands", "weight - x"),
        ("other operator", "x + weight"),
        ("other variable", "weight"),
        ("other constant", "4.0"),
        ("other option", "2.0 * eps"),
        ("other function", "np.mean(x - weight, axis=0)"),
        ("dropped call", "np.sum(x - weight, axis=0) + eps"),
        ("exchanged order", "np.sqrt(np.sum(x - weight, axis=0)) + eps"),
        ("other axis", "axis=1"),
        ("partial reduction", "np.sum(first_twice(x - weight, 0), axis=0)"),
        ("rounded step", "total = rounded(np.sqrt(np.sum(x - weight, axis=0) + eps), 'bfloat16')"),
        ("sign", "total = -np.sqrt(np.sum(x - weight, axis=0) + eps)"),
        ("wrong output", "'y': np.roll(total / 2.0, 1)"),
    ],
)
def test_a_rule_makes_its_edits(kind, after):
    tree = ast.parse(textwrap.dedent(inspect.getsource(small_kernel))).body[0]
    scope = scope_of(small_kernel, tree, lambda: small_kernel(np.eye(3), np.ones((3, 3)) / 2, 1.0))
    made = {apply(tree, candidate)[1].after for candidate in candidates(tree, scope) if candidate.kind == kind}
    assert after in made


class By:
    """Explains by running a kernel."""

    def __init__(self, kernel, exact=True):
        self.kernel = kernel
        self.exact = exact

    def predict(self, case, tensors, dtype):
        return run(self.kernel, case.op, case.params, tensors, dtype)


def test_an_explanation_is_right_where_it_predicts_inputs_never_seen():
    fault = next(faults(["adam"], 1, 1))
    fresh = fresh_inputs(fault.case, 1)
    assert all(not np.array_equal(tensors["grad"], fault.inputs["grad"]) for tensors in fresh)
    right, wrong = By(fault.kernel), By(FORMS["adam"][0])
    offered = ([right], [wrong], [wrong, right], [])
    assert [predicts(e, fault.case, fresh, fault.kernel, "float64") for e in offered] == ["exact", "no", "exact", None]


def test_fresh_inputs_of_a_nearly_constant_row_are_nearly_constant():
    row = next(p for p in PUBLISHED if p.name == "layer_norm-row-at-1000").case
    given = drawn(row, 0)["x"]
    for tensors in fresh_inputs(row, 0):
        assert not np.array_equal(tensors["x"], given)
        assert np.ptp(tensors["x"]) < 0.1 < tensors["x"].min()


def test_an_explanation_that_is_not_exact_is_right_in_size():
    case = case_for("linear")
    fresh = fresh_inputs(case, 0)
    offered = [[By(noisy_linear(unit), exact=False)] for unit in (2e-3, 1.0)]
    assert [predicts(e, case, fresh, noisy_linear(1e-3), "float64") for e in offered] == ["size", "no"]


def noisy_linear(unit):
    def kernel(x, weight, bias, grad_y):
        noise = np.random.default_rng(round(unit * 1000))
        outputs = FORMS["linear"][0](x, weight, bias, grad_y)
        return {name: values * (1 + unit * noise.standard_normal(values.shape)) for name, values in outputs.items()}

    return kernel


@pytest.mark.parametrize(("name", "unit"), [("float16", 2.0**-11), ("bfloat16", 2.0**-8), ("tf32", 2.0**-11)])
def test_rounding_keeps_a_formats_digits(name, unit):
    values = np.random.default_rng(0).uniform(1.0, 2.0, 1000)
    error = np.abs(rounded(values, name) - values)
    assert unit / 2 < error.max() <= unit
    assert rounded(1.5, name) == 1.5


@pytest.mark.parametrize("published", PUBLISHED, ids=lambda p: p.name)
def test_a_published_kernel_shows_what_was_concluded(published):
    case = published.case
    tensors = drawn(case, 0)
    truth = Truth.of(case, tensors)
    effects = [effect(run(published.kernel, case.op, case.params, tensors, d), truth, d) for d in case.dtypes]
    assert any(map(detectable, effects)) is published.wrong
    assert published.thread.startswith("https://github.com/")


def test_published_cases_are_scored():
    clip = next(p for p in PUBLISHED if p.name == "clip-without-eps")
    rows = score_published(clip, 0)
    assert all(r.detected for r in rows)
    assert "1 cases, 2 cells: 2 are blamed" in published_table(rows, [clip], {})
