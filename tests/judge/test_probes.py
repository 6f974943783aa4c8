"""Generic inputs of every op: valid, finite, the same for the same number, and telling explanations apart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from parity.cases import OPS
from parity.cases.draw import Uniform
from parity.cases.oracle import evaluate
from parity.config.plan import CasePlan
from parity.judge.diagnose import probes
from parity.judge.diagnose.growth import lengthened
from parity.judge.diagnose.probes import KEEPS_ALL, LEAST_SIZE, generic, numbers_in, size_of
from parity.judge.diagnose.reduction import sizes_of
from parity.judge.failures import Failures, RefusedInputsError
from tests.configs.loading import load_case
from tests.judge.judging import Tensors, planned
from tests.judge.test_reduction import CASES, check, reference

NUMBERS = range(6)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("op", sorted(OPS))
def test_generic_cases_are_cases(op, number):
    case, inputs = generic(CASES[op], number)
    check(case, inputs)
    assert all(np.isfinite(values).all() for values in reference(case, inputs).values())
    assert [plan.shape for plan in case.tensors] == [plan.shape for plan in CASES[op].tensors]
    for name, values in inputs.items():
        assert values.dtype == (np.int64 if values.dtype.kind == "i" else np.float32)
        item = OPS[op].input(name)
        if item is not None and isinstance(item.default, Uniform) and item.default.low >= 0:
            assert (values > 0).all()
    again, same = generic(CASES[op], number)
    assert again == case
    assert all((same[name] == inputs[name]).all() for name in inputs)
    other = generic(CASES[op], number + 1)[1]
    assert any((other[name] != inputs[name]).any() for name in inputs)


@pytest.mark.parametrize("op", sorted(OPS))
def test_options_are_unlike_each_other_and_the_users(op):
    users = CASES[op].params
    params = generic(CASES[op], 0)[0].params
    for name, value in vars(params).items():
        assert type(value) is type(getattr(users, name))
        assert not isinstance(value, bool | str) or value == getattr(users, name)
    numbers = [v for v in numbers_in(params) if v not in numbers_in(users)]
    assert all(float(np.float32(v)) == v and v not in (0.0, 1.0) for v in numbers)
    others = [abs(a - b) for i, a in enumerate(numbers) for b in numbers[:i]]
    assert all(distance > 0.005 for distance in others)


def test_every_third_number_keeps_all_options():
    case = planned("layer_norm", x=(6, 64), normalized_shape=(64,))
    same, inputs = generic(case, 2)
    assert same.params == case.params
    assert 0.02 < same.params.eps / inputs["x"].var(axis=1).mean() < 1


def test_a_branch_of_the_user_is_left_by_every_third_number():
    case = planned("sgd", param=(4, 3), lr=0.1, momentum=0.9, dampening=0.0, step=1)
    later, first = (generic(case, number)[0].params for number in (0, 1))
    assert later.dampening > 0
    assert later.step > 2
    assert (first.dampening, first.step) == (0.0, 1)
    assert first.momentum != 0.9


def test_what_the_op_does_not_take_together_stays():
    case = planned("sgd", param=(4, 3), lr=0.1, momentum=0.9, nesterov=True)
    params = generic(case, 0)[0].params
    assert (params.nesterov, params.dampening) == (True, 0.0)
    plain = planned("sgd", param=(4, 3), lr=0.1)
    assert generic(plain, 0)[0].params.momentum == 0.0


def test_the_type_of_a_norm_stays():
    case = planned("clip_grad_norm", max_norm=1.0, norm_type=1.0, grads_0=(4, 3), grads_1=(2,))
    params = generic(case, 0)[0].params
    assert params.norm_type == 1.0
    assert params.max_norm != 1.0


def test_rows_and_tensors_differ():
    case, inputs = generic(planned("layer_norm", x=(6, 64), normalized_shape=(64,)), 0)
    assert np.ptp(inputs["x"].std(axis=1)) > 0.2
    assert np.ptp(inputs["x"].mean(axis=1)) > 0.2
    assert np.abs(inputs["weight"] - 1).min() >= 0.25
    assert np.abs(inputs["bias"]).min() >= 0.25
    assert 0.02 < case.params.eps / inputs["x"].var(axis=1).mean() < 1


def predictions(case: CasePlan, inputs: Tensors) -> dict[str, np.ndarray]:
    """What the op's semantic variants predict, as shares of the tensors' sizes, by what they change."""
    exact = reference(case, inputs)
    found = {"": np.zeros(sum(values.size for values in exact.values()))}
    shapes = {name: values.shape for name, values in inputs.items() if OPS[case.op].input(name) is not None}
    for variant in OPS[case.op].variants(case.params, shapes):
        if variant.unstable or variant.absent or variant.id in ("attribute-precision", "eps-value"):
            continue
        values = evaluate(
            OPS[case.op],
            variant.changed(case.params),
            inputs,
            dtype="float64",
            gradients=case.gradients,
            **variant.arguments,
        )
        parts = [np.ravel(values[name] - exact[name]) / (1e-30 + np.abs(exact[name]).max()) for name in exact]
        found[f"{variant.id} {variant.arguments} {variant.params}"] = np.concatenate(parts)
    return found


@pytest.mark.parametrize("op", ["adam", "adamw", "adagrad", "batch_norm", "instance_norm", "lamb", "rmsprop", "sgd"])
def test_explanations_differ(op):
    found = predictions(*generic(CASES[op], 0))
    assert len(found) > 1
    alike = [(a, b) for a in found for b in found if a < b and not np.abs(found[a] - found[b]).max() > 1e-3]
    assert alike == []


def test_without_generic_inputs_explanations_may_look_the_same():
    case = CASES["adam"]
    users = {name: np.zeros_like(values) + 0.5 for name, values in generic(case, 0)[1].items()}
    found = predictions(replace(case, params=replace(case.params, weight_decay=0.0)), users)
    assert any(np.abs(found[a] - found[b]).max() < 1e-3 for a in found for b in found if a < b)


def test_a_size_that_an_op_cannot_have_is_left_out(tmp_path):
    case = load_case(
        tmp_path,
        "{op: conv2d, params: {out_channels: 2, kernel_size: 3, padding: same, dilation: 2}, inputs: {x: {shape: [2, 2, 5, 6]}}}",
    )
    inputs = {plan.name: plan.sample(0, case.id, "float32") for plan in case.tensors}
    found = {length: [lengthened(case, inputs, dim, length) for dim in sizes_of(case, inputs)] for length in (16, 1024)}
    assert all(found[16])
    assert None in found[1024]


def test_inputs_of_a_users_reference_are_no_larger_than_the_users():
    """With large weights, what a recurrence computes depends on the last digits."""
    assert size_of(None) == size_of(np.full(4, 30.0)) == 1.0
    assert size_of(np.array([0.1, -0.1, np.nan])) == pytest.approx(0.1)
    assert size_of(np.zeros(4)) == LEAST_SIZE
    case = CASES["clip_grad_norm"]
    user = {plan.name: np.full(plan.shape, 0.1) for plan in case.tensors}
    own, small = generic(case, KEEPS_ALL)[1], generic(case, KEEPS_ALL, user)[1]
    for name, values in own.items():
        if values.dtype.kind == "f" and OPS["clip_grad_norm"].input(name) is not None:
            np.testing.assert_allclose(small[name], 0.1 * values, rtol=1e-5)


def test_a_reference_that_takes_few_inputs_is_asked_near_its_own(monkeypatch):
    case = planned("softmax", x=(4, 8))
    own = {plan.name: plan.sample(0, case.id, *case.dtypes) for plan in case.tensors}
    plain = probes.evaluate

    def refusing(op, params, inputs, **how):
        if not (np.sign(inputs["x"]) == np.sign(own["x"])).all():
            raise ValueError("values are out of the support")
        return plain(op, params, inputs, **how)

    monkeypatch.setattr(probes, "evaluate", refusing)
    same, inputs = generic(case, KEEPS_ALL)
    assert same.params == case.params
    factors = inputs["x"] / own["x"]
    assert 0.8 <= factors.min() < factors.max() <= 1.2
    monkeypatch.setattr(probes, "evaluate", lambda *_, **__: 1 / 0)
    with pytest.raises(RefusedInputsError, match="division by zero"):
        generic(case, KEEPS_ALL)


def test_what_a_reference_refuses_is_no_failure_of_the_judge():
    failures = Failures()
    with failures.contained("asking"):
        raise RefusedInputsError("out of the support")
    assert not failures
    with failures.contained("asking"):
        raise ValueError("a mistake")
    assert [failure.doing for failure in failures] == ["asking"]
