"""An adapter's own calls as plain functions: its method for an op and everything it needs, without the class.

They are taken from the adapter's source, so a new op or framework needs no change here. `self.framework` becomes what
the constructor stored there, a method becomes a function; annotations are dropped, comments and docstrings kept.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from parity.adapters import adapter_class
from parity.repro import ReproError
from parity.repro.literals import WIDTH, Code, literal

PACKAGE = "parity"
BASE = "parity.adapters.base"
CONSTRUCTOR = "__init__"
SIMPLE = (ast.Name, ast.Attribute, ast.Constant)

Edits = dict[ast.expr, str]


class SourceError(ReproError):
    """An adapter whose source cannot be turned into functions; the message says where and why."""


@dataclass(frozen=True)
class Calls:
    """Source text: imports from the standard library, the statements that set the framework up, and what is called.

    `definitions` are constants, functions and classes by name, each after what it uses.
    """

    imports: tuple[Code, ...]
    setup: tuple[Code, ...]
    definitions: Mapping[str, Code]


@dataclass(frozen=True)
class ModuleSource:
    """A module's name, its text and its tree."""

    name: str
    lines: tuple[bytes, ...]
    tree: ast.Module

    def text(self, first: int, last: int, edits: Edits) -> Code:
        """Lines without their indent, with some expressions replaced."""
        lines = list(self.lines[first - 1 : last])
        for part in sorted(edits, key=lambda part: (part.lineno, part.col_offset), reverse=True):
            line, was = lines[part.lineno - first], ast.unparse(part).encode()
            if line[part.col_offset : part.end_col_offset] != was:
                raise SourceError(f"{self.location(part)}: {was.decode()} is not found in the source as one piece")
            lines[part.lineno - first] = line[: part.col_offset] + edits[part].encode() + line[part.end_col_offset :]
        return Code(textwrap.dedent(b"".join(lines).decode()).strip("\n"))

    def with_comment(self, node: ast.stmt) -> int:
        """The line where a statement begins, or the comment right above it."""
        first = node.lineno
        while self.lines[first - 2].lstrip().startswith(b"#"):
            first -= 1
        return first

    def location(self, node: ast.expr) -> str:
        """The file and line of a node."""
        return f"{self.name}:{node.lineno}"

    @property
    def definitions(self) -> dict[str, ast.stmt]:
        """The statements that define the names of the module."""
        return {name: node for node in self.tree.body for name in bound_names(node)}


@cache
def source_of(module: str) -> ModuleSource:
    """The source of a module of parity."""
    text = Path(inspect.getfile(importlib.import_module(module))).read_bytes()
    return ModuleSource(module, tuple(text.splitlines(keepends=True)), ast.parse(text))


def methods_of(cls: type[Any]) -> Mapping[str, ast.FunctionDef]:
    """The methods that a class defines itself."""
    node = source_of(cls.__module__).definitions.get(cls.__name__)
    body = node.body if isinstance(node, ast.ClassDef) else []
    return {node.name: node for node in body if isinstance(node, ast.FunctionDef)}


def has_method(adapter: str, name: str) -> bool:
    """Whether an adapter has a method of its own for `name`, written in Python."""
    return any(name in methods_of(cls) for cls in adapter_class(adapter).__mro__[:-1])


def has_mode(adapter: str) -> bool:
    """Whether an adapter runs functions other than eagerly."""
    return any("in_mode" in methods_of(cls) for cls in adapter_class(adapter).__mro__[:-2])


def calls(adapter: str, methods: Sequence[str], arguments: Mapping[str, Any], functions: Sequence[str] = ()) -> Calls:
    """The source of an adapter's `methods`, as after its constructor was called with `arguments`.

    `functions` are some of the module of the base of all adapters.

    Raises SourceError where the adapter's source cannot be turned into functions.
    """
    bases = adapter_class(adapter).__mro__[:-1]
    extraction = Extraction(bases, arguments)
    extraction.construct(bases)
    for name in methods:
        extraction.need_method(name, adapter)
    for name in functions:
        extraction.need_global(name, source_of(BASE))
    return Calls(tuple(map(Code, sorted(extraction.imports))), tuple(extraction.setup), extraction.definitions)


@dataclass
class Extraction:
    """The walk from the methods to everything they need.

    `arguments` are the constructor's, `stored` says what it keeps on `self`, `known` are the names that it defines.
    """

    bases: Sequence[type[Any]]
    arguments: Mapping[str, Any]
    stored: dict[str, str] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)
    imports: dict[str, None] = field(default_factory=dict)
    setup: list[Code] = field(default_factory=list)
    definitions: dict[str, Code] = field(default_factory=dict)

    def construct(self, bases: Sequence[type[Any]]) -> None:
        """Take in the constructor of the first of these classes that has one, and those that it calls."""
        for i, cls in enumerate(bases):
            node = methods_of(cls).get(CONSTRUCTOR)
            if node is not None:
                for statement in node.body:
                    self.take(statement, source_of(cls.__module__), bases[i + 1 :])
                return

    def take(self, node: ast.stmt, source: ModuleSource, bases: Sequence[type[Any]]) -> None:
        """One statement of a constructor, with the comment above it: something kept on `self`, or something to do."""
        if ast.unparse(node).startswith(f"super().{CONSTRUCTOR}("):
            self.construct(bases)
            return
        if isinstance(node, ast.If) and self.never(node.test):
            return
        self.known |= bound_names(node)
        if isinstance(node, ast.Assign) and (name := own_attribute(node.targets[0])):
            simple = isinstance(node.value, SIMPLE)
            self.stored[name] = self.simple_text(node.value, source) if simple else name
            if simple:
                return
        edits = self.edits([node], source, self.arguments)
        self.setup.append(source.text(source.with_comment(node), node.end_lineno or node.lineno, edits))

    def simple_text(self, node: ast.expr, source: ModuleSource) -> str:
        """A name, an attribute or a constant without `self`."""
        return self.edits([node], source, self.arguments).get(node) or ast.unparse(node)

    def never(self, test: ast.expr) -> bool:
        """Whether the constructor's arguments make a condition false."""
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            return any(map(self.never, test.values))
        match test:
            case ast.Compare(left=ast.Name(id=name), ops=[ast.Eq()], comparators=[ast.Constant(value=value)]):
                return name in self.arguments and self.arguments[name] != value
        return False

    def edits(self, nodes: Sequence[ast.AST], source: ModuleSource, arguments: Mapping[str, Any]) -> Edits:
        """The replacements in the text, `self.x` and names of arguments; also collects all that the nodes need."""
        parts = [part for node in nodes for part in ast.walk(node)]
        local = set[str]().union(*map(bound_names, nodes), *map(inner_names, parts))
        # A function shares its name space with what was a method of its own.
        twice = {name for part in parts if (name := own_attribute(part)) in local and name not in self.stored}
        if clash := twice & {part.arg for part in parts if isinstance(part, ast.arg)}:
            raise SourceError(f"{source.name}: {min(clash)} is a method and an argument of one that calls it")
        if any(isinstance(part, ast.ImportFrom) and of_parity(part) for part in parts):
            raise SourceError(f"{source.name}: a function imports from {PACKAGE}, which a script cannot")
        edits: Edits = {}
        for part in parts:
            if isinstance(part, ast.Attribute) and (name := own_attribute(part)):
                edits[part] = self.attribute(name, part, source)
            elif isinstance(part, ast.Name) and part.id in twice:
                edits[part] = f"{part.id}_"
            elif isinstance(part, ast.Name) and part.id not in local | self.known | {"self"}:
                if part.id in arguments:
                    edits[part] = literal(arguments[part.id])
                else:
                    self.need_global(part.id, source)
        return edits

    def attribute(self, name: str, node: ast.Attribute, source: ModuleSource) -> str:
        """The replacement of `self.name`."""
        if name not in self.stored:
            self.need_method(name, source.location(node))
        return self.stored.get(name, name)

    def need_method(self, name: str, location: str) -> None:
        """Make a function of a method."""
        for cls in self.bases:
            if name in methods_of(cls):
                self.define(methods_of(cls)[name], source_of(cls.__module__))
                return
        raise SourceError(f"{location}: there is no method {name}, and the constructor keeps nothing of that name")

    def need_global(self, name: str, source: ModuleSource) -> None:
        """Add a name of a module."""
        node = source.definitions.get(name)
        if name in self.definitions or (node is None and hasattr(builtins, name)):
            return
        if isinstance(node, ast.ImportFrom) and of_parity(node):
            self.need_global(name, source_of(str(node.module)))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            used = [alias for alias in node.names if name in bindings(alias)]
            origin = f"from {node.module} " if isinstance(node, ast.ImportFrom) else ""
            self.imports.setdefault(f"{origin}import {', '.join(map(ast.unparse, used))}")
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            self.define(node, source)
        elif node is not None:
            edits = self.edits([node], source, {})
            self.definitions[name] = source.text(node.lineno, node.end_lineno or node.lineno, edits)
        else:
            raise SourceError(f"{source.name}: {name} is not defined at the top of the module")

    def define(self, node: ast.FunctionDef | ast.ClassDef, source: ModuleSource) -> None:
        """Add a function or a class, after everything it needs."""
        if node.name in self.definitions:
            return
        self.definitions[node.name] = Code("")
        edits = self.edits([*arguments_of(node), *node.body], source, {})
        # Again at the end: a definition follows those that it uses.
        del self.definitions[node.name]
        body = source.text(node.body[0].lineno, node.body[-1].end_lineno or 0, edits)
        self.definitions[node.name] = Code(f"{header(node)}\n{textwrap.indent(body, '    ')}")


def header(node: ast.FunctionDef | ast.ClassDef) -> str:
    """The first lines of a definition, without annotations and without `self`."""
    if isinstance(node, ast.ClassDef):
        return f"class {node.name}({', '.join(map(ast.unparse, node.bases))}):"
    given = ast.unparse(plain_arguments(node))
    line = f"def {node.name}({given}):"
    return line if len(line) <= WIDTH else f"def {node.name}(\n    {given}\n):"


def arguments_of(node: ast.FunctionDef | ast.ClassDef) -> list[ast.AST]:
    """The arguments of a function, for the names that they bind; the bases of a class, for those that they use."""
    return [plain_arguments(node)] if isinstance(node, ast.FunctionDef) else list(node.bases)


def plain_arguments(node: ast.FunctionDef) -> ast.arguments:
    """The arguments of a function without annotations and without `self`."""
    given = node.args
    return ast.arguments(
        posonlyargs=[ast.arg(arg.arg) for arg in given.posonlyargs],
        args=[ast.arg(arg.arg) for arg in given.args if arg.arg != "self"],
        vararg=given.vararg and ast.arg(given.vararg.arg),
        kwonlyargs=[ast.arg(arg.arg) for arg in given.kwonlyargs],
        kw_defaults=given.kw_defaults,
        kwarg=given.kwarg and ast.arg(given.kwarg.arg),
        defaults=given.defaults,
    )


def of_parity(node: ast.ImportFrom) -> bool:
    """Whether an import is from this package."""
    return str(node.module).partition(".")[0] == PACKAGE


def own_attribute(node: ast.AST) -> str:
    """`name` of `self.name`; empty for anything else."""
    match node:
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return name
    return ""


def inner_names(node: ast.AST) -> set[str]:
    """The names that a function inside of another binds."""
    inside = ast.iter_child_nodes(node) if isinstance(node, ast.FunctionDef | ast.Lambda) else ()
    return set[str]().union(*map(bound_names, inside))


def bound_names(node: ast.AST) -> set[str]:
    """The names that a piece of source binds, those inside of functions and classes in it left out."""
    return set(bindings(node))


def bindings(node: ast.AST) -> Iterator[str]:
    """The names that a piece of source binds."""
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
            return
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
            yield name
        case ast.alias(name=name, asname=other):
            yield other or name.partition(".")[0]
        case ast.ExceptHandler(name=str(name)):
            yield name
    for child in ast.iter_child_nodes(node):
        yield from bindings(child)
