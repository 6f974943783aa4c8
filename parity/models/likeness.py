"""What a tensor of one port is of the other's, if all of it follows: a multiple, or the same in another order."""

from __future__ import annotations

import numpy as np

from parity.config.tolerances import Tolerance
from parity.library.hints import Scene, rearranged, scaled
from parity.library.measure import MAX_ELEMENTS
from parity.models.ports import Array

LIKE = 1e-5
"""Of the largest value: float32 loses less of it in a few steps."""
UNORDERED = "permuted-elements"


def likeness(theirs: Array, ours: Array, names: tuple[str, str]) -> str:
    """In words, with the names of their port and of ours: `paddle is torch in reverse along axis 1`; "" if it is
    nothing of the kind."""
    if theirs.dtype.kind != "f" or not 1 < theirs.size == ours.size <= MAX_ELEMENTS:
        return ""
    tolerance = Tolerance(LIKE, LIKE * float(np.abs(ours).max()))
    scene = Scene("", theirs, ours, tolerance, names)
    with np.errstate(all="ignore"):
        hints = (hint for experiment in (scaled, rearranged) for hint in experiment(scene))
        return next((hint.text for hint in hints if hint.diagnosis != UNORDERED), "")
