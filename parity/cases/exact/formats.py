"""Formats of lower precision: rounding to them, and whether values are exact in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Format:
    """A binary format by its significand's `digits` (the hidden one included) and its normal numbers' exponents."""

    name: str
    digits: int
    min_exponent: int
    max_exponent: int

    @property
    def unit_roundoff(self) -> float:
        """Half the distance from 1 to the next number."""
        return float(2.0**-self.digits)

    @property
    def largest(self) -> float:
        """The largest finite number."""
        return float((2 - 2.0 ** (1 - self.digits)) * 2.0**self.max_exponent)


FORMATS: Mapping[str, Format] = {
    f.name: f
    for f in (
        Format("bfloat16", 8, -126, 127),
        Format("float16", 11, -14, 15),
        Format("tf32", 11, -126, 127),
        Format("float32", 24, -126, 127),
    )
}
"""tf32 (NVIDIA A100) has float16's digits and float32's range."""


FEW = 64
"""This many values are checked first: most tensors are on no coarser grid, and the first values show it."""


def rounded(values: NDArray[Any], target: Format) -> NDArray[Any]:
    """`values` rounded to nearest, ties to even, subnormals and overflow included; the dtype stays."""
    _, exponent = np.frexp(values)
    last_digit = np.maximum(exponent, target.min_exponent + 1) - target.digits
    with np.errstate(invalid="ignore", over="ignore"):
        result: NDArray[Any] = np.ldexp(np.rint(np.ldexp(values, -last_digit)), last_digit)
        beyond = np.abs(result) > target.largest
    return np.where(beyond, np.copysign(np.asarray(np.inf, result.dtype), result), result) if beyond.any() else result


def on_grid(values: NDArray[Any], target: Format) -> bool:
    """Whether every finite value is a number of the format."""
    first = values.reshape(-1)[:FEW]
    if not np.array_equal(rounded(first, target), first, equal_nan=True):
        return False
    finite = values[np.isfinite(values)]
    return bool(finite.size) and np.array_equal(rounded(finite, target), finite)
