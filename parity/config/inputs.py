"""The tensors of a case: from the config and the op, with the shapes that follow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from parity.cases.draw import Constant, Draw, File, Integers, Normal, Shape, TensorPlan, Values
from parity.cases.op import CaseError, Input, Op, TensorShapes
from parity.config.nodes import Node, Problems
from parity.config.tensors import TensorSpec, size_problem, tensor_spec
from parity.config.tree import nearest_parent, split_path

NO_STORAGE = "storage is the dtype of an operand of floating-point numbers"


@dataclass(frozen=True)
class CaseTensors:
    """The planned tensors of a case, the names of the compared ones, and the total number of elements."""

    plans: tuple[TensorPlan, ...]
    compared: tuple[str, ...]
    n_elements: int
    gradients: bool


@dataclass(frozen=True)
class WrittenInputs:
    """What a case writes: specs by tensor name, the inputs it omits, and the whole case for reports."""

    case: Node
    specs: Mapping[str, tuple[TensorSpec, Node]]
    omitted: frozenset[str]

    def names(self, item: Input) -> tuple[str, ...]:
        """The tensors of an input: one, or all of its list."""
        if not item.listed:
            return (item.name,)
        return tuple(name for name in self.specs if name.rpartition(".")[0] == item.name)


def plan_tensors(
    written: WrittenInputs, op: Op, params: Any, report: Problems, *, gradients: bool
) -> CaseTensors | None:
    """All tensors of a case; None and a report if any is wrong."""
    shapes = _layout(written, op, params, report)
    if shapes is None:
        return None
    n_before = len(report)
    inputs = tuple(_inputs(written, op, params, shapes, report))
    present = {plan.name for plan in inputs}
    differentiable = tuple(name for name in op.differentiable if name in present)
    # Kernels of 8-bit operands have no backward pass.
    gradients = (
        gradients and bool(op.grad_outputs) and bool(differentiable) and not any(plan.storage for plan in inputs)
    )
    plans = inputs + (tuple(_grad_outputs(written, op, shapes, report)) if gradients else ())
    for name, shape in shapes.outputs.items() if len(report) == n_before else ():
        problem = size_problem(tuple(shape), name)
        if problem is not None:
            report.add(written.case, problem, key=f"{written.case.key}.inputs")
    if len(report) > n_before:
        return None
    compared = (*shapes.outputs, *(f"grad.{name}" for name in differentiable if gradients))
    return CaseTensors(plans, compared, _count(plans, differentiable if gradients else (), shapes), gradients)


def read_inputs(case: Node, values: Any, report: Problems) -> WrittenInputs:
    """Every tensor under `inputs` as its model accepts it (`values`), with the shapes of its files."""
    node = case.get("inputs")
    specs: dict[str, tuple[TensorSpec, Node]] = {}
    omitted = set()
    for field, info in type(values).model_fields.items():
        name, tensor = info.alias or field, getattr(values, field)
        entry = None if node is None else node.get(name)
        if entry is None:
            continue
        if tensor is None:
            omitted.add(name)
        elif isinstance(tensor, tuple):
            numbered = enumerate(zip(tensor, entry.items, strict=True))
            specs |= {f"{name}.{i}": (tensor_spec(one, item, report), item) for i, (one, item) in numbered}
        else:
            specs[name] = (tensor_spec(tensor, entry, report), entry)
    return WrittenInputs(case, specs, frozenset(omitted))


def _layout(written: WrittenInputs, op: Op, params: Any, report: Problems) -> TensorShapes | None:
    given = {name: s.shape for name, (s, _) in written.specs.items() if s.shape is not None and op.input(name)}
    try:
        return op.infer_shapes(params, given)
    except CaseError as error:
        add_at(written.case, error.key, error.message, report)
    except ValueError as error:
        report.add(written.case, str(error), value=False)
    return None


def check_params(case: Node, op: Op, params: Any, report: Problems) -> None:
    """Report what is wrong with the params of a case whose inputs have a problem that is not one of shapes."""
    node = case.get("inputs")
    shapes = {} if node is None or not node.is_mapping else {n: item.get("shape") for n, item in node.mapping.items()}
    written = {name: shape for name, shape in shapes.items() if shape is not None and op.input(name)}
    wrong = {problem.key for problem in report.problems}
    if any(key.startswith(shape.key) for shape in written.values() for key in wrong):
        return
    try:
        op.infer_shapes(params, {name: shape.plain() for name, shape in written.items()})
    except CaseError as error:
        if error.key.startswith("params"):
            add_at(case, error.key, error.message, report)
    except ValueError:
        return


def add_at(case: Node, path: str, message: str, report: Problems) -> None:
    """Reports a problem with `path` of a case, at its line or at that of its nearest written parent."""
    node, whole = nearest_parent(case, split_path(path))
    report.add(node, message, key=None if whole else f"{case.key}.{path}")


def _inputs(
    written: WrittenInputs, op: Op, params: Any, shapes: TensorShapes, report: Problems
) -> Iterator[TensorPlan]:
    for item in op.inputs:
        for name in written.names(item):
            spec, node = written.specs.get(name, (None, written.case))
            if name in written.omitted:
                continue
            if name not in shapes.inputs:
                if spec is not None:
                    report.add(node, f"{op.name} does not use {name} with these params", value=False)
                continue
            if spec is None and (item.opt_in or (item.default is None and not item.integers)):
                if not item.optional:
                    add_at(written.case, f"inputs.{name}", f"{op.name} requires {name}", report)
                continue
            plan = _planned(name, spec, item, params, shapes, written.case, report)
            if plan is not None:
                yield plan


def _planned(
    name: str,
    spec: TensorSpec | None,
    item: Input,
    params: Any,
    shapes: TensorShapes,
    case: Node,
    report: Problems,
) -> TensorPlan | None:
    bounds = shapes.integers.get(name)
    default = item.default or (None if bounds is None else Integers(*bounds))
    if spec is not None and spec.storage and (bounds is not None or item.listed):
        add_at(case, f"inputs.{name}.storage", f"{NO_STORAGE}, and {name} is none", report)
        return None
    plan = _plan(name, spec, default, tuple(shapes.inputs[name]), case, report)
    if plan is None or bounds is None:
        return plan
    ignored = getattr(params, "ignore_index", None)
    problem = integers_problem(plan, bounds, ignored, drawn_as_usual=plan.draw is default)
    if problem is not None:
        add_at(case, f"inputs.{name}", problem, report)
        return None
    return replace(plan, integers=True)


def integers_problem(
    plan: TensorPlan, bounds: tuple[int, int], ignored: int | None, *, drawn_as_usual: bool
) -> str | None:
    """Why a tensor of integers from `bounds` (or `ignored`) cannot hold the values of a config."""
    low, high = bounds
    drawn = list(plan.special.values) if plan.special is not None else []
    if isinstance(plan.draw, Integers):
        drawn += [plan.draw.low, plan.draw.high - 1]
    elif isinstance(plan.draw, Values | File | Constant):
        drawn += np.unique(plan.scale * plan.draw.sample(np.random.default_rng(), plan.shape) + plan.offset).tolist()
    elif not drawn_as_usual:
        return f"{plan.name} holds integers: give values, a file, a constant, or integers: {{low: {low}, high: {high}}}"
    wrong = [v for v in drawn if v != ignored and not (float(v).is_integer() and low <= v < high)]
    return f"{plan.name} holds integers from {low} to {high - 1}, not {wrong[0]:g}" if wrong else None


def _grad_outputs(written: WrittenInputs, op: Op, shapes: TensorShapes, report: Problems) -> Iterator[TensorPlan]:
    for output in op.grad_outputs:
        name = f"grad.{output}"
        spec, _ = written.specs.get(name, (None, None))
        if spec is not None and spec.storage:
            add_at(written.case, f"inputs.{name}.storage", f"{NO_STORAGE}, and {name} is none", report)
        elif name not in written.omitted and output in shapes.outputs:
            plan = _plan(name, spec, None, tuple(shapes.outputs[output]), written.case, report)
            if plan is not None:
                yield plan


def _plan(
    name: str, spec: TensorSpec | None, default: Draw | None, shape: Shape, case: Node, report: Problems
) -> TensorPlan | None:
    spec = spec or TensorSpec()
    path = f"inputs.{name}"
    if spec.shape is not None and spec.shape != shape:
        add_at(case, path, f"wrong shape {list(spec.shape)}: {name} must be {list(shape)} here", report)
        return None
    problem = size_problem(shape, name)
    if problem is not None:
        report.add(case, problem, key=f"{case.key}.{path}")
        return None
    if spec.special is not None and spec.special.count > prod(shape):
        message = f"{spec.special.count} special values do not fit into {name}, which has {prod(shape)} elements"
        add_at(case, f"{path}.special.count", message, report)
        return None
    drawn = spec.draw or default or Normal(), spec.scale, spec.offset, spec.special
    return TensorPlan(name, shape, *drawn, layout=spec.layout, storage=spec.storage)


def _count(plans: tuple[TensorPlan, ...], differentiable: tuple[str, ...], shapes: TensorShapes) -> int:
    """Number of elements held at once: inputs, gradients of outputs, outputs, gradients."""
    every = [plan.shape for plan in plans]
    every += [tuple(shape) for shape in shapes.outputs.values()]
    every += [tuple(shapes.inputs[name]) for name in differentiable]
    return sum(prod(shape) for shape in every)
