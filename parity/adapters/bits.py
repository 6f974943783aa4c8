"""bfloat16, which NumPy lacks: arrays of uint16 hold the bits of a tensor, on its way to a framework and back.

No op has another tensor of uint16. Values in files, and on the host, are float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np

QUIET_NAN = 0x7FC0


def in_dtype(values: Any, dtype: str) -> Any:
    """A stored tensor in `dtype`, bfloat16 as its bits; integers are int64 in every dtype."""
    if values.dtype.kind in "iu":
        return values.astype(np.int64, copy=False)
    return bits_of(values) if dtype == "bfloat16" else values.astype(dtype, copy=False)


def bits_of(values: Any) -> Any:
    """The bits of numbers rounded to bfloat16, to nearest, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).reshape(np.shape(values)).view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
    return np.where(np.isnan(values), QUIET_NAN, rounded).astype(np.uint16)


def values_of(bits: Any) -> Any:
    """The numbers with these bits, in float32."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
