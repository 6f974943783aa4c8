"""Which two things are compared: what is in the files, found by reading them, not by running them."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from parity.check import CheckError
from parity.check.frameworks import TORCH, candidate_adapter, reference_adapter
from parity.program.worker.user_module import NEW

MODEL = "Model"
INPUTS = "get_inputs"
INIT_INPUTS = "get_init_inputs"


@dataclass(frozen=True)
class Named:
    """A class or function of a file; `origin` is the user's file if `path` was generated to run that, `adapter` that of
    the framework in which it computes, `run_path` what a worker runs where that is another file."""

    path: Path
    name: str
    is_class: bool
    line: int
    origin: Path | None = None
    adapter: str = TORCH
    run_path: Path | None = None

    @property
    def own_path(self) -> Path:
        """The user's file."""
        return self.origin or self.path

    @property
    def location(self) -> str:
        """`ref.py:3`."""
        return f"{self.own_path.name}:{self.line}"


@dataclass(frozen=True)
class FilePair:
    """A reference and a candidate, and the file and name of the function that gives the inputs."""

    reference: Named
    candidate: Named
    inputs: tuple[Path, str]


def pair_of(reference: str, candidate: str, inputs: str | None = None, adapter: str | None = None) -> FilePair:
    """The pair that `FILE.py` or `FILE.py:NAME` name; `adapter` is the candidate's, else its imports say it.

    Raises CheckError.
    """
    (path, name), (own_path, own) = named_file(reference), named_file(candidate)
    theirs = definitions(path)
    known = one_of(path, theirs, name, reference_names(theirs, definitions(own_path)), "reference")
    known = replace(known, adapter=reference_adapter(path, known.name, is_class=known.is_class))
    kind = adapter or candidate_adapter(own_path, has_class=known.is_class and has_class(known, own_path, own))
    new = candidate_of(known, own_path, own) if kind == TORCH else function_of(known, own_path, own, kind)
    source, function = named_file(inputs) if inputs else (path, INPUTS)
    if inputs is None and INPUTS not in {**assigned(path), **theirs}:
        raise CheckError(
            f"{path} has no function {INPUTS}(), which returns the arguments of a call; write one, or name one: "
            "--inputs FILE.py:NAME"
        )
    return FilePair(known, new, (source, function or INPUTS))


def candidate_of(known: Named, path: Path, own: str) -> Named:
    """What a candidate's file gives for a reference, under its `own` name if that is given. Raises CheckError."""
    ours, others = definitions(path), assigned(path)
    if own.partition(".")[0] in {**ours, **others} and own not in ours:  # such as `solution.Model`
        line = (ours.get(own.partition(".")[0]) or others[own.partition(".")[0]]).line
        return Named(path, own, known.is_class, line)
    usual = [known.name + NEW, known.name] if known.is_class else [known.name]
    for names in (ours, others):
        for name in [own] if own else usual:
            if name in names and (names is others or names[name].is_class == known.is_class):
                return replace(names[name], is_class=known.is_class)
    kind = "class" if known.is_class else "function"
    raise lacking(path, f"{kind} {own or ' or '.join(usual)}", ours)


def lacking(path: Path, wanted: str, names: Collection[str]) -> CheckError:
    """What is said where a file does not define what is wanted, with the names that it defines."""
    if not names:
        return CheckError(f"{path} defines no {wanted}: it has no class or function")
    return CheckError(f"{path} defines no {wanted}, only {', '.join(names)}; name one: {path}:NAME")


def function_of(known: Named, path: Path, own: str, adapter: str) -> Named:
    """The candidate's function in a framework other than PyTorch. Raises CheckError."""
    ours = {**assigned(path), **definitions(path)}
    usual = [known.name.lower(), f"{known.name.lower()}_new", known.name] if known.is_class else [known.name]
    names = [own] if own else usual
    hit = next((ours[name] for name in names if name in ours), None)
    if hit is None:
        raise lacking(path, f"function {' or '.join(names)}", definitions(path))
    if hit.is_class:
        raise CheckError(
            f"{hit.location}: {hit.name} is a class, which is called only in PyTorch; in {adapter}, write a function "
            "of the arguments, with weights as further arguments by their names, such as fc_weight"
        )
    return replace(hit, adapter=adapter)


def has_class(known: Named, path: Path, own: str) -> bool:
    """Whether a file has a class, which may be imported, under the name of a candidate for a reference's class."""
    ours = {**assigned(path), **definitions(path)}
    return any(name in ours for name in ([own] if own else [known.name + NEW, known.name]))


def assigned(path: Path) -> dict[str, Named]:
    """The names that a file's top level assigns or imports."""
    others: dict[str, Named] = {}
    for node in ast.parse(path.read_bytes(), str(path)).body:
        targets = node.targets if isinstance(node, ast.Assign) else ()
        aliases = node.names if isinstance(node, ast.ImportFrom) else ()
        names = [t.id for t in targets if isinstance(t, ast.Name)] + [a.asname or a.name for a in aliases]
        others |= {name: Named(path, name, False, node.lineno) for name in names}
    return others


def reference_names(theirs: Mapping[str, Named], ours: Mapping[str, Named]) -> list[str]:
    """The names that a reference may have without being named: `Model`, else those that both files define."""
    if MODEL in theirs:
        return [MODEL]
    return [name for name, item in theirs.items() if name in ours and not name.startswith(("_", "get_"))]


def one_of(path: Path, names: Mapping[str, Named], name: str, usual: list[str], what: str) -> Named:
    """The definition of this name, or the only usual one. Raises CheckError."""
    if name:
        if name not in names:
            raise lacking(path, name, names)
        return names[name]
    if len(usual) != 1:
        hit = f"several that both files define: {', '.join(usual)}" if usual else f"{', '.join(names) or 'nothing'}"
        raise CheckError(f"{path} has no class {MODEL}, but {hit}; name the {what}: {path}:NAME")
    return names[usual[0]]


def named_file(text: str) -> tuple[Path, str]:
    """The path and the name in `FILE.py:NAME`, whose name may be missing. Raises CheckError if there is no file."""
    file, _, name = text.rpartition(":") if ".py:" in text else (text, "", "")
    path = Path(file)
    if not path.is_file():
        state = "is a folder" if path.is_dir() else "is not a file"
        raise CheckError(f"{file} {state}; name a Python file, or FILE.py:NAME")
    return path, name


def definitions(path: Path) -> dict[str, Named]:
    """The classes and functions at a file's top level. Raises CheckError if it is no Python."""
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except (OSError, SyntaxError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise CheckError(f"{path}{line} cannot be read: {error}") from error
    kinds = (ast.ClassDef, ast.FunctionDef)
    return {
        n.name: Named(path, n.name, isinstance(n, ast.ClassDef), n.lineno) for n in tree.body if isinstance(n, kinds)
    }


@dataclass(frozen=True)
class FormatPair:
    """A pair, what is to be said of it, and whether its format has outputs only, no gradients."""

    pair: FilePair
    notes: tuple[str, ...] = ()
    forward_only: bool = False
