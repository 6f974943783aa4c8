"""In which framework a file computes, as its imports say, and what follows for the cases that it is asked."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from pathlib import Path

from parity.check import CheckError

TORCH, NUMPY = "torch", "numpy"
MODULES: Mapping[str, str] = {
    **dict.fromkeys(("torch", "triton"), TORCH),
    **{name: name for name in ("jax", "tensorflow", "mlx", "paddle", "oneflow", "mindspore")},
    **dict.fromkeys(("flax", "optax", "jaxlib"), "jax"),
}
"""The adapters of modules that a file imports; NumPy, which most import, counts where there is no other."""
TITLES: Mapping[str, str] = {
    "jax": "JAX",
    "tensorflow": "TensorFlow",
    "mlx": "MLX",
    "paddle": "Paddle",
    "oneflow": "OneFlow",
    "mindspore": "MindSpore",
}


def imported_modules(path: Path) -> set[str]:
    """The names of the packages that a file imports anywhere. Raises CheckError if it is no Python."""
    try:
        nodes = list(ast.walk(ast.parse(path.read_bytes(), str(path))))
    except (OSError, SyntaxError, ValueError) as error:
        raise CheckError(f"{path} cannot be read: {error}") from error
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    return {name.partition(".")[0] for name in names}


def adapters_of(modules: Iterable[str]) -> list[str]:
    """The adapters that imports speak for: PyTorch alone where it is among them, NumPy where there is no other."""
    named = sorted({MODULES[name] for name in modules if name in MODULES})
    return [TORCH] if TORCH in named else named or [NUMPY] * (NUMPY in modules)


def candidate_adapter(path: Path, *, has_class: bool) -> str:
    """The adapter of a candidate's file; PyTorch's where it imports no framework, or NumPy and answers with a class.

    Raises CheckError where it imports several.
    """
    adapters = adapters_of(imported_modules(path))
    if len(adapters) > 1:
        raise CheckError(f"{path} imports {' and '.join(adapters)}; name the one that computes: --adapter NAME")
    return TORCH if not adapters or (has_class and adapters == [NUMPY]) else adapters[0]


def reference_adapter(path: Path, name: str, *, is_class: bool) -> str:
    """PyTorch's or NumPy's adapter. Raises CheckError for a reference that is not recorded."""
    adapters = adapters_of(imported_modules(path)) or [TORCH]
    if adapters[0] in (TORCH, NUMPY) and not (is_class and adapters == [NUMPY]):
        return adapters[0]
    what = f"a class without PyTorch, {name}" if adapters == [NUMPY] else TITLES[adapters[0]]
    raise CheckError(
        f"{path} has {what}, but a reference is recorded from PyTorch, or from a function of NumPy: write it in one of "
        "them; JAX, TensorFlow, MLX, Paddle and others can be the candidate"
    )
