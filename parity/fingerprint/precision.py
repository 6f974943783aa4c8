"""The dtypes that are probed, and the numbers that the probes of each are made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Long = NDArray[np.longdouble]


@dataclass(frozen=True)
class Precision:
    """A dtype under test.

    `digits`: bits of the significand; u = 2**-digits. `last`, `step`: of the exponents of the offsets. `huge` swallows
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


PRECISIONS: Mapping[str, Precision] = {
    "float32": Precision("float32", digits=24, last=17, step=1, huge=2.0**40, immense=2.0**62),
    "float64": Precision("float64", digits=53, last=29, step=2, huge=2.0**62, immense=2.0**100),
}
"""What can be probed, by dtype."""

FLOAT64_U = 2.0**-53
FLOAT32_U = 2.0**-24
