"""The floating-point dtypes of cases, by name, and how NumPy arrays hold them.

NumPy has no bfloat16. Arrays of float32 hold its values, on the host and in `.npy` files; only the worker's tensors are
bfloat16. float32 has every value of bfloat16, so nothing is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

COARSENESS = ("float16", "bfloat16", "float32", "float64")
"""Dtypes from the one with the smallest range to the finest."""

STORAGES = ("float8_e4m3fn", "float8_e5m2")
"""Dtypes in which operands can be stored, on the grids of OCP's 8-bit floating point specification, revision 1.0."""

COMPUTED_IN = {"float16": "float32", "bfloat16": "float32"}
"""A careful implementation in a narrow dtype computes in a wider one and rounds each output once."""


def as_dtype(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """`values` rounded to a dtype, in the array that holds it: bfloat16 in float32."""
    with np.errstate(over="ignore"):
        if dtype == "bfloat16":
            return values.astype(ml_dtypes.bfloat16).astype(np.float32)
        return values.astype(dtype, copy=False)


def as_stored(values: NDArray[Any], storage: str) -> NDArray[Any]:
    """`values` rounded to the grid of a storage dtype, in an array of their own dtype; values beyond its range are
    infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = values.astype(storage).astype(values.dtype)
    # float8_e4m3fn has no infinity; ml_dtypes gives NaN for values beyond its range.
    return np.where(np.isfinite(values) & ~np.isfinite(rounded), np.copysign(np.inf, values), rounded)


def largest_in(dtype: str) -> float:
    """The largest finite number of a dtype."""
    return float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]


def held_by_all(values: NDArray[Any], dtypes: Sequence[str]) -> NDArray[Any]:
    """`values` rounded so that each of `dtypes` has them, in the smallest array that holds them.

    For float16 beside bfloat16 they are rounded to both, float16 last: it has every number of 8 digits in its range,
    and beyond that an infinity shows that it cannot hold the case.
    """
    for dtype in [name for name in ("bfloat16", "float16") if name in dtypes] or [coarsest(dtypes)]:
        values = as_dtype(values, dtype)
    return values


def coarsest(dtypes: Sequence[str]) -> str:
    """The dtype that a case's inputs are rounded to last."""
    return min(dtypes, key=COARSENESS.index)
