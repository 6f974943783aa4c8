"""Formats of lower precision: rounding to them, and whether values are exact in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Format:
    """A binary format by its significand's `digits` (the hidden one included) and its smallest normal exponent."""

    name: str
    digits: int
    min_exponent: int

    @property
    def unit_roundoff(self) -> float:
        """Half the distance from 1 to the next number."""
        return float(2.0**-self.digits)


FORMATS: Mapping[str, Format] = {
    f.name: f
    for f in (
        Format("bfloat16", 8, -126),
        Format("float16", 11, -14),
        Format("tf32", 11, -126),
        Format("float32", 24, -126),
    )
}
"""tf32 (NVIDIA A100) has float16's digits and float32's range."""


def rounded(values: NDArray[Any], target: Format) -> NDArray[Any]:
    """`values` rounded to nearest, ties to even, subnormals included; the dtype stays."""
    _, exponent = np.frexp(values)
    place = np.maximum(exponent, target.min_exponent + 1) - target.digits
    with np.errstate(invalid="ignore", over="ignore"):
        found: NDArray[Any] = np.ldexp(np.rint(np.ldexp(values, -place)), place)
    return found


def on_grid(values: NDArray[Any], target: Format) -> bool:
    """Whether every finite value is a number of the format."""
    finite = values[np.isfinite(values)]
    return bool(finite.size) and np.array_equal(rounded(finite, target), finite)
