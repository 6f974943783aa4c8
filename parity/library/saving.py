"""Saves the arrays of tensors that differ as `.npy` files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from parity.engine.inputs import slug
from parity.library.arrays import Tensor
from parity.library.check import tensors_of
from parity.library.report import Report
from parity.reporting.results.results import new_directory

MAX_SAVED = 100


def save_failing(directory: Path, test: str, report: Report, actual: Any, expected: Any, exact: Any = None) -> Path:
    """Save the first tensors that differ below `directory`, in a new folder named after the test's id.

    The files are `NUMBER-PATH.actual.npy`, `.expected.npy` and `.exact.npy`, where NUMBER is the tensor's position in
    the comparison. Dtypes that NumPy lacks are saved as they were compared. Raises OSError.
    """
    folder = new_directory(directory.joinpath(*map(slug, re.split(r"/|\\|::", test))))
    pairs = tensors_of(actual, expected, exact, report.names)
    failing = [
        (i, pair) for i, (pair, row) in enumerate(zip(pairs, report.rows, strict=True)) if not row.verdict.passes
    ]
    for i, pair in failing[:MAX_SAVED]:
        for name in ("actual", "expected", "exact"):
            tensor: Tensor | None = getattr(pair, name, None)
            if tensor is not None:
                np.save(folder / f"{i:03}-{slug(pair.path or 'tensor')}.{name}.npy", tensor.values, allow_pickle=False)
    return folder


def saved_note(directory: Path, test: str, report: Report, actual: Any, expected: Any, exact: Any = None) -> str:
    """Save, and say where, or why not: a full disk must not hide what differs."""
    try:
        return f"the arrays are saved in {save_failing(directory, test, report, actual, expected, exact)}"
    except OSError as error:
        return f"the arrays could not be saved in {directory}: {error.strerror or error}"
