"""Reads the definitions of a user's file from its text, without running it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from parity.adapters import ADAPTERS
from parity.cases import OPS
from parity.cases.op import Op, call_params
from parity.config.errors import nearest
from parity.starter import StarterError

REQUIRED = object()
"""Marks a parameter without a default, or whose default cannot be read without running the file."""


@dataclass(frozen=True)
class Function:
    """A function of the file. `parameters` are its keyword parameters with their defaults.

    `anything`: it accepts any keyword, or its signature cannot be read.
    """

    line: int
    parameters: Mapping[str, Any]
    needed: tuple[str, ...] = ()
    anything: bool = False

    def takes(self, name: str) -> bool:
        """Whether it can be called with `name=...`, where dots are underscores."""
        return self.anything or name.replace(".", "_") in self.parameters


@dataclass(frozen=True)
class UserFile:
    """A user's file: its functions by name, its literal constants, and the frameworks that it imports."""

    path: Path
    functions: Mapping[str, Function]
    constants: Mapping[str, Any]
    frameworks: tuple[str, ...]

    @property
    def ops(self) -> dict[str, Function]:
        """The functions that are named after an op."""
        return {name: function for name, function in self.functions.items() if name in OPS}

    @property
    def nearly(self) -> dict[str, str]:
        """Functions whose name resembles an op that the file lacks, and that op."""
        near = {name: nearest(name, OPS) for name in self.functions if name not in OPS}
        backward = {f"{op}_backward" for op in OPS}
        return {name: op for name, op in near.items() if op and op not in self.functions and name not in backward}

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The file's DTYPES; empty if it has none."""
        named = self.constants.get("DTYPES", ())
        return tuple(map(str, named)) if isinstance(named, list | tuple) else ()

    def differentiable(self, op: str, adapter: str) -> bool:
        """Whether the file provides gradients of an op, by autograd or by its own backward."""
        own = adapter != "numpy" or f"{op}_backward" in self.functions
        return own and self.constants.get("DIFFERENTIABLE", True) is not False


def read_source(path: Path) -> UserFile:
    """The definitions of the file; raises StarterError with the location if it is not Python."""
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except OSError as error:
        raise StarterError(f"cannot read {path}: {error.strerror or error}") from error
    except SyntaxError as error:
        location = f"{path}:{error.lineno}:{error.offset}" if error.lineno else f"{path}"
        shown = f"\n  {error.text.rstrip()}" if error.text else ""
        raise StarterError(f"{location}: {error.msg}{shown}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise StarterError(f"{path} cannot be read as Python: {error}") from error
    functions: dict[str, Function] = {}
    constants: dict[str, Any] = {}
    for node in statements(tree.body):
        functions |= dict(named_functions(node))
        constants |= dict(literals(node))
    modules = list(imported(tree))
    frameworks = tuple(name for name in ADAPTERS if name in modules)
    return UserFile(path, {name: f for name, f in functions.items() if name not in constants}, constants, frameworks)


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module, including those under `if`, `try` and `with`."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With):
            blocks = [getattr(node, part, []) for part in ("body", "orelse", "finalbody")]
            blocks += [handler.body for handler in getattr(node, "handlers", [])]
            for block in blocks:
                yield from statements(block)


def named_functions(node: ast.stmt) -> Iterator[tuple[str, Function]]:
    """The functions that a statement defines, assigns, or imports from the user's own code."""
    if isinstance(node, ast.FunctionDef):
        yield node.name, function(node)
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            if isinstance(target, ast.Name):
                yield target.id, Function(node.lineno, {}, anything=True)
    elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] not in ADAPTERS:
        for alias in node.names:
            yield alias.asname or alias.name, Function(node.lineno, {}, anything=True)


def function(node: ast.FunctionDef) -> Function:
    """The signature of a function."""
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [REQUIRED] * (len(positional) - len(arguments.defaults)) + [default(v) for v in arguments.defaults]
    parameters = dict(zip((a.arg for a in positional), defaults, strict=True))
    parameters |= {a.arg: default(v) for a, v in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)}
    n_optional = len(arguments.defaults)
    needed = [a.arg for a in positional[: len(positional) - n_optional]]
    needed += [a.arg for a, v in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if v is None]
    for argument in arguments.posonlyargs:
        del parameters[argument.arg]
    return Function(node.lineno, parameters, tuple(needed), anything=arguments.kwarg is not None)


def default(node: ast.expr | None) -> Any:
    """The value of a default that is a literal."""
    try:
        return REQUIRED if node is None else ast.literal_eval(node)
    except ValueError:
        return REQUIRED


def literals(node: ast.stmt) -> Iterator[tuple[str, Any]]:
    """The names to which a statement gives a literal."""
    if isinstance(node, ast.Assign) and default(node.value) is not REQUIRED:
        for target in node.targets:
            if isinstance(target, ast.Name):
                yield target.id, default(node.value)


def imported(tree: ast.AST) -> Iterator[str]:
    """The packages that are imported anywhere in the file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def adapter_of(source: UserFile) -> str:
    """The adapter that the file imports, a framework before NumPy; raises StarterError if that is not unique."""
    adapters = [name for name in source.frameworks if name != "numpy"] or list(source.frameworks)
    if len(adapters) == 1:
        return adapters[0]
    said = f"imports {' and '.join(adapters)}" if adapters else f"imports none of {', '.join(ADAPTERS)}"
    raise StarterError(
        f"{source.path} {said}: name the framework whose tensors its functions take, for example --adapter torch"
    )


def signature(op: Op, params: Any) -> str:
    """The signature of an op's function."""
    names = [item.name.replace(".", "_") for item in op.inputs]
    return f"def {op.name}({', '.join([*names, *call_params(params)])})"


def check_signature(source: UserFile, op: Op, params: Any, inputs: set[str]) -> None:
    """Raise StarterError if the function cannot be called with the op's tensors `inputs` and its required params."""
    mine = source.ops[op.name]
    offered = {item.name.replace(".", "_") for item in op.inputs} | set(call_params(params))
    missing = [name for name in (*sorted_inputs(op, inputs), *required_params(op)) if not mine.takes(name)]
    unknown = [name for name in mine.needed if name not in offered]
    if not missing and not unknown:
        return
    lacks = f"does not take {', '.join(missing)} by keyword" if missing else ""
    wants = f"requires {', '.join(unknown)}, which {op.name} does not have" if unknown else ""
    raise StarterError(
        f"{source.path}:{mine.line}: {op.name} {' and '.join(filter(None, (lacks, wants)))}\n"
        f"  parity calls it with the tensors and params by keyword, in PyTorch's names and layouts: "
        f"{signature(op, params)}"
    )


def sorted_inputs(op: Op, inputs: set[str]) -> Iterator[str]:
    """The inputs that a function must take."""
    return (item.name for item in op.inputs if item.name in inputs and not item.optional)


def required_params(op: Op) -> list[str]:
    """The params that a config must give."""
    return [f.name for f in fields(op.params) if f.default is MISSING]
