"""Whether a candidate has Triton kernels, found by reading its files, and how these run where there is no GPU."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from parity.check.pair import Named

TRITON = "triton"
MODE = "triton-interpret"
GRADIENTS = frozenset(("backward", "register_autograd", "register_backward"))
"""What code defines or calls that says what the gradients of a kernel are."""


def is_interpreted(candidate: Named) -> bool:
    """Whether a candidate runs in Triton's interpreter: it imports Triton, and there is no CUDA device."""
    return any(map(has_triton, {candidate.path, candidate.own_path})) and not has_device()


def has_device() -> bool:
    """Whether there is a CUDA device."""
    import torch

    return bool(torch.cuda.is_available())


def mode_of(candidate: Named) -> dict[str, str]:
    """What the candidate's backend has besides its file."""
    return {"mode": MODE} if is_interpreted(candidate) else {}


def variables_of(candidate: Named) -> dict[str, str]:
    """The environment variables of a process that runs the candidate without parity's worker."""
    return {"TRITON_INTERPRET": "1"} if is_interpreted(candidate) else {}


def has_triton(path: Path) -> bool:
    """Whether a file imports Triton, itself or through files beside it."""
    return any(TRITON in imported(file) for file in with_imports(path))


def cuts_gradients(path: Path) -> bool:
    """Whether a file launches kernels of Triton and has no backward pass for them."""
    return has_triton(path) and not any(map(has_gradients, with_imports(path)))


def with_imports(path: Path) -> Iterator[Path]:
    """A file, and those beside it that it imports, also through others."""
    waiting, seen = [path], set[Path]()
    while waiting:
        file = waiting.pop()
        seen.add(file)
        yield file
        files = (path.parent / f"{name}.py" for name in sorted(imported(file)))
        waiting += [beside for beside in files if beside not in seen and beside not in waiting and beside.is_file()]


def has_gradients(path: Path) -> bool:
    """Whether a file defines or registers a backward pass; False for one that cannot be read."""
    try:
        nodes = list(ast.walk(ast.parse(path.read_bytes())))
    except (OSError, SyntaxError, ValueError):
        return False
    names = {getattr(node, "name", None) or getattr(node, "attr", None) for node in nodes}
    return not names.isdisjoint(GRADIENTS)


def imported(path: Path) -> set[str]:
    """The first words of the modules that a file imports; of one that cannot be read, none."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return set()
    return {name.partition(".")[0] for node in ast.walk(tree) for name in modules_in(node)}


def modules_in(node: ast.AST) -> Iterator[str]:
    """The modules that a statement imports."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from [node.module] if node.module else (alias.name for alias in node.names)
