"""The distance of two runs of a model, in units of the model's rounding error.

The envelope of a tensor is the largest difference between the baseline's runs whose parameters and inputs are perturbed
by an ulp, and its run in float64, which is taken as its exact result. It is measured at every boundary of a layer, so
rounding that a model amplifies is no finding in later layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from parity.judge.bound.envelope import ERROR_BOUND, FLOOR, WORK, Array, Envelope, envelope_of, error_ratio, size
from parity.judge.bound.groups import Spread
from parity.models.ports import ModelError
from parity.models.worker.tape import Recorded, regrouped

RUNS = 4
"""Perturbed runs of the baseline."""
TRUTH = {"float32": "float64", "bfloat16": "float32"}
"""The dtype of the run that is taken as the exact result."""
MOST_ENVELOPE = {"bfloat16": 0.5}
"""The largest envelope of an output, relative to its size, with which ports can be compared; 0.05 in other dtypes."""


@dataclass(frozen=True)
class Distance:
    """The distance of a port's tensor from the baseline's.

    The error ratios of both, the envelope, and the size of their difference (root mean square, relative to the
    baseline's). `shapes` says how shapes or dtypes differ if the tensors cannot be compared.
    """

    ratio: float
    base_ratio: float
    envelope: Envelope
    truth: Array | None = None
    relative: float = 0.0
    shapes: str = ""

    @property
    def exceeds_bound(self) -> bool:
        """Whether it is more than rounding error."""
        return not self.ratio < ERROR_BOUND


@dataclass(frozen=True)
class ReferenceRuns:
    """The baseline's runs: the plain one, the exact one (`truth`), and perturbed ones."""

    plain: Recorded
    truth: Recorded
    perturbed: Sequence[Recorded]
    dtype: str

    def envelope(self, name: str) -> tuple[Array, Envelope]:
        """A tensor's exact value and its envelope. Raises KeyError."""
        values = (self.truth if name in self.truth else self.plain).load(name)
        exact = np.asarray(values)
        if exact.dtype.kind != "f":
            return exact, Envelope(0.0, 0.0)
        exact = exact.astype(WORK[self.dtype], copy=False)
        largest, spread = FLOOR[self.dtype] * np.abs(exact), Spread(exact.shape)
        finite = np.zeros(exact.shape, np.bool_)
        for run in (self.plain, *self.perturbed):
            if name not in run or run.shape(name) != exact.shape:
                continue
            ran = run.load(name)
            finite |= np.isfinite(ran)
            with np.errstate(invalid="ignore"):
                error = np.abs(ran - exact)
            largest = np.maximum(largest, error)
            spread.add(np.where(np.isfinite(error), error, 0))
        return exact, envelope_of(largest, exact, finite, spread.inflation)

    def check(self, port: str) -> None:
        """Raises ModelError if an output varies so much in these runs that ports cannot be compared."""
        for name in (name for name in self.plain if name.partition(".")[0] == "output"):
            exact, envelope = self.envelope(name)
            scale = size(exact).rms if exact.dtype.kind == "f" else 0.0
            if envelope.rms > MOST_ENVELOPE.get(self.dtype, 0.05) * scale > 0:
                raise ModelError(
                    f"{port}'s {name} changes by {envelope.rms / scale:.0%} if weights and inputs are perturbed by an "
                    "ulp or in another dtype: the model is random (dropout, noise; set it to 0), or rounding decides "
                    "what it returns"
                )

    def distance(
        self, name: str, other: Recorded, theirs: str, *, whole: bool = False, moved: Array | None = None
    ) -> Distance:
        """The distance of a port's tensor `theirs` (or `moved`, in the baseline's layout) from the baseline's `name`.

        `whole`: only the tensor as a whole counts, not its rows and columns.
        """
        exact, envelope = self.envelope(name)
        values = other.load(theirs) if moved is None else moved
        base = self.plain.load(name)
        if regrouped(values.shape, exact.shape):
            values = values.reshape(exact.shape)
        values = once(values, exact.shape)
        if "b" in (values.dtype.kind, exact.dtype.kind):
            values, exact = values.astype(np.int64), exact.astype(np.int64)
        if values.shape != exact.shape or (values.dtype.kind == "f") != (exact.dtype.kind == "f"):
            shapes = f"{values.dtype} {list(values.shape)}, not {base.dtype} {list(base.shape)}"
            return Distance(float("inf"), 0.0, envelope, exact, 1.0, shapes)
        if exact.dtype.kind != "f":
            same = np.array_equal(values, exact)
            return Distance(0.0 if same else float("inf"), 0.0, envelope, exact, float(not same))
        envelope = envelope.whole if whole else envelope
        held = np.asarray(values, dtype=np.float64 if self.dtype == "float64" else np.float32)
        ratio, own = error_ratio(held, exact, envelope), error_ratio(np.asarray(base, held.dtype), exact, envelope)
        with np.errstate(invalid="ignore"):
            apart, scale = size(values.astype(np.float64) - base), size(base.astype(np.float64))
        return Distance(ratio, own, envelope, exact, apart.rms / scale.rms if scale.rms else float(apart.rms > 0))


def once(values: Array, shape: Sequence[int]) -> Array:
    """A tensor without its repetitions along axes whose length is 1 in this shape, if it repeats there."""
    if values.ndim != len(shape) or any(n not in (1, m) for n, m in zip(shape, values.shape, strict=True)):
        return values
    first = values[tuple(slice(0, n) for n in shape)]
    return first if np.array_equal(np.broadcast_to(first, values.shape), values, equal_nan=True) else values


def difference(a: Array, b: Array) -> float:
    """The root mean square of a difference; infinite where shapes or finiteness differ."""
    if a.shape != b.shape or not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return float("inf")
    with np.errstate(invalid="ignore"):
        return size(a.astype(np.float64) - b).rms
