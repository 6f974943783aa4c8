"""How near to the oracle does careful code get in this dtype? The measure by which a side is called off.

The oracle's own textbook lines run in the dtype under test, several times, on inputs moved by at most a unit roundoff
relatively; every third run sums in sequence, which is careful code too. The largest error at each element over these
runs is the envelope, at least one unit roundoff of the output. A side's error ratio is its error from the oracle over
the envelope, by root mean square and by maximum, whichever is larger.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.cases import OPS
from parity.cases.draw import generator
from parity.cases.oracle import evaluate
from parity.cases.summation import in_sequence
from parity.config.plan import CasePlan

RUNS = 12
OFF = 8.0
"""An error ratio from which a side is off. Over 196 cases (benchmarks/envelope.py) the healthy kernels of torch 2.13.0,
paddle 3.3.1 and oneflow 0.9.0 have medians below 1 and reach 7.4 at most."""

UNIT_ROUNDOFF = {"float16": 2.0**-11, "float32": 2.0**-24, "float64": 2.0**-53}

WORK = {"float16": np.float64, "float32": np.float64, "float64": np.longdouble}
"""Where errors of a dtype are computed: wide enough for its unit roundoff not to matter."""

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Envelope:
    """What careful code loses: the size of its error, and the places where it is not finite itself (None: nowhere)."""

    rms: float
    max: float
    excused: NDArray[np.bool_] | None = None


@dataclass(frozen=True)
class Size:
    """The size of an error over a tensor: root mean square and maximum."""

    rms: float
    max: float


def envelopes(case: CasePlan, dtype: str, inputs: Arrays, oracle: Arrays, runs: int = RUNS) -> dict[str, Envelope]:
    """The envelope of every output and gradient of a case in `dtype`."""
    exact = {name: values.astype(WORK[dtype]) for name, values in oracle.items()}
    largest = {name: UNIT_ROUNDOFF[dtype] * np.abs(values) for name, values in exact.items()}
    for run in range(runs):
        moved = {name: nudged(values, dtype, case.id, name, run) for name, values in inputs.items()}
        with in_sequence() if run % 3 == 1 else nullcontext():
            found = evaluate(OPS[case.op], case.params, moved, dtype=dtype, gradients=case.gradients)
        for name, values in found.items():
            largest[name] = np.maximum(largest[name], np.abs(values - exact[name]))
    return {name: envelope_of(errors, exact[name]) for name, errors in largest.items()}


def envelope_of(errors: NDArray[Any], exact: NDArray[Any]) -> Envelope:
    """The envelope with these errors; where careful code overflows and the exact answer does not, all are excused."""
    excused = np.isfinite(exact) & ~np.isfinite(errors)
    found = size(errors)
    return Envelope(found.rms, found.max, excused if excused.any() else None)


def nudged(values: NDArray[Any], dtype: str, case_id: str, name: str, run: int) -> NDArray[Any]:
    """`values` in `dtype`, each moved by at most a unit roundoff of its own; not at all in the first two runs."""
    if run < 2:
        return values.astype(dtype)
    shift = generator(run, case_id, name).uniform(-1.0, 1.0, values.shape)
    wide = values.astype(WORK[dtype])
    moved: NDArray[Any] = (wide + UNIT_ROUNDOFF[dtype] * shift * wide).astype(dtype)
    return moved


def size(errors: NDArray[Any]) -> Size:
    """The size of an error tensor, whose NaN and infinite places are passed over."""
    finite = np.abs(errors[np.isfinite(errors)])
    if not finite.size:
        return Size(0.0, 0.0)
    peak = finite.max()
    scaled = finite / peak if peak else finite
    return Size(float(peak * np.sqrt(np.mean(scaled * scaled))), float(peak))


def error_ratio(values: NDArray[Any], oracle: NDArray[Any], envelope: Envelope) -> float | None:
    """A side's error ratio; inf where it is not finite and the oracle is, or the reverse.

    None where careful code hits the oracle exactly, as it does where the exact answer is zero everywhere: there is no
    scale to measure an error by.
    """
    if envelope.excused is not None:
        values, oracle = values[~envelope.excused], oracle[~envelope.excused]
    if np.any(np.isfinite(values) != np.isfinite(oracle)):
        return float("inf")
    if not envelope.rms:
        return None
    wide = WORK[str(values.dtype)]
    error = size(values.astype(wide) - oracle.astype(wide))
    return max(error.rms / envelope.rms, error.max / envelope.max)
