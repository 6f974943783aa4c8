"""What an expression may be instead: the small changes of code that engineers' mistakes are."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

Change = Iterator[ast.expr]
MODULES = frozenset(("torch", "nn", "F", "math", "np", "tl", "triton", "self", "ctx"))
"""Names that are no values."""
COMPARISONS: Mapping[type[ast.cmpop], Sequence[type[ast.cmpop]]] = {
    ast.Lt: (ast.LtE, ast.GtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.Gt, ast.GtE),
    ast.Gt: (ast.GtE, ast.LtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.Lt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
}
OPERATORS: Mapping[type[ast.operator], Sequence[type[ast.operator]]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div,),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Div,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
    ast.Mod: (ast.FloorDiv,),
}
FAMILIES = (
    ("sum", "mean"),
    ("amax", "amin", "mean"),
    ("max", "min"),
    ("maximum", "minimum"),
    ("argmax", "argmin"),
    ("triu", "tril"),
    ("exp", "exp2", "expm1", "sigmoid"),
    ("log", "log2", "log1p", "log10"),
    ("sqrt", "rsqrt"),
    ("tanh", "sigmoid"),
    ("relu", "gelu", "silu", "elu"),
    ("softmax", "log_softmax"),
    ("floor", "round", "ceil", "trunc"),
    ("zeros", "ones", "empty"),
    ("zeros_like", "ones_like"),
    ("abs", "square"),
    ("cos", "sin"),
    ("repeat", "repeat_interleave"),
    ("repeat_interleave", "tile"),
    ("ge", "gt", "le", "lt"),
    ("var", "std"),
    ("cumsum", "cumprod"),
)
"""Functions that stand for one another."""
NARROWING = frozenset(("float32", "float16", "bfloat16", "float64", "half", "float", "double", "to", "type_as"))
"""Names that tell a change of dtype."""
DTYPES = ("float32", "float16", "bfloat16", "float64", "int32", "int64")
WORDS = (("mean", "sum"), ("zeros", "border", "reflection"), ("reflect", "replicate", "constant"), ("none", "tanh"))
"""Options that are words, and their other values."""


def of_comparison(node: ast.expr) -> Change:
    """Other comparisons."""
    if isinstance(node, ast.Compare):
        for i, operator in enumerate(node.ops):
            for other in COMPARISONS.get(type(operator), ()):
                ops = [other() if i == n else own for n, own in enumerate(node.ops)]
                yield ast.Compare(node.left, ops, node.comparators)


def of_operation(node: ast.expr) -> Change:
    """Another operator, operands exchanged, another order of operations."""
    if isinstance(node, ast.BinOp):
        yield from other_order(node)
        yield from of_calls(node)
        for other in OPERATORS.get(type(node.op), ()):
            yield ast.BinOp(node.left, other(), node.right)
        if isinstance(node.op, ast.Add):
            yield code_of("(({}) ** 2 + ({})) ** 0.5", node.left, node.right)
        if isinstance(node.op, ast.Sub | ast.Div | ast.FloorDiv):
            yield ast.BinOp(node.right, node.op, node.left)
        if isinstance(node.op, ast.FloorDiv):
            yield code_of("-(-({}) // ({}))", node.left, node.right)


def of_operand(node: ast.expr) -> Change:
    """One operand alone."""
    if isinstance(node, ast.BinOp):
        yield from (node.left, node.right)


def other_order(node: ast.BinOp) -> Change:
    """`a * c + b` for `(a + b) * c` and the reverse, the same with `/` and `-`, and for sums on the right."""
    one, other, outer = node.left, node.right, node.op
    product, total = isinstance(outer, ast.Mult | ast.Div), is_sum(outer)
    if isinstance(one, ast.BinOp) and (
        (product and is_sum(one.op)) or (total and isinstance(one.op, ast.Mult | ast.Div))
    ):
        yield ast.BinOp(one.left, one.op, ast.BinOp(one.right, outer, other))
    if isinstance(one, ast.BinOp) and product and is_sum(one.op):
        yield ast.BinOp(ast.BinOp(one.left, outer, other), one.op, one.right)
    if isinstance(other, ast.BinOp) and isinstance(outer, ast.Add | ast.Sub | ast.Mult) and is_sum(other.op) == product:
        yield ast.BinOp(ast.BinOp(one, outer, other.left), other.op, other.right)


def code_of(form: str, *operands: ast.expr) -> ast.expr:
    """The expression of a form in which operands stand for `{}`."""
    return ast.parse(form.format(*map(ast.unparse, operands)), mode="eval").body


def of_sign(node: ast.expr) -> Change:
    """Without a sign or a negation."""
    if isinstance(node, ast.UnaryOp):
        yield node.operand


def of_constant(node: ast.expr) -> Change:
    """Other numbers, True for False, another option."""
    if not isinstance(node, ast.Constant):
        return
    value = node.value
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int):
        others = dict.fromkeys((value - 1, value + 1, 0, 2 * value, value // 2))
        yield from (ast.Constant(other) for other in others if other != value)
    elif isinstance(value, float):
        numbers = dict.fromkeys((0.0, 1.0, -value, 10 * value, value / 10, 2 * value, value / 2))
        yield from (ast.Constant(number) for number in numbers if number != value)
        yield from (ast.parse(f"float('{word}')", mode="eval").body for word in ("-inf", "inf"))
    elif isinstance(value, str):
        yield from (ast.Constant(w) for words in WORDS if value in words for w in words if w != value)


def of_count(node: ast.expr) -> Change:
    """A whole number with the other sign, such as an axis from the end."""
    if isinstance(node, ast.Constant) and type(node.value) is int and node.value:
        yield ast.Constant(-node.value)


def of_call(node: ast.expr) -> Change:
    """Another function, without the call, without an option, with arguments in another order."""
    if not isinstance(node, ast.Call):
        return
    yield from of_function(node)
    yield from of_root(node)
    yield from over_operands(node)
    if isinstance(node.func, ast.Attribute) and not is_module(node.func.value):
        yield node.func.value
    yield from (argument for argument in node.args[:1] if not isinstance(argument, ast.Starred))
    for i in range(len(node.keywords)):
        yield ast.Call(node.func, node.args, [k for n, k in enumerate(node.keywords) if n != i])
    yield from with_options(node)
    for i in range(len(node.args) - 1):
        args = [*node.args]
        args[i], args[i + 1] = args[i + 1], args[i]
        yield ast.Call(node.func, args, node.keywords)


def of_function(node: ast.Call) -> Change:
    """Calls of functions that stand for this one; of a variance with another denominator."""
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    for family in (words for words in FAMILIES if name in words):
        for other in (word for word in family if word != name):
            function = copy.deepcopy(node.func)
            setattr(function, "attr" if isinstance(function, ast.Attribute) else "id", other)
            yield ast.Call(function, node.args, node.keywords)
    if name == "floor" and node.args:
        yield ast.Call(node.func, [ast.BinOp(node.args[0], ast.Add(), ast.Constant(0.5))], node.keywords)
    if name in ("zeros", "new_zeros", "zeros_like"):
        yield code_of("({}) - float('inf')", node)
    if name in ("var", "std", "var_mean"):
        rest = [k for k in node.keywords if k.arg not in ("unbiased", "correction")]
        for correction in (0, 1):
            yield ast.Call(node.func, node.args, [*rest, ast.keyword("correction", ast.Constant(correction))])


OPTIONS: Mapping[str, Sequence[tuple[str, Any]]] = {
    **dict.fromkeys(("bucketize", "searchsorted"), (("right", True),)),
    **dict.fromkeys(("interpolate", "grid_sample", "affine_grid"), (("align_corners", True), ("align_corners", False))),
    **dict.fromkeys(("avg_pool1d", "avg_pool2d", "avg_pool3d"), (("count_include_pad", False), ("ceil_mode", True))),
    **dict.fromkeys(("max_pool1d", "max_pool2d", "max_pool3d"), (("ceil_mode", True),)),
    **dict.fromkeys(("sort", "argsort"), (("descending", True), ("stable", True))),
    "topk": (("largest", False),),
    "gelu": (("approximate", "tanh"), ("approximate", "none")),
    "div": (("rounding_mode", "floor"), ("rounding_mode", "trunc")),
    "pad": (("mode", "reflect"), ("mode", "replicate"), ("mode", "circular")),
    "scatter_reduce": (("include_self", False),),
    "scaled_dot_product_attention": (("is_causal", True),),
    "cosine_similarity": (("dim", -1),),
    "normalize": (("dim", -1), ("p", 1)),
    **dict.fromkeys(("triu", "tril"), (("diagonal", 1), ("diagonal", -1))),
}
"""Options that calls are often meant to have, by function."""


def with_options(node: ast.Call) -> Change:
    """The call with another option."""
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    for key, value in OPTIONS.get(name, ()):
        rest = [k for k in node.keywords if k.arg != key]
        given = next((k.value for k in node.keywords if k.arg == key), None)
        if not isinstance(given, ast.Constant) or given.value != value:
            yield ast.Call(node.func, node.args, [*rest, ast.keyword(key, ast.Constant(value))])


def over_operands(node: ast.Call) -> Change:
    """`f(a) * f(b)`, `a * f(b)` and `b * f(a)` for `f(a * b)`, the same for other operators and methods."""
    inner = operand_of(node)
    if isinstance(inner, ast.BinOp):
        one, other = (with_operand(node, operand) for operand in (inner.left, inner.right))
        yield ast.BinOp(one, inner.op, other)
        if isinstance(inner.op, ast.Mult | ast.Div):
            yield ast.BinOp(one, inner.op, inner.right)
            yield ast.BinOp(inner.left, inner.op, other)


def of_calls(node: ast.BinOp) -> Change:
    """`f(a * b)` for `f(a) * f(b)` and for `a * f(b)`, a mean of ratios for a ratio of sums; the same for other
    operators and methods; a number added inside of a root, not to it."""
    one, other = node.left, node.right
    first, second = (operand_of(n) if isinstance(n, ast.Call) else None for n in (one, other))
    if isinstance(one, ast.Call) and first is not None:
        if second is not None and same_call(one, other):
            merged = with_operand(one, ast.BinOp(first, node.op, second))
            yield merged
            if isinstance(merged.func, ast.Attribute) and merged.func.attr == "sum":
                yield ast.Call(ast.Attribute(merged.func.value, "mean", ast.Load()), merged.args, merged.keywords)
        if isinstance(node.op, ast.Mult | ast.Div) or (isinstance(node.op, ast.Add) and is_root(one)):
            yield with_operand(one, ast.BinOp(first, node.op, other))
    if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Mult) and isinstance(node.op, ast.Div):
        yield from (
            ast.BinOp(one.left, ast.Mult(), change) for change in of_calls(ast.BinOp(one.right, node.op, other))
        )
    if isinstance(other, ast.Call) and second is not None and isinstance(node.op, ast.Mult | ast.Div):
        yield with_operand(other, ast.BinOp(one, node.op, second))


def is_root(node: ast.expr) -> bool:
    """Whether an expression is a call of a root or its reciprocal."""
    return isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("sqrt", "rsqrt")


def operand_of(node: ast.Call) -> ast.expr | None:
    """What a call computes from first of all: the object of a method of a tensor, else the first argument."""
    if isinstance(node.func, ast.Attribute) and not is_module(node.func.value):
        return node.func.value
    return node.args[0] if node.args and not isinstance(node.args[0], ast.Starred) else None


def with_operand(node: ast.Call, operand: ast.expr) -> ast.Call:
    """The call for another operand."""
    if isinstance(node.func, ast.Attribute) and not is_module(node.func.value):
        return ast.Call(ast.Attribute(operand, node.func.attr, ast.Load()), node.args, node.keywords)
    return ast.Call(copy.copy(node.func), [operand, *node.args[1:]], node.keywords)


def same_call(one: ast.expr, other: ast.expr) -> bool:
    """Whether two calls differ in their operand only."""
    operand = ast.Name("_", ast.Load())
    calls = [with_operand(node, operand) for node in (one, other) if isinstance(node, ast.Call)]
    return len(calls) == 2 and ast.unparse(calls[0]) == ast.unparse(calls[1])


def of_root(node: ast.Call) -> Change:
    """A number added to the root, not inside of it; a count for a length, one more for positions."""
    name, inner = node.func.attr if isinstance(node.func, ast.Attribute) else "", operand_of(node)
    if is_root(node) and isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Add):
        root = with_operand(node, inner.left)
        if isinstance(root.func, ast.Attribute):
            root.func.attr = "sqrt"
        total = ast.BinOp(root, ast.Add(), inner.right)
        yield total if name == "sqrt" else ast.BinOp(ast.Constant(1), ast.Div(), total)
    if name == "size" and node.args and isinstance(node.func, ast.Attribute):
        yield from counts(node.func.value, node.args[0])
    if name == "arange":
        yield from by_one(node)


def counts(tensor: ast.expr, axis: ast.expr) -> Change:
    """The sum along an axis for its length."""
    if isinstance(axis, ast.Slice | ast.Tuple):
        return
    yield from (code_of(form, tensor, axis) for form in ("({}).sum({})", "({}).sum({}, keepdim=True)"))


def is_module(node: ast.expr) -> bool:
    """Whether an expression is likely to be a module or an attribute of one, such as `F`, `torch.nn`, or self."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return is_module_name(node)


def is_module_name(node: ast.expr) -> bool:
    """Whether an expression is the usual name of a module, or self."""
    return isinstance(node, ast.Name) and node.id in MODULES


def of_part(node: ast.expr) -> Change:
    """The whole for a part of it; ends of slices one more and one less."""
    if not isinstance(node, ast.Subscript) or isinstance(node.ctx, ast.Store):
        return
    yield node.value
    if isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
        yield from counts(node.value.value, node.slice)
    for slice_node in (n for n in ast.walk(node.slice) if isinstance(n, ast.Slice)):
        yield from shifted(node, slice_node)
        for name in ("lower", "upper", "step"):
            if getattr(slice_node, name) is not None:
                for other in (*by_one(getattr(slice_node, name)), None):
                    yield with_fields(node, slice_node, **{name: other})


def shifted(node: ast.Subscript, part: ast.Slice) -> Change:
    """The part before and the part behind; `[1:]` for `[:-1]` and `[k:]` for `[:n - k]`, and the reverse."""
    lower, upper = part.lower, part.upper
    if lower is not None and upper is not None:
        for one, other in zip(by_one(lower), by_one(upper), strict=True):
            yield with_fields(node, part, lower=one, upper=other)
    elif lower is None and isinstance(upper, ast.UnaryOp):
        yield with_fields(node, part, lower=upper.operand, upper=None)
    elif lower is None and isinstance(upper, ast.BinOp) and isinstance(upper.op, ast.Sub):
        yield with_fields(node, part, lower=upper.right, upper=None)
    elif upper is None and isinstance(lower, ast.Constant | ast.Name):
        yield with_fields(node, part, lower=None, upper=ast.UnaryOp(ast.USub(), lower))


def with_fields(node: ast.Subscript, part: ast.Slice, **values: ast.expr | None) -> ast.expr:
    """A copy in which a slice has other ends."""
    before = dict(vars(part))
    vars(part).update(values)
    other = copy.deepcopy(node)
    vars(part).update(before)
    return other


def by_one(node: ast.expr) -> Change:
    """One more, one less."""
    for operator, opposite in ((ast.Add, ast.Sub), (ast.Sub, ast.Add)):
        if isinstance(node, ast.BinOp) and isinstance(node.op, opposite) and ast.unparse(node.right) == "1":
            yield node.left
        else:
            yield ast.BinOp(node, operator(), ast.Constant(1))


def of_name(node: ast.expr) -> Change:
    """One more, one less, twice as much."""
    if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load) and not is_module_name(node):
        yield from by_one(node)
        yield ast.BinOp(ast.Constant(2), ast.Mult(), node)


def of_dtype(node: ast.expr) -> Change:
    """Other dtypes."""
    if isinstance(node, ast.Attribute) and node.attr in DTYPES:
        yield from (ast.Attribute(node.value, dtype, ast.Load()) for dtype in DTYPES if dtype != node.attr)


def of_condition(node: ast.expr) -> Change:
    """Either branch always, one of two conditions alone."""
    if isinstance(node, ast.IfExp):
        yield from (node.body, node.orelse)
    if isinstance(node, ast.BoolOp):
        yield from node.values


CHANGES: Mapping[type[ast.expr], Sequence[Callable[[ast.expr], Change]]] = {
    ast.Compare: (of_comparison,),
    ast.BinOp: (of_operation, of_operand),
    ast.UnaryOp: (of_sign,),
    ast.Constant: (of_constant, of_count),
    ast.Call: (of_call,),
    ast.Subscript: (of_part,),
    ast.Name: (of_name,),
    ast.Attribute: (of_dtype, of_name),
    ast.IfExp: (of_condition,),
    ast.BoolOp: (of_condition,),
}
"""What an expression may be instead, by its kind."""
COSTS: Mapping[Callable[[ast.expr], Change], int] = {of_operand: 2, of_call: 2, of_part: 2, of_name: 3, of_count: 3}
"""The costs of changes that are less likely than others."""


# Larger changes


LIMITS = ("({}).clamp(max={})", "({}).clamp(min={})")
LIMITS_OF_KERNELS = ("tl.minimum({}, {})", "tl.maximum({}, {})")
"""An expression limited by a number."""


def averaged(node: ast.expr, others: Sequence[ast.Name]) -> Change:
    """A sum over a count for a mean."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "mean":
        total = ast.Call(ast.Attribute(node.func.value, "sum", ast.Load()), node.args, node.keywords)
        yield from (code_of("({}) / ({}).sum()", total, other) for other in others)


SIGNS: Sequence[type[ast.operator]] = (ast.Mult, ast.Div, ast.Add, ast.Sub)
NORMALIZED = (
    "({0}) / ({0}).sum(-1, keepdim=True)",
    "({0}) - ({0}).amax(-1, keepdim=True)",
    "({0}) - ({0}).mean(-1, keepdim=True)",
    "({0}).transpose(-1, -2)",
    "({0}).detach()",
    "1 - ({0})",
    "({0}) ** 0.5",
    "({0}) ** 2",
    "({0}).abs()",
    "({0}).exp()",
    "({0}).log()",
)


COUNTED = ("({}) * ({})", "({}) / ({})", "({0}) * ({1}) / ({1} - 1)", "({0}) * ({1} - 1) / ({1})")
"""An expression, and a length."""
SHIFTED = tuple(f"torch.nn.functional.pad({{0}}, {ends})" for ends in ((1, -1), (-1, 1), (0, 0, 1, -1), (0, 0, -1, 1)))
"""An expression one step earlier or later, as a state before a step and after it."""
OF_KERNELS = (
    "tl.abs({0})",
    "tl.sqrt({0})",
    "tl.exp({0})",
    "tl.log({0})",
    "({0}) * ({0})",
    "1 - ({0})",
    "({0}) / tl.sum({0})",
)


def normalized(node: ast.expr, forms: Sequence[str] = NORMALIZED) -> Change:
    """What an expression is often made before it is used."""
    yield from (code_of(form, node) for form in forms)


# Questions


def is_number(node: ast.AST) -> TypeGuard[Any]:
    """Whether a node is a number."""
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool)


def is_sum(operator: ast.operator) -> bool:
    """Whether an operator adds or subtracts."""
    return isinstance(operator, ast.Add | ast.Sub)
