"""Sizes that a file writes as numbers: they become globals, which can have other values."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LITERAL = "size_{}"
"""The global of a number: `size_64`."""
LEAST_SIZE = 2
LEAST_LIMIT, MOST_LIMIT = 5, 1 << 14
"""Numbers of a candidate that may be limits of sizes."""
NO_SIZES = (ast.UnaryOp, ast.Subscript, ast.keyword, ast.Dict)
"""Inside these, a number is hardly a size: a sign, an index, an option."""
VALUES = frozenset(("tensor", "as_tensor"))
"""Functions whose arguments are values, not sizes."""


@dataclass(frozen=True)
class Literals:
    """The globals that stand for numbers of a file; `init` are those of the constructor."""

    names: Mapping[str, int]
    init: Collection[str]


def with_globals(text: bytes, path: str, names: dict[str, Any], inputs: str, init: str) -> Literals:
    """Let the functions `inputs` and `init` of a file read globals where they have whole numbers that may be sizes, in
    place, among the file's `names`. A number that is an index, a sign or an option elsewhere in them is none."""
    functions = {node.name: node for node in ast.parse(text, path).body if isinstance(node, ast.FunctionDef)}
    chosen = [functions[name] for name in (inputs, init) if name in functions]
    if inputs not in functions or any(function.decorator_list for function in chosen):
        return Literals({}, ())
    free = {id(node): node.value for function in chosen for node in numbers_in(function)}
    every = [node for function in chosen for node in ast.walk(function) if isinstance(node, ast.Constant)]
    others = {node.value for node in every if id(node) not in free and type(node.value) is int}
    known = {value: LITERAL.format(value) for value in sorted(set(free.values()) - others)}
    if not known or not names.keys().isdisjoint(known.values()):
        return Literals({}, ())
    given = {n.value for function in chosen if function.name == init for n in numbers_in(function)} & known.keys()
    rename = SizeNames({node: known[value] for node, value in free.items() if value in known})
    body = [rename.visit(function) for function in chosen]
    names.update({name: value for value, name in known.items()})
    exec(compile(ast.fix_missing_locations(ast.Module(body, [])), path, "exec"), names)  # noqa: S102 # the user's own
    return Literals({name: value for value, name in known.items()}, {known[value] for value in given})


def limits_in(candidate: Path, reference: Path) -> list[int]:
    """The whole numbers of a candidate's file that the reference's file does not have, such as those of blocks, and of
    sizes from which on other code is taken; the smallest first. None of a file that cannot be read."""
    try:
        own, theirs = (ast.parse(path.read_bytes()) for path in (candidate, reference))
    except (OSError, SyntaxError, ValueError):
        return []
    known = {node.value for node in ast.walk(theirs) if isinstance(node, ast.Constant)}
    numbers = {node.value for node in ast.walk(own) if isinstance(node, ast.Constant) and type(node.value) is int}
    return sorted(number for number in numbers - known if LEAST_LIMIT <= number <= MOST_LIMIT)


class SizeNames(ast.NodeTransformer):
    """Reads globals instead of numbers, by the numbers' ids."""

    def __init__(self, chosen: Mapping[int, str]) -> None:
        self.chosen = chosen

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        """The global's name for a number that has one."""
        name = self.chosen.get(id(node))
        return node if name is None else ast.copy_location(ast.Name(name, ast.Load()), node)


def numbers_in(node: ast.AST) -> Iterator[Any]:
    """The constants in code that may be sizes."""
    if isinstance(node, ast.Constant) and type(node.value) is int and node.value >= LEAST_SIZE:
        yield node
    if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in VALUES:
        return
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, NO_SIZES):
            yield from numbers_in(child)
