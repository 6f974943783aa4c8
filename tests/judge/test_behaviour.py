"""Faults that are no formula: a fake for each that does it, and healthy kernels of every op that do not."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from parity.cases import FAMILIES, OPS
from parity.cases.oracle import IN_SEQUENCE, evaluate
from parity.config.plan import CasePlan
from parity.diagnoses import catalogue
from parity.judge.bound.envelope import ERROR_BOUND, envelopes
from parity.judge.compare.cell import consult_oracle
from parity.judge.diagnose.behaviour import BEHAVIOURS, Evidence, behaviours, independent
from parity.judge.diagnose.kernel import Kernel
from parity.judge.diagnose.reduction import Dim
from tests.exhaustive import one_of_each
from tests.judge.judging import Tensors, drawn, planned
from tests.judge.test_reduction import CASES

pytestmark = pytest.mark.slow

NORM = planned("layer_norm", x=(6, 33), normalized_shape=(33,))
Inputs = Mapping[str, np.ndarray]


def computed(case: CasePlan, dtype: str, inputs: Inputs, **how) -> Tensors:
    with np.errstate(all="ignore"):
        return evaluate(OPS[case.op], case.params, inputs, dtype=dtype, gradients=case.gradients, **how)


class Counted:
    """A kernel that counts its questions."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self.count = kernel, 0

    def __call__(self, case: CasePlan, dtype: str, inputs: Inputs) -> Mapping[str, np.ndarray] | None:
        self.count += 1
        return self.kernel(case, dtype, inputs)


def bounds(case: CasePlan, dtype: str, inputs: Tensors) -> dict[str, float]:
    oracle = consult_oracle(case, inputs)
    return {name: ERROR_BOUND * envelope.max for name, envelope in envelopes(case, dtype, inputs, oracle).items()}


def shown(
    kernel: Kernel, case: CasePlan = NORM, dtype: str = "float32", inputs: Tensors | None = None
) -> dict[str, Evidence]:
    """What the kernel does, by id."""
    inputs = inputs or drawn(case)
    observed = kernel(case, dtype, inputs) or {}
    return dict(behaviours(kernel, case, dtype, inputs, observed, bounds(case, dtype, inputs)))


def test_every_behaviour_is_in_the_catalogue():
    assert BEHAVIOURS.keys() <= catalogue().keys()


FAMILY = {op.name: family.__name__ for family in FAMILIES for op in family.OPS}
CELLS = [pytest.param(op, dtype, id=f"{op}-{dtype}") for op in sorted(OPS) for dtype in ("float32", "float64")]


@pytest.mark.parametrize(("op", "dtype"), one_of_each(lambda op, _: FAMILY[op], CELLS))
def test_a_healthy_kernel_does_nothing_of_it(op, dtype):
    kernel = Counted(computed)
    assert shown(kernel, CASES[op], dtype) == {}
    assert kernel.count <= 30


@pytest.mark.parametrize("op", ["layer_norm", "group_norm", "linear", "conv2d", "scaled_dot_product_attention"])
def test_sums_in_another_order_for_another_size_are_healthy(op):
    def kernel(case, dtype, inputs):
        odd = sum(values.size for values in inputs.values()) % 2
        return computed(case, dtype, inputs, functions=IN_SEQUENCE) if odd else computed(case, dtype, inputs)

    assert shown(kernel, CASES[op]) == {}


def test_sums_whose_order_changes_from_call_to_call_are_healthy():
    rng = np.random.default_rng(0)

    def kernel(case, dtype, inputs):
        return {
            n: values * (1 + 1e-7 * rng.integers(-1, 2, values.shape)).astype(dtype)
            for n, values in computed(case, dtype, inputs).items()
        }

    assert shown(kernel) == {}


def test_a_kernel_without_answers_shows_nothing():
    assert shown(lambda *_: None) == {}


def test_a_kernel_that_is_lost_in_the_middle_shows_nothing():
    left = iter(range(4))
    assert shown(lambda *cell: computed(*cell) if next(left, None) is not None else None) == {}


def test_outputs_that_are_missing_are_not_looked_at():
    def kernel(*cell):
        return {n: values for n, values in computed(*cell).items() if n.startswith("grad.")}

    assert shown(kernel) == {}


def racing() -> Kernel:
    rng = np.random.default_rng(1)

    def kernel(case, dtype, inputs):
        outputs = computed(case, dtype, inputs)
        outputs["grad.weight"][rng.integers(outputs["grad.weight"].size)] += 1
        return outputs

    return kernel


def test_a_race_is_nondeterministic():
    found = shown(racing())
    assert found["nondeterministic"]["tensors"] == ["grad.weight"]
    assert "stateful" not in found
    assert found["nondeterministic"]["elements"]["grad.weight"] >= 1


def test_a_run_that_differs_from_all_answers_is_nondeterministic():
    inputs, bound = drawn(NORM), bounds(NORM, "float32", drawn(NORM))
    observed = computed(NORM, "float32", inputs)
    observed["y"][2, 3] += 1
    evidence = BEHAVIOURS["nondeterministic"](computed, NORM, "float32", inputs, observed, bound)
    assert evidence == {"tensors": ["y"], "elements": {"y": 1}, "calls": 5}


def accumulating() -> Kernel:
    buffers: dict[tuple[int, ...], np.ndarray] = {}

    def kernel(case, dtype, inputs):
        outputs = computed(case, dtype, inputs)
        gradient = outputs["grad.weight"]
        buffers[gradient.shape] = buffers.get(gradient.shape, np.zeros_like(gradient)) + gradient
        return {**outputs, "grad.weight": buffers[gradient.shape].copy()}

    return kernel


def test_gradients_that_add_up_are_stateful():
    found = shown(accumulating())
    assert found == {"stateful": {"depends_on": "accumulated", "tensors": ["grad.weight"]}}


def stale() -> Kernel:
    """The mean of the call before is what is subtracted."""
    kept: dict[tuple[int, ...], np.ndarray] = {}

    def kernel(case, dtype, inputs):
        outputs = computed(case, dtype, inputs)
        mean = kept.get(inputs["x"].shape, inputs["x"].mean(-1, keepdims=True))
        kept[inputs["x"].shape] = inputs["x"].mean(-1, keepdims=True)
        outputs["y"] = outputs["y"] + (inputs["x"].mean(-1, keepdims=True) - mean).astype(dtype)
        return outputs

    return kernel


def test_what_is_left_of_the_previous_call_is_stateful():
    found = shown(stale())
    assert found["stateful"] == {"depends_on": "previous", "tensors": ["y"]}
    assert "nondeterministic" not in found


@pytest.mark.parametrize(
    "factor", [lambda n: 1 + 0.1 * (n % 2), lambda n: 1 + 0.01 * n**0.5], ids=["in turn", "one way"]
)
def test_what_depends_on_the_number_of_calls_is_stateful(factor: Any):
    counted = itertools.count()

    def kernel(case, dtype, inputs):
        outputs = computed(case, dtype, inputs)
        return {**outputs, "y": (outputs["y"] * factor(next(counted))).astype(dtype)}

    found = shown(kernel)
    assert found == {"stateful": {"depends_on": "number of calls", "tensors": ["y"]}}


def test_a_weight_that_is_kept_by_its_size_is_stateful():
    kept: dict[tuple[int, ...], np.ndarray] = {}

    def kernel(case, dtype, inputs):
        weight = kept.setdefault(inputs["weight"].shape, inputs["weight"])
        return computed(case, dtype, {**inputs, "weight": weight})

    linear = planned("linear", x=(4, 6), in_features=6, out_features=5)
    kernel(linear, "float32", {**drawn(linear), "weight": 2 * drawn(linear)["weight"]})
    found = shown(kernel, linear)
    assert found == {"stateful": {"depends_on": "first of its size", "tensors": ["grad.x", "y"]}}


def test_overwritten_inputs_are_reported():
    def kernel(case, dtype, inputs):
        changed = inputs["x"].astype(dtype)
        changed[0] += 1
        return {**computed(case, dtype, inputs), "input.x": changed}

    found = shown(kernel)
    assert found == {"input-mutated": {"inputs": ["x"], "elements_changed": {"x": 33}}}


def neighbour(case, dtype, inputs):
    """The last element of a row is read from the next one."""
    x = inputs["x"].copy()
    x[:-1, -1] = inputs["x"][1:, 0]
    return {**computed(case, dtype, inputs), "y": computed(case, dtype, {**inputs, "x": x})["y"]}


def tail(case, dtype, inputs):
    """Rows after the last whole block of four are not normalised."""
    outputs = computed(case, dtype, inputs)
    rows = inputs["x"].shape[0]
    whole = rows - rows % 4 if rows > 4 else rows
    outputs["y"][whole:] = inputs["x"][whole:]
    return outputs


@pytest.mark.parametrize(("kernel", "depends_on"), [(neighbour, "neighbours"), (tail, "size")])
def test_a_row_that_depends_on_others_is_batch_variant(kernel: Callable[..., Tensors], depends_on: str):
    found = shown(kernel)
    assert list(found) == ["batch-variant"]
    evidence = found["batch-variant"]
    assert evidence["depends_on"] == depends_on
    assert evidence["tensors"] == ["y"]
    assert evidence["axes"] == {"x": 0}


def test_an_op_that_mixes_rows_is_not_batch_variant():
    found = shown(computed, planned("batch_norm", x=(6, 5)))
    assert found == {}


def test_rows_of_zeros_say_nothing_of_other_rows():
    """What the reference returns for a row alone and among others may be 0 by chance, as behind a ReLU."""
    small, whole = {"y": np.zeros((1, 3))}, {"y": np.zeros((4, 3))}
    bound = {"y": 1e-6}
    dim = Dim(4, (("x", 0),))
    assert independent(whole, small, dim, 0, bound) == {}
    assert independent({"y": np.ones((4, 3))}, {"y": np.ones((1, 3))}, dim, 0, bound).keys() == {"y"}


def test_bounds_may_be_given_for_each_element():
    inputs = drawn(NORM)
    bound = {name: np.full(values.shape, 1e-5) for name, values in computed(NORM, "float32", inputs).items()}
    for kernel, expected in ((computed, []), (tail, ["batch-variant"]), (racing(), ["nondeterministic"])):
        assert [name for name, _ in behaviours(kernel, NORM, "float32", inputs, {}, bound)] == expected
