"""References as programs: steps with the names of their source, evaluated in any dtype, printed, and changed."""

from __future__ import annotations

import cProfile
import sys
from dataclasses import dataclass, replace

import autograd.numpy as anp
import numpy as np
import pytest

from parity.cases import OPS
from parity.cases.difference import difference
from parity.cases.edits import spliced
from parity.cases.exact.matmul import matmul, matmul_in_sequence
from parity.cases.exact.summation import in_one_chain, sum_in_sequence, total
from parity.cases.formula import formulas
from parity.cases.oracle import PROGRAMS, evaluate, program_of
from parity.cases.primitives import scatter_in_sequence, scatter_rows
from parity.cases.program import TraceError, trace

RNG = np.random.default_rng(0)
TENSORS = {"x": RNG.normal(size=(4, 6)), "weight": RNG.normal(size=6), "bias": RNG.normal(size=6)}
GRAD = {"grad.y": RNG.normal(size=(4, 6))}
NORM = OPS["layer_norm"]
PARAMS = NORM.params((6,), 0.1)


def program(**options):
    return program_of(NORM, PARAMS, {**TENSORS, **GRAD}, **options)


@dataclass(frozen=True)
class Rate:
    lr: float = 0.5


def scaled(tensors, params):
    mean = total(tensors["x"], (1,)) / tensors["x"].shape[1]
    return {"y": params.lr * (tensors["x"] - mean)}


def test_steps_carry_the_names_of_their_source():
    lines = formulas(program())
    assert lines[:4] == [
        "mean = sum(x, axis=(1,)) / 6",
        "var = sum(square(x - mean), axis=(1,)) / 6",
        "deviation = sqrt(var + eps)",
        "xhat = (x - mean) / deviation",
    ]
    assert "grad of xhat = grad of scaled * weight" in lines or "grad of xhat = weight * grad.y" in lines
    assert [line.partition(" = ")[0] for line in lines if line.startswith("grad.")] == [
        "grad.bias",
        "grad.weight",
        "grad.x",
    ]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.longdouble])
def test_one_program_is_evaluated_in_every_dtype(dtype):
    results = program().run({**TENSORS, **GRAD}, dtype)
    assert {values.dtype for values in results.values()} == {np.dtype(dtype)}
    exact = program().run({**TENSORS, **GRAD}, np.longdouble)
    worst = max(float(np.abs(results[name] - exact[name]).max()) for name in exact)
    assert worst <= 64 * float(np.finfo(dtype).eps)


def test_a_step_can_be_changed():
    plain = program()
    [root] = [position for position, step in enumerate(plain.steps) if step.label == "deviation"]
    changed = spliced(plain, {root: [replace(plain.steps[root], function=np.cbrt)]})
    before, after = (one.run({**TENSORS, **GRAD}, np.float64) for one in (plain, changed))
    assert not np.allclose(before["y"], after["y"])
    assert np.array_equal(before["grad.bias"], after["grad.bias"])
    assert difference(plain, changed) == "deviation = cbrt(var + eps), where the reference has sqrt(var + eps)"


def test_options_can_have_other_values():
    plain, other = program(), program_of(NORM, replace(PARAMS, eps=0.3), {**TENSORS, **GRAD})
    assert plain.options["eps"][1] == 0.1
    changed = plain.run({**TENSORS, **GRAD}, np.float64, options={"eps": 0.3})
    expected = other.run({**TENSORS, **GRAD}, np.float64)
    assert all(np.array_equal(changed[name], expected[name]) for name in expected)


def test_sums_can_run_in_sequence():
    x = RNG.normal(size=(3, 4000)).astype(np.float32)
    one, _ = trace(scaled, {"x": x}, Rate())
    plain, looped = (one.run({"x": x}, np.float32, functions=f)["y"] for f in ({}, {np.sum: sum_in_sequence}))
    assert not np.array_equal(plain, looped)
    np.testing.assert_allclose(plain, looped, atol=1e-4)


def test_a_product_of_numbers_that_no_slice_can_hold_ends():
    a, b = np.array([[1.7e308, 2.0]], np.longdouble), np.array([[1.0], [3.0]], np.longdouble)
    assert matmul(a, b) == a @ b


@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("stack", [(), (3,)])
@pytest.mark.parametrize(("m", "k", "n"), [(1, 500, 1), (1, 500, 3), (3, 500, 1), (8, 500, 17), (17, 1, 8), (2, 0, 1)])
def test_products_can_run_in_sequence(m, k, n, stack, begins):
    a, b = (RNG.normal(size=(*stack, *shape)).astype(np.float32) for shape in ((m, k), (k, n)))
    total = np.zeros((*stack, m, n), np.float32)
    start = RNG.normal(size=n).astype(np.float32) if begins else None
    total += start if begins else 0
    for i in range(k):
        total += a[..., i : i + 1] * b[..., i : i + 1, :]
    assert np.array_equal(matmul_in_sequence(a, b, start), total)
    if not stack:
        rows = np.stack([a, a])
        assert np.array_equal(matmul_in_sequence(rows, b, start), np.stack([total, total]))


@pytest.mark.parametrize("keepdims", [False, True])
def test_the_sum_of_a_sum_is_one_chain(keepdims):
    def summed(tensors, _params):
        first = np.sum(tensors["x"], axis=1, keepdims=keepdims)
        second = np.sum(first, axis=0, keepdims=keepdims)
        return {"y": np.sum(second, axis=(2,) if keepdims else (0,), keepdims=keepdims), "first": first}

    x = RNG.normal(size=(20, 30, 40, 3)).astype(np.float32)
    program, _ = trace(summed, {"x": x}, Rate())
    chained = in_one_chain(program)
    [once] = [step for step in chained.steps if step.index == chained.outputs["y"]]
    assert (once.refs, once.keywords["axis"]) == ((program.inputs["x"],), (0, 1, 2))
    looped = chained.run({"x": x}, np.float32, functions={np.sum: sum_in_sequence})
    assert np.array_equal(looped["y"].ravel(), np.cumsum(x.reshape(-1, 3), axis=0)[-1])
    exact = program.run({"x": x}, np.longdouble)
    for name, values in chained.run({"x": x}, np.longdouble).items():
        np.testing.assert_allclose(values, exact[name], rtol=1e-15)


def test_a_sum_whose_axes_need_a_shape_stays():
    def summed(tensors, _params):
        return {"y": np.sum(np.sum(tensors["x"], axis=-1), axis=0)}

    program, _ = trace(summed, {"x": np.ones((2, 3))}, Rate())
    assert [step.keywords["axis"] for step in in_one_chain(program).steps] == [-1, 0]


def test_a_sum_of_all_after_the_sum_of_an_axis_stays():
    def summed(tensors, _params):
        return {"y": np.sum(np.sum(tensors["x"], axis=0), axis=None, keepdims=False)}

    program, _ = trace(summed, {"x": np.ones((2, 3))}, Rate())
    assert in_one_chain(program).run({"x": np.ones((2, 3))}, np.float64)["y"] == 6


def test_rows_are_scattered_in_sequence_too():
    values, index = RNG.normal(size=(4000, 2)).astype(np.float32), RNG.integers(0, 3, 4000)
    looped = scatter_in_sequence(values, index, 4)
    for row in range(3):
        assert np.array_equal(looped[row], np.cumsum(values[index == row], axis=0)[-1])
    np.testing.assert_allclose(looped, scatter_rows(values, index, 4), atol=1e-3)


def test_only_what_is_needed_is_computed():
    outputs = program().needed(["y"])
    assert set(outputs.outputs) == {"y"}
    assert len(outputs.steps) < len(program().steps)
    assert not any(step.backward for step in outputs.steps)


def test_variants_differ_where_they_say_so():
    assert difference(program(), program(eps_placement="outside")) == (
        "deviation = sqrt(var) + eps, where the reference has sqrt(var + eps)"
    )
    assert difference(program(), program()) == ""


def test_the_first_turn_shows_how_a_loop_differs():
    tensors = {
        "x": RNG.normal(size=(4, 2, 3)),
        "weight_ih": RNG.normal(size=(6, 3)),
        "weight_hh": RNG.normal(size=(6, 2)),
        "bias_hh": RNG.normal(size=6),
        "h0": RNG.normal(size=(2, 2)),
    }
    gru = OPS["gru"]
    reference, within = (program_of(gru, gru.params(2), tensors, reset=reset) for reset in ("after", "within"))
    assert difference(reference, within) == (
        "inner = r * (h0 @ transpose(weight_hh)[:, 4:6]) + bias_hh[4:6], "
        "where the reference has r * (h0 @ transpose(weight_hh) + bias_hh)[:, 4:6]"
    )


def test_a_reference_is_traced_under_cprofile_which_goes_on():
    with cProfile.Profile() as profile:
        traced, _ = trace(scaled, {"x": TENSORS["x"]}, Rate())
        assert sys.getprofile() is profile
    assert "mean" in {step.label for step in traced.steps}


def test_few_numbers_of_a_constant_are_shown():
    rotary = OPS["rotary_embedding"]
    tensors = {"x": RNG.normal(size=(1, 1, 3, 4))}
    forward, backwards = (program_of(rotary, rotary.params(), tensors, backwards=b) for b in (False, True))
    told = "turned = pairs[:, :, :, ::-1] * [1, -1], where the reference has pairs[:, :, :, ::-1] * [-1, 1]"
    assert difference(forward, backwards) == told


def test_a_reference_that_branches_on_data_is_refused():
    def branching(tensors, _params):
        return {"y": tensors["x"] if tensors["x"].max() > 0 else -tensors["x"]}

    with pytest.raises(TraceError, match="branch"):
        trace(branching, {"x": TENSORS["x"]})
    with pytest.raises(TraceError, match="float"):
        trace(lambda tensors, params: {"y": float(params.lr) * tensors["x"]}, {"x": TENSORS["x"]}, Rate())


def test_an_option_that_the_reference_lacks_is_an_error():
    with pytest.raises(TypeError, match="no_such_option"):
        evaluate(NORM, PARAMS, TENSORS, no_such_option=1)


def test_programs_are_kept_by_what_they_depend_on():
    PROGRAMS.clear()  # otherwise a full cache would be emptied in between
    before = len(PROGRAMS)
    first = program_of(NORM, NORM.params((6,), 0.25), TENSORS)
    assert program_of(NORM, NORM.params((6,), 0.25), {n: v + 1 for n, v in TENSORS.items()}) is first
    assert len(PROGRAMS) == before + 1
    errors = [(RNG.normal(size=(4, 1)), RNG.normal(size=(4, 1))) for _ in range(2)]
    one, other = (evaluate(NORM, PARAMS, TENSORS, errors=pair)["y"] for pair in errors)
    assert not np.array_equal(one, other)
    assert len(PROGRAMS) == before + 1


def test_gradients_of_what_nothing_depends_on_are_zero():
    def apart(tensors, _params):
        return {"y": anp.square(tensors["x"])}

    one, results = trace(apart, TENSORS, differentiable=("x", "bias"), gradients={"y": GRAD["grad.y"]})
    assert not results["grad.bias"].any()
    np.testing.assert_allclose(results["grad.x"], 2 * TENSORS["x"] * GRAD["grad.y"])
    assert set(one.outputs) == {"y", "grad.x", "grad.bias"}


def test_a_chosen_operand_of_fewer_elements_gets_a_gradient_of_its_shape():
    x, other = np.array([1.5]), np.array([[2.0, 3.0]])

    def reference(given, _params):
        return {"y": anp.where(other > 2.5, anp.tanh(given["x"]), 2 * given["x"])}

    _, outputs = trace(reference, {"x": x}, differentiable=["x"], gradients={"y": np.array([[1.0, 10.0]])})
    np.testing.assert_allclose(outputs["grad.x"], [2 + 10 * (1 - np.tanh(1.5) ** 2)])


def test_booleans_and_small_integers_of_a_reference_are_int64_and_constants_are_steps():
    def reference(given, _params):
        return {"y": given["x"] > 0, "z": np.int8([1, 2]), "c": np.arange(2.0), "n": 1.5}

    program, outputs = trace(reference, {"x": np.array([-1.0, 2.0])})
    assert {name: (str(values.dtype), values.tolist()) for name, values in outputs.items()} == {
        "y": ("int64", [0, 1]),
        "z": ("int64", [1, 2]),
        "c": ("float64", [0.0, 1.0]),
        "n": ("float64", 1.5),
    }
    again = program.run({"x": np.array([3.0, -2.0])}, np.float32)
    assert {name: values.tolist() for name, values in again.items()} == {
        "y": [1, 0], "z": [1, 2], "c": [0.0, 1.0], "n": 1.5,
    }  # fmt: skip


def test_complex_results_are_refused():
    with pytest.raises(TraceError, match="real numbers or booleans, not complex128"):
        trace(lambda given, _params: {"y": given["x"] * 1j}, {"x": np.ones(2)})
