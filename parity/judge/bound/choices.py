"""Gradients that are a choice: at a kink (relu at 0, equal elements under a maximum) several are right.

There, every convex combination of the limits of the gradients at points close by is right (F. H. Clarke, "Generalized
gradients and applications", Trans. AMS 205, 1975). So the reference runs at such points: an element has a kink where
its gradient jumps by the same amount at a smaller distance. A backend's gradient is a valid choice if it lies between
the limits, and if sums of gradients that do not jump, such as that over equal elements, are right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from parity.cases.draw import generator
from parity.cases.factorizations import FACTORIZATIONS
from parity.cases.op import GRADIENT
from parity.cases.oracle import evaluate, program_of
from parity.config.plan import CasePlan
from parity.judge.bound.envelope import ERROR_BOUND, UNIT_ROUNDOFF, Array, Arrays, Envelope, EnvelopeRuns, size

Mask = NDArray[np.bool_]
POWER = 0.75
"""The distance of a point is this power of the oracle's unit roundoff: larger than rounding, and small enough that
elements which differ keep their order."""
NEARER, ALIKE = 16.0, 0.25
"""A jump stays the same, within a quarter, at a 16th of the distance; the change of a smooth gradient shrinks to a
16th."""
NOISE = 1e4
"""Unit roundoffs of the oracle: a smaller change is rounding."""
TURNS = 31
"""At one of this many points an element exceeds its neighbours. A prime, so that windows are covered too."""
LARGEST = 1 << 18
"""Up to this many elements of the inputs, further points are tried, and sums over gradients are compared."""
TIE_BREAK = 2.0**-8
EXTREMES = (np.minimum, np.maximum)
UNMOVED = 2
"""The first runs of an envelope leave the inputs unperturbed, at the kink."""

FROM_ABOVE, FROM_BELOW = "the derivative from above", "the derivative from below"
FROM_BOTH = "the mean of the derivatives from both sides"
STEEPER, FLATTER = "the derivative of the steeper side", "the derivative of the flatter side"
TO_FIRST, TO_LAST = "all of it to the first of equal elements", "all of it to the last of equal elements"
SHARED, NEITHER = "a part of it to each of equal elements", "another combination of the limits"
OTHER_EQUALS, IN_ORDER = "others of equal elements", "equal elements in their order"


def chosen_indices(values: Array, indices: Array, exact: Array, dim: int) -> Mask | None:
    """Where the `indices` into `values` along `dim` differ from the `exact` ones; None unless all are right.

    An index is right if it names an equal element, and if no other index of its row is the same, where there are rows.
    Both arrays have the axes of `values`, or lack `dim`.
    """
    axis, length = dim % values.ndim, values.shape[dim]
    if not ((indices >= 0) & (indices < length)).all():
        return None
    if indices.ndim < values.ndim:
        positions, expected = (np.expand_dims(array, axis) for array in (indices, exact))
    else:
        positions, expected = indices, exact
    if not (np.diff(np.sort(positions, axis), axis=axis) > 0).all():
        return None
    one, other = (np.take_along_axis(values, array, axis) for array in (positions, expected))
    same = ((one == other) | (np.isnan(one) & np.isnan(other))).all()
    return np.asarray(indices != exact) if same else None


def ranks_of(values: Array, indices: Array, dim: int) -> Array:
    """The rank of each element of `values` among the `indices` along `dim`; the last rank for elements that are missing
    there."""
    ranks, positions = np.full(values.shape, float(indices.shape[dim])), np.indices(indices.shape)[dim]
    np.put_along_axis(ranks, indices, positions, dim)
    return ranks


@dataclass(frozen=True)
class Chosen:
    """A backend's gradients at kinks, by tensor: where the kinks are, and where its choice is valid and not the
    oracle's. `sizes` are the largest gradients close by; `backend` and `oracle` say which gradient each takes."""

    kinks: Mapping[str, Mask]
    valid: Mapping[str, Mask]
    sizes: Arrays
    backend: str = ""
    oracle: str = ""

    @property
    def tensors(self) -> tuple[str, ...]:
        """The tensors in which a valid choice differs from the oracle's."""
        return tuple(name for name, mask in self.valid.items() if mask.any())

    def envelope(self, tensor: str, envelope: Envelope, unit: float) -> Envelope:
        """The envelope without the jumps at kinks, where only rounding counts; valid choices are excluded from
        comparison."""
        if tensor not in self.kinks or envelope.errors is None:
            return envelope
        errors = np.where(self.kinks[tensor], unit * self.sizes[tensor], envelope.errors)
        total, valid = size(errors), self.valid[tensor]
        excused = valid if envelope.excused is None else valid | envelope.excused
        return replace(envelope, rms=total.rms, max=total.max, errors=errors, excused=excused)


class Choices:
    """The gradients of a case at its inputs and at points close by."""

    def __init__(self, case: CasePlan, inputs: Arrays, oracle: Arrays) -> None:
        self._case, self._inputs, self._oracle = case, inputs, oracle
        self._exact = {n: v for n, v in oracle.items() if n.startswith(GRADIENT) and n.removeprefix(GRADIENT) in inputs}
        self._roundoff = max((float(np.finfo(values.dtype).eps) for values in self._exact.values()), default=0.0)
        self._unperturbed: dict[str, Mapping[str, Envelope]] = {}

    def chosen(self, observed: Arrays, dtype: str, ranks: Arrays = MappingProxyType({})) -> Chosen | None:
        """What a backend chose; None if nothing in `observed` has a kink. `ranks`: those of `ranks_of`, by gradient."""
        exact = {n: self._exact[n] for n, v in observed.items() if n in self._exact and np.isfinite(v).all()}
        if not exact or self._factorizes or not any(point[n].any() for point in self._around for n in exact):
            return None
        errors = {n: observed[n].astype(v.dtype, copy=False) - v for n, v in exact.items()}
        points, unit = list(self._around), UNIT_ROUNDOFF[dtype]
        for further in self._further(errors, ranks):
            points += further
            low, high = ({n: f.reduce([0.0 * v, *(p[n] for p in points)]) for n, v in exact.items()} for f in EXTREMES)
            kinks = {n: (low[n] < 0) | (high[n] > 0) for n in exact}
            sizes = {n: np.maximum(np.abs(low[n] + v), np.abs(high[n] + v)) for n, v in exact.items()}
            rounding = {n: np.maximum(self._rounding(n, mask, dtype), unit * sizes[n]) for n, mask in kinks.items()}
            slack = {n: ERROR_BOUND * values for n, values in rounding.items()}
            inside = {n: (low[n] - slack[n] <= errors[n]) & (errors[n] <= high[n] + slack[n]) for n in exact}
            if all(mask.all() for mask in inside.values()):
                break
        valid = {n: kinks[n] & inside[n] & (np.abs(errors[n]) > slack[n]) for n in exact}
        if any(mask.any() for mask in valid.values()) and sum(v.size for v in exact.values()) <= LARGEST:
            broken = self._broken(points, errors, slack, kinks, valid)
            valid = {n: mask & ~broken[n] for n, mask in valid.items()}
        if not any(mask.any() for mask in valid.values()):
            return Chosen(kinks, valid, sizes)
        none = {n: np.zeros_like(v) for n, v in exact.items()}
        return Chosen(kinks, valid, sizes, self._named(errors, slack, valid), self._named(none, slack, valid))

    @cached_property
    def _factorizes(self) -> bool:
        """Whether the reference factorizes matrices: LAPACK's error in float64 is larger than the distance of points
        close by, so that nothing can be seen there."""
        program = program_of(self._case.definition, self._case.params, self._inputs, labelled=False)
        return any(step.function in FACTORIZATIONS for step in program.steps)

    @cached_property
    def _around(self) -> list[Arrays]:
        """The jumps of the gradients in two opposite directions."""
        rng, scale = generator(0, self._case.id, "kinks"), self._scale
        return self._both_directions({n: scale[n] * rng.uniform(-1.0, 1.0, v.shape) for n, v in self._exact.items()})

    @cached_property
    def _scale(self) -> dict[str, float]:
        """The size of the input of each gradient."""
        return {n: size(np.abs(self._inputs[n.removeprefix(GRADIENT)])).rms or 1.0 for n in self._exact}

    def _further(self, errors: Arrays, ranks: Arrays) -> Iterator[list[Arrays]]:
        """The jumps in directions that are likely to give a backend's gradients; then in directions in which each
        element is once the largest."""
        if ranks:
            yield self._both_directions({n: -self._scale[n] / (1 + v.max(initial=0.0)) * v for n, v in ranks.items()})
        rng, scale = generator(1, self._case.id, "kinks"), self._scale
        noise = {n: scale[n] * TIE_BREAK * rng.uniform(-1.0, 1.0, v.shape) for n, v in self._exact.items()}
        yield self._both_directions(
            {n: v + scale[n] * np.sign(errors[n]) if n in errors else v for n, v in noise.items()}
        )
        if sum(values.size for values in self._inputs.values()) > LARGEST:
            return
        for turn in range(TURNS):
            leads = {n: (np.arange(v.size).reshape(v.shape) - turn) % TURNS == 0 for n, v in self._exact.items()}
            yield self._both_directions({n: np.where(leads[n], scale[n], v) for n, v in noise.items()})

    def _both_directions(self, direction: Arrays) -> list[Arrays]:
        return [self._jumps(direction), self._jumps({n: -v for n, v in direction.items()})]

    def _jumps(self, direction: Arrays) -> Arrays:
        """The difference of the gradients close by from the exact ones, 0 if it is not a jump."""
        far, near = (self._gradients(direction, self._roundoff**POWER / divisor) for divisor in (1.0, NEARER))
        return {n: self._jump(far[n], near[n], exact) for n, exact in self._exact.items()}

    def _jump(self, far: Array, near: Array, exact: Array) -> Array:
        with np.errstate(invalid="ignore", over="ignore"):
            change, again = far - exact, near - exact
            noise = NOISE * self._roundoff * np.maximum(np.abs(near), np.abs(exact)).max(initial=0.0)
            jumps = (np.abs(change - again) <= ALIKE * np.abs(again)) & (np.abs(again) > noise)
        return np.asarray(np.where(jumps, again, 0.0))

    def _gradients(self, direction: Arrays, distance: float) -> Arrays:
        perturbed, dtype = dict(self._inputs), next(iter(self._exact.values())).dtype
        for name, shift in direction.items():
            tensor = name.removeprefix(GRADIENT)
            perturbed[tensor] = self._inputs[tensor] + distance * shift.astype(dtype)
        return evaluate(self._case.definition, self._case.params, perturbed, dtype=dtype, outputs=tuple(self._exact))

    def _rounding(self, tensor: str, kinks: Mask, dtype: str) -> float:
        """The error of a careful implementation in a tensor, without its kinks."""
        if dtype not in self._unperturbed:
            runs = EnvelopeRuns(self._case, dtype, self._inputs, self._oracle)
            self._unperturbed[dtype] = runs.envelopes(UNMOVED, tuple(self._exact))
        errors = self._unperturbed[dtype][tensor].errors
        return 0.0 if errors is None else size(errors[~kinks]).rms

    def _named(self, errors: Arrays, slack: Arrays, valid: Mapping[str, Mask]) -> str:
        """Which gradient a backend takes at the elements that are `valid`, in words."""

        def same(one: Arrays, other: Arrays) -> bool:
            return all((np.abs(one[n] - other[n]) <= slack[n])[mask].all() for n, mask in valid.items())

        above, below = self._above_and_below
        rises = {n: np.abs(v + above[n]) >= np.abs(v + below[n]) for n, v in self._exact.items()}
        candidates = {
            FROM_ABOVE: above,
            FROM_BELOW: below,
            FROM_BOTH: {n: (above[n] + below[n]) / 2 for n in valid},
            STEEPER: {n: np.where(rises[n], above[n], below[n]) for n in valid},
            FLATTER: {n: np.where(rises[n], below[n], above[n]) for n in valid},
        }
        if not same(above, below):
            return next((text for text, jumps in candidates.items() if same(errors, jumps)), NEITHER)
        given = np.concatenate([(np.abs(errors[n] + self._exact[n]) > slack[n])[mask] for n, mask in valid.items()])
        if any(same(errors, jumps) for jumps in self._in_order):
            return TO_FIRST if given[0] else TO_LAST
        return SHARED if given.all() else NEITHER

    @cached_property
    def _above_and_below(self) -> list[Arrays]:
        """The jumps if all inputs are a little larger, and if all are smaller."""
        shift = min(self._scale.values())
        return self._both_directions({n: np.full(v.shape, shift) for n, v in self._exact.items()})

    @cached_property
    def _in_order(self) -> list[Arrays]:
        """The jumps if the first of equal elements is the largest, and if the last is."""
        total, start, direction = sum(v.size for v in self._exact.values()), 0, {}
        shift = min(self._scale.values())
        for name, values in self._exact.items():
            direction[name] = shift - shift * (start + np.arange(values.size).reshape(values.shape)) / total
            start += values.size
        return self._both_directions(direction)

    def _broken(
        self,
        points: Sequence[Arrays],
        errors: Arrays,
        slack: Arrays,
        kinks: Mapping[str, Mask],
        valid: Mapping[str, Mask],
    ) -> dict[str, Mask]:
        """Where a sum that is the same at all points is wrong: over axes of a gradient, over gradients of one shape, or
        over everything. Sums without an element that is `valid` need no look: all their errors are small."""
        rest = {n: mask.copy() for n, mask in kinks.items()}
        broken = {n: np.zeros_like(mask) for n, mask in kinks.items()}
        shapes: dict[tuple[int, ...], list[str]] = {}
        for name in kinks:
            shapes.setdefault(kinks[name].shape, []).append(name)
        groups = [*([n] for n in kinks), *(names for names in shapes.values() if len(names) > 1)]
        for names in (group for group in groups if any((valid[n] & rest[n]).any() for n in group)):
            stacked = [np.stack([values[n] for n in names]) for values in (*points, errors, slack)]
            kept = np.stack([rest[n] for n in names])
            wrong, left = self._unbalanced(stacked[:-2], stacked[-2], stacked[-1], kept)
            for i, name in enumerate(names):
                broken[name] |= wrong[i]
                rest[name] = left[i]
        if not any((valid[n] & rest[n]).any() for n in kinks):
            return broken
        flat = [np.concatenate([values[n].ravel() for n in kinks]) for values in (*points, errors, slack, rest)]
        wrong, _ = self._unbalanced(flat[:-3], flat[-3], flat[-2], flat[-1])
        return {n: broken[n] | (rest[n] & bool(wrong.any())) for n in kinks}

    def _unbalanced(self, points: Sequence[Array], errors: Array, slack: Array, kinks: Mask) -> tuple[Mask, Mask]:
        """The kinks in a sum that must stay constant and does not, and the kinks in no such sum."""
        wrong, rest = np.zeros_like(kinks), kinks
        for axes in (axes for n in range(1, kinks.ndim + 1) for axes in combinations(range(kinks.ndim), n)):

            def total(values: Array, axes: tuple[int, ...] = axes, among: Mask = rest) -> Array:
                return np.asarray(np.where(among, values, 0.0).sum(axis=axes, keepdims=True))

            sizes = np.maximum.reduce([total(np.abs(jumps)) for jumps in points])
            changes = np.maximum.reduce([np.abs(total(jumps)) for jumps in points])
            fixed = (sizes > 0) & (changes <= NOISE * self._roundoff * sizes)
            wrong = wrong | (rest & fixed & (np.abs(total(errors)) > total(slack)))
            rest = rest & ~fixed
        return wrong, rest
