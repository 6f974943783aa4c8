"""Single edits of a form's source by rule: what a slip of the pen, a misread formula or a cheap shortcut would make of it.

A candidate is a node of the syntax tree and what stands in its place. Nothing here knows an op, a tensor or a name of
parity's; `scope.py` says which variables have the same shape.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.faults.scope import Scope

Node = ast.AST


@dataclass(frozen=True)
class Candidate:
    """`index` is that of the node in `ast.walk`'s order; `place` is None where a statement is dropped."""

    kind: str
    index: int
    place: ast.AST | None


@dataclass(frozen=True)
class Edit:
    """What was changed, in which statement of which line: the label of a fault."""

    kind: str
    line: int
    before: str
    after: str
    statement: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.before} -> {self.after}, in {self.statement}"


def candidates(tree: ast.FunctionDef, scope: Scope) -> list[Candidate]:
    """Every single edit of a function that the rules know."""
    found = []
    keys = {id(key) for d in ast.walk(tree) if isinstance(d, ast.Dict) for key in d.keys}
    called = {id(call.func) for call in ast.walk(tree) if isinstance(call, ast.Call)}
    for index, node in enumerate(ast.walk(tree)):
        if id(node) in keys or id(node) in called or (isinstance(node, ast.Name) and node.id in ("np", "math")):
            continue
        for kind, rule in RULES:
            found += [Candidate(kind, index, place) for place in rule(node, scope)]
    return found


def apply(tree: ast.FunctionDef, candidate: Candidate) -> tuple[ast.FunctionDef, Edit]:
    """The edited function, and the edit as source text."""
    target = list(ast.walk(tree))[candidate.index]
    edited = copy.deepcopy(tree)
    twin = list(ast.walk(edited))[candidate.index]
    place = copy.deepcopy(candidate.place)
    for node in ast.walk(place) if place is not None else ():
        ast.copy_location(node, target)
    replaced = ast.fix_missing_locations(Replace(twin, place).visit(edited))
    after = "(nothing)" if place is None else ast.unparse(place)
    line = getattr(target, "lineno", 0)
    before = ast.unparse(target)
    if isinstance(target, ast.Dict) and isinstance(place, ast.Dict):
        before, after = changed_entries(target, place)
    statement = first_line(ast.unparse(statement_at(tree, target)))
    return replaced, Edit(candidate.kind, line, first_line(before), first_line(after), statement)


def changed_entries(before: ast.Dict, after: ast.Dict) -> tuple[str, str]:
    """The entries of two dictionaries with the same keys that differ."""
    entries = [
        [
            f"{ast.unparse(key)}: {ast.unparse(value)}"
            for key, value in zip(d.keys, d.values, strict=True)
            if key is not None
        ]
        for d in (before, after)
    ]
    differ = [pair for pair in zip(*entries, strict=True) if pair[0] != pair[1]]
    return ", ".join(b for b, _ in differ), ", ".join(a for _, a in differ)


def statement_at(tree: ast.FunctionDef, node: Node) -> ast.stmt:
    """The innermost statement that holds a node."""
    holders = [s for s in ast.walk(tree) if isinstance(s, ast.stmt) and any(n is node for n in ast.walk(s))]
    return min(holders, key=lambda s: sum(1 for _ in ast.walk(s)))


def first_line(text: str) -> str:
    line, _, rest = text.partition("\n")
    return f"{line} ..." if rest else line


class Replace(ast.NodeTransformer):
    """Puts another node in a node's place; a dropped statement becomes `pass`."""

    def __init__(self, target: Node, place: Node | None) -> None:
        self.target, self.place = target, place

    def visit(self, node: Node) -> Any:
        if node is self.target:
            return self.place if self.place is not None else ast.Pass()
        return self.generic_visit(node)


def expression(text: str, **parts: Node) -> ast.expr:
    """An expression in which names stand for nodes."""
    tree = ast.parse(text, mode="eval").body
    return Fill(parts).visit(tree)  # type: ignore[no-any-return]


class Fill(ast.NodeTransformer):
    def __init__(self, parts: Mapping[str, Node]) -> None:
        self.parts = parts

    def visit_Name(self, node: ast.Name) -> Any:
        return copy.deepcopy(self.parts[node.id]) if node.id in self.parts else node


def number(value: complex) -> ast.Constant:
    return ast.Constant(value)


# Terms and factors


def dropped_term(node: Node, _scope: Scope) -> Iterator[Node]:
    """One side of a sum, difference, product or quotient is left out."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub, ast.Mult, ast.Div)):
        yield node.left
        yield node.right


def doubled_term(node: Node, _scope: Scope) -> Iterator[Node]:
    """A term or a factor is taken twice."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub, ast.Mult, ast.Div)):
        yield ast.BinOp(copy.deepcopy(node), copy.deepcopy(node.op), copy.deepcopy(node.right))
        yield ast.BinOp(copy.deepcopy(node.left), ast.Mult() if isinstance(node.op, (ast.Mult, ast.Div)) else ast.Add(), copy.deepcopy(node))  # fmt: skip


OPPOSITES: Mapping[type[Node], Sequence[type[Node]]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div, ast.Add),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mult,),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Lt: (ast.LtE, ast.Gt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
}


def other_operator(node: Node, _scope: Scope) -> Iterator[Node]:
    """`+` for `-`, `*` for `/`, `>` for `>=`."""
    if isinstance(node, ast.BinOp):
        for op in OPPOSITES.get(type(node.op), ()):
            yield ast.BinOp(copy.deepcopy(node.left), op(), copy.deepcopy(node.right))  # type: ignore[arg-type]
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        for op in OPPOSITES.get(type(node.ops[0]), ()):
            yield ast.Compare(copy.deepcopy(node.left), [op()], copy.deepcopy(node.comparators))  # type: ignore[list-item]


def swapped_operands(node: Node, _scope: Scope) -> Iterator[Node]:
    """`b - a` for `a - b`, likewise for quotients and powers."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Sub, ast.Div, ast.Pow)):
        yield ast.BinOp(copy.deepcopy(node.right), copy.deepcopy(node.op), copy.deepcopy(node.left))


def changed_sign(node: Node, _scope: Scope) -> Iterator[Node]:
    """A minus is lost or gained."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield node.operand
    if isinstance(node, ast.Assign):
        yield ast.Assign(copy.deepcopy(node.targets), ast.UnaryOp(ast.USub(), copy.deepcopy(node.value)))


# Variables and numbers


def other_variable(node: Node, scope: Scope) -> Iterator[Node]:
    """Another tensor of the same shape, or another number of the same type, that is known at this line."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        for name in scope.alike(node.id, node.lineno):
            yield ast.Name(name, ast.Load())


def other_constant(node: Node, _scope: Scope) -> Iterator[Node]:
    """Half, double, one more, one less, the complement, the square, nothing."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        v = node.value
        values = [v + 1, v - 1, 2 * v, 1 - v, 0 * v] if isinstance(v, int) else [2 * v, v / 2, v + 1, 1 - v, v * v, 0.0, v * 10, v / 10]  # fmt: skip
        for value in dict.fromkeys(values):
            if value != v:
                yield number(value)


def other_option(node: Node, scope: Scope) -> Iterator[Node]:
    """An option with another value: complement, square, root, double, off by one where it is a count."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        kind = scope.number(node.id)
        forms = {int: ("v - 1", "v + 1", "2 * v"), float: ("1.0 - v", "2.0 * v", "0.5 * v", "v * v", "v ** 0.5", "0.0 * v")}  # fmt: skip
        for form in forms.get(kind, ()):  # type: ignore[call-overload]
            yield expression(form, v=node)


# Functions and their order

CALLS: Mapping[str, tuple[str, ...]] = {
    "sum": ("mean", "max"),
    "mean": ("sum", "max"),
    "max": ("min", "mean"),
    "var": ("std", "mean"),
    "sqrt": ("square", "abs"),
    "square": ("abs",),
    "exp": ("exp2", "expm1"),
    "log": ("log2", "log1p"),
    "maximum": ("minimum",),
    "minimum": ("maximum",),
    "abs": ("square",),
    "tanh": ("arctan", "sin"),
}


def other_function(node: Node, _scope: Scope) -> Iterator[Node]:
    """The mean for the sum, the smallest for the largest, a power of two for one of e."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        for name in CALLS.get(node.func.attr, ()):
            call = copy.deepcopy(node)
            call.func = ast.Attribute(copy.deepcopy(node.func.value), name, ast.Load())
            yield call


def dropped_call(node: Node, scope: Scope) -> Iterator[Node]:
    """No root, no absolute value, no clamp: the argument instead of the call."""
    if isinstance(node, ast.Call) and node.args and scope.is_numeric(node):
        yield node.args[0]
        if len(node.args) > 1 and isinstance(node.func, ast.Attribute) and node.func.attr in ("where", "maximum", "minimum"):  # fmt: skip
            yield from node.args[1:]


def exchanged_order(node: Node, _scope: Scope) -> Iterator[Node]:
    """A function of a sum becomes a sum with the function of its first term, and the reverse; f(g(x)) becomes g(f(x))."""
    if isinstance(node, ast.Call) and len(node.args) == 1 and isinstance(node.args[0], ast.BinOp):
        inner = node.args[0]
        call = copy.deepcopy(node)
        call.args = [copy.deepcopy(inner.left)]
        yield ast.BinOp(call, copy.deepcopy(inner.op), copy.deepcopy(inner.right))
    if isinstance(node, ast.BinOp) and isinstance(node.left, ast.Call) and len(node.left.args) == 1:
        call = copy.deepcopy(node.left)
        call.args = [ast.BinOp(copy.deepcopy(node.left.args[0]), copy.deepcopy(node.op), copy.deepcopy(node.right))]
        yield call
    if isinstance(node, ast.Call) and len(node.args) == 1 and isinstance(node.args[0], ast.Call):
        outer, inner_call = copy.deepcopy(node), copy.deepcopy(node.args[0])
        if len(inner_call.args) == 1:
            outer.args, inner_call.args = [inner_call.args[0]], [outer]
            yield inner_call
    if isinstance(node, ast.BinOp) and isinstance(node.left, ast.BinOp) and type(node.op) is not type(node.left.op):
        inner = node.left
        yield ast.BinOp(copy.deepcopy(inner.left), copy.deepcopy(inner.op), ast.BinOp(copy.deepcopy(inner.right), copy.deepcopy(node.op), copy.deepcopy(node.right)))  # fmt: skip


# Reductions


def other_axis(node: Node, scope: Scope) -> Iterator[Node]:
    """A reduction over another axis, over one fewer, or over one more."""
    if isinstance(node, ast.keyword) and node.arg == "axis":
        for axes in scope.other_axes(node.value):
            yield ast.keyword("axis", ast.parse(repr(axes), mode="eval").body)


REDUCTIONS = ("sum", "mean", "max", "var")


def partial_reduction(node: Node, scope: Scope) -> Iterator[Node]:
    """A reduction that misses its last element or block, or takes the first element twice."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in REDUCTIONS and node.args):  # fmt: skip
        return
    axis = next((keyword.value for keyword in node.keywords if keyword.arg == "axis"), ast.Constant(None))
    for helper in ("without_last", "without_last_block", "first_twice"):
        call = copy.deepcopy(node)
        call.args[0] = expression(f"{helper}(x, axis)", x=node.args[0], axis=axis)
        if scope.is_numeric(node):
            yield call


PRODUCTS = ("matmul", "einsum")


def narrow_product(node: Node, _scope: Scope) -> Iterator[Node]:
    """The operands of a matrix product in a narrower format, or the last terms of its sums left out."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        for name in (*FORMATS, "tf32"):
            yield expression(f"rounded(a, {name!r}) @ rounded(b, {name!r})", a=node.left, b=node.right)
        yield expression("without_last(a, -1) @ b", a=node.left, b=node.right)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in PRODUCTS:
        for name in (*FORMATS, "tf32"):
            call = copy.deepcopy(node)
            call.args = [
                a if isinstance(a, ast.Constant) else expression(f"rounded(x, {name!r})", x=a) for a in call.args
            ]
            yield call


def dropped_transpose(node: Node, _scope: Scope) -> Iterator[Node]:
    """A matrix that is not transposed (its shape must allow that)."""
    if isinstance(node, ast.Attribute) and node.attr == "T":
        yield node.value
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("swapaxes", "transpose")
    ):
        yield node.func.value


def unstable_sum(node: Node, scope: Scope) -> Iterator[Node]:
    """E[x^2] - E[x]^2 for a variance; a sum that is kept in a narrower format."""
    if not (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args and scope.is_numeric(node)
    ):
        return
    if node.func.attr == "var":
        mean, squares = copy.deepcopy(node), copy.deepcopy(node)
        mean.func = squares.func = expression("np.mean")
        squares.args = [expression("np.square(x)", x=node.args[0])]
        yield expression("squares - np.square(mean)", squares=squares, mean=mean)
    if node.func.attr in ("sum", "mean"):
        axis = next((keyword.value for keyword in node.keywords if keyword.arg == "axis"), ast.Constant(None))
        for name in FORMATS:
            call = copy.deepcopy(node)
            call.args[0] = expression(f"with_narrow_total(x, axis, {name!r})", x=node.args[0], axis=axis)
            yield call


# Statements and outputs

FORMATS = ("float16", "bfloat16", "float32")


def dropped_statement(node: Node, scope: Scope) -> Iterator[Node | None]:
    """A variable keeps its earlier value."""
    if isinstance(node, ast.AugAssign) or (
        isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and scope.is_older(node.targets[0].id, node.lineno)
    ):  # fmt: skip
        yield None


def other_branch(node: Node, _scope: Scope) -> Iterator[Node]:
    """A branch that is always taken, or never."""
    if isinstance(node, (ast.If, ast.IfExp)):
        for value in (True, False):
            twin = copy.deepcopy(node)
            twin.test = ast.Constant(value)
            yield twin


def rounded_step(node: Node, scope: Scope) -> Iterator[Node]:
    """One step is kept in a narrower format."""
    if isinstance(node, (ast.Assign, ast.AugAssign)) and scope.is_tensor_target(node):
        for name in FORMATS:
            twin = copy.deepcopy(node)
            twin.value = expression(f"rounded(x, {name!r})", x=node.value)
            yield twin


OUTPUTS = ("transposed(x)", "np.roll(x, 1)", "-x", "2 * x", "0.5 * x", "last_missing(x)", "0 * x", "np.flip(x)")


def wrong_output(node: Node, scope: Scope) -> Iterator[Node]:
    """An output transposed, rolled, reversed, scaled, cut, accumulated into its input, or exchanged with another one."""
    if not isinstance(node, ast.Dict):
        return
    for i, value in enumerate(node.values):
        forms = [expression(form, x=value) for form in OUTPUTS]
        for j in range(i + 1, len(node.values)):
            if scope.same_output(node.keys[i], node.keys[j]):
                twin = copy.deepcopy(node)
                twin.values[i], twin.values[j] = twin.values[j], twin.values[i]
                yield twin
        if scope.has_input(node.keys[i]):
            forms.append(expression("x + before", x=value, before=ast.Name(scope.input_of(node.keys[i]), ast.Load())))
            forms.append(ast.Name(scope.input_of(node.keys[i]), ast.Load()))
        for form in forms:
            twin = copy.deepcopy(node)
            twin.values[i] = form
            yield twin


Rule = Callable[[Node, Scope], Iterator[Any]]

RULES: Sequence[tuple[str, Rule]] = (
    ("dropped term", dropped_term),
    ("doubled term", doubled_term),
    ("other operator", other_operator),
    ("swapped operands", swapped_operands),
    ("sign", changed_sign),
    ("other variable", other_variable),
    ("other constant", other_constant),
    ("other option", other_option),
    ("other function", other_function),
    ("dropped call", dropped_call),
    ("exchanged order", exchanged_order),
    ("other axis", other_axis),
    ("partial reduction", partial_reduction),
    ("narrow product", narrow_product),
    ("dropped transpose", dropped_transpose),
    ("unstable sum", unstable_sum),
    ("dropped statement", dropped_statement),
    ("other branch", other_branch),
    ("rounded step", rounded_step),
    ("wrong output", wrong_output),
)


# What edited functions call


DROPPED_BITS = {"bfloat16": 16, "tf32": 13}
"""How many of float32's bits a format lacks."""


def rounded(values: Any, name: str) -> Any:
    """Values rounded to a format and back; float32 is a loss only in float64."""
    array = np.asarray(values)
    if array.dtype.kind != "f":
        return values
    with np.errstate(all="ignore"):
        if name in DROPPED_BITS:
            n = DROPPED_BITS[name]
            bits = array.astype(np.float32).view(np.uint32).astype(np.uint64)
            half = (1 << (n - 1)) - 1 + ((bits >> np.uint64(n)) & np.uint64(1))
            kept = (bits + half) >> np.uint64(n) << np.uint64(n)
            return kept.astype(np.uint32).view(np.float32).astype(array.dtype)
        return array.astype(name).astype(array.dtype)


def reduced_axes(values: Any, axis: Any) -> tuple[int, ...]:
    every = range(np.ndim(values))
    return tuple(every) if axis is None else tuple(np.atleast_1d(axis) % max(np.ndim(values), 1))


def last_part_zeroed(values: Any, axis: Any, block: int) -> Any:
    result = np.array(values)
    axes = reduced_axes(values, axis)
    if axes:
        longest = max(axes, key=lambda a: result.shape[a])
        n = result.shape[longest]
        start = n - 1 if block == 1 else n - n % block
        result[(slice(None),) * longest + (slice(start, None),)] = 0
    return result


def without_last(values: Any, axis: Any) -> Any:
    """The last element along the (longest) reduced axis does not count."""
    return last_part_zeroed(values, axis, 1)


def without_last_block(values: Any, axis: Any) -> Any:
    """The elements after the last full block of four do not count."""
    return last_part_zeroed(values, axis, 4)


def first_twice(values: Any, axis: Any) -> Any:
    """The first element along the reduced axis counts twice."""
    result = np.array(values)
    axes = reduced_axes(values, axis)
    if axes:
        longest = max(axes, key=lambda a: result.shape[a])
        result[(slice(None),) * longest + (slice(0, 1),)] *= 2
    return result


def with_narrow_total(values: Any, axis: Any, name: str) -> Any:
    """Terms whose sum is that of partial sums rounded to a format, one after the other along the longest reduced axis."""
    array = np.asarray(values)
    axes = reduced_axes(array, axis)
    if not axes or array.dtype.kind != "f":
        return values
    longest = max(axes, key=lambda a: array.shape[a])
    terms = np.moveaxis(array, longest, 0)
    total = np.zeros_like(terms[0])
    for term in terms:
        total = rounded(total + term, name)
    result = np.zeros_like(terms)
    result[0] = total
    return np.moveaxis(result, 0, longest)


def transposed(values: Any) -> Any:
    """The transpose in the memory of the original."""
    return (
        [transposed(v) for v in values] if isinstance(values, list) else np.asarray(values).T.reshape(np.shape(values))
    )


def last_missing(values: Any) -> Any:
    """The last row is never written."""
    if isinstance(values, list) or not np.ndim(values):
        return values
    result = np.array(values)
    result[-1] = 0
    return result


HELPERS: Mapping[str, Any] = {
    f.__name__: f
    for f in (rounded, without_last, without_last_block, first_twice, with_narrow_total, transposed, last_missing)
}
