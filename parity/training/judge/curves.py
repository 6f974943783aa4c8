"""Curves of free runs: how far a side is from the baseline, measured by runs whose start was moved by an ulp.

The quantities are the loss, the norm of all gradients, and parameters, buffers and states, each pooled over all of its
tensors. The envelope of a number is the largest distance of a moved run from the unmoved one up to that step, with a
floor of some unit roundoffs. A side parts where its distance from the baseline is 8 envelopes or more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.judge.bound.envelope import OFF, UNIT_ROUNDOFF
from parity.outcome import Curves
from parity.training.judge.stages import EXPONENTIAL, kind_of, owner
from parity.training.spec import Training

Array = NDArray[Any]
SCALARS = ("loss", "grad_norm")
POOLED = ("param", "state", "buffer")
JUMP = 3.0
JUMP_STEPS = 2
"""Where an element goes to the other side of a kink, the distance grows by much more than this within so many steps; a
small fault of every step makes it grow by little."""
FLOOR = 4.0
"""Unit roundoffs of the largest value so far: what an envelope is at least, and more where a loss has exponentials."""
NOISE = 0.05
"""A tensor in which moved runs differ by this part of its size holds noise: a gradient that is zero but for rounding,
which an optimizer that divides by its size makes as large as any other."""


@dataclass
class Carried:
    """What is carried from chunk to chunk: running maxima of the moved runs' distances and of the sizes."""

    spread: Array | float = 0.0
    size: Array | float = 0.0

    def envelope(self, spread: Array, size: Array, floor: float) -> Array:
        """The envelope at each step of a chunk; `spread` and `size` are [steps, ...], `floor` a part of the size."""
        found, sizes = (running(values, start) for values, start in ((spread, self.spread), (size, self.size)))
        self.spread, self.size = found[-1], sizes[-1]
        envelope: Array = np.maximum(found, floor * sizes)
        return envelope


def running(values: Array, start: Array | float) -> Array:
    """The running maximum over the first axis, with what came before; NaN counts as nothing."""
    found: Array = np.fmax.accumulate(np.fmax(np.nan_to_num(values, nan=0.0, posinf=np.inf), start), axis=0)
    return found


@dataclass
class Side:
    """What is kept of one run: the plain curves, per quantity its ratio from the baseline and its `own` from what is
    true, and the norms of all tensors after the last step."""

    loss: list[float] = field(default_factory=list)
    grad_norm: list[float] = field(default_factory=list)
    lr: list[float] = field(default_factory=list)
    ratio: dict[str, list[float]] = field(default_factory=dict)
    own: dict[str, list[float]] = field(default_factory=dict)
    norms: dict[str, float] = field(default_factory=dict)

    def parting(self, *, own: bool = False) -> tuple[int, str, float] | None:
        """The first step at which a quantity is outside, the quantity that is so most, and its ratio."""
        ratios = self.own if own else self.ratio
        n_steps = max(map(len, ratios.values()), default=0)
        for i in range(n_steps):
            outside = {name: r[i] for name, r in ratios.items() if i < len(r) and r[i] >= OFF}
            if outside:
                worst = max(outside, key=lambda name: outside[name])
                return i + 1, worst, outside[worst]
        return None

    def crossings(self, *, own: bool = False) -> list[int]:
        """The steps at which a quantity passes 8 envelopes, 64, 512, ... for the first time."""
        steps: set[int] = set()
        for values in (self.own if own else self.ratio).values():
            largest = np.fmax.accumulate(np.nan_to_num(np.array(values), nan=0.0, posinf=np.finfo(float).max))
            levels = np.floor(np.emath.logn(OFF, np.maximum(largest, 1.0)))
            steps.update((np.flatnonzero(np.diff(levels, prepend=0.0) > 0) + 1).tolist())
        return sorted(steps)

    def jumped(self, *, own: bool = False) -> bool:
        """Whether tensors that left the envelope did so at once, and did not come out of it by and by."""
        ratios = self.own if own else self.ratio
        pooled = [np.nan_to_num(np.array(ratios[name])) for name in POOLED if ratios.get(name)]
        first = min((int(np.argmax(values >= OFF)) for values in pooled if (values >= OFF).any()), default=None)
        if first is None:
            return True
        before = slice(max(0, first - JUMP_STEPS), first)
        return first > 0 and any(v[first] >= max(OFF, JUMP * v[before].max()) for v in pooled if len(v) > first)

    def worst(self, quantity: str, *, own: bool = False) -> float | None:
        """The largest ratio of a quantity; None where it was never seen."""
        found = [r for r in (self.own if own else self.ratio).get(quantity, ()) if r == r]
        return max(found, default=None)


@dataclass(frozen=True)
class Runs:
    """The names that curves are measured with: the `baseline`; the unmoved run `base` and the moved `members`; and the
    run that is `true`, if there is one: the oracle's in a wider dtype, or in this one."""

    baseline: str
    base: str
    members: tuple[str, ...]
    true: str | None


class CurveJudge:
    """Measures chunks of steps as they come; a step leaves a few numbers behind. `n_members` is how many moved runs
    took part to the end."""

    def __init__(self, training: Training, dtype: str, runs: Runs) -> None:
        self._runs = runs
        self._floor = UNIT_ROUNDOFF[dtype] * (EXPONENTIAL if training.loss.name == "cross_entropy" else FLOOR)
        self._counts = {p.name: float(np.prod(p.shape)) for p in training.tensors}
        self._carried: dict[str, Carried] = {}
        self._noise: dict[str, NDArray[np.bool_]] = {}
        self.sides: dict[str, Side] = {}
        self.envelope: dict[str, list[float]] = {name: [] for name in SCALARS}
        self.tracked: tuple[str, ...] = ()
        self.n_members = len(runs.members)

    def take(self, curves: Mapping[str, Curves]) -> None:
        """The next steps of every run, which all start at the same step; a run may have ended early."""
        runs = self._runs
        base = curves.get(runs.base)
        baseline = curves.get(runs.baseline)
        if base is None:
            measured: dict[str, Array] = {}
        else:
            self.tracked = self.tracked or base.tracked
            members = [curves[name] for name in runs.members if name in curves]
            self.n_members = min(self.n_members, len(members))
            measured = self._envelopes(base, members)
        true = curves.get(runs.true) if runs.true else None
        for name, found in curves.items():
            if name in runs.members:
                continue
            side = self.sides.setdefault(name, Side())
            side.loss += found.loss.tolist()
            side.grad_norm += found.grad_norm.tolist()
            side.norms = (
                dict(zip(found.tracked, found.norms[-1].tolist(), strict=True)) if found.n_steps else side.norms
            )
            side.lr += found.lr[:, 0].tolist() if found.lr.size else [float("nan")] * found.n_steps
            for kept, other in ((side.ratio, baseline), (side.own, true)):
                if other is not None and other is not found and measured:
                    extend(kept, self._ratios(found, other, measured))

    def _envelopes(self, base: Curves, members: Sequence[Curves]) -> dict[str, Array]:
        """The envelope of every quantity at each of these steps; tensors by column."""
        n_steps = min([base.n_steps, *(m.n_steps for m in members)])
        found = {}
        for name in SCALARS:
            values = getattr(base, name)[:n_steps]
            spread = [np.abs(getattr(m, name)[:n_steps] - values) for m in members]
            carried = self._carried.setdefault(name, Carried())
            found[name] = carried.envelope(largest(spread, values), np.abs(values), self._floor)
            self.envelope[name] += found[name].tolist()
        spread = [distances(m, base, n_steps) for m in members]
        norms = base.norms[:n_steps]
        carried = self._carried.setdefault("tensors", Carried())
        found["tensors"] = carried.envelope(largest(spread, norms), self._sizes(norms), self._floor)
        found["usable"] = self._usable(running(largest(spread, norms), 0.0), norms)
        return found

    def _sizes(self, norms: Array) -> Array:
        """The norms, and for parameters and states that of so many typical elements of their kind, if that is more: a
        bias that starts at zero is measured by the weights around it."""
        found = norms.copy()
        counts = np.array([self._counts.get(owner(name), 1.0) for name in self.tracked])
        kinds = np.array([kind_of(name) for name in self.tracked])
        for kind in set(kinds.tolist()) - {"buffer"}:
            at = kinds == kind
            typical = np.sqrt((norms[:, at] ** 2).sum(axis=1) / counts[at].sum())
            found[:, at] = np.maximum(found[:, at], typical[:, None] * np.sqrt(counts[at]))
        return found

    def _usable(self, spread: Array, norms: Array) -> NDArray[np.bool_]:
        """Where a tensor says something, [steps, tracked]: from the first step on in which it, or anything else of its
        parameter, is noise, it does not."""
        noisy = spread > NOISE * norms
        owners = [owner(name) for name in self.tracked]
        for name in set(owners):
            mine = [i for i, other in enumerate(owners) if other == name]
            together = np.logical_or.accumulate(noisy[:, mine].any(axis=1)) | self._noise.get(name, np.False_)
            noisy[:, mine] = together[:, None]
            self._noise[name] = together[-1]
        return ~noisy

    def _ratios(self, side: Curves, other: Curves, measured: Mapping[str, Array]) -> dict[str, Array]:
        """How many envelopes a run is away from another, per quantity and step; NaN where it cannot be seen."""
        n_steps = min(side.n_steps, other.n_steps, len(measured["loss"]))
        found = {}
        for name in SCALARS:
            mine, theirs = getattr(side, name)[:n_steps], getattr(other, name)[:n_steps]
            found[name] = quotient(np.abs(mine - theirs), measured[name][:n_steps], mine, theirs)
        hidden = np.isnan(side.grad_norm[:n_steps]) & np.isfinite(side.loss[:n_steps])
        hidden |= np.isnan(other.grad_norm[:n_steps]) & np.isfinite(other.loss[:n_steps])
        found["grad_norm"] = np.where(hidden, np.nan, found["grad_norm"])
        columns = [side.tracked.index(name) if name in side.tracked else -1 for name in self.tracked]
        theirs_at = [other.tracked.index(name) if name in other.tracked else -1 for name in self.tracked]
        for quantity in POOLED:
            at = [
                i
                for i, name in enumerate(self.tracked)
                if name.startswith(f"{quantity}.") and min(columns[i], theirs_at[i]) >= 0
            ]
            if at:
                mine = [columns[i] for i in at]
                theirs = [theirs_at[i] for i in at]
                found[quantity] = self._pooled(side, other, (mine, theirs), at, measured, n_steps)
        return found

    def _pooled(
        self,
        side: Curves,
        other: Curves,
        columns: tuple[list[int], list[int]],
        at: list[int],
        measured: Mapping[str, Array],
        n_steps: int,
    ) -> Array:
        """The root mean square, over the usable tensors, of how many envelopes each is away."""
        mine, theirs = columns
        away = distance(side.norms[:n_steps, mine], other.norms[:n_steps, theirs])
        away = np.hypot(away, distance(side.sketches[:n_steps, mine], other.sketches[:n_steps, theirs])) / np.sqrt(2.0)
        envelope = measured["tensors"][:n_steps, at]
        with np.errstate(divide="ignore", invalid="ignore"):
            squares = np.where(away > 0.0, away / envelope, 0.0) ** 2
        usable = measured["usable"][:n_steps, at]
        finite = np.isfinite(side.norms[:n_steps, mine]) == np.isfinite(other.norms[:n_steps, theirs])
        squares = np.where(finite, np.nan_to_num(squares, nan=0.0, posinf=np.inf), np.inf)
        counted = usable.sum(axis=1)
        total = np.sqrt(np.where(usable, squares, 0.0).sum(axis=1) / np.maximum(counted, 1))
        pooled: Array = np.where(counted > 0, total, np.nan)
        return pooled


def distance(one: Array, other: Array) -> Array:
    """The absolute difference."""
    with np.errstate(invalid="ignore"):
        found: Array = np.abs(one - other)
    return found


def distances(one: Curves, other: Curves, n_steps: int) -> Array:
    """How far the tensors of two runs are apart, by norm and projection, [steps, tracked]."""
    norms = distance(one.norms[:n_steps], other.norms[:n_steps])
    found: Array = np.hypot(norms, distance(one.sketches[:n_steps], other.sketches[:n_steps])) / np.sqrt(2.0)
    return found


def largest(spread: Sequence[Array], like: Array) -> Array:
    """The largest of several, element by element; zeros of none."""
    found: Array = np.fmax.reduce(list(spread)) if spread else np.zeros_like(like)
    return found


def quotient(away: Array, envelope: Array, mine: Array, theirs: Array) -> Array:
    """`away` in envelopes; inf where only one side is finite, 0 where both are not."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.where(away > 0.0, away / envelope, 0.0)
    both = np.isfinite(mine) & np.isfinite(theirs)
    result: Array = np.where(both, found, np.where(np.isfinite(mine) == np.isfinite(theirs), 0.0, np.inf))
    return result


def extend(kept: dict[str, list[float]], found: Mapping[str, Array]) -> None:
    """Append the ratios of a chunk."""
    for name, values in found.items():
        kept.setdefault(name, []).extend(values.tolist())
