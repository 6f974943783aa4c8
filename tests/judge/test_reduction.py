"""Reduction of a failing case: for every op, whatever is wrong, the result still shows it, is valid and small."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import pytest

from parity.cases import OPS
from parity.cases.oracle import evaluate
from parity.config import Overrides, load_plan
from parity.config.plan import CasePlan
from parity.judge.diagnose.reduction import FEW_ELEMENTS, ShowsError, reduced
from tests.conftest import CONFIGS
from tests.judge.judging import Tensors, drawn, planned

MOST_ELEMENTS = 40_000


def large_cases() -> dict[str, CasePlan]:
    """Of every op in the shipped configs, the largest case that is no work to evaluate."""
    largest: dict[str, CasePlan] = {}
    paths = sorted([*CONFIGS.glob("*.yaml"), *CONFIGS.glob("ops/*.yaml")])
    cases = [case for path in paths for case in load_plan([path], Overrides()).cases]
    wide = [case for case in cases if case.op in OPS and set(case.dtypes) <= {"float32", "float64"}]
    for case in (case for case in wide if n_elements(case) <= MOST_ELEMENTS):
        if case.op not in largest or n_elements(largest[case.op]) < n_elements(case):
            largest[case.op] = case
    return largest


def n_elements(case: CasePlan) -> int:
    return sum(math.prod(tensor.shape) for tensor in case.tensors)


CASES = large_cases()


def reference(case: CasePlan, inputs: Mapping[str, np.ndarray]) -> Tensors:
    with np.errstate(all="ignore"):
        return evaluate(OPS[case.op], case.params, inputs, dtype="float64", gradients=case.gradients)


Fault = Callable[[CasePlan, Mapping[str, np.ndarray], Tensors], Tensors]


def everything(_case, _inputs, outputs: Tensors) -> Tensors:
    return {name: values * 1.01 + 0.01 for name, values in outputs.items()}


def last_row(_case, _inputs, outputs: Tensors) -> Tensors:
    name, values = next(iter(outputs.items()))
    changed = np.atleast_1d(values.copy())
    changed[-1] += 1
    return {**outputs, name: changed.reshape(values.shape)}


def where_large(limit: float) -> Fault:
    def fault(case, inputs, outputs):
        data = next(values for values in inputs.values() if values.dtype.kind == "f")
        return everything(case, inputs, outputs) if np.abs(data).max() >= limit else outputs

    return fault


def from_size(least: int) -> Fault:
    def fault(case, inputs, outputs):
        sizes = [n for values in inputs.values() for n in values.shape]
        return everything(case, inputs, outputs) if max(sizes) >= least else outputs

    return fault


def only_odd(_case, inputs, outputs: Tensors) -> Tensors:
    sizes = [n for values in inputs.values() for n in values.shape]
    return everything(_case, inputs, outputs) if max(sizes) % 2 else outputs


class Questions:
    """`shows_error` of a faulty kernel; checks and counts the cases that it is asked."""

    def __init__(self, fault: Fault) -> None:
        self.fault, self.count = fault, 0

    def __call__(self, case: CasePlan, inputs: Mapping[str, np.ndarray]) -> bool:
        self.count += 1
        check(case, inputs)
        exact = reference(case, inputs)
        wrong = self.fault(case, inputs, exact)
        return any(not np.allclose(wrong[name], exact[name], rtol=1e-6, atol=1e-6) for name in exact)


def check(case: CasePlan, inputs: Mapping[str, np.ndarray]) -> None:
    """The case is one that a config could have asked for, and the inputs are its inputs."""
    op = OPS[case.op]
    assert [plan.name for plan in case.tensors] == list(inputs)
    assert [plan.shape for plan in case.tensors] == [values.shape for values in inputs.values()]
    shapes = op.infer_shapes(case.params, {n: v.shape for n, v in inputs.items() if op.input(n) is not None})
    for name, values in inputs.items():
        expected = shapes.inputs[name] if op.input(name) is not None else shapes.outputs[name.removeprefix("grad.")]
        assert values.shape == expected
    for name, (low, high) in shapes.integers.items():
        ignored = getattr(case.params, "ignore_index", None)
        assert all(low <= v < high or v == ignored for v in inputs[name].ravel().tolist())


def largest(inputs: Mapping[str, np.ndarray]) -> int:
    return max(values.size for values in inputs.values())


def test_every_op_has_a_case():
    assert CASES.keys() == OPS.keys()


def faults(inputs: Tensors) -> dict[str, Fault]:
    data = next(values for values in inputs.values() if values.dtype.kind == "f")
    return {"everything": everything, "last row": last_row, "where large": where_large(float(np.abs(data).max()))}


@pytest.mark.parametrize("name", ["everything", "last row", "where large"])
@pytest.mark.parametrize("op", sorted(OPS))
def test_a_fault_of_values_is_shown_by_few_elements(op, name):
    case = CASES[op]
    inputs = drawn(case)
    shows_error = Questions(faults(inputs)[name])
    if not shows_error(case, inputs):
        pytest.fail(f"{op} does not show {name}")
    small, cut = reduced(case, inputs, shows_error)
    count = shows_error.count - 1
    assert shows_error(small, cut)
    assert largest(cut) <= FEW_ELEMENTS
    assert count <= 4 * math.log2(max(2, largest(inputs)))


@pytest.mark.parametrize(("rows", "columns"), [(8192, 1024), (512, 8), (129, 1000), (3, 4096)])
def test_a_fault_from_a_size_on_ends_at_that_size(rows, columns):
    case = planned("layer_norm", x=(rows, columns), normalized_shape=(columns,))
    inputs = {tensor.name: np.zeros(tensor.shape) for tensor in case.tensors}
    count = 0

    def shows_error(case: CasePlan, inputs: Mapping[str, np.ndarray]) -> bool:
        nonlocal count
        count += 1
        check(case, inputs)
        return inputs["x"].shape[-1] >= 40 if columns >= 40 else inputs["x"].shape[0] >= 40

    small, cut = reduced(case, inputs, shows_error)
    assert small.params.normalized_shape == cut["x"].shape[1:]
    assert cut["x"].shape[1 if columns >= 40 else 0] <= 64
    assert cut["x"].size <= FEW_ELEMENTS
    assert count <= 2 * (math.log2(rows) + math.log2(columns))


def test_an_odd_size_stays_odd():
    case = planned("layer_norm", x=(4, 129), normalized_shape=(129,))
    inputs = drawn(case)
    shows_error = Questions(only_odd)
    small, cut = reduced(case, inputs, shows_error)
    assert shows_error(small, cut)
    assert cut["x"].size <= FEW_ELEMENTS


def test_a_tail_of_blocks_stays_a_tail():
    case = planned("layer_norm", x=(2, 1000), normalized_shape=(1000,))
    inputs = drawn(case)

    def shows_error(case: CasePlan, inputs: Mapping[str, np.ndarray]) -> bool:
        return inputs["x"].shape[-1] > 32 and inputs["x"].shape[-1] % 32 != 0

    small, cut = reduced(case, inputs, shows_error)
    assert shows_error(small, cut)
    assert cut["x"].shape[-1] == 33


def test_the_window_follows_the_error():
    case = planned("layer_norm", x=(1000, 16), normalized_shape=(16,))
    inputs = drawn(case)
    marked = inputs["x"][637].copy()

    def shows_error(_case: CasePlan, inputs: Mapping[str, np.ndarray]) -> bool:
        return bool((inputs["x"] == marked[: inputs["x"].shape[1]]).all(axis=1).any())

    small, cut = reduced(case, inputs, shows_error)
    assert shows_error(small, cut)
    assert cut["x"].size <= FEW_ELEMENTS


def test_a_list_gets_shorter():
    shapes = {f"grads_{i}": (5, i + 1) for i in range(2)}
    case = planned("clip_grad_norm", max_norm=1.0, **shapes)
    inputs = {f"grads.{i}": np.full((40, 4), float(i)) for i in range(30)}
    tensors = tuple(case.tensors[0].__class__(name, (40, 4), case.tensors[0].draw) for name in inputs)
    case = case.__class__(**{**vars(case), "tensors": tensors})
    small, cut = reduced(case, inputs, lambda _, inputs: any((v == 17).any() for v in inputs.values()))
    check(small, cut)
    assert list(cut) == [f"grads.{i}" for i in range(len(cut))]
    assert len(cut) == 3
    assert any((values == 17).any() for values in cut.values())


def test_params_follow_only_where_they_must():
    case = planned("group_norm", x=(64, 4, 64), num_groups=4)
    small, cut = reduced(case, drawn(case), lambda *_: True)
    assert small.params.num_groups == 4
    assert cut["x"].shape == (4, 4, 4)
    grouped = planned("group_norm", x=(64, 64, 4), num_groups=64)
    small, cut = reduced(grouped, drawn(grouped), lambda *_: True)
    assert small.params.num_groups == cut["x"].shape[1] == 4
    assert cut["x"].shape[0] == 4


def test_questions_are_bounded():
    case = planned("layer_norm", x=(512, 512), normalized_shape=(512,))
    asked: list[ShowsError] = []
    small, cut = reduced(case, drawn(case), lambda *cell: bool(asked.append(cell)), most_calls=7)
    assert len(asked) == 7
    assert small is case
    assert cut.keys() == drawn(case).keys()


def test_inputs_are_not_changed():
    case = CASES["embedding"]
    inputs = drawn(case)
    before = {name: values.copy() for name, values in inputs.items()}
    reduced(case, inputs, Questions(everything))
    assert all((inputs[name] == before[name]).all() for name in before)
