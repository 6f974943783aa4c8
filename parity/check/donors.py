"""Expressions of a reference that may stand in a candidate: those whose names both have.

Repairs from other code are known to be frequent (Barr et al. 2014, "The plastic surgery hypothesis", FSE).
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from parity.check.changes import MODULES

MOST_DONORS, LONGEST_DONOR = 24, 90
"""Expressions that are tried, and their characters."""
COMPUTING = (ast.BinOp, ast.Call, ast.Compare, ast.UnaryOp, ast.IfExp, ast.Subscript)
"""Expressions that compute something, or take a part."""


@dataclass(frozen=True)
class Donor:
    """An expression of a reference, in terms of its arguments and attributes, or as it stands there, and its line."""

    line: int
    node: ast.expr


class Inlined(ast.NodeTransformer):
    """Puts the values of names in their place."""

    def __init__(self, values: Mapping[str, ast.expr]) -> None:
        self.values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """The value of a name that is read."""
        value = self.values.get(node.id)
        return node if value is None or not isinstance(node.ctx, ast.Load) else copy.deepcopy(value)


def donors_of(reference: ast.Module, line: int) -> list[Donor]:
    """The expressions of the reference's function with a line (of all functions if none has it), those of that line
    first."""
    functions = [node for node in ast.walk(reference) if isinstance(node, ast.FunctionDef)]
    functions = [f for f in functions if f.name not in ("__init__", "get_inputs", "get_init_inputs")]
    around = [f for f in functions if f.lineno <= line <= (f.end_lineno or 0)]
    known: dict[str, Donor] = {}
    for function in around or functions:
        for donor in donors_in(function.body, {}):
            known.setdefault(ast.unparse(donor.node), donor)
    short = [donor for text, donor in known.items() if len(text) <= LONGEST_DONOR]
    return sorted(short, key=lambda donor: abs(donor.line - line))


def donors_in(statements: Sequence[ast.stmt], values: dict[str, ast.expr]) -> Iterator[Donor]:
    """The expressions of statements but for what they return, each as it stands and with the `values` of local names in
    their place."""
    for statement in statements:
        heads = [node for node in ast.iter_child_nodes(statement) if isinstance(node, ast.expr)]
        for node in (inner for head in heads for inner in ast.walk(head) if isinstance(inner, COMPUTING)):
            if not (isinstance(statement, ast.Return) and node in heads):
                yield Donor(statement.lineno, inlined(node, values))
                yield Donor(statement.lineno, node)
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            values[statement.targets[0].id] = inlined(statement.value, values)
            continue
        for part in ast.walk(statement):
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                values.pop(part.id, None)
        for body in ("body", "orelse"):
            yield from donors_in(getattr(statement, body, ()), dict(values))


def inlined(node: ast.expr, values: Mapping[str, ast.expr]) -> ast.expr:
    """An expression with values in the place of names."""
    changed: ast.expr = Inlined(values).visit(copy.deepcopy(node))
    return changed


def usable(donors: Collection[Donor], names: Collection[str]) -> list[ast.expr]:
    """The donors whose names are all among those of a candidate's function."""
    known = {*names, *MODULES}
    return [d.node for d in donors if all(n.id in known for n in ast.walk(d.node) if isinstance(n, ast.Name))][
        :MOST_DONORS
    ]
