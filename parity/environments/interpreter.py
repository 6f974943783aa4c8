"""A checked interpreter: its path, its packages, and the environment of its workers."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from parity.errors import UserError

Progress = Callable[[str], None]
"""Receives one line for the user about work that takes long."""

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
# They belong to the interpreter that runs parity; another one would load its packages.
HOST_ONLY_VARIABLES = ("PYTHONPATH", "PYTHONHOME")


class EnvironmentUnavailable(UserError):  # noqa: N818 - named after its outcome, `unavailable`
    """No interpreter for a backend; the message says what is missing and the remedy."""


@dataclass(frozen=True)
class Interpreter:
    """A checked interpreter: Python 3.8 or newer with numpy and the framework.

    `kind` is "named", "host" or "managed". `framework_version` is the distribution's, with its local part
    ("2.13.0+cpu"); it is None if the framework is importable without package metadata (a source build).
    """

    python: Path
    kind: str
    python_version: str
    numpy_version: str
    framework_version: str | None


def silent(_line: str) -> None:
    """A progress callback that does nothing."""


def isolated_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` for an interpreter that must see only its own packages."""
    return {name: value for name, value in environment.items() if name not in HOST_ONLY_VARIABLES}


def worker_environment(interpreter: Interpreter, threads: int) -> dict[str, str]:
    """A worker's environment variables: its thread count and, if managed, only its own packages."""
    variables = isolated_environment(os.environ) if interpreter.kind == "managed" else dict(os.environ)
    return variables | dict.fromkeys(THREAD_VARIABLES, str(threads))
