"""Finds a Python of a given minor release: this one, on PATH, in pyenv's versions, or by uv."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from parity.environments import installer
from parity.environments.probe import ProbeError, identify


def find_python(minors: Iterable[str]) -> tuple[str, Path] | None:
    """The first of `minors` ("3.10") that this machine has, and the absolute path of its interpreter."""
    for minor in minors:
        for candidate in _candidates(minor):
            python = _identified(candidate, minor)
            if python is not None:
                return minor, python
    return None


def _candidates(minor: str) -> Iterator[Path]:
    """The candidates, cheapest first; later sources are searched only if earlier ones have none."""
    if sys.executable:
        yield Path(sys.executable)
    yield from _in_path(minor)
    yield from _in_pyenv(minor)
    yield from installer.known_pythons(minor)


def _identified(candidate: Path, minor: str) -> Path | None:
    try:
        identity = identify(candidate)
    except ProbeError:
        return None
    wanted = tuple(int(number) for number in minor.split("."))
    return identity.executable if identity.version[:2] == wanted else None


def _in_path(minor: str) -> Iterator[Path]:
    for folder in dict.fromkeys(os.environ.get("PATH", "").split(os.pathsep)):
        if not folder:
            continue
        for name in (f"python{minor}", "python3", "python"):
            candidate = Path(folder).absolute() / name
            if candidate.is_file() and os.access(candidate, os.X_OK):
                yield candidate


def _in_pyenv(minor: str) -> Iterator[Path]:
    """pyenv's Pythons from its versions folder, newest first; its shims exit with 127 for unselected versions."""
    roots = [Path(root) for root in (os.environ.get("PYENV_ROOT"), Path.home() / ".pyenv") if root]
    for root in dict.fromkeys(roots):
        folders = sorted((root / "versions").glob(f"{minor}.*"), key=_patch, reverse=True)
        yield from (folder / "bin" / "python" for folder in folders)


def _patch(folder: Path) -> int:
    numbers = re.fullmatch(r"\d+\.\d+\.(\d+)", folder.name)
    return int(numbers.group(1)) if numbers else -1
