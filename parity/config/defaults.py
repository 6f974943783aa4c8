"""`defaults`: a partial case merged into every case, and one per op."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from parity.cases.op import Op
from parity.config.case_models import DefaultKeys, defaults_model_of
from parity.config.grammar import check_keys, require_mapping
from parity.config.nodes import Node, Problems
from parity.config.tolerance_grammar import check_tensor_names, parse_tolerance
from parity.config.tolerances import ToleranceRule
from parity.config.tree import merge, only


@dataclass(frozen=True)
class Defaults:
    """The defaults of a case; tolerances are separate, since they are layers of rules and are not merged."""

    general: Node | None = None
    by_op: Mapping[str, Node] = field(default_factory=dict)
    rules: tuple[ToleranceRule, ...] = ()
    rules_by_op: Mapping[str, tuple[ToleranceRule, ...]] = field(default_factory=dict)
    written: Node | None = None

    def under(self, op: str, case: Node) -> Node:
        """The case with its defaults merged in."""
        base = self.by_op.get(op, self.general)
        return case if base is None else merge(base, case)

    def tolerance(self, op: str) -> tuple[ToleranceRule, ...]:
        """The rules for cases of `op`."""
        return self.rules + self.rules_by_op.get(op, ())

    def check_tensor_names(self, compared: Mapping[str, tuple[str, ...]], report: Problems) -> None:
        """Reports tolerances for tensors that no case compares; `compared` maps each used op to its tensors."""
        if self.written is None:
            return
        everything = tuple(name for names in compared.values() for name in names)
        check_tensor_names(self.written.get("tolerance"), everything, report)
        by_op = self.written.get("ops")
        for op, entry in by_op.mapping.items() if by_op is not None else ():
            if op in compared:
                check_tensor_names(entry.get("tolerance"), compared[op], report)


def parse_defaults(node: Node | None, ops: Mapping[str, Op], report: Problems) -> Defaults:
    """The defaults of a config. Names are checked here, values when a case uses them."""
    if node is None or not require_mapping(node, report, "defaults"):
        return Defaults()
    check_keys(DefaultKeys, node, report, deep=True)
    general = only(node, ("dtypes", "gradients", "stress"))
    by_op, rules_by_op = {}, {}
    written = node.get("ops")
    for name, entry in written.mapping.items() if written and require_mapping(written, report, "ops") else ():
        if name in ops and require_mapping(entry, report, f"the defaults of {name}"):
            check_keys(defaults_model_of(name), entry, report, deep=True)
            by_op[name] = merge(general, only(entry, ("params", "inputs", "dtypes", "gradients", "stress")))
            rules_by_op[name] = parse_tolerance(entry.get("tolerance"), report)
    return Defaults(general, by_op, parse_tolerance(node.get("tolerance"), report), rules_by_op, node)
