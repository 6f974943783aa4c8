"""The worker's end of a shared buffer: a scratch file, mapped in both processes, whose pages every cell reuses.

Allocating pages takes time, so a file only grows. Space is reserved before it is written, so that a full /dev/shm is an
error and not a SIGBUS.
"""

from __future__ import annotations

import mmap
import os
from typing import Any, Dict, List, Tuple

import numpy as np

ALIGNMENT = 64
GRAIN = 4096

_mapped: Dict[str, mmap.mmap] = {}


def write_arrays(path: str, arrays: Dict[str, Any]) -> List[Dict[str, Any]]:
    """Write arrays one after another; returns their descriptions in the protocol. Arrays of uint16 are bfloat16."""
    described: List[Dict[str, Any]] = []
    stored: List[Tuple[Any, int]] = []
    end = 0
    for name, array in arrays.items():
        if isinstance(array, tuple):
            described.append({"name": name, "dtype": array[0], "shape": array[1], "offset": None})
            continue
        dtype = "bfloat16" if array.dtype == np.uint16 else str(array.dtype)
        described.append({"name": name, "dtype": dtype, "shape": list(array.shape), "offset": end})
        stored.append((array, end))
        end += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    memory = grown(path, end)
    for array, offset in stored:
        if array.size:
            np.ndarray(array.shape, array.dtype, memory, offset)[...] = array
    return described


def grown(path: str, size: int) -> mmap.mmap:
    """The file, mapped with at least `size` bytes; raises OSError if there is no room for them."""
    memory = _mapped.get(path)
    if memory is None or len(memory) < size:
        memory = _mapped[path] = map_file(path, size)
    return memory


def map_file(path: str, size: int) -> mmap.mmap:
    """Extend the file to at least `size` bytes, a multiple of GRAIN, and map all of it."""
    with open(path, "r+b") as file:
        wanted = max(1, -(-size // GRAIN)) * GRAIN
        if os.fstat(file.fileno()).st_size < wanted:
            os.posix_fallocate(file.fileno(), 0, wanted)
        return mmap.mmap(file.fileno(), 0)
