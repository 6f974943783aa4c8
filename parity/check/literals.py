"""Sizes that a file writes as numbers: they become globals, which can have other values."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

LITERAL = "size_{}"
"""The global of a number: `size_64`."""
LEAST_SIZE = 2
NO_SIZES = (ast.UnaryOp, ast.Subscript, ast.keyword, ast.Dict)
"""Inside these, a number is hardly a size: a sign, an index, an option."""


def with_globals(text: bytes, path: str, names: dict[str, Any], inputs: str, init: str) -> set[str]:
    """Let the functions `inputs` and `init` of a file read globals where they have the whole numbers that `init`
    returns, in place, among the file's `names`. Returns the globals' names."""
    functions = {node.name: node for node in ast.parse(text, path).body if isinstance(node, ast.FunctionDef)}
    if inputs not in functions or init not in functions:
        return set()
    sizes = {node.value for node in numbers_in(functions[init])}
    if not sizes or any(functions[name].decorator_list for name in (inputs, init)):
        return set()
    known = {value: LITERAL.format(value) for value in sorted(sizes)}
    if not names.keys().isdisjoint(known.values()):
        return set()
    for name in (inputs, init):
        chosen = {id(node): known[node.value] for node in numbers_in(functions[name]) if node.value in known}
        functions[name] = SizeNames(chosen).visit(functions[name])
    names.update({name: value for value, name in known.items()})
    module = ast.Module([functions[inputs], functions[init]], [])
    exec(compile(ast.fix_missing_locations(module), path, "exec"), names)  # noqa: S102 # the user's own functions
    return {*known.values()}


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
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, NO_SIZES):
            yield from numbers_in(child)
