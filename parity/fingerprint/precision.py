"""The dtypes that are probed, the numbers in their probes, and summaries of measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Long = NDArray[np.longdouble]


@dataclass(frozen=True)
class Precision:
    """A dtype under test.

    `digits`: bits of the significand; u = 2**-digits. `last`, `step`: of the exponents of the offsets. `huge` absorbs
    up to 256 ones in this dtype; `immense` also does so in the next wider one, and its square is still finite.
    """

    name: str
    digits: int
    last: int
    step: int
    huge: float
    immense: float

    @property
    def u(self) -> float:
        """The unit roundoff."""
        return 2.0**-self.digits

    @property
    def offsets(self) -> tuple[int, ...]:
        """The exponents of the offsets of the sweep, in rising order."""
        return tuple(range(1, self.last + 1, self.step))

    def grid(self, exponent: int) -> float:
        """The spacing of this dtype's numbers from 2**exponent to 2**(exponent + 1)."""
        return 2.0 ** (exponent + 1 - self.digits)

    def ulp(self, values: Any) -> Any:
        """The distance between neighbouring numbers of this dtype at `values`."""
        return np.spacing(np.abs(np.asarray(values)).astype(self.name)).astype(np.longdouble)

    def rounded(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Values that this dtype holds exactly, as float64."""
        return values.astype(self.name).astype(np.float64)


PRECISIONS: Mapping[str, Precision] = {
    "float32": Precision("float32", digits=24, last=17, step=1, huge=2.0**40, immense=2.0**62),
    "float64": Precision("float64", digits=53, last=29, step=2, huge=2.0**62, immense=2.0**100),
}
"""What can be probed, by dtype."""

FLOAT64_U = 2.0**-53
FLOAT32_U = 2.0**-24


def loglog_slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The slope of log(y) over log(x); both must be positive."""
    slope, _ = np.polyfit(np.log(np.asarray(x, np.float64)), np.log(np.asarray(y, np.float64)), 1)
    return float(slope)


def rms(values: ArrayLike) -> float:
    """The root of the mean square."""
    return float(np.sqrt(np.mean(np.square(values))))


def narrowing(constant: float) -> float:
    """The relative error of float32(constant)."""
    return float(np.longdouble(np.float32(constant)) / np.longdouble(constant) - 1)


def kept_in(deviation: float, narrow: float) -> str:
    """The dtype of a constant with the error `deviation`, if float32's is `narrow`; empty if neither fits."""
    wanted = {"float32": narrow, "float64": 0.0}
    return next((name for name, value in wanted.items() if abs(deviation - value) < 0.05 * abs(narrow)), "")
