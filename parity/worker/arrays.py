"""Converts tensors: from files to arrays, and from a framework's results to arrays."""

from __future__ import annotations

import math
from typing import Any, Dict

import numpy as np

from parity.adapters.base import Adapter, NotATensor, shape_of
from parity.adapters.bits import in_dtype

MAX_DEPTH = 64
"""The most axes of lists of lists."""
NUMBERS = "biufc"
"""The kinds of NumPy's dtypes of numbers; others, such as objects and records, are described and not compared."""


def read_array(path: str, dtype: str) -> Any:
    """A copy of a stored tensor in `dtype`, or in int64 if it holds integers."""
    return in_dtype(np.load(path, allow_pickle=False), dtype)


def to_arrays(adapter: Adapter, results: Dict[str, Any], request: Dict[str, Any]) -> Dict[str, Any]:
    """Results by tensor name as NumPy arrays; one that is too large, or that NumPy cannot hold, as (dtype, shape)."""
    dtype, most = request["dtype"], request["max_elements"]
    arrays: Dict[str, Any] = {}
    for name, value in results.items():
        if is_of_numbers(value) and name.rpartition(".")[2] not in request["lists"]:
            arrays[name] = f"{type(value).__name__} of numbers (not a tensor)", []
        elif isinstance(value, (list, tuple)):
            arrays.update({f"{name}.{i}": to_array(adapter, item, dtype, most) for i, item in enumerate(value)})
        else:
            arrays[name] = to_array(adapter, value, dtype, most)
    return {name: array for name, array in arrays.items() if array is not None}


def is_of_numbers(value: Any) -> bool:
    """Whether a value is a list or tuple of Python numbers, or of such lists, as `tolist()` returns."""
    item = value
    for _ in range(MAX_DEPTH):
        if not isinstance(item, (list, tuple)) or not item:
            break
        item = item[0]
    return item is not value and isinstance(item, (bool, int, float, complex))


def to_array(adapter: Adapter, value: Any, dtype: str, max_elements: int) -> Any:
    """One result as an array; a Python number gets the cell's dtype.

    All integers become int64, as in inputs, since frameworks use different sizes for indices.
    """
    if value is None:
        return None
    if isinstance(value, (bool, int, float)):
        return in_dtype(np.asarray(value, dtype=np.float64), dtype)
    if shape_of(value) is None:
        return no_tensor(value)
    # str(dtype) is torch.float32 in PyTorch, but <dtype: 'float32'> in TensorFlow, whose dtypes have a name.
    described = getattr(value.dtype, "name", str(value.dtype)).rpartition(".")[2].lower(), [int(n) for n in value.shape]
    if isinstance(value, np.ma.MaskedArray):
        return f"{described[0]} (a masked array)", described[1]
    if math.prod(described[1]) > max_elements:
        return described
    try:
        array = np.asarray(value if isinstance(value, (np.ndarray, np.generic)) else adapter.to_numpy(value))
    except (TypeError, AttributeError) as error:
        if is_numpys(described[0]):
            raise undense(value, error) from error
        # NumPy has no float8; the reply has its dtype and shape.
        return described
    if array.dtype.hasobject and is_numpys(described[0]):
        raise undense(value, "NumPy takes it for an object")
    if dtype == "bfloat16" and described[0] in ("bfloat16", "uint16"):  # ml_dtypes' kind is no number's.
        return array.view(np.uint16)
    return widened(array) if array.dtype.kind in NUMBERS and described[0] != "bfloat16" else described


def no_tensor(value: Any) -> Any:
    """What is no tensor, as (dtype, shape)."""
    if isinstance(value, NotATensor):
        return f"{value.kind} (not a tensor)", list(value.axes)
    return f"{type(value).__name__} (not a tensor)", [len(value)] if isinstance(value, (list, tuple)) else []


def is_numpys(dtype: str) -> bool:
    """Whether NumPy has this dtype of numbers."""
    try:
        return np.dtype(dtype).kind in "biufc"
    except TypeError:
        return False


def undense(value: Any, why: Any) -> TypeError:
    """The error for a result without an array, such as a sparse tensor."""
    layout = getattr(value, "layout", None)
    kind = type(value).__name__ + ("" if layout is None else f" ({layout})")
    return TypeError(f"a result is a {kind}, which has no array of its values: {why}; return dense tensors")


def widened(array: Any) -> Any:
    """Integers and booleans as int64; other arrays as they are."""
    return array.astype(np.int64, copy=False) if array.dtype.kind in "biu" else array
