"""The tensors that a run keeps: where they lie, and how they are read back safely."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.config.plan import ORACLE
from parity.engine.inputs import slug
from parity.reporting.results.rows import CaseRow

Array = NDArray[Any]


class KeptError(Exception):
    """A tensor that is not there or cannot be read; the message names the file and says why."""


def side_folders(backends: Iterable[str]) -> dict[str, str]:
    """The folder's name for the oracle and for each backend, in the order of the run's backends; no two are alike."""
    folders = {ORACLE: ORACLE}
    for backend in backends:
        name = slug(backend)
        while name in folders.values():
            name += "_"
        folders[backend] = name
    return folders


def file_name(tensor: str) -> str:
    """The file that holds a tensor."""
    return f"{slug(tensor)}.npy"


def kept_path(case: CaseRow, dtype: str, side: str, tensor: str, folders: dict[str, str]) -> str:
    """Where a case's tensor of a backend or the oracle is kept, relative to the run directory.

    Raises KeptError where the run stored nothing of the case, or has no such backend.
    """
    if side not in folders:
        raise KeptError(f"the run has no {side}")
    if not case.files:
        raise KeptError(f"nothing of {case.id} was stored")
    return f"{Path(case.files[0]).parent}/{dtype}/{folders[side]}/{file_name(tensor)}"


def load(run_dir: Path, name: str) -> Array:
    """A stored tensor, mapped and not read; raises KeptError where it is not inside the run directory or no tensor."""
    path = run_dir / name
    try:
        if not path.resolve(strict=True).is_relative_to(run_dir.resolve()):
            raise KeptError(f"{name} is not inside the run directory")
        if not path.is_file():
            raise KeptError(f"{path} is no file")
        values = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, TypeError, OverflowError, EOFError) as error:
        raise KeptError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    if not isinstance(values, np.ndarray):
        raise KeptError(f"{path} holds no tensor")
    return values
