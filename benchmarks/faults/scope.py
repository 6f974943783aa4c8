"""What a form's variables are at each line: learnt from one run."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Scope:
    """`values` are the arguments and local variables at the end of a run, `first` the line that assigns each first."""

    values: Mapping[str, Any]
    first: Mapping[str, int]
    outputs: Mapping[str, Any]

    def alike(self, name: str, line: int) -> list[str]:
        """Other variables of the same shape, or numbers of the same type, that are assigned before a line."""
        mine = signature(self.values.get(name))
        known = [other for other, at in self.first.items() if at < line and other != name]
        return [other for other in known if mine is not None and signature(self.values.get(other)) == mine]

    def number(self, name: str) -> type | None:
        """int or float where a variable is one."""
        value = self.values.get(name)
        return type(value) if type(value) in (int, float) else None

    def is_older(self, name: str, line: int) -> bool:
        return self.first.get(name, line) < line

    def is_numeric(self, node: ast.Call) -> bool:
        """A call of NumPy's or of a method on an array; not a shape or a range."""
        return isinstance(node.func, ast.Attribute) and node.func.attr not in NOT_NUMERIC

    def is_tensor_target(self, node: Any) -> bool:
        """Whether a statement assigns an array of floats."""
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        while isinstance(target, ast.Subscript):
            target = target.value
        value = self.values.get(target.id) if isinstance(target, ast.Name) else None
        return isinstance(value, (np.ndarray, np.floating)) and value.dtype.kind == "f"

    def other_axes(self, node: ast.expr) -> list[Any]:
        """Other values for an `axis` argument."""
        value = self.values.get(node.id) if isinstance(node, ast.Name) else literal(node)
        rank = max((np.ndim(v) for v in self.values.values() if isinstance(v, np.ndarray)), default=1)
        if isinstance(value, tuple):
            fewer = [axes for n in range(1, rank) for axes in combinations(range(rank), n)]
            return [axes for axes in fewer if axes != value][:6]
        return [axis for axis in (-1, *range(rank)) if axis != value] if isinstance(value, int) else []

    def same_output(self, one: Any, other: Any) -> bool:
        """Whether two outputs have the same shape."""
        return signature(self.outputs.get(one.value)) == signature(self.outputs.get(other.value)) is not None

    def has_input(self, key: Any) -> bool:
        """Whether an output is a state, or the gradient of an input."""
        return signature(self.values.get(self.input_of(key))) == signature(self.outputs.get(key.value)) is not None

    def input_of(self, key: Any) -> str:
        return str(key.value).removeprefix("grad.").replace(".", "_")


NOT_NUMERIC = (
    "reshape",
    "arange",
    "range",
    "zeros_like",
    "empty_like",
    "full_like",
    "empty",
    "finfo",
    "item",
    "unique",
)


def literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def signature(value: Any) -> Any:
    """What two variables must share to be mistaken for each other; None for what is neither array nor number."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.shape, value.dtype.kind
    if type(value) in (int, float):
        return type(value)
    return None


def scope_of(form: Callable[..., Any], tree: ast.FunctionDef, run: Callable[[], Any]) -> Scope:
    """The scope of a form while `run()` calls it once."""
    seen: dict[str, Any] = {}
    outputs: dict[str, Any] = {}

    def trace(frame: Any, event: str, argument: Any) -> Any:
        if frame.f_code is not form.__code__:
            return None
        if event == "return" and isinstance(argument, Mapping):
            seen.update(frame.f_locals)
            outputs.update(argument)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    first = {a.arg: 0 for a in tree.args.args}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            first[node.id] = min(first.get(node.id, node.lineno), node.lineno)
    return Scope(seen, first, outputs)
