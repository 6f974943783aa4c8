"""How fast one number grows with another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def loglog_slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The slope of log(y) over log(x); both must be positive."""
    fitted = np.polyfit(np.log(np.asarray(x, np.float64)), np.log(np.asarray(y, np.float64)), 1)
    return float(fitted[0])
