"""Mutants of a candidate's file: the same code with one small change, such as `<` for `<=`.

A mutant that computes what the reference does shows the fault and its repair (Debroy and Wong 2010, "Using mutation to
automatically suggest fixes for faulty programs", ICST).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, pairwise, permutations, product
from typing import TypeGuard

from parity.check.changes import (
    CHANGES,
    COSTS,
    COUNTED,
    LIMITS,
    LIMITS_OF_KERNELS,
    MODULES,
    NARROWING,
    NORMALIZED,
    OF_KERNELS,
    SHIFTED,
    SIGNS,
    averaged,
    code_of,
    is_module_name,
    is_number,
    is_sum,
    normalized,
)
from parity.check.donors import COMPUTING, Donor, donors_of, usable

Located = ast.expr | ast.stmt | ast.keyword
"""A node that has a location in the text."""
NEAR = 8
"""Names, the last ones before a line, that may stand for one another."""
MOST_EXPRESSIONS, MOST_PARTS = 40, 3
ZERO = ast.Constant(0)
LENGTHS = ("{}.shape[0]", "{}.shape[-1]", "({0}.numel() // {0}.shape[1])")
"""Of a tensor; the last one is that of a channel."""
NO_VALUES = (ast.Tuple, ast.List, ast.Constant, ast.Slice, ast.Starred)
"""Expressions that are no tensors."""
FORGOTTEN = ("({}) * {}", "({}) + {}", "({}) - {}", "({}) / {}", "({})[{}]", "torch.where({1}, {0}, 0.0)")
"""A value, and a name that was forgotten."""
ORDERING = frozenset(("argsort", "sort", "topk", "randperm", "unique", "nonzero", "where"))
"""Functions that return indices."""
MOST_VALUES = 12
"""Values of a statement that are changed with a name."""
MOST_DONATED = 3
"""Statements into which expressions of the reference are put."""
LONGEST, WIDEST = 80, 140
"""Code around a change is shown up to so many characters; what it is instead is cut from so many on."""
RESCALED, LARGER, SETTING = 2, 4, 2
"""The costs of changes that are larger; what a change of a number that a class sets costs besides."""


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


SAME_AXIS = re.compile(r"\b(transpose|swapaxes|movedim|swapdims)\((?:\w+, )?(-?\d+), \2\)")
NOTHING = re.compile(r"[-+] 0(?![\w.])|[*/] 1(?![\w.])")
"""Calls and operations that do nothing."""
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


def mutants_of(text: str, line: int, reference: str = "", reference_line: int = 0) -> Iterator[Mutant]:
    """The mutants of a file, those near a line first: small changes of all lines, then larger ones, these with numbers
    and expressions of a reference's text, too, those of its line first; none of a file that acts on more than tensors,
    as one that removes files."""
    tree, theirs = ast.parse(text), ast.parse(reference)
    if acts(tree):
        return
    source = MutantSource.of(text, tree)
    values = [*others_of(tree), *numbers_of(theirs, tree)]
    donors = [] if acts(theirs) else donors_of(theirs, reference_line)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    kernels = [function for function in functions if is_kernel(function)]
    # Kernels are slow, and a line that launches one says nothing of the lines inside.
    inside = (mutant for mutants in small_changes(source, kernels, line) for mutant in mutants)
    yield from sorted(inside, key=lambda mutant: mutant.cost)
    statements = near_statements(tree, line)
    rest = small_changes(source, [function for function in functions if function not in kernels], line)
    is_near = line and not kernels
    yield from next(rest, ()) if is_near else ()
    yield from larger_changes(source, statements, values, (with_rescaled, with_unread, with_fresh))
    near = statements[:1] if is_near else ()
    yield from larger_changes(source, near, values, (with_names, with_exchanged, with_forms, with_orders, with_factors))
    yield from (mutant for mutants in rest for mutant in mutants)
    yield from larger_changes(source, statements, values, (with_names, with_exchanged, with_forms, with_orders))
    yield from with_donors(source, statements[:MOST_DONATED], donors)
    yield from larger_changes(source, statements, values, (with_values, with_counts))


def others_of(tree: ast.Module) -> list[ast.expr]:
    """The numbers of a file by their global names, and its attributes of `self`, for which others may stand."""
    named = (node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None)
    names = [n.id for node in named for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    own = [f"self.{node.attr}" for node in ast.walk(tree) if isinstance(node, ast.Attribute) and is_self(node.value)]
    calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return [code_of(name) for name in dict.fromkeys((*names, *own)) if name not in calls][:NEAR]


def is_self(node: ast.expr) -> bool:
    """Whether an expression is `self`."""
    return isinstance(node, ast.Name) and node.id == "self"


def numbers_of(reference: ast.Module, tree: ast.Module) -> list[ast.expr]:
    """The numbers of a reference's functions that a file does not have, with their signs."""
    own = set(numbers_in(tree))
    return [code_of(repr(number)) for number in dict.fromkeys(numbers_in(reference)) if number not in own][:NEAR]


def numbers_in(tree: ast.Module) -> Iterator[float]:
    """The numbers in a file's code, but for those of its inputs; negative ones as such."""
    functions = (node for node in tree.body if getattr(node, "name", "") not in ("get_inputs", "get_init_inputs"))
    for node in (inner for function in functions for inner in ast.walk(function)):
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and is_number(node.operand):
            yield -node.operand.value
        elif is_number(node):
            yield node.value


def small_changes(source: MutantSource, functions: Sequence[ast.stmt], line: int) -> Iterator[list[Mutant]]:
    """The small changes of functions, line by line, the nearest first."""
    lines: dict[int, list[Mutant | ast.expr]] = {}
    for function in functions:
        for mutant in of_statements(source.text, function):
            lines.setdefault(mutant.line, []).append(replace(mutant, cost=2))
        for node in expressions(function):
            lines.setdefault(node.lineno, []).append(node)
    settled = {n for function in functions for n in settings_in(function)}
    for number, items in sorted(lines.items(), key=lambda pair: (pair[0] in settled, abs(pair[0] - line))):
        made = [[item] if isinstance(item, Mutant) else of_expression(source, item) for item in items]
        more = SETTING if number in settled else 0
        every = (replace(mutant, cost=mutant.cost + more) for mutants in made for mutant in mutants)
        yield sorted(every, key=lambda mutant: mutant.cost)


def settings_in(function: ast.stmt) -> Iterator[int]:
    """The lines of a class that only set numbers, in its body or its constructor: with others, as those of blocks, a
    fault may not show."""
    for node in function.body if isinstance(function, ast.ClassDef) else ():
        if not isinstance(node, ast.FunctionDef) or node.name == "__init__":
            yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)


def larger_changes(
    source: MutantSource,
    statements: Sequence[tuple[ast.FunctionDef, ast.stmt]],
    values: Sequence[ast.expr],
    changes: Sequence[LargerChange],
) -> Iterator[Mutant]:
    """Larger changes of statements of functions, each kind in all of them before the next."""
    for change in changes:
        for function, statement in statements:
            cost = RESCALED if change is with_rescaled else LARGER
            yield from (replace(mutant, cost=cost) for mutant in change(source, function, statement, values))


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
    """Statements left out, in another order, `=` for `+=`, and the reverse in loops."""
    repeated = {id(node) for loop in loops(function) for node in ast.walk(loop)}
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
                if isinstance(target_node := node.target, ast.Subscript) and isinstance(operator, ast.Add):
                    yield accumulated(text, node, target_node)
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
                yield accumulated(text, node, node.targets[0])
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and id(node) in repeated:
                # Not in place, which autograd would refuse of what it still needs.
                code = f"{node.targets[0].id} = {node.targets[0].id} + {ast.unparse(node.value)}"
                yield Mutant(node.lineno, ast.unparse(node), code, with_code(text, node, code))
            if isinstance(node, ast.AugAssign | ast.Expr) and not is_text(node):
                yield Mutant(node.lineno, ast.unparse(node), "", with_code(text, node, "pass"))


def accumulated(text: str, node: ast.Assign | ast.AugAssign, target: ast.Subscript) -> Mutant:
    """The mutant that adds to elements, to those that an index names twice, too, where they are overwritten."""
    index = ast.unparse(target.slice)
    index = index if isinstance(target.slice, ast.Tuple) else f"({index},)"
    code = f"{ast.unparse(target.value)}.index_put_({index}, {ast.unparse(node.value)}, accumulate=True)"
    return Mutant(node.lineno, ast.unparse(node), code, with_code(text, node, code))


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
        made = (replace(source.changed(node, other), cost=cost) for other in change(node))
        yield from (
            m
            for m in made
            if not SAME_AXIS.search(m.after) and (NOTHING.search(m.before) or not NOTHING.search(m.after))
        )


# Larger changes


def near_statements(tree: ast.AST, line: int) -> list[tuple[ast.FunctionDef, ast.stmt]]:
    """The statements of functions, each with its function: those around a line and kernels come first, of these the
    nearest statements."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name != "__init__"]
    around = {f for f in functions if is_kernel(f) or f.lineno <= line <= (f.end_lineno or 0)}
    kinds = (ast.Assign, ast.AugAssign, ast.Return, ast.Expr, ast.If, ast.For, ast.While)
    pairs = [(f, n) for f in functions for n in ast.walk(f) if isinstance(n, kinds) and not is_text(n)]
    return sorted(pairs, key=lambda pair: (pair[0] not in around, abs(pair[1].lineno - line)))


def with_names(
    source: MutantSource, function: ast.FunctionDef, statement: ast.stmt, values: Sequence[ast.expr]
) -> Iterator[Mutant]:
    """Another name of the function, or another value, for a name or a number in a statement."""
    others = [*names_for(function, statement), *values]
    for node in read_in(statement):
        if (is_number(node) or isinstance(node, ast.Name | ast.Attribute)) and not is_module_name(node):
            yield from (source.changed(node, other) for other in others if ast.unparse(other) != ast.unparse(node))


def with_rescaled(
    source: MutantSource, function: ast.FunctionDef, statement: ast.stmt, _values: Sequence[ast.expr]
) -> Iterator[Mutant]:
    """What a loop adds to, rescaled first by a name, or by the exponential of a difference, as of an old and a new
    maximum (Milakov and Gimelshein 2018, arXiv:1805.02867)."""
    total = added_to(statement)
    if total is None or not any(statement in ast.walk(loop) for loop in loops(function)):
        return
    module = "tl" if is_kernel(function) else "torch"
    names = [name for name in names_for(function, statement)[:NEAR] if name.id != total.id]
    factors = [name.id for name in names]
    factors += [f"{module}.exp({one.id} - {other.id})" for one, other in permutations(names, 2)]
    for factor, column in product(factors, ("", "[..., None]")):
        rescaled = code_of(f"{total.id} * {factor}{column}")
        if isinstance(statement, ast.AugAssign):
            code = f"{total.id} = {ast.unparse(rescaled)} + {ast.unparse(statement.value)}"
            yield Mutant(statement.lineno, ast.unparse(statement), code, with_code(source.text, statement, code))
        else:
            yield source.changed(total, rescaled)


def added_to(statement: ast.stmt) -> ast.Name | None:
    """The name that a statement adds to: as it is read there, or the target of `+=`."""
    if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add):
        return statement.target if isinstance(statement.target, ast.Name) else None
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        name = statement.targets[0].id
        return next((n for n in read_in(statement) if isinstance(n, ast.Name) and n.id == name), None)
    return None


def loops(function: ast.AST) -> list[ast.stmt]:
    """The loops of a function."""
    return [node for node in ast.walk(function) if isinstance(node, ast.For | ast.While)]


def with_forms(
    source: MutantSource, function: ast.FunctionDef, statement: ast.stmt, values: Sequence[ast.expr]
) -> Iterator[Mutant]:
    """Expressions of a statement limited by a number, or normalized."""
    names = names_for(function, statement)[:NEAR]
    limits, forms = (LIMITS_OF_KERNELS, OF_KERNELS) if is_kernel(function) else (LIMITS, NORMALIZED)
    for node in filter(is_value, read_in(statement)):
        yield from (source.changed(node, change) for change in (*normalized(node, forms), *averaged(node, names)))
        numbers = (*filter(is_plain_number, values), ZERO)
        yield from (source.changed(node, code_of(form, node, number)) for number in numbers for form in limits)


def with_values(
    source: MutantSource, function: ast.FunctionDef, statement: ast.stmt, values: Sequence[ast.expr]
) -> Iterator[Mutant]:
    """Expressions of a statement times or plus a name near it, or a number."""
    names = names_for(function, statement)[:NEAR]
    columns = [] if is_kernel(function) else [code_of("{}[..., None]", name) for name in names]
    for node in filter(is_value, read_in(statement)):
        for other in (*names, *filter(is_plain_number, values)):
            yield from (source.changed(node, ast.BinOp(node, sign(), other)) for sign in SIGNS)
        for column in columns:
            yield from (source.changed(node, ast.BinOp(node, sign(), column)) for sign in SIGNS[:2])
    yield from with_factors(source, function, statement, values)


def with_factors(
    source: MutantSource, function: ast.FunctionDef, statement: ast.stmt, _values: Sequence[ast.expr]
) -> Iterator[Mutant]:
    """Values of a statement times a name near it, or times the part of it that the statement takes of another one."""
    names = names_for(function, statement)[:NEAR]
    parts = {ast.unparse(node.slice): node.slice for node in read_in(statement) if is_part(node)}
    of_names = [ast.Subscript(name, part, ast.Load()) for name in names for part in [*parts.values()][:MOST_PARTS]]
    for node in read_in(statement):
        if (isinstance(node, ast.Name) and not is_module_name(node)) or is_part(node):
            yield from (source.changed(node, ast.BinOp(node, ast.Mult(), other)) for other in (*names, *of_names))


def with_unread(
    source: MutantSource, function: ast.FunctionDef, statement: ast.stmt, _values: Sequence[ast.expr]
) -> Iterator[Mutant]:
    """A value with a name of the function that nothing reads, which may have been forgotten: as a factor, a term, an
    index or a condition."""
    read = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and is_read(n)}
    own = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name)}
    for name in (name for name in names_for(function, statement) if name.id not in read | own):
        for node in read_in(statement)[:MOST_VALUES]:
            if not is_module_name(node) and not isinstance(node, NO_VALUES):
                yield from (source.changed(node, code_of(form, node, name)) for form in FORGOTTEN)


def with_orders(
    source: MutantSource, function: ast.FunctionDef, statement: ast.stmt, _values: Sequence[ast.expr]
) -> Iterator[Mutant]:
    """A value in an order that the function has computed, as by `argsort`."""
    made = [node for node in ast.walk(function) if isinstance(node, ast.Assign) and ORDERING & called_in(node.value)]
    targets = [n for node in made if node.lineno < statement.lineno for t in node.targets for n in ast.walk(t)]
    for name in dict.fromkeys(node.id for node in targets if isinstance(node, ast.Name)):
        for node in read_in(statement)[:MOST_VALUES]:
            if isinstance(node, ast.Name | ast.Call) and not is_module_name(node):
                yield source.changed(node, code_of("({})[{}]", node, ast.Name(name, ast.Load())))


def with_fresh(
    source: MutantSource, function: ast.FunctionDef, statement: ast.stmt, _values: Sequence[ast.expr]
) -> Iterator[Mutant]:
    """For a name, what was assigned to it, where a name in that has another value since: Welford's second difference is
    one from the new mean."""
    before = [n for n in ast.walk(function) if isinstance(n, ast.Assign) and n.lineno < statement.lineno]
    for node in (node for node in read_in(statement) if isinstance(node, ast.Name)):
        own = [n for n in before if [ast.unparse(target) for target in n.targets] == [node.id]]
        if own and not isinstance(own[-1].value, ast.Name):
            changed = {word for n in before if n.lineno > own[-1].lineno for t in n.targets for word in words_in(t)}
            if changed & words_in(own[-1].value):
                yield source.changed(node, own[-1].value)


def words_in(node: ast.expr) -> set[str]:
    """The names in an expression."""
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def called_in(node: ast.expr) -> set[str]:
    """The last words of the functions that an expression calls."""
    functions = [inner.func for inner in ast.walk(node) if isinstance(inner, ast.Call)]
    return {getattr(function, "attr", "") or getattr(function, "id", "") for function in functions}


def with_exchanged(
    source: MutantSource, _function: ast.FunctionDef, statement: ast.stmt, _values: Sequence[ast.expr]
) -> Iterator[Mutant]:
    """Two names of a statement in each other's place."""
    words: dict[str, list[ast.expr]] = {}
    for node in read_in(statement):
        if isinstance(node, ast.Name | ast.Attribute) and not is_module_name(node):
            words.setdefault(ast.unparse(node), []).append(node)
    for word, other in combinations(words, 2):
        if word.startswith(f"{other}.") or other.startswith(f"{word}."):
            continue
        changed = source.text
        for node in sorted([*words[word], *words[other]], key=lambda node: (-node.lineno, -node.col_offset)):
            changed = with_code(changed, node, word if ast.unparse(node) == other else other)
        before = ast.unparse(statement)
        yield Mutant(statement.lineno, before, with_words(before, word, other), changed)


def with_words(text: str, word: str, other: str) -> str:
    """A text with two words in each other's place."""
    pattern = re.compile(rf"(?<![\w.]){re.escape(word)}(?!\w)|(?<![\w.]){re.escape(other)}(?!\w)")
    return pattern.sub(lambda hit: other if hit[0] == word else word, text)


def with_counts(
    source: MutantSource, function: ast.FunctionDef, statement: ast.stmt, _values: Sequence[ast.expr]
) -> Iterator[Mutant]:
    """Expressions of a statement times or by a length of the function's first argument, as for a mean and a sum, a
    biased and an unbiased variance; one step earlier or later."""
    given = [a.arg for a in function.args.args if a.arg not in MODULES][:1]
    for node in filter(is_value, read_in(statement) if given and not is_kernel(function) else ()):
        lengths = [code_of(form.format(name)) for name in given for form in LENGTHS]
        yield from (source.changed(node, code_of(form, node, length)) for length in lengths for form in COUNTED)
        yield from (source.changed(node, change) for change in normalized(node, SHIFTED))


def with_donors(
    source: MutantSource, statements: Sequence[tuple[ast.FunctionDef, ast.stmt]], donors: Sequence[Donor]
) -> Iterator[Mutant]:
    """Expressions of the reference for those of statements, or with them."""
    for function, statement in statements:
        names = {name.id for name in names_for(function, statement)}
        given = () if is_kernel(function) else usable(donors, names)
        for node in read_in(statement) if given else ():
            operations = [ast.BinOp(node, sign(), donor) for donor in given for sign in SIGNS]
            if isinstance(node, ast.BinOp):
                operations += [ast.BinOp(node.left, sign(), donor) for donor in given for sign in SIGNS]
            if isinstance(node, (*COMPUTING, ast.Name)) and not is_module_name(node):
                changes = (*given, *operations)
                yield from (replace(source.changed(node, change), cost=LARGER + 1) for change in changes)


def is_value(node: ast.expr) -> bool:
    """Whether an expression may be a value that code computes with, but for sums and products."""
    return isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript) and not is_module_name(node)


def is_part(node: ast.expr) -> TypeGuard[ast.Subscript]:
    """Whether an expression takes a part of a name by slices."""
    return (
        isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and any(isinstance(item, ast.Slice) for item in ast.walk(node.slice))
    )


def is_plain_number(node: ast.expr) -> bool:
    """Whether a value is a number, no name."""
    return not isinstance(node, ast.Name | ast.Attribute)


LargerChange = Callable[[MutantSource, ast.FunctionDef, ast.stmt, Sequence[ast.expr]], Iterator[Mutant]]


def read_in(statement: ast.stmt) -> list[ast.expr]:
    """The expressions that a statement reads, without those of statements inside it."""
    heads = [node for node in ast.iter_child_nodes(statement) if isinstance(node, ast.expr)]
    return [e for head in heads if is_read(head) for e in (head, *expressions(head))][:MOST_EXPRESSIONS]


def names_for(function: ast.FunctionDef, statement: ast.stmt) -> list[ast.Name]:
    """The names of a function that have values before a statement, the last ones first."""
    names = list(dict.fromkeys(reversed([*names_before(function, statement.lineno)])))
    return [ast.Name(name, ast.Load()) for name in names]


def is_read(node: ast.expr) -> bool:
    """Whether an expression is read, not assigned to."""
    return not isinstance(getattr(node, "ctx", ast.Load()), ast.Store)


def names_before(function: ast.FunctionDef, line: int) -> Iterator[str]:
    """The names of a function that have values before a line, in their order."""
    yield from (argument.arg for argument in function.args.args if argument.arg not in ("self", "ctx"))
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.lineno <= line:
            yield node.id
