"""Edits of programs: what they compute, what they are called, and where they do not fit; forms are the same op."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import autograd.numpy as anp
import numpy as np
import pytest

from parity.cases import OPS
from parity.cases.candidates import detachments, edits_of, fits_of
from parity.cases.edit_functions import running_matmul, running_sum
from parity.cases.edit_words import described
from parity.cases.edits import COSTS, FITTED, READ, RETURNED, Edit, edited, of_squares, transferred, with_number
from parity.cases.formula import formula
from parity.cases.op import IncompatibleError
from parity.cases.oracle import evaluate, program_of
from parity.cases.program import trace
from parity.cases.repeats import repeats
from parity.cases.trial import Trial
from parity.config import load_plan
from tests.conftest import CONFIGS
from tests.judge.judging import drawn, planned

NORM = planned("layer_norm", x=(6, 8), normalized_shape=(8,))
ADAM = planned("adam", param=(5, 7))
PROJECTION = planned("linear", x=(5, 4), weight=(4, 4))
CASES = {"layer_norm": NORM, "adam": ADAM, "linear": PROJECTION}


def inputs_of(case):
    return {name: values.astype(np.float64) for name, values in drawn(case).items()}


def program(case, **options):
    return program_of(OPS[case.op], case.params, inputs_of(case), **options)


def outputs(case, *edits, **options):
    return evaluate(OPS[case.op], case.params, inputs_of(case), dtype=np.float64, edits=edits, **options)


def the_edit(case, text, **options):
    """The edits whose description begins with a text."""
    of = program(case, **options)
    trial = Trial(of, inputs_of(case))
    for output in of.outputs:
        for edit in edits_of(of, trial.shapes, output):
            with contextlib.suppress(IncompatibleError):
                if described(of, edit).startswith(text):
                    return edit
    raise AssertionError(f"no edit is called {text}")


def test_an_edit_replaces_an_operand():
    edit = the_edit(NORM, "x * grad.y, where the reference has xhat * grad.y")
    given, exact = inputs_of(NORM), outputs(NORM)
    values = outputs(NORM, edit)
    np.testing.assert_allclose(values["grad.weight"], np.sum(given["x"] * given["grad.y"], axis=0))
    assert np.array_equal(values["grad.x"], exact["grad.x"])


def test_an_edited_forward_pass_is_differentiated_again():
    edit = the_edit(NORM, "var = sum(square(x - mean), axis=(1,)) / 7")
    biased, unbiased = outputs(NORM, edit), outputs(NORM, replace(edit, again=True))
    exact = outputs(NORM, ddof=1)
    np.testing.assert_allclose(biased["y"], exact["y"], rtol=1e-12)
    np.testing.assert_allclose(unbiased["grad.x"], exact["grad.x"], rtol=1e-9, atol=1e-12)
    assert not np.allclose(biased["grad.x"], exact["grad.x"])


def test_an_option_is_read_for_another():
    edit = the_edit(ADAM, "betas.1 wherever the reference has betas.0")
    swapped = replace(ADAM.params, betas=(ADAM.params.betas[1],) * 2)
    wanted = evaluate(OPS["adam"], swapped, inputs_of(ADAM), dtype=np.float64)
    for name, values in outputs(ADAM, edit).items():
        np.testing.assert_allclose(values, wanted[name], rtol=1e-12)


def test_a_hand_written_backward_has_names_of_its_own():
    edit = the_edit(NORM, "rstd = 1 / (var + eps)", backward="fused")
    assert described(program(NORM, backward="fused"), edit) == (
        "rstd = 1 / (var + eps), where the reference has 1 / sqrt(var + eps)"
    )


@np.errstate(all="ignore")
def test_a_trial_gives_what_the_edited_program_gives():
    for case in CASES.values():
        of, given = program(case), inputs_of(case)
        trial = Trial(of, given)
        checked = 0
        for output in of.outputs:
            for edit in list(edits_of(of, trial.shapes, output))[::17]:
                values = trial.output(edit, output)
                if values is not None:
                    again = outputs(case, edit)[output]
                    np.testing.assert_allclose(values, again, rtol=1e-12, err_msg=described(of, edit))
                    checked += 1
        assert checked > 30


@np.errstate(all="ignore")
def test_a_step_of_a_recurrence_is_edited_in_every_turn_and_nothing_else_is():
    recurrence = planned("gru", x=(4, 2, 5), hidden_size=3)
    of, given = program(recurrence), inputs_of(recurrence)
    turns = repeats(of)
    assert max(map(len, turns.values())) == 4
    # z is 1 - z in every turn.
    wanted = outputs(recurrence, complement=True)["y"]
    trial = Trial(of, given)
    found = [
        edit
        for edit in edits_of(of, trial.shapes, "y")
        if (values := trial.output(edit, "y")) is not None and np.allclose(values, wanted, rtol=1e-9)
    ]
    assert found
    assert all(len(edit.positions) == 4 for edit in found)
    for edit in found[:3]:
        np.testing.assert_allclose(outputs(recurrence, edit)["y"], wanted, rtol=1e-9)
    images = planned("conv2d", x=(1, 2, 6, 6), out_channels=2, kernel_size=3)
    assert repeats(program(images)) == repeats(program(NORM)) == {}


def test_what_a_turn_reads_may_be_that_of_the_turn_after():
    """Also where the first turn has no gradient to carry back."""
    recurrence = planned("gru", x=(4, 2, 5), hidden_size=3)
    without = {name: values for name, values in inputs_of(recurrence).items() if name != "h0"}
    for given in (inputs_of(recurrence), without):
        of = program_of(OPS["gru"], recurrence.params, given)
        stacked = next(step for step in of.steps if step.name == "stacked")
        edits = edits_of(of, Trial(of, given).shapes, "grad.weight_hh")
        each = (e for e in edits if e.function == "reshape" and e.kind == "replaced" and e.value[0] == "each")
        turns = [{of.steps[p].index for kind, p in e.value[1] if kind == "step"} for e in each if len(e.positions) == 4]
        assert set(stacked.refs) in turns


def test_the_first_turn_takes_what_is_carried_from_before_it():
    recurrence = planned("lstm", x=(4, 2, 3), hidden_size=2)
    given = inputs_of(recurrence)
    of = program_of(OPS["lstm"], recurrence.params, given)
    places = tuple(p for p, step in enumerate(of.steps) if step.name == "tanh" and not step.backward)[1::2]
    edits = [e for e in edits_of(of, Trial(of, given).shapes, "y") if e.kind == "replaced" and e.positions == places]
    assert any(e.value[0] == "each" and e.value[1][0] == ("input", "c0") for e in edits)


def test_the_steps_of_one_line_have_their_own_numbers():
    case = planned("interpolate", x=(1, 2, 4, 5), size=(6, 7), mode="bilinear")
    of = program(case)
    edits = edits_of(of, Trial(of, inputs_of(case)).shapes, "grad.x")
    numbers = {
        tuple(of.steps[p].operands[e.operand] for p in e.positions)
        for e in edits
        if (e.kind, e.value) == ("number", "one less")
    }
    assert numbers & {(5, 4), (4, 5)}


def test_every_kind_of_edit_is_tried_somewhere():
    kinds = {"fitted", *FITTED}
    windows = planned("conv2d", x=(1, 2, 6, 6), out_channels=2, kernel_size=3, stride=2, padding=1)
    rows = planned("adaptive_max_pool1d", x=(1, 2, 7), output_size=3)
    others = planned("lamb", param=(4, 6)), planned("mish", x=(4, 6))
    for case in (*CASES.values(), windows, rows, *others):
        of = program(case)
        shapes = Trial(of, inputs_of(case)).shapes
        kinds |= {edit.kind for output in of.outputs for edit in edits_of(of, shapes, output)}
    of = program(NORM)
    kinds |= {edit.kind for edit in detachments(of, Trial(of, inputs_of(NORM)).shapes, "grad.x")}
    assert kinds == set(COSTS)


def test_numbers_are_fitted_from_what_they_are():
    fits = list(fits_of(program(ADAM), "param"))
    assert {edit.kind for edit in fits} == {"fitted", *FITTED, READ}
    for edit in fits:
        for name, values in outputs(ADAM, edit).items():
            np.testing.assert_allclose(values, outputs(ADAM)[name], rtol=1e-12)


def test_an_option_has_another_number_wherever_it_is_read():
    edit = next(edit for edit in fits_of(program(ADAM), "param") if edit.kind == READ)
    changed = with_number(edit, 0.7)
    assert described(program(ADAM), changed) == "0.7 wherever the reference has betas.0"
    other = replace(ADAM.params, betas=(0.7, ADAM.params.betas[1]))
    exact = evaluate(OPS["adam"], other, inputs_of(ADAM), dtype=np.float64)
    np.testing.assert_allclose(outputs(ADAM, changed)["param"], exact["param"], rtol=1e-12)


def test_an_edit_moves_to_where_another_program_computes_the_same():
    sgd = planned("sgd", param=(5, 7), momentum=0.9, dampening=0.5, weight_decay=0.1)
    first = replace(sgd, params=replace(sgd.params, step=1))
    later, start = program(sgd), program(first)
    position = next(p for p, s in enumerate(later.steps) if formula(later, s.index) == "grad + weight_decay * param")
    there = transferred(Edit((position,), "add", "kept", 0), later, start)
    assert formula(start, start.steps[there.positions[0]].index) == "grad + weight_decay * param"
    absent = next(p for p, s in enumerate(later.steps) if formula(later, s.index) == "1 - dampening")
    with pytest.raises(IncompatibleError):
        transferred(Edit((absent,), later.steps[absent].name, "kept", 0), later, start)


def test_an_edit_fits_only_a_program_with_the_same_step():
    of = program(NORM)
    for wrong in (Edit((0,), "matmul", "kept", 0), Edit((999,), "sum", "kept", 0), Edit((0,), "sum", "kept", 7)):
        with pytest.raises(IncompatibleError):
            edited(of, [wrong], inputs_of(NORM), NORM.params, ("x",))


def test_another_tensor_is_returned_for_an_output_or_added_to_it():
    given, exact = inputs_of(NORM), outputs(NORM)
    instead, added = (Edit((), "grad.x", RETURNED, value=(how, ("input", "x"))) for how in ("instead", "added"))
    assert np.array_equal(outputs(NORM, instead)["grad.x"], given["x"])
    assert np.array_equal(outputs(NORM, added)["grad.x"], exact["grad.x"] + given["x"])
    assert np.array_equal(outputs(NORM, added)["grad.weight"], exact["grad.weight"])
    assert described(program(NORM), instead) == "grad.x is x"
    assert described(program(NORM), added) == "x is added to grad.x"
    with pytest.raises(IncompatibleError):
        outputs(NORM, replace(instead, function="grad.z"))


def test_an_operation_is_done_later():
    edit = the_edit(NORM, "y = (xhat + bias) * weight")
    given, exact = inputs_of(NORM), outputs(NORM)
    xhat = (exact["y"] - given["bias"]) / given["weight"]
    np.testing.assert_allclose(outputs(NORM, edit)["y"], (xhat + given["bias"]) * given["weight"], rtol=1e-12)


def test_an_output_is_computed_from_an_updated_state():
    case = planned("clip_grad_norm", grads_0=(3, 4), grads_1=(5,), max_norm=0.5)
    edit = the_edit(case, "total_norm is computed from the new grads.0, grads.1")
    assert outputs(case, edit)["total_norm"] == pytest.approx(0.5)


def test_the_backward_pass_takes_another_tensor():
    case = planned("sigmoid", x=(4, 5))
    edit = the_edit(case, "the backward pass uses y wherever the reference has x")
    given, exact, values = inputs_of(case), outputs(case), outputs(case, edit)
    again = 1 / (1 + np.exp(-exact["y"]))
    assert np.array_equal(values["y"], exact["y"])
    np.testing.assert_allclose(values["grad.x"], given["grad.y"] * again * (1 - again), rtol=1e-12)


def test_a_running_total_loses_digits():
    values = np.full((600, 2), 1.0)
    values[:, 1] = 0.001
    total = running_sum(values, 0, format="bfloat16")
    assert total[0] == 256, "bfloat16 has 8 digits: 256 + 1 is 256"
    assert total[1] < 0.55, "600 times 0.001 is 0.6"
    assert running_sum(values, (0, 1), keepdims=True, format="float32").shape == (1, 1)
    product = running_matmul(np.ones((2, 3)), np.ones((3, 4)), format="float16")
    assert np.array_equal(product, np.full((2, 4), 3.0))


FORMED = {c.id: c for c in load_plan(sorted((CONFIGS / "ops").glob("*.yaml"))).cases if OPS[c.op].forms}


@pytest.mark.parametrize("name", FORMED)
def test_every_form_is_the_same_op(name):
    case = FORMED[name]
    given = {plan.name: plan.sample(0, case.id, "float64") for plan in case.tensors}
    exact = evaluate(OPS[case.op], case.params, given, dtype=np.float64)
    for form in OPS[case.op].forms:
        for tensor, values in evaluate(OPS[case.op], case.params, given, dtype=np.float64, **form).items():
            np.testing.assert_allclose(values, exact[tensor], rtol=1e-9, atol=1e-12, err_msg=f"{form} {tensor}")


@pytest.mark.parametrize(("times", "n"), [("itself", 2), ("an array", 0)])
def test_a_root_of_a_sum_of_squares_is_one_of_no_other_products(times, n):
    x = np.arange(6.0).reshape(2, 3)

    def norm(tensors, _params):
        return {"y": anp.sqrt(anp.sum(tensors["x"] * (tensors["x"] if times == "itself" else x + 1), axis=1))}

    program, _ = trace(norm, {"x": x})
    (root,) = (step for step in program.steps if step.name == "sqrt")
    assert len(of_squares(program, root)) == n
