"""One entry of `cases` to the CasePlans it stands for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from parity.cases.draw import COARSENESS
from parity.cases.op import Op
from parity.config.defaults import Defaults
from parity.config.fields import check_keys, fill, require_mapping
from parity.config.ids import AutoId, check_id, swept_id
from parity.config.inputs import CaseTensors, plan_tensors, read_inputs
from parity.config.memory import Memory, memory_of_op
from parity.config.nodes import Node, Report, child
from parity.config.plan import DEFAULT_TOLERANCES, CasePlan, Source, ToleranceRule
from parity.config.references import substitute
from parity.config.sweep import Combination, expand
from parity.config.tolerances import check_tensor_names, parse_tolerance

KEYS = ("id", "op", "params", "inputs", "sweep", "dtypes", "tolerance", "gradients", "kind")
"""The keys of a case of an op; one with a `kind` is built in `training.py`."""


@dataclass(frozen=True)
class Scope:
    """What a case finds around it in its file."""

    ops: Mapping[str, Op]
    dtypes: tuple[str, ...]
    rules: tuple[ToleranceRule, ...]
    defaults: Defaults
    report: Report


@dataclass(frozen=True)
class BuiltCase:
    """A planned case with what is needed to name it, to check names against it, and to size it."""

    plan: CasePlan
    node: Node
    named: bool
    compared: tuple[str, ...]
    memory: Memory


def build_cases(node: Node, scope: Scope) -> Iterator[BuiltCase]:
    """The cases that one entry of `cases` stands for; what is wrong is reported and left out."""
    if not require_mapping(node, scope.report, "a case"):
        return
    check_keys(node, KEYS, scope.report, "a case")
    bare = node.with_value({key: entry for key, entry in node.mapping.items() if key in KEYS})
    for combination in expand(bare, scope.report):
        built = _build(combination, scope)
        if built is not None:
            yield built


def _build(combination: Combination, scope: Scope) -> BuiltCase | None:
    report = scope.report
    op = _op(combination.case, scope)
    if op is None:
        return None
    written = {key: entry for key, entry in combination.case.mapping.items() if key != "sweep"}
    case = substitute(scope.defaults.under(op.name, combination.case.with_value(written)), report)
    if case is None:
        return None
    params = _params(case, op, report)
    dtypes = parse_dtypes(case.get("dtypes"), scope.dtypes, report)
    gradients = _gradients(case.get("gradients"), report)
    rules = parse_tolerance(case.get("tolerance"), report)
    inputs = read_inputs(case, op, report)
    if params is None or inputs is None:
        return None
    tensors = plan_tensors(inputs, op, params, report, gradients=gradients)
    if tensors is None or not dtypes:
        return None
    check_tensor_names(case.get("tolerance"), tensors.compared, report)
    case_id = _id(combination, case, op, params, tensors, report)
    table = DEFAULT_TOLERANCES.extended(scope.rules + scope.defaults.tolerance(op.name) + rules)
    source = Source(case.file, case.line)
    plan = CasePlan(case_id, op.name, params, dtypes, tensors.plans, table, source, tensors.gradients)
    return BuiltCase(plan, combination.case, "id" in case.mapping, tensors.compared, memory_of_op(tensors.n_elements))


def _op(case: Node, scope: Scope) -> Op | None:
    node = case.get("op")
    if node is None:
        scope.report.add(case, 'a case needs an "op" (or is a "kind: train")', key=f"{case.key}.op", allowed=scope.ops)
        return None
    op = scope.ops.get(node.value) if isinstance(node.value, str) else None
    if op is None:
        scope.report.add(node, "no such op", allowed=scope.ops, near=node.text)
    return op


def _params(case: Node, op: Op, report: Report) -> Any | None:
    node = case.get("params")
    if node is None or node.value is None:
        node = child(case, "params", {})
    return fill(op.params, node, report, op.name)


def parse_dtypes(node: Node | None, default: tuple[str, ...], report: Report) -> tuple[str, ...]:
    """The dtypes of a config or a case; nothing after reporting what is wrong."""
    if node is None:
        return default
    if not node.is_list or not node.items:
        report.add(node, "dtypes must be a list, for example [float32, float64]", allowed=COARSENESS)
        return ()
    wrong = [item for item in node.items if item.value not in COARSENESS]
    for item in wrong:
        report.add(item, "no such dtype", allowed=COARSENESS, near=item.text)
    if wrong:
        return ()
    dtypes = tuple(dict.fromkeys(item.text for item in node.items))
    if len(dtypes) < len(node.items):
        report.add(node, "a dtype stands here twice")
    return dtypes


def _gradients(node: Node | None, report: Report) -> bool:
    if node is None:
        return True
    if not isinstance(node.value, bool):
        report.add(node, "gradients must be true or false")
    return bool(node.value)


def _id(combination: Combination, case: Node, op: Op, params: Any, tensors: CaseTensors, report: Report) -> str:
    """The id as written, with what is swept behind it; or one made from the case."""
    node = case.get("id")
    if node is None:
        inputs = tuple(plan for plan in tensors.plans if op.input(plan.name))
        case_id = str(AutoId(op.name, params, inputs, combination.swept))
        check_id(case, case_id, report)
        return case_id
    if node.is_list or node.is_mapping or node.value is None:
        report.add(node, "an id must be text")
        return ""
    case_id = swept_id(node.text, combination.case.mapping["id"].text, combination.swept)
    check_id(node, case_id, report)
    return case_id
