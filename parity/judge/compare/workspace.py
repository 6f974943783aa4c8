"""Work memory and threads for passes over blocks of an array."""

from __future__ import annotations

import functools
import itertools
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

BUFFER_BYTES = 1 << 21
"""Size of a work buffer: it stays in cache, and is large enough that threads rarely wait for the GIL."""

Result = TypeVar("Result")


def block_length(dtype: np.dtype[Any]) -> int:
    """Elements of a block whose differences are taken in `dtype`."""
    return BUFFER_BYTES // dtype.itemsize


class Workspace:
    """Three buffers of one block each, in the dtype in which differences are taken."""

    def __init__(self, actual: NDArray[Any], expected: NDArray[Any], difference: NDArray[Any]) -> None:
        self.actual = actual
        self.expected = expected
        self.difference = difference


class _PerThread(threading.local):
    def __init__(self) -> None:
        self.raw = [np.empty(BUFFER_BYTES, np.uint8) for _ in range(3)]
        self.spaces: dict[np.dtype[Any], Workspace] = {}


_LOCAL = _PerThread()


def workspace(dtype: np.dtype[Any]) -> Workspace:
    """The calling thread's buffers as `dtype`, kept from call to call: fresh pages cost more than the arithmetic."""
    spaces = _LOCAL.spaces
    if dtype not in spaces:
        spaces[dtype] = Workspace(*(raw.view(dtype) for raw in _LOCAL.raw))
    return spaces[dtype]


@functools.lru_cache(maxsize=1)
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=max(2, os.cpu_count() or 1), thread_name_prefix="parity-compare")


def run_blocks(work: Callable[[int], Result], n_blocks: int, threads: int) -> list[Result]:
    """`[work(0), ..., work(n_blocks - 1)]`, computed by up to `threads` threads, the caller's among them.

    Free threads take the next block; the order of the results does not depend on it.
    """
    counter = itertools.count()
    results: dict[int, Result] = {}

    def drain() -> None:
        with np.errstate(all="ignore"):
            while (index := next(counter)) < n_blocks:
                results[index] = work(index)

    helpers: list[Future[None]] = [_pool().submit(drain) for _ in range(min(threads, n_blocks) - 1)]
    drain()
    for helper in helpers:
        helper.result()
    return [results[index] for index in range(n_blocks)]
