"""The tensors of a case: what the config says, what the op says, and the shapes that follow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from parity.cases.draw import Draw, Normal, Shape, TensorPlan
from parity.cases.op import CaseError, Input, Layout, Op
from parity.config.defaults import tensor_names
from parity.config.fields import check_keys, require_mapping
from parity.config.nodes import Node, Report
from parity.config.tensors import TensorSpec, check_size, parse_tensor
from parity.config.tree import nearest_parent, split_path


@dataclass(frozen=True)
class CaseTensors:
    """The planned tensors of a case, the names of those that are compared, and how many numbers all of it is."""

    plans: tuple[TensorPlan, ...]
    compared: tuple[str, ...]
    n_elements: int
    gradients: bool


@dataclass(frozen=True)
class WrittenInputs:
    """What a case says: specs by tensor name, inputs that it switches off, and the whole case for places."""

    case: Node
    specs: Mapping[str, tuple[TensorSpec, Node]]
    off: frozenset[str]

    def names(self, item: Input) -> tuple[str, ...]:
        """The tensors of an input: one, or those of its list."""
        if not item.listed:
            return (item.name,)
        return tuple(name for name in self.specs if name.rpartition(".")[0] == item.name)


def plan_tensors(written: WrittenInputs, op: Op, params: Any, report: Report, *, gradients: bool) -> CaseTensors | None:
    """All tensors of a case, or None after reporting what is wrong."""
    layout = _layout(written, op, params, report)
    if layout is None:
        return None
    n_before = len(report)
    inputs = tuple(_inputs(written, op, layout, report))
    present = {plan.name for plan in inputs}
    differentiable = tuple(name for name in op.differentiable if name in present)
    gradients = gradients and bool(op.upstream) and bool(differentiable)
    plans = inputs + (tuple(_upstream(written, op, layout, report)) if gradients else ())
    for name, shape in layout.outputs.items() if len(report) == n_before else ():
        check_size(tuple(shape), written.case, report, name, key=f"{written.case.key}.inputs")
    if len(report) > n_before:
        return None
    compared = (*layout.outputs, *(f"grad.{name}" for name in differentiable if gradients))
    return CaseTensors(plans, compared, _count(plans, differentiable if gradients else (), layout), gradients)


def read_inputs(case: Node, op: Op, report: Report) -> WrittenInputs | None:
    """Every tensor under `inputs`, checked by itself; None after reporting what is wrong."""
    node = case.get("inputs")
    if node is None or node.value is None:
        return WrittenInputs(case, {}, frozenset())
    if not require_mapping(node, report, "inputs"):
        return None
    n_before = len(report)
    check_keys(node, tensor_names(op), report, op.name)
    specs: dict[str, tuple[TensorSpec, Node]] = {}
    off = set()
    for name, entry in node.mapping.items():
        item = next((i for i in op.inputs if i.name == name), None)
        if entry.value is None and name in tensor_names(op):
            off.add(name)
            _check_off(entry, op, item, report)
            continue
        for tensor, place in _listed(name, entry, report) if item is not None and item.listed else [(name, entry)]:
            spec = parse_tensor(place, report)
            if spec is not None:
                specs[tensor] = (spec, place)
    return WrittenInputs(case, specs, frozenset(off)) if len(report) == n_before else None


def _check_off(node: Node, op: Op, item: Input | None, report: Report) -> None:
    if item is None or not item.optional:
        optional = [i.name for i in op.inputs if i.optional]
        name = node.key.partition(".inputs.")[2] or "this"
        message = f"null switches an optional input off, but {name} is needed"
        report.add(node, message, allowed=optional)


def _listed(name: str, node: Node, report: Report) -> Iterator[tuple[str, Node]]:
    if not node.is_list:
        report.add(node, f"{name} must be a list of tensors, for example [{{shape: [3, 4]}}, {{shape: [4]}}]")
    for i, item in enumerate(node.items):
        if item.is_mapping and not item.mapping.keys() & {"shape", "values", "file"}:
            report.add(item, "a tensor of a list needs a shape (or values, or a file)")
        yield f"{name}.{i}", item


def _layout(written: WrittenInputs, op: Op, params: Any, report: Report) -> Layout | None:
    given = {name: s.shape for name, (s, _) in written.specs.items() if s.shape is not None and op.input(name)}
    try:
        return op.layout(params, given)
    except CaseError as error:
        add_at(written.case, error.key, error.message, report)
    except ValueError as error:
        report.add(written.case, str(error), value=False)
    return None


def add_at(case: Node, path: str, message: str, report: Report) -> None:
    """Reports a problem with `path` of a case, at its line or at that of the nearest parent that is written."""
    node, whole = nearest_parent(case, split_path(path))
    report.add(node, message, key=None if whole else f"{case.key}.{path}")


def _inputs(written: WrittenInputs, op: Op, layout: Layout, report: Report) -> Iterator[TensorPlan]:
    for item in op.inputs:
        for name in written.names(item):
            spec, node = written.specs.get(name, (None, written.case))
            if name in written.off:
                continue
            if name not in layout.inputs:
                if spec is not None:
                    report.add(node, f"{op.name} does not use {name} with these params", value=False)
                continue
            if spec is None and item.default is None:
                if not item.optional:
                    add_at(written.case, f"inputs.{name}", f"{op.name} needs {name}", report)
                continue
            plan = _plan(name, spec, item.default, tuple(layout.inputs[name]), written.case, report)
            if plan is not None:
                yield plan


def _upstream(written: WrittenInputs, op: Op, layout: Layout, report: Report) -> Iterator[TensorPlan]:
    for output in op.upstream:
        name = f"grad.{output}"
        spec, _ = written.specs.get(name, (None, None))
        if name not in written.off and output in layout.outputs:
            plan = _plan(name, spec, None, tuple(layout.outputs[output]), written.case, report)
            if plan is not None:
                yield plan


def _plan(
    name: str, spec: TensorSpec | None, default: Draw | None, shape: Shape, case: Node, report: Report
) -> TensorPlan | None:
    spec = spec or TensorSpec()
    path = f"inputs.{name}"
    if spec.shape is not None and spec.shape != shape:
        add_at(case, path, f"the shape {list(spec.shape)} does not fit: {name} is {list(shape)} here", report)
        return None
    if spec.shape is None and not check_size(shape, case, report, name, key=f"{case.key}.{path}"):
        return None
    if spec.special is not None and spec.special.count > prod(shape):
        message = f"{spec.special.count} special values do not fit into {name}, which has {prod(shape)} elements"
        add_at(case, f"{path}.special.count", message, report)
        return None
    return TensorPlan(name, shape, spec.draw or default or Normal(), spec.scale, spec.offset, spec.special)


def _count(plans: tuple[TensorPlan, ...], differentiable: tuple[str, ...], layout: Layout) -> int:
    """Numbers held at once: inputs, upstream gradients, outputs, gradients."""
    shapes = [plan.shape for plan in plans]
    shapes += [tuple(shape) for shape in layout.outputs.values()]
    shapes += [tuple(layout.inputs[name]) for name in differentiable]
    return sum(prod(shape) for shape in shapes)
