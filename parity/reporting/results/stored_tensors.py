"""The tensors that a run stores: their paths, and reading them safely."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.config.plan import ORACLE
from parity.engine.inputs import slug
from parity.errors import UserError
from parity.reporting.results.rows import CaseRow

Array = NDArray[Any]


class KeptError(UserError):
    """A tensor is missing or cannot be read; the message names the file and says why."""


def backend_folders(backends: Iterable[str]) -> dict[str, str]:
    """The unique folder names of the oracle and of each backend, in the order of the run's backends."""
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


def folder_of_call(call: int) -> str:
    """The folder of the inputs of a call on other inputs, in that of its case."""
    return f"call-{call}"


def folder_of_results(dtype: str, call: int | None) -> str:
    """The folder of a cell's results in that of its case; those of the first call have no `call`."""
    return dtype if call is None else f"{dtype}-{folder_of_call(call)}"


def input_paths(case: CaseRow, call: int) -> dict[str, str]:
    """The paths of the inputs of a call on other inputs, relative to the run directory."""
    paths = {name: PurePosixPath(item.file) for name, item in case.inputs.items() if item.file}
    return {name: str(path.parent / folder_of_call(call) / path.name) for name, path in paths.items()}


def kept_path(
    case: CaseRow, dtype: str, backend: str, tensor: str, folders: dict[str, str], call: int | None = None
) -> str:
    """The path of a case's tensor of a backend or the oracle, relative to the run directory; `call` is that of the
    comparison.

    Raises KeptError if the run stored nothing of the case, or has no such backend.
    """
    if backend not in folders:
        raise KeptError(f"the run has no {backend}")
    if not case.files:
        raise KeptError(f"no tensors of {case.id} were stored")
    folder = folder_of_results(dtype, call)
    return f"{Path(case.files[0]).parent}/{folder}/{folders[backend]}/{file_name(tensor)}"


def load(run_dir: Path, name: str) -> Array:
    """A stored tensor, memory-mapped; raises KeptError if it is outside the run directory or not a tensor."""
    path = run_dir / name
    try:
        if not path.resolve(strict=True).is_relative_to(run_dir.resolve()):
            raise KeptError(f"{name} is not inside the run directory")
        if not path.is_file():
            raise KeptError(f"{path} is not a file")
        values = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, TypeError, OverflowError, EOFError) as error:
        raise KeptError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    if not isinstance(values, np.ndarray):
        raise KeptError(f"{path} holds no tensor")
    return values
