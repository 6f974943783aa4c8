"""Which two things are compared: what is in the files, found by reading them, not by running them."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from parity.check import CheckError
from parity.program.worker.user_module import NEW

MODEL = "Model"
INPUTS = "get_inputs"
INIT_INPUTS = "get_init_inputs"


@dataclass(frozen=True)
class Named:
    """A class or function of a file; `lines` are those where the file defines its public names."""

    path: Path
    name: str
    is_class: bool
    line: int

    @property
    def place(self) -> str:
        """`ref.py:3`."""
        return f"{self.path.name}:{self.line}"


@dataclass(frozen=True)
class Pair:
    """A reference and a candidate, and the file and name of the function that gives the inputs."""

    reference: Named
    candidate: Named
    inputs: tuple[Path, str]


def pair_of(reference: str, candidate: str, inputs: str | None = None) -> Pair:
    """The pair that `FILE.py` or `FILE.py:NAME` name. Raises CheckError."""
    (path, name), (own_path, own) = named_file(reference), named_file(candidate)
    theirs, ours = definitions(path), definitions(own_path)
    known = one_of(path, theirs, name, reference_names(theirs, ours), "reference")
    if known.is_class:
        candidates = [n for n in (own or known.name + NEW, known.name) if n in ours and ours[n].is_class]
    else:
        candidates = [own or known.name]
    wanted = own or (f"{known.name}{NEW} or {known.name}" if known.is_class else known.name)
    new = next((ours[n] for n in candidates if n in ours), None)
    if new is None:
        kind = "class" if known.is_class else "function"
        has = ", ".join(ours) or "nothing"
        raise CheckError(f"{own_path} defines no {kind} {wanted}, only {has}; name one: {own_path}:NAME")
    source, function = named_file(inputs) if inputs else (path, INPUTS)
    if inputs is None and INPUTS not in theirs:
        raise CheckError(
            f"{path} has no function {INPUTS}(), which returns the arguments of a call; write one, or name one: "
            "--inputs FILE.py:NAME"
        )
    return Pair(known, new, (source, function or INPUTS))


def reference_names(theirs: Mapping[str, Named], ours: Mapping[str, Named]) -> list[str]:
    """The names that a reference may have without being named: `Model`, else those that both files define."""
    if MODEL in theirs:
        return [MODEL]
    return [name for name, item in theirs.items() if name in ours and not name.startswith(("_", "get_"))]


def one_of(path: Path, names: Mapping[str, Named], name: str, usual: list[str], what: str) -> Named:
    """The definition of this name, or the only usual one. Raises CheckError."""
    if name:
        if name not in names:
            raise CheckError(f"{path} defines no {name}, only {', '.join(names) or 'nothing'}")
        return names[name]
    if len(usual) != 1:
        found = f"several that both files define: {', '.join(usual)}" if usual else f"{', '.join(names) or 'nothing'}"
        raise CheckError(f"{path} has no class {MODEL}, but {found}; name the {what}: {path}:NAME")
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
