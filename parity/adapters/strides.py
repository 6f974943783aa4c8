"""Arrays that are views of a larger buffer, or have permuted strides, for a framework."""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, Tuple

import numpy as np

from parity.adapters.bits import QUIET_NAN, values_of


class Storage(NamedTuple):
    """The buffer, one-dimensional, with strides and offset in elements."""

    flat: Any
    strides: Tuple[int, ...]
    offset: int


def placed(values: Any, placement: Dict[str, Any]) -> Any:
    """These values as a view of a buffer, which holds NaN elsewhere (zeros for integers)."""
    filling = {"f": np.nan, "u": QUIET_NAN}.get(values.dtype.kind, 0)
    flat = np.full(placement["size"], filling, values.dtype)
    n_bytes = values.itemsize
    strides = [n_bytes * stride for stride in placement["strides"]]
    view: Any = np.ndarray(values.shape, values.dtype, flat, n_bytes * placement["offset"], strides)
    view[...] = values
    return view


def is_narrow(array: Any) -> bool:
    """Whether an array holds float16, or the bits of bfloat16."""
    return bool(array.dtype in (np.float16, np.uint16))


def widened(array: Any) -> Any:
    """An array of float16, or of the bits of bfloat16, in float32 with the same strides; another one as it is."""
    if not is_narrow(array):
        return array
    if is_whole(array):
        return np.asarray(values_of(array) if array.dtype == np.uint16 else array.astype(np.float32))
    storage = storage_of(array)
    flat = widened(storage.flat.reshape(-1))
    strides = [flat.itemsize * stride for stride in storage.strides]
    return np.ndarray(array.shape, flat.dtype, flat, flat.itemsize * storage.offset, strides)


def is_whole(array: Any) -> bool:
    """Whether an array is contiguous and not part of a larger one."""
    return bool(array.flags.c_contiguous and (getattr(array.base, "size", array.size) == array.size))


def storage_of(array: Any) -> Storage:
    """The storage of a view that `placed` made."""
    flat = array.reshape(-1) if array.base is None else array.base
    offset = (array.__array_interface__["data"][0] - flat.__array_interface__["data"][0]) // array.itemsize
    return Storage(flat, tuple(stride // array.itemsize for stride in array.strides), offset)
