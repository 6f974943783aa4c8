"""The relation between a tensor of one port and the other's: a multiple, or the same in another order."""

from __future__ import annotations

import numpy as np

from parity.config.tolerances import Tolerance
from parity.library.hints import Scene, rearranged, scaled
from parity.library.measure import MAX_ELEMENTS
from parity.models.ports import Array

LIKE = 1e-5
"""The tolerance, relative to the largest value: a few steps in float32 lose less."""
UNORDERED = "permuted-elements"


def likeness(theirs: Array, ours: Array, names: tuple[str, str]) -> str:
    """The relation as a text: `paddle is torch in reverse along axis 1`; "" if there is none. `names` are their port's
    and ours."""
    if theirs.dtype.kind != "f" or not 1 < theirs.size == ours.size <= MAX_ELEMENTS:
        return ""
    tolerance = Tolerance(LIKE, LIKE * float(np.abs(ours).max()))
    scene = Scene("", theirs, ours, tolerance, names)
    with np.errstate(all="ignore"):
        hints = (hint for experiment in (scaled, rearranged) for hint in experiment(scene))
        return next((hint.text for hint in hints if hint.diagnosis != UNORDERED), "")
