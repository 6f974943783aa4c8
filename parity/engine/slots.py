"""The host's side of the scratch files through which results travel (`parity/worker/slot.py` is the other)."""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from parity.outcome import Output

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of our own is made in it
MIN_FREE_BYTES = 1 << 30
PREFIX = "parity-scratch-"


class Slots:
    """A worker's slots: files that are handed out, and used again once their cell has been judged."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._free: list[Path] = []
        self._count = 0
        self._mapped: dict[Path, mmap.mmap] = {}

    def take(self) -> Path:
        """A free slot; the one used last comes first, since its pages are warm."""
        if self._free:
            return self._free.pop()
        path = self._folder / f"{self._name}-{self._count}"
        path.touch(mode=0o600)
        self._count += 1
        return path

    def give_back(self, path: Path) -> None:
        """The slot's tensors are not needed any more."""
        self._free.append(path)

    def outputs(self, path: Path, tensors: list[dict[str, Any]]) -> dict[str, Output]:
        """The outputs that a reply describes; their values are views of the slot. Raises ValueError for nonsense."""
        return {str(t["name"]): self._output(path, t) for t in tensors}

    def _output(self, path: Path, tensor: dict[str, Any]) -> Output:
        shape, dtype, offset = tuple(int(n) for n in tensor["shape"]), str(tensor["dtype"]), tensor["offset"]
        if offset is None:
            return Output(dtype, shape, None)
        kind = np.dtype(dtype)
        if kind.hasobject or kind.kind not in "biuf":
            return Output(dtype, shape, None)
        n_bytes = kind.itemsize * int(np.prod(shape, dtype=np.int64))
        values = (
            np.ndarray(shape, kind, self._memory(path, offset + n_bytes), offset) if n_bytes else np.empty(shape, kind)
        )
        return Output(dtype, shape, values)

    def _memory(self, path: Path, size: int) -> mmap.mmap:
        memory = self._mapped.get(path)
        if memory is None or len(memory) < size:
            with path.open("r+b") as file:
                memory = self._mapped[path] = mmap.mmap(file.fileno(), 0)
        return memory


def make_scratch() -> Path:
    """A new folder for slots: in shared memory where there is room, else among the temporary files."""
    home = Path(tempfile.gettempdir())
    if SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK):
        sweep(SHARED_MEMORY)
        if shutil.disk_usage(SHARED_MEMORY).free >= MIN_FREE_BYTES:
            home = SHARED_MEMORY
    sweep(home)
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=home))


def sweep(home: Path) -> None:
    """Remove the scratch folders of runs that were killed before they could."""
    import psutil

    for folder in home.glob(f"{PREFIX}*-*"):
        owner = folder.name.removeprefix(PREFIX).partition("-")[0]
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            shutil.rmtree(folder, ignore_errors=True)
