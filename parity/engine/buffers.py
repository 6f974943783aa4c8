"""The host's end of the shared buffers that carry results (the worker's end is `parity/worker/buffer.py`)."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from parity.outcome import Output

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a private folder is created in it
MIN_FREE_BYTES = 1 << 30
PREFIX = "parity-scratch-"
LOCK = "lock"


class SharedBuffers:
    """A worker's shared buffers: files that are reused once their cell has been judged.

    There are at most `most`, since each takes a file descriptor in both processes; a backend that is far ahead of the
    others has to wait. It waits only for earlier cells, so the earliest one is never blocked. `left` is the number of
    free buffers. Not thread-safe: the caller holds a lock.
    """

    def __init__(self, folder: Path, name: str, most: int) -> None:
        self.left = most
        self._folder = folder
        self._name = name
        self._free: list[Path] = []
        self._count = 0
        self._mapped: dict[Path, mmap.mmap] = {}

    def take(self) -> Path:
        """A free buffer, the last used one first, since its pages are warm. Raises ValueError if none is left."""
        if not self.left:
            raise ValueError("no shared buffer is left")
        self.left -= 1
        if self._free:
            return self._free.pop()
        path = self._folder / f"{self._name}-{self._count}"
        path.touch(mode=0o600)
        self._count += 1
        return path

    def give_back(self, path: Path) -> None:
        """Free a buffer whose tensors are no longer needed."""
        self._free.append(path)
        self.left += 1

    def outputs(self, path: Path, tensors: list[dict[str, Any]]) -> dict[str, Output]:
        """The outputs that a reply describes; their values are views of the buffer. Raises ValueError if invalid."""
        return {str(t["name"]): self._output(path, t) for t in tensors}

    def _output(self, path: Path, tensor: dict[str, Any]) -> Output:
        shape, dtype, offset = tuple(int(n) for n in tensor["shape"]), str(tensor["dtype"]), tensor["offset"]
        if offset is None:
            return Output(dtype, shape, None)
        kind = np.dtype(np.uint16 if dtype == "bfloat16" else dtype)
        if kind.hasobject or kind.kind not in "biuf":
            return Output(dtype, shape, None)
        n_bytes = kind.itemsize * int(np.prod(shape, dtype=np.int64))
        values = (
            np.ndarray(shape, kind, self._memory(path, offset + n_bytes), offset) if n_bytes else np.empty(shape, kind)
        )
        if dtype == "bfloat16":
            values = (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return Output(dtype, shape, values)

    def _memory(self, path: Path, size: int) -> mmap.mmap:
        memory = self._mapped.get(path)
        if memory is None or len(memory) < size:
            with path.open("r+b") as file:
                memory = self._mapped[path] = mmap.mmap(file.fileno(), 0)
        return memory


class Scratch:
    """A folder for shared buffers: in `home`, else in shared memory if there is room, else in the temporary directory.

    Its lock is held while it is in use. Folders whose lock is free are left over from killed runs.
    """

    def __init__(self, home: Path | None = None) -> None:
        wanted, home = home, home or Path(tempfile.gettempdir())
        if wanted is None and SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK):
            sweep(SHARED_MEMORY)
            if shutil.disk_usage(SHARED_MEMORY).free >= MIN_FREE_BYTES:
                home = SHARED_MEMORY
        sweep(home)
        self.folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=home))
        self._lock = (self.folder / "new-lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        (self.folder / "new-lock").rename(self.folder / LOCK)

    def remove(self) -> None:
        """Remove the folder and release its lock."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.close()


def sweep(home: Path) -> None:
    """Remove the folders whose lock is free."""
    for lock in home.glob(f"{PREFIX}*/{LOCK}"):
        with contextlib.suppress(OSError), lock.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent, ignore_errors=True)
