"""Expands one entry of `cases` into CasePlans."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pkgutil import resolve_name
from typing import Any

from parity.cases.brought import op_of
from parity.cases.op import Op
from parity.config.brought import REFERENCE, case_model, read_brought, with_outputs
from parity.config.case_models import OpCase, case_model_of
from parity.config.defaults import Defaults
from parity.config.grammar import CaseModel, check_keys, read_partly, require_mapping
from parity.config.ids import automatic_id, check_id, swept_id
from parity.config.inputs import check_params, plan_tensors, read_inputs
from parity.config.kinds import KIND, KINDS
from parity.config.memory import MemoryNeed, memory_of_op
from parity.config.nodes import Node, Problems, child
from parity.config.plan import BackendSpec, CasePlan, WrittenAt
from parity.config.references import substitute
from parity.config.stress import stressed
from parity.config.sweep import Combination, expand
from parity.config.tolerance_grammar import check_tensor_names
from parity.config.tolerances import DEFAULT_TOLERANCES, ToleranceRule
from parity.config.tree import without
from parity.program.worker.user_module import ARGUMENTS


@dataclass(frozen=True)
class Scope:
    """The context of a case in its file."""

    ops: Mapping[str, Op]
    dtypes: tuple[str, ...]
    rules: tuple[ToleranceRule, ...]
    defaults: Defaults
    report: Problems


@dataclass(frozen=True)
class BuiltCase:
    """A planned case with what its id, name checks and memory estimate need."""

    plan: CasePlan
    node: Node
    named: bool
    compared: tuple[str, ...]
    memory: MemoryNeed

    def with_plan(self, **changes: Any) -> BuiltCase:
        """This case with another plan."""
        return replace(self, plan=replace(self.plan, **changes))


@dataclass(frozen=True)
class CaseKind:
    """A kind of cases.

    `model` describes an entry of `cases`; `build(node, scope)` makes its cases; `shortened(built, steps)` is a case
    with only its first steps; `check(built, baseline, backends, report)` reports what these backends cannot run, or
    cannot compare with this baseline.
    """

    model: Any
    build: Callable[[Node, Scope], Iterator[BuiltCase]]
    shortened: Callable[[BuiltCase, int], BuiltCase]
    check: Callable[[BuiltCase, str, tuple[BackendSpec, ...], Problems], None]


def case_kind(name: str) -> CaseKind:
    """The kind of cases with this name."""
    kind: CaseKind = resolve_name(KINDS[name])
    return kind


def build_cases(node: Node, scope: Scope) -> Iterator[BuiltCase]:
    """The cases of one entry of `cases`; invalid ones are reported and left out."""
    kind = node.get(KIND)
    if kind is not None and kind.text in KINDS:
        yield from case_kind(kind.text).build(node, scope)
    elif kind is not None:
        scope.report.add(kind, "no such kind of case; a case of an op has no `kind`", allowed=KINDS, near=kind.text)
    elif require_mapping(node, scope.report, "a case"):
        for built in expanded(node, OpCase, scope, _build):
            yield built
            if built.plan.stress:
                yield from (replace(built, plan=plan) for plan in stressed(built.plan, built.plan.definition))


def expanded(
    node: Node,
    model: type[CaseModel],
    scope: Scope,
    build: Callable[[Combination, Scope], BuiltCase | None],
    **sweep: Any,
) -> Iterator[BuiltCase]:
    """The cases of an entry and its sweep; unknown keys are reported."""
    check_keys(model, node, scope.report)
    for combination in expand(node, scope.report, **sweep):
        built = build(combination, scope)
        if built is not None:
            yield built


def _build(combination: Combination, scope: Scope) -> BuiltCase | None:
    report, n_before = scope.report, len(scope.report)
    name = _op(combination.case, scope)
    case = name and substitute(scope.defaults.under(name, without(combination.case, "sweep")), report)
    if not name or not case:
        return None
    brought = None if case.get(REFERENCE) is None else read_brought(case, name, report)
    if len(report) > n_before or (brought is None and name not in scope.ops):
        return None
    model = case_model_of(name) if brought is None else case_model(brought)
    values = read_partly(model, _with_parts(case), report)
    if values is None or values.params is None or values.inputs is None:
        if brought is None and values is not None and values.params is not None:
            check_params(case, scope.ops[name], values.params, report)
        return None
    inputs = read_inputs(case, values.inputs, report)
    if brought is not None and len(report) == n_before:
        brought = with_outputs(brought, values.params, inputs, report)
    # A problem that an earlier case has reported, too, is not counted again.
    if len(report) > n_before or (brought is None and name not in scope.ops):
        return None
    op = scope.ops[name] if brought is None else op_of(brought)
    tensors = plan_tensors(inputs, op, values.params, report, gradients=values.gradients)
    if tensors is None:
        return None
    drawn = tuple(plan for plan in tensors.plans if op.input(plan.name))
    case_id = id_of(combination, case, automatic_id(op.name, values.params, drawn, combination.swept), report)
    check_tensor_names(case.get("tolerance"), tensors.compared, report)
    plan = CasePlan(
        id=case_id,
        op=op.name,
        params=values.params,
        dtypes=values.dtypes or scope.dtypes,
        tensors=tensors.plans,
        tolerance=tolerance_of(op.name, values, scope),
        source=WrittenAt(case.file, case.line),
        gradients=tensors.gradients,
        brought=brought,
        stress=values.stress,
    )
    memory = memory_of_op(tensors.n_elements)
    return BuiltCase(plan, combination.case, "id" in case.mapping, tensors.compared, memory)


def _op(case: Node, scope: Scope) -> str | None:
    """The name of a case's op; None and a report if parity does not know it and the case does not bring it."""
    node, reference = case.get("op"), case.get(REFERENCE)
    if node is None:
        scope.report.add(case, 'a case needs an "op" (or is a "kind: train")', key=f"{case.key}.op", allowed=scope.ops)
        return None
    if reference is None and node.text not in scope.ops:
        scope.report.add(node, f"parity knows no op {node.text} ({DOOR})", allowed=scope.ops, near=node.text)
    elif reference is not None and node.text in scope.ops and not is_call(case):
        scope.report.add(reference, f"parity has a reference of its own for {node.text}; give your op another name")
    elif reference is not None and not node.text.isidentifier():
        scope.report.add(node, "an op has the name of the function in its reference")
    else:
        return node.text
    return None


def is_call(case: Node) -> bool:
    """Whether a case says in which order arguments are given: then it calls users' code only, under any name."""
    params = case.get("params")
    return params is not None and ARGUMENTS in params.mapping


def _with_parts(case: Node) -> Node:
    """The case with params and inputs, empty if it has none."""
    said = {key: node for key, node in case.mapping.items() if node.value is not None}
    return case.with_value({**case.mapping, **{key: said.get(key) or child(case, key, {}) for key in PARTS}})


PARTS = ("params", "inputs")
DOOR = "to bring your own, give the case a `reference:`, see docs/own-kernel.md"


def tolerance_of(name: str, values: Any, scope: Scope) -> Any:
    """The tolerance rules for a case, from the defaults to its own."""
    own = () if values.tolerance is None else values.tolerance.all_rules()
    return DEFAULT_TOLERANCES.extended(scope.rules + scope.defaults.tolerance(name) + own)


def id_of(combination: Combination, case: Node, automatic: str, report: Problems) -> str:
    """The id as written, followed by the swept values; else the automatic one."""
    node = case.get("id")
    written = None if node is None else combination.case.mapping["id"].text
    case_id = automatic if node is None or written is None else swept_id(node.text, written, combination.swept)
    check_id(node or case, case_id, report)
    return case_id
