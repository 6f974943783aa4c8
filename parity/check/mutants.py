"""Mutants of a candidate's file: the same code with one small change, such as `<` for `<=`.

A mutant that computes what the reference does shows the fault and its repair (Debroy and Wong 2010, "Using mutation to
automatically suggest fixes for faulty programs", ICST).
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

Change = Iterator[ast.expr]
Located = ast.expr | ast.stmt | ast.keyword
"""A node that has a location in the text."""
NEAR = 8
"""Names, the last ones before a line, that may stand for one another."""
MOST_EXPRESSIONS = 40
MODULES = frozenset(("torch", "nn", "F", "math", "np", "tl", "triton", "self", "ctx"))
"""Names that are no values."""
LONGEST, WIDEST = 80, 140
"""Code around a change is shown up to so many characters; what it is instead is cut from so many on."""
LARGER = 4
"""The cost of changes that are larger."""


@dataclass(frozen=True)
class Mutant:
    """A line, the code there, what it is instead ("" for nothing), and the text of the whole file. Of the mutants of a
    line, those of the least `cost` come first."""

    line: int
    before: str
    after: str
    text: str
    cost: int = 1

    @property
    def of_dtype(self) -> bool:
        """Whether the change is one of a dtype, which other digits show, but no other formula."""
        words = (set(re.findall(r"\w+", code)) & NARROWING for code in (self.before, self.after))
        one, other = words
        return one != other


def short(code: str) -> str:
    """Code in one line, cut where it is long."""
    line = " ".join(code.split())
    return line if len(line) <= WIDEST else f"{line[: WIDEST - 3]}..."


PLAIN = (ast.Name, ast.Constant, ast.Attribute, ast.Call, ast.Subscript)
"""Expressions that need no parentheses."""


ACTING = frozenset(
    (
        *("shutil", "subprocess", "pathlib", "tempfile", "socket", "urllib", "requests", "http", "ctypes"),
        *("open", "exec", "eval", "system", "popen", "remove", "unlink", "rmdir", "removedirs", "rename", "renames"),
        *("truncate", "makedirs", "mkdir", "symlink", "link", "chmod", "chown", "kill", "killpg", "rmtree", "save"),
    )
)
"""Names in code that acts on files, processes or networks: changed, it could do harm."""


def acts(tree: ast.AST) -> bool:
    """Whether code may act on files, processes or networks."""
    for node in ast.walk(tree):
        names = [alias.name for alias in getattr(node, "names", ()) if isinstance(alias, ast.alias)]
        names += [getattr(node, field, None) or "" for field in ("id", "attr", "module") if hasattr(node, field)]
        if any(part in ACTING for name in names for part in str(name).split(".")):
            return True
    return False


def mutants_of(text: str, line: int) -> Iterator[Mutant]:
    """The mutants of a file, those near a line first: small changes of all lines, then larger ones; none of a file that
    acts on more than tensors, as one that removes files."""
    tree = ast.parse(text)
    if acts(tree):
        return
    source = MutantSource.of(text, tree)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    kernels = [function for function in functions if is_kernel(function)]
    # Kernels are slow, and a line that launches one says nothing of the lines inside.
    inside = (mutant for mutants in small_changes(source, kernels, line) for mutant in mutants)
    yield from sorted(inside, key=lambda mutant: mutant.cost)
    statements = near_statements(tree, line)
    rest = small_changes(source, [function for function in functions if function not in kernels], line)
    if not kernels:
        yield from next(rest, ())
        yield from larger_changes(source, statements[:1])
    yield from (mutant for mutants in rest for mutant in mutants)
    yield from larger_changes(source, statements)


def small_changes(source: MutantSource, functions: Sequence[ast.stmt], line: int) -> Iterator[list[Mutant]]:
    """The small changes of functions, line by line, the nearest first."""
    lines: dict[int, list[Mutant | ast.expr]] = {}
    for function in functions:
        for mutant in of_statements(source.text, function):
            lines.setdefault(mutant.line, []).append(replace(mutant, cost=2))
        for node in expressions(function):
            lines.setdefault(node.lineno, []).append(node)
    for _, items in sorted(lines.items(), key=lambda pair: abs(pair[0] - line)):
        made = [[item] if isinstance(item, Mutant) else of_expression(source, item) for item in items]
        yield sorted((mutant for mutants in made for mutant in mutants), key=lambda mutant: mutant.cost)


def larger_changes(source: MutantSource, statements: Sequence[tuple[ast.FunctionDef, ast.stmt]]) -> Iterator[Mutant]:
    """The larger changes of statements of functions."""
    for function, statement in statements:
        yield from (replace(mutant, cost=LARGER) for mutant in with_names(source, function, statement))


def is_kernel(node: ast.FunctionDef | ast.ClassDef) -> bool:
    """Whether a function is a kernel in Triton, whose launch is all that its caller shows."""
    return any("jit" in ast.unparse(decorator) for decorator in node.decorator_list)


# Text


@lru_cache(maxsize=1)
def line_starts(text: str) -> list[int]:
    """Where each line begins, in bytes, as Python counts lines."""
    starts = [0]
    for line in text.encode().split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)
    return starts


def span(text: str, node: Located) -> tuple[int, int]:
    """Where a node begins and ends in a text, in bytes."""
    starts = line_starts(text)
    end_line, end = node.end_lineno or node.lineno, node.end_col_offset or 0
    return starts[node.lineno - 1] + node.col_offset, starts[end_line - 1] + end


def with_code(text: str, node: Located, code: str) -> str:
    """The text with other code for a node."""
    start, end = span(text, node)
    content = text.encode()
    return (content[:start] + code.encode() + content[end:]).decode()


@dataclass(frozen=True)
class MutantSource:
    """A file's text, and the nodes around each of its expressions, the innermost first."""

    text: str
    around: Mapping[int, Sequence[Located]]

    @classmethod
    def of(cls, text: str, tree: ast.AST) -> MutantSource:
        """The source of a tree."""
        around: dict[int, list[Located]] = {}
        for node in ast.walk(tree):
            for child in ast.iter_child_nodes(node):
                if isinstance(node, ast.expr | ast.keyword | ast.Assign | ast.AugAssign | ast.Return | ast.Expr):
                    around[id(child)] = [node, *around.get(id(node), ())]
                elif isinstance(node, ast.comprehension):
                    around[id(child)] = around.get(id(node), [])
        return cls(text, around)

    def shown(self, node: ast.expr) -> Located:
        """The largest node around one that is short."""
        known: Located = node
        for around in self.around.get(id(node), ()):
            start, end = span(self.text, around)
            if end - start > LONGEST:
                break
            known = around
        return known

    def changed(self, node: ast.expr, change: ast.expr) -> Mutant:
        """The mutant with another expression for one."""
        code = ast.unparse(ast.fix_missing_locations(change))
        content, shown = self.text.encode(), self.shown(node)
        (start, end), (first, last) = span(self.text, shown), span(self.text, node)
        is_enclosed = content[first - 1 : first] + content[last : last + 1] == b"()"
        is_number = isinstance(change, ast.Constant) and content[last : last + 1] == b"."
        code = code if (isinstance(change, PLAIN) and not is_number) or is_enclosed else f"({code})"
        after = (content[start:first] + code.encode() + content[last:end]).decode()
        before = content[start:end].decode()
        return Mutant(node.lineno, before, after, with_code(self.text, node, code))


# Statements


def of_statements(text: str, function: ast.AST) -> Iterator[Mutant]:
    """Statements left out, in another order, and `=` for `+=`."""
    for body in bodies(function):
        for first, second in pairwise(body):
            if is_plain(first) and is_plain(second):
                yield exchanged(text, first, second)
            yield from together(text, first, second)
        for node in body:
            if isinstance(node, ast.AugAssign):
                target, value, operator = ast.unparse(node.target), ast.unparse(node.value), node.op
                other = "-" if isinstance(operator, ast.Add) else "+"
                codes = (f"{target} = {value}", *((f"{target} {other}= {value}",) if is_sum(operator) else ()))
                yield from (Mutant(node.lineno, ast.unparse(node), c, with_code(text, node, c)) for c in codes)
            if isinstance(node, ast.AugAssign | ast.Expr) and not is_text(node):
                yield Mutant(node.lineno, ast.unparse(node), "", with_code(text, node, "pass"))


def bodies(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """The lists of statements in a node."""
    for child in ast.walk(node):
        for name in ("body", "orelse"):
            body = getattr(child, name, None)
            if isinstance(body, list) and isinstance(child, ast.FunctionDef | ast.For | ast.While | ast.If | ast.With):
                yield body


def is_plain(node: ast.stmt) -> bool:
    """Whether a statement is an assignment or a call."""
    return isinstance(node, ast.Assign | ast.AugAssign | ast.Expr) and not is_text(node)


def is_text(node: ast.stmt) -> bool:
    """Whether a statement is a docstring."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def is_sum(operator: ast.operator) -> bool:
    """Whether an operator adds or subtracts."""
    return isinstance(operator, ast.Add | ast.Sub)


def exchanged(text: str, first: ast.stmt, second: ast.stmt) -> Mutant:
    """The mutant in which two statements stand in the other order."""
    one, other = ast.unparse(first), ast.unparse(second)
    later = with_code(text, second, one)
    return Mutant(first.lineno, f"{one}; {other}", f"{other}; {one}", with_code(later, first, other))


def together(text: str, first: ast.stmt, second: ast.stmt) -> Iterator[Mutant]:
    """The mutant in which two values are assigned at once, both computed from what was there before."""
    if isinstance(first, ast.Assign) and isinstance(second, ast.Assign):
        (one, *more), (other, *others) = first.targets, second.targets
        if not more and not others and isinstance(one, ast.Name) and isinstance(other, ast.Name):
            code = f"{one.id}, {other.id} = {ast.unparse(first.value)}, {ast.unparse(second.value)}"
            later = with_code(text, second, "pass")
            before = f"{ast.unparse(first)}; {ast.unparse(second)}"
            yield Mutant(first.lineno, before, code, with_code(later, first, code))


# Expressions


def expressions(node: ast.AST) -> Iterator[ast.expr]:
    """The expressions in code, but for annotations, decorators and what is assigned to."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "bases", "targets", "target", "func"):
            if field == "func":
                yield from expressions(value)
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.expr):
                yield child
            if isinstance(child, ast.AST):
                yield from expressions(child)


def of_expression(source: MutantSource, node: ast.expr) -> Iterator[Mutant]:
    """The mutants of an expression."""
    if isinstance(node, ast.JoinedStr):
        return
    for change in CHANGES.get(type(node), ()):
        cost = COSTS.get(change, 1)
        yield from (replace(source.changed(node, other), cost=cost) for other in change(node))


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
    """Another operator, one operand alone, operands exchanged."""
    if isinstance(node, ast.BinOp):
        for other in OPERATORS.get(type(node.op), ()):
            yield ast.BinOp(node.left, other(), node.right)
        yield from (node.left, node.right)
        if isinstance(node.op, ast.Add):
            yield code_of("(({}) ** 2 + ({})) ** 0.5", node.left, node.right)
        if isinstance(node.op, ast.Sub | ast.Div | ast.FloorDiv):
            yield ast.BinOp(node.right, node.op, node.left)


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
        others = dict.fromkeys((value - 1, value + 1, -value, 0, 2 * value, value // 2))
        yield from (ast.Constant(other) for other in others if other != value)
    elif isinstance(value, float):
        numbers = dict.fromkeys((0.0, 1.0, -value, 10 * value, value / 10, 2 * value, value / 2))
        yield from (ast.Constant(number) for number in numbers if number != value)
        yield from (ast.parse(f"float('{word}')", mode="eval").body for word in ("-inf", "inf"))
    elif isinstance(value, str):
        yield from (ast.Constant(w) for words in WORDS if value in words for w in words if w != value)


def of_call(node: ast.expr) -> Change:
    """Another function, without the call, without an option, with arguments in another order."""
    if not isinstance(node, ast.Call):
        return
    yield from of_function(node)
    yield from of_root(node)
    if isinstance(node.func, ast.Attribute) and not is_module(node.func.value):
        yield node.func.value
    yield from (argument for argument in node.args[:1] if not isinstance(argument, ast.Starred))
    for i in range(len(node.keywords)):
        yield ast.Call(node.func, node.args, [k for n, k in enumerate(node.keywords) if n != i])
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
    if name in ("zeros", "new_zeros", "zeros_like"):
        yield code_of("({}) - float('inf')", node)
    if name in ("var", "std", "var_mean"):
        rest = [k for k in node.keywords if k.arg not in ("unbiased", "correction")]
        for correction in (0, 1):
            yield ast.Call(node.func, node.args, [*rest, ast.keyword("correction", ast.Constant(correction))])


def of_root(node: ast.Call) -> Change:
    """A number added to the root, not inside of it; a count for a length, one more for positions."""
    name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    inner = node.args[0] if node.args else node.func.value if isinstance(node.func, ast.Attribute) else node
    if name in ("sqrt", "rsqrt") and isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Add):
        form = "(({}) ** 0.5 + ({}))" if name == "sqrt" else "1 / (({}) ** 0.5 + ({}))"
        yield code_of(form, inner.left, inner.right)
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
        for name in ("lower", "upper", "step"):
            if getattr(slice_node, name) is not None:
                for other in (*by_one(getattr(slice_node, name)), None):
                    yield with_field(node, slice_node, name, other)


def with_field(node: ast.Subscript, part: ast.Slice, name: str, value: ast.expr | None) -> ast.expr:
    """A copy in which a slice has another end."""
    before = getattr(part, name)
    setattr(part, name, value)
    other = copy.deepcopy(node)
    setattr(part, name, before)
    return other


def by_one(node: ast.expr) -> Change:
    """One more, one less."""
    for operator in (ast.Add(), ast.Sub()):
        yield ast.BinOp(node, operator, ast.Constant(1))


def of_name(node: ast.expr) -> Change:
    """One more, one less."""
    if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load) and not is_module_name(node):
        yield from by_one(node)


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
    ast.BinOp: (of_operation,),
    ast.UnaryOp: (of_sign,),
    ast.Constant: (of_constant,),
    ast.Call: (of_call,),
    ast.Subscript: (of_part,),
    ast.Name: (of_name,),
    ast.Attribute: (of_dtype, of_name),
    ast.IfExp: (of_condition,),
    ast.BoolOp: (of_condition,),
}
"""What an expression may be instead, by its kind."""
COSTS: Mapping[Callable[[ast.expr], Change], int] = {of_call: 2, of_part: 2, of_name: 3}
"""The costs of changes that are less likely than others."""


# Larger changes


def near_statements(tree: ast.Module, line: int) -> list[tuple[ast.FunctionDef, ast.stmt]]:
    """The statements of the functions around a line, and of kernels, each with its function, the nearest first; of all
    functions where the line is in none."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name != "__init__"]
    around = [f for f in functions if is_kernel(f) or f.lineno <= line <= (f.end_lineno or 0)]
    kinds = (ast.Assign, ast.AugAssign, ast.Return, ast.Expr, ast.If, ast.For, ast.While)
    pairs = [(f, n) for f in around or functions for n in ast.walk(f) if isinstance(n, kinds) and not is_text(n)]
    return sorted(pairs, key=lambda pair: abs(pair[1].lineno - line))


def with_names(source: MutantSource, function: ast.FunctionDef, statement: ast.stmt) -> Iterator[Mutant]:
    """Expressions of a statement, without those inside it, with another name of the function for a name, or times one,
    or normalized."""
    names = list(dict.fromkeys(reversed([*names_before(function, statement.lineno)])))[:NEAR]
    others = [ast.Name(name, ast.Load()) for name in names]
    heads = [node for node in ast.iter_child_nodes(statement) if isinstance(node, ast.expr)]
    within = [e for head in heads if is_read(head) for e in (head, *expressions(head))]
    for node in within[:MOST_EXPRESSIONS]:
        if not isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript) or is_module_name(node):
            continue
        for other in others:
            if isinstance(node, ast.Name) and node.id != other.id:
                yield source.changed(node, other)
            column = code_of("{}[..., None]", other)
            yield from (source.changed(node, ast.BinOp(node, sign(), other)) for sign in SIGNS)
            yield from (source.changed(node, ast.BinOp(node, sign(), column)) for sign in SIGNS[:2])
        yield from (source.changed(node, change) for change in (*normalized(node), *averaged(node, others)))


def is_read(node: ast.expr) -> bool:
    """Whether an expression is read, not assigned to."""
    return not isinstance(getattr(node, "ctx", ast.Load()), ast.Store)


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
    "({0}).sqrt()",
    "({0}).square()",
    "({0}).abs()",
    "({0}).exp()",
    "({0}).log()",
)


def normalized(node: ast.expr) -> Change:
    """What an expression is often made before it is used."""
    yield from (code_of(form, node) for form in NORMALIZED)


def names_before(function: ast.FunctionDef, line: int) -> Iterator[str]:
    """The names of a function that have values before a line, in their order."""
    yield from (argument.arg for argument in function.args.args if argument.arg not in ("self", "ctx"))
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.lineno <= line:
            yield node.id
