"""Stores named tensors in a folder, completely or not at all: checkpoints for `--resume`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.outcome import Arrays

INDEX = "index.json"


class BundleError(Exception):
    """The folder is missing or was not written by `write`."""


@dataclass(frozen=True)
class Bundle:
    """A stored bundle: JSON values, and the files of the tensors by name."""

    header: Mapping[str, Any]
    paths: Mapping[str, Path]

    def load(self, name: str) -> NDArray[Any]:
        """A tensor; raises BundleError if it cannot be read."""
        try:
            return np.asarray(np.load(self.paths[name], allow_pickle=False))
        except (KeyError, OSError, ValueError, EOFError) as error:
            raise BundleError(f"{name}: {error}") from error


def write(folder: Path, header: Mapping[str, Any], arrays: Arrays) -> None:
    """Store `arrays` and `header` in `folder`, replacing its content."""
    new = folder.with_name(f".new-{folder.name}")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    for number, array in enumerate(arrays.values()):
        np.save(file_of(new, number), array, allow_pickle=False)
    (new / INDEX).write_text(json.dumps({"header": dict(header), "tensors": list(arrays)}), encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    new.rename(folder)


def read(folder: Path) -> Bundle:
    """The bundle in `folder`; raises BundleError."""
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        return Bundle(dict(index["header"]), {str(n): file_of(folder, i) for i, n in enumerate(index["tensors"])})
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise BundleError(f"{folder}: {error}") from error


def file_of(folder: Path, number: int) -> Path:
    """The file of a bundle's tensor; names from a config are not safe as file names."""
    return folder / f"{number:04d}.npy"
