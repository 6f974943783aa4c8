"""The record of a model's run: a folder with its tensors in one file, and an index in their order.

Nothing is kept in memory, so a run needs memory only for its largest tensor. One file per tensor would take longer to
create and remove than the run itself: there are thousands of small ones.
"""

from __future__ import annotations

import json
import os
from functools import partial
from typing import Any, Callable, Dict, List

import numpy as np

INDEX, TENSORS = "index.json", "tensors.npy"


def squeezed(shape: Any) -> Any:
    """A shape without lengths of 1."""
    return tuple(n for n in shape if n != 1)


def regrouped(a: Any, b: Any) -> bool:
    """Whether two shapes have the same elements in the same order: equal up to lengths of 1, or to adjacent axes of
    one that are merged in the other."""
    ends = [{int(n) for n in np.cumprod(squeezed(shape))} for shape in (a, b)]
    return max(ends[0], default=1) == max(ends[1], default=1) and (ends[0] <= ends[1] or ends[1] <= ends[0])


def load(folder: str, at: int) -> Any:
    """The tensor that begins at a byte of a tape's file."""
    with open(os.path.join(folder, TENSORS), "rb") as file:
        file.seek(at)
        return np.load(file, allow_pickle=False)


class TensorTape:
    """Writes tensors into a folder as they come."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.entries: List[Dict[str, Any]] = []
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, TENSORS), "wb"):
            pass

    @classmethod
    def nowhere(cls) -> TensorTape:
        """A tape that nothing is written to."""
        tape = cls.__new__(cls)
        tape.folder, tape.entries = "", []
        return tape

    def put(self, name: str, array: Any) -> None:
        """Store a tensor; `name` is unique."""
        with open(os.path.join(self.folder, TENSORS), "ab") as file:
            at = file.tell()
            np.save(file, array, allow_pickle=False)
        self.entries.append({"name": name, "at": at, "shape": list(array.shape), "dtype": str(array.dtype)})

    @property
    def last(self) -> Callable[[], Any]:
        """A function that loads the tensor stored last."""
        return partial(load, self.folder, self.entries[-1]["at"])

    def close(self) -> None:
        """Write the index."""
        with open(os.path.join(self.folder, INDEX), "w", encoding="utf-8") as file:
            json.dump(self.entries, file)


class Recorded:
    """A folder that a `TensorTape` has written, read a tensor at a time."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        with open(os.path.join(folder, INDEX), encoding="utf-8") as file:
            self.entries: Dict[str, Dict[str, Any]] = {entry["name"]: entry for entry in json.load(file)}

    def __contains__(self, name: object) -> bool:
        return name in self.entries

    def __iter__(self) -> Any:
        return iter(self.entries)

    def shape(self, name: str) -> Any:
        """The shape of a tensor."""
        return tuple(self.entries[name]["shape"])

    def load(self, name: str) -> Any:
        """A tensor; raises KeyError."""
        return load(self.folder, self.entries[name]["at"])
