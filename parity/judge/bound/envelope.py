"""The error of a careful implementation in the working precision, from which a backend's error bound follows.

The op's own reference runs in the dtype under test several times, on inputs perturbed by at most one relative unit
roundoff; of three runs one sums in sequence, and one uses another algorithm of equal accuracy, or the backward pass of
a kernel, and rounds cancelling terms differently. The largest error of an element over these runs is the envelope, at
least that of rounding the output. A backend's error ratio is its error from the oracle over the envelope, by root
mean square and by maximum, over the tensor and in its worst group (`groups`), whichever is largest. Where no step of
the reference sums, an element shares its error with no other, and is compared with its own envelope, too.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.cases.draw import generator
from parity.cases.dtypes import COMPUTED_IN, as_dtype
from parity.cases.oracle import IN_PAIRS, IN_SEQUENCE, composed_in, evaluate, perturbed_rounding, program_of
from parity.config.plan import CasePlan
from parity.judge.bound.groups import Inflation, Spread, axis_sets, levels, scales
from parity.judge.bound.pointwise import pointwise

RUNS = 12
FEW_VALUES = 16
FIRST_RUNS = 3
"""One run of each kind. More runs only widen the envelope: a tensor within that of the first runs needs no more."""
ERROR_BOUND = 8.0
"""The error bound: from this error ratio on, a backend is wrong. Over 196 cases
(benchmarks/envelope.py) the healthy kernels of torch 2.13.0, paddle 3.3.1 and oneflow 0.9.0 have medians below 1 and
reach 4.3 at most, in their worst groups."""

ALONE = 2.0
"""Of one element, runs show less than of many: its own envelope may be too small by this factor. So an element is wrong
from 16 of its own envelopes on; outputs of torch 2.13.0's elementwise kernels reach 4 (198 tensors below float64)."""

LOSSY = 1024.0
"""If a careful implementation's error E grows with the condition, an algorithm whose error grows with its square has an
error of E^2 / (u |x|) times about the root of the length of its sums (naive variance of 1,024 elements: 150)."""

UNIT_ROUNDOFF = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24, "float64": 2.0**-53}

ROUNDED_ONCE = 0.42
"""The root mean square of an error of rounding to nearest, in unit roundoffs of the value: 1 over the root of 3 in half
ulps, over mantissas with a uniform logarithm (R. W. Hamming, On the Distribution of Numbers, 1970)."""
FLOOR = {dtype: u * (ROUNDED_ONCE if dtype in COMPUTED_IN else 1.0) for dtype, u in UNIT_ROUNDOFF.items()}
"""The smallest envelope, as a part of the value. In a narrow dtype all of the error is that of one rounding, which the
runs repeat; in a wider one it adds up from many, and no run has all of them."""

SMALLEST = 2.0**-126
"""Errors below the smallest normal float32 number, which kernels may flush to zero, do not count as a group's scale."""

WORK = {"bfloat16": np.float64, "float16": np.float64, "float32": np.float64, "float64": np.longdouble}
"""The dtype in which errors of a dtype are computed, so wide that its own unit roundoff does not matter. An oracle in
float64 alone (`consult_oracle`) is compared in float64."""

LEAST = {"float16": 2.0**-25}
"""The least envelope of an element by itself: half of the smallest number, or else `SMALLEST`."""

Array = NDArray[Any]
Arrays = Mapping[str, Array]


@dataclass(frozen=True)
class Envelope:
    """The error of the reference runs over a tensor: its size, and the elements where they are not finite (None:
    nowhere). `errors` is the envelope of every element, `inflation` the factor for groups of them (None: only the
    tensor as a whole is known). `own` is the envelope of every element by itself (None: elements share their errors, or
    too few runs are known)."""

    rms: float
    max: float
    excused: NDArray[np.bool_] | None = None
    errors: Array | None = field(default=None, repr=False, compare=False)
    inflation: Inflation = field(default_factory=dict, repr=False, compare=False)
    own: Array | None = field(default=None, repr=False, compare=False)

    @classmethod
    def relative(cls, unit: float, values: Array) -> Envelope:
        """A part of the size of `values`, in every group of more than one element."""
        errors = np.asarray(np.abs(values, dtype=np.result_type(values, np.float32)))
        errors *= unit
        if not np.isfinite(errors.max(initial=0.0)):
            errors[~np.isfinite(errors)] = 0
        total = size(errors)
        inflation = {axes: 1.0 for axes in axis_sets(values.shape) if axes}
        return cls(total.rms, total.max, errors=errors, inflation=inflation)

    def scaled(self, factor: float) -> Envelope:
        """The envelope of a multiple of the tensor."""
        factor = abs(factor)
        errors, own = (None if each is None else each * factor for each in (self.errors, self.own))
        return Envelope(self.rms * factor, self.max * factor, self.excused, errors, self.inflation, own)

    def alone(self, least: Array | float) -> Envelope:
        """The envelope with one of its own for every element, at least `least`."""
        return self if self.errors is None else replace(self, own=np.maximum(self.errors, least))

    @property
    def whole(self) -> Envelope:
        """The envelope of the tensor as a whole."""
        return Envelope(self.rms, self.max, self.excused)

    def joined(self, other: Envelope) -> Envelope:
        """The wider of two envelopes, element by element if known."""
        parts = [mask for mask in (self.excused, other.excused) if mask is not None]
        excused = np.logical_or.reduce(parts) if parts else None
        one, two = (np.asarray(e.rms if e.errors is None else e.errors) for e in (self, other))
        errors = None if self.errors is other.errors is None else np.maximum(one, two)
        inflation = {
            axes: max(self.inflation.get(axes, 1.0), other.inflation.get(axes, 1.0))
            for axes in (*self.inflation, *other.inflation)
        }
        known = [each for each in (errors, self.own, other.own) if each is not None]
        own = None if self.own is other.own is None else reduce(np.maximum, known)
        return Envelope(max(self.rms, other.rms), max(self.max, other.max), excused, errors, inflation, own)

    def local_ratio(self, errors: Array) -> float:
        """The ratio of the sizes of errors and envelope, both relative to the scale of their groups."""
        if not self.inflation or errors.shape != self.scale.shape:
            return 0.0
        return float((levels(errors, self.scale, self.inflation) / self.levels).max())

    def own_ratio(self, errors: Array) -> float:
        """The largest ratio of an element's error to its own envelope, less what chance may explain."""
        if self.own is None or errors.shape != self.own.shape:
            return 0.0
        return float((errors / self.own).max(initial=0.0)) / ALONE

    @cached_property
    def scale(self) -> Array:
        """The scale of every element."""
        assert self.errors is not None  # noqa: S101 - without it there are no groups
        return scales(self.errors, self.inflation, SMALLEST)

    @cached_property
    def levels(self) -> NDArray[np.float64]:
        """The sizes of the envelope relative to its own scale: 1, or more if groups differ in size."""
        assert self.errors is not None  # noqa: S101 - without it there are no groups
        return np.maximum(levels(self.errors, self.scale, self.inflation), 1.0)


@dataclass(frozen=True)
class Size:
    """The size of an error over a tensor: root mean square and maximum."""

    rms: float
    max: float


class EnvelopeRuns:
    """The reference runs of one case in one dtype, made on demand; `options` are those of the reference."""

    def __init__(self, case: CasePlan, dtype: str, inputs: Arrays, oracle: Arrays, **options: Any) -> None:
        self._case, self._dtype, self._inputs, self._options = case, dtype, inputs, options
        self._computed_in = COMPUTED_IN.get(dtype, dtype)
        self._exact = {n: values.astype(work_dtype(dtype, values), copy=False) for n, values in oracle.items()}
        self._largest: dict[str, Array] = {}
        self._finite: dict[str, NDArray[np.bool_]] = {}
        self._spread = {name: Spread(values.shape) for name, values in oracle.items()}
        self._n_runs = dict.fromkeys(oracle, 0)
        self._own: dict[str, Array] = {}

    def envelopes(self, runs: int | None = None, tensors: Collection[str] | None = None) -> dict[str, Envelope]:
        """The envelope of these tensors, or of all, after `runs` runs, by default `enough`."""
        runs = self.enough if runs is None else runs
        names = [name for name in self._exact if tensors is None or name in tensors]
        for name in names:
            if name not in self._largest:
                self._largest[name] = FLOOR[self._dtype] * np.abs(self._exact[name])
                self._finite[name] = np.zeros(self._exact[name].shape, np.bool_)
        for run in range(min(self._n_runs[name] for name in names), runs) if names else ():
            wanted = [name for name in names if self._n_runs[name] == run]
            for name, values in self._run(run, None if len(wanted) == len(self._exact) else wanted).items():
                with np.errstate(invalid="ignore"):
                    error = np.abs(values - self._exact[name])
                self._finite[name] |= np.isfinite(values)
                self._largest[name] = np.maximum(self._largest[name], error)
                self._spread[name].add(np.where(np.isfinite(error), error, 0))
            self._n_runs |= dict.fromkeys(wanted, run + 1)
        envelopes = {
            n: envelope_of(self._largest[n], self._exact[n], self._finite[n], self._spread[n].inflation) for n in names
        }
        return {n: self._alone(n, e) if self._n_runs[n] >= RUNS else e for n, e in envelopes.items()}

    @cached_property
    def pointwise(self) -> frozenset[str]:
        """The tensors whose elements have an envelope of their own."""
        case = self._case
        return pointwise(
            program_of(case.definition, case.params, self._inputs, gradients=case.gradients, labelled=False)
        )

    def _alone(self, tensor: str, envelope: Envelope) -> Envelope:
        """The envelope, with that of every element by itself where it has one."""
        if tensor not in self.pointwise or self._options:
            return envelope
        if tensor not in self._own:
            names = self.pointwise & self._exact.keys()
            self._own |= conditions(self._case, self._dtype, self._inputs, self._exact, names)
        return envelope.alone(self._own[tensor])

    @cached_property
    def _labels(self) -> frozenset[str]:
        """The inputs of a user's reference that have no gradient and are whole numbers, such as labels that it makes
        integers."""
        names = set(self._inputs) - {*self._case.definition.differentiable} if self._case.brought is not None else ()
        return frozenset(name for name in names if (self._inputs[name] == np.rint(self._inputs[name])).all())

    @property
    def enough(self) -> int:
        """Twice the usual number if a tensor has so few elements that one run reveals little about its error."""
        return RUNS * (2 if min(values.size for values in self._exact.values()) <= FEW_VALUES else 1)

    def _run(self, run: int, tensors: Collection[str] | None) -> Arrays:
        case, op, kind = self._case, self._case.definition, run % FIRST_RUNS
        others = (*op.careful, *op.forms, {}) if kind == FIRST_RUNS - 1 and not self._options else ({},)
        other = others[run // FIRST_RUNS % len(others)]
        step = 0 if op.exact else run
        perturbed_inputs = {
            name: perturbed(values, self._computed_in, case.id, name, 0 if name in self._labels else step)
            for name, values in self._inputs.items()
        }
        rounding = perturbed_rounding(generator(run, case.id, "rounding"))
        functions = IN_PAIRS, IN_SEQUENCE, {**rounding, **composed_in(self._dtype)}
        values = evaluate(
            op,
            case.params,
            perturbed_inputs,
            dtype=self._computed_in,
            gradients=case.gradients,
            functions=IN_PAIRS if other in op.careful else functions[kind],
            outputs=tensors,
            **{**op.customary, **self._options, **other},
        )
        # Perturbed, equal elements have an order; their indices are compared as a set (`choices.chosen_indices`).
        values |= {n: self._exact[n] for n in op.indexes if n in values}
        with np.errstate(over="ignore"):
            return {
                n: result if result.dtype.kind == "i" else as_dtype(result, self._dtype) for n, result in values.items()
            }


def conditions(case: CasePlan, dtype: str, inputs: Arrays, exact: Arrays, tensors: Collection[str]) -> dict[str, Array]:
    """By how much the exact elements change if inputs do by a unit roundoff of a narrow dtype, which kernels that round
    between steps cannot avoid; at least the least number that counts. In a wider dtype, perturbed runs show it."""
    total = {name: np.full(exact[name].shape, LEAST.get(dtype, SMALLEST)) for name in tensors}
    for name in [n for n, values in inputs.items() if values.dtype.kind == "f"] if dtype in COMPUTED_IN else ():
        changes = [changed_by(case, inputs, exact, tensors, name, sign * UNIT_ROUNDOFF[dtype]) for sign in (1, -1)]
        for tensor in tensors:
            total[tensor] += np.maximum(*(change[tensor] for change in changes))
    return total


def changed_by(
    case: CasePlan, inputs: Arrays, exact: Arrays, tensors: Collection[str], name: str, part: float
) -> dict[str, Array]:
    """By how much the exact elements change if one input grows by a part of itself; 0 where they are not finite."""
    grown = {**inputs, name: inputs[name].astype(np.float64) * (1 + part)}
    values = evaluate(case.definition, case.params, grown, dtype=np.float64, gradients=case.gradients, outputs=tensors)
    with np.errstate(invalid="ignore"):
        changes = {tensor: np.abs(values[tensor] - exact[tensor]) for tensor in tensors}
    return {tensor: np.where(np.isfinite(change), change, 0) for tensor, change in changes.items()}


def envelopes(case: CasePlan, dtype: str, inputs: Arrays, oracle: Arrays) -> dict[str, Envelope]:
    """The envelope of every output and gradient of a case in `dtype`."""
    return EnvelopeRuns(case, dtype, inputs, oracle).envelopes()


def envelope_of(
    errors: Array, exact: Array, finite: NDArray[np.bool_], inflation: Inflation = MappingProxyType({})
) -> Envelope:
    """The envelope with these errors. Elements are excused if the reference runs overflow and the exact answer does
    not, or if that is not finite and some run is (`finite`)."""
    excused = np.where(np.isfinite(exact), ~np.isfinite(errors), finite)
    total, known = size(errors), np.where(np.isfinite(errors), errors, 0)
    return Envelope(total.rms, total.max, excused if excused.any() else None, known, inflation)


def perturbed(values: Array, dtype: str, case_id: str, name: str, run: int) -> Array:
    """`values` in `dtype`, perturbed by at most one relative unit roundoff; unchanged in the first two runs.

    Integers stay as they are.
    """
    if values.dtype.kind != "f":
        return values
    if run < 2:
        return values.astype(dtype)
    shift = generator(run, case_id, name).uniform(-1.0, 1.0, values.shape)
    wide = values.astype(np.float64)
    with np.errstate(all="ignore"):
        shifted: Array = (wide + UNIT_ROUNDOFF[dtype] * shift * wide).astype(dtype)
    return shifted


def size(errors: Array) -> Size:
    """The size of an error tensor, without its NaN and infinite elements."""
    flat = errors.ravel()
    peak = largest(flat)
    if not np.isfinite(peak):
        flat = flat[np.isfinite(flat)]
        peak = largest(flat)
    if not peak:
        return Size(0.0, 0.0)
    if flat.dtype == np.float64 and TINY < peak < HUGE:
        return Size(math.sqrt(np.vdot(flat, flat) / flat.size), float(peak))
    scaled = (flat / peak).astype(np.float64, copy=False)
    return Size(float(peak * math.sqrt(np.vdot(scaled, scaled) / scaled.size)), float(peak))


TINY, HUGE = 1e-130, 1e130
"""Between these, squares of float64 stay in its range."""


def largest(values: Array) -> Any:
    """The largest magnitude, 0 if there is none; NaN if a value is."""
    most = values.max(initial=0.0)
    return np.nan if np.isnan(most) else max(most, -values.min(initial=0.0))


INTEGERS = "int64"


def dtype_of(exact: Array, dtype: str) -> str:
    """The dtype in which a cell of `dtype` has a tensor: integers are int64 in every cell."""
    return INTEGERS if exact.dtype.kind == "i" else dtype


def work_dtype(dtype: str, oracle: Array) -> Any:
    """The dtype in which errors from this oracle are computed."""
    return WORK.get(dtype, np.longdouble) if oracle.dtype == np.longdouble else np.float64


def error_ratio(values: Array, oracle: Array, envelope: Envelope) -> float:
    """A backend's error ratio; inf if it is not finite where the oracle is, or the reverse.

    With an envelope of zero it is 0 without an error, else inf.
    """
    wide = work_dtype(str(values.dtype), oracle)
    if envelope.excused is not None:
        values = np.where(envelope.excused, oracle, values)
    with np.errstate(invalid="ignore"):
        errors = np.asarray(np.subtract(values, oracle, dtype=wide))
        np.abs(errors, out=errors)
    error = size(errors)
    if not np.isfinite(errors.max(initial=0.0)):
        nonfinite = ~np.isfinite(errors)
        if not np.array_equal(values[nonfinite], oracle[nonfinite], equal_nan=True):
            return float("inf")
        errors[nonfinite] = 0
    if not error.max:
        return 0.0
    if not envelope.rms:
        return float("inf")
    return max(
        error.rms / envelope.rms, error.max / envelope.max, envelope.local_ratio(errors), envelope.own_ratio(errors)
    )
