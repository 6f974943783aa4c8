"""Curves of free runs: how far a backend is from the baseline, in units of the envelope of perturbed runs.

The quantities are the loss, the norm of all gradients, and parameters, buffers and states, each pooled over all its
tensors. The envelope of a quantity is the largest distance so far of a perturbed run from the unperturbed one, and at
least a few unit roundoffs. A backend diverges when its distance from the baseline reaches 8 envelopes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from parity.config.plan import ORACLE
from parity.judge.bound.envelope import ERROR_BOUND, UNIT_ROUNDOFF
from parity.outcome import Array
from parity.training.judge.measured import EXPONENTIAL, kind_of, owner
from parity.training.records import Curves, Ensemble
from parity.training.spec import Training

SCALARS = ("loss", "grad_norm")
POOLED = ("param", "state", "buffer")
JUMP = 3.0
JUMP_STEPS = 2
"""If an element crosses a kink, the distance grows by more than this factor within this many steps; a small error in
every step makes it grow slowly."""
FLOOR = 4.0
"""The least envelope, in unit roundoffs of the largest value so far; it is larger if the loss has exponentials."""
NOISE = 0.05
"""A tensor is noise if perturbed runs differ by this part of its size. An example is a gradient that is zero except for
rounding, which an optimizer that divides by the gradient's size makes as large as any other."""


class CurveRatios(dict[str, list[float]]):
    """The distance between two runs in envelopes at every step, by quantity; NaN if unknown."""

    def first_outside(self) -> tuple[int, str, float] | None:
        """The first step at which a quantity exceeds the error bound, the worst quantity, and its ratio."""
        for i in range(max(map(len, self.values()), default=0)):
            outside = {name: r[i] for name, r in self.items() if i < len(r) and r[i] >= ERROR_BOUND}
            if outside:
                worst = max(outside, key=lambda name: outside[name])
                return i + 1, worst, outside[worst]
        return None

    def crossings(self) -> set[int]:
        """The steps at which a quantity first reaches 8, 64, 512, ... envelopes."""
        steps: set[int] = set()
        for values in self.values():
            largest = np.fmax.accumulate(np.nan_to_num(np.array(values), nan=0.0, posinf=np.finfo(float).max))
            levels = np.floor(np.emath.logn(ERROR_BOUND, np.maximum(largest, 1.0)))
            steps.update((np.flatnonzero(np.diff(levels, prepend=0.0) > 0) + 1).tolist())
        return steps

    def jumped(self) -> bool:
        """Whether tensors left the envelope at once, rather than gradually."""
        pooled = [np.nan_to_num(np.array(self[name])) for name in POOLED if self.get(name)]
        first = min(
            (int(np.argmax(values >= ERROR_BOUND)) for values in pooled if (values >= ERROR_BOUND).any()), default=None
        )
        if first is None:
            return True
        before = slice(max(0, first - JUMP_STEPS), first)
        return first > 0 and any(v[first] >= max(ERROR_BOUND, JUMP * v[before].max()) for v in pooled if len(v) > first)

    def worst(self, quantity: str) -> float | None:
        """The largest ratio of a quantity; None if it is unknown."""
        return max((r for r in self.get(quantity, ()) if r == r), default=None)


@dataclass
class RunCurves:
    """What is kept of one run: its curves, its ratios to the baseline (`ratio`) and to the oracle (`own`), and the
    norms of all tensors after the last step."""

    loss: list[float] = field(default_factory=list)
    grad_norm: list[float] = field(default_factory=list)
    lr: list[float] = field(default_factory=list)
    ratio: CurveRatios = field(default_factory=CurveRatios)
    own: CurveRatios = field(default_factory=CurveRatios)
    norms: dict[str, float] = field(default_factory=dict)

    def add(self, curves: Curves) -> None:
        """The next steps."""
        self.loss += curves.loss.tolist()
        self.grad_norm += curves.grad_norm.tolist()
        self.lr += curves.lr[:, 0].tolist() if curves.lr.size else [float("nan")] * curves.n_steps
        if curves.n_steps:
            self.norms = dict(zip(curves.tracked, curves.norms[-1].tolist(), strict=True))


class CurveJudge:
    """Measures chunks of steps as they arrive, and keeps a few numbers of each step.

    If the ensemble is the oracle's, the oracle's own run is exact. `n_members` is the number of perturbed runs that
    were not lost.
    """

    def __init__(self, training: Training, dtype: str, baseline: str, ensemble: Ensemble) -> None:
        self._baseline, self._ensemble = baseline, ensemble
        self._floor = UNIT_ROUNDOFF[dtype] * (EXPONENTIAL if training.loss.name == "cross_entropy" else FLOOR)
        self._counts = {p.name: float(np.prod(p.shape)) for p in training.tensors}
        self._largest: dict[str, Array] = {}
        self._noise: dict[str, NDArray[np.bool_]] = {}
        self.runs: dict[str, RunCurves] = {}
        self.envelope: dict[str, list[float]] = {name: [] for name in SCALARS}
        self.tracked: tuple[str, ...] = ()
        self.n_members = len(ensemble.members)

    def take(self, curves: Mapping[str, Curves]) -> None:
        """Take the next steps of every run, which all start at the same step; a run may have ended early."""
        base = curves.get(self._ensemble.base)
        exact = curves.get(ORACLE) if self._ensemble.of == ORACLE else None
        envelopes: dict[str, Array] = {}
        if base is not None:
            self.tracked = self.tracked or base.tracked
            members = [curves[name] for name in self._ensemble.members if name in curves]
            self.n_members = min(self.n_members, len(members))
            envelopes = self._envelopes(base, members)
        for name, own in curves.items():
            if name in self._ensemble.members:
                continue
            run = self.runs.setdefault(name, RunCurves())
            run.add(own)
            for ratios, other in ((run.ratio, curves.get(self._baseline)), (run.own, exact)):
                if other is not None and other is not own and envelopes:
                    for quantity, values in self._ratios(own, other, envelopes).items():
                        ratios.setdefault(quantity, []).extend(values.tolist())

    def _envelopes(self, base: Curves, members: Sequence[Curves]) -> dict[str, Array]:
        """The envelope of every quantity at each step: tensors by column, of which `usable` marks those to use."""
        n_steps = min([base.n_steps, *(m.n_steps for m in members)])
        envelopes = {}
        for name in SCALARS:
            values = getattr(base, name)[:n_steps]
            spread = largest([np.abs(getattr(m, name)[:n_steps] - values) for m in members], values)
            envelopes[name] = self._envelope(name, spread, np.abs(values))
            self.envelope[name] += envelopes[name].tolist()
        norms = base.norms[:n_steps]
        spread = largest([distances(m, base, self.tracked, n_steps) for m in members], norms)
        envelopes["tensors"] = self._envelope("tensors", spread, self._sizes(norms))
        envelopes["usable"] = self._usable(running_max(spread, 0.0), norms)
        return envelopes

    def _envelope(self, name: str, spread: Array, size: Array) -> Array:
        """The envelope at each step of a chunk: the largest spread so far, and at least a part of the largest size so
        far. Both are [steps, ...], and carried from chunk to chunk."""
        spread, size = running_max(np.stack([spread, size], axis=1), self._largest.get(name, 0.0)).swapaxes(0, 1)
        self._largest[name] = np.stack([spread[-1], size[-1]])
        return np.maximum(spread, self._floor * size)

    def _sizes(self, norms: Array) -> Array:
        """The norms; for parameters and states at least the norm of as many typical elements of their kind, so that a
        bias that starts at zero is measured by the weights around it."""
        sizes = norms.copy()
        counts = np.array([self._counts.get(owner(name), 1.0) for name in self.tracked])
        kinds = np.array([kind_of(name) for name in self.tracked])
        for kind in set(kinds.tolist()) - {"buffer"}:
            at = kinds == kind
            typical = np.sqrt((norms[:, at] ** 2).sum(axis=1) / counts[at].sum())
            sizes[:, at] = np.maximum(sizes[:, at], typical[:, None] * np.sqrt(counts[at]))
        return sizes

    def _usable(self, spread: Array, norms: Array) -> NDArray[np.bool_]:
        """Whether each tensor is usable, [steps, tracked]: until it, or another tensor of the same parameter, is
        noise."""
        noisy = spread > NOISE * norms
        owners = [owner(name) for name in self.tracked]
        for name in set(owners):
            mine = [i for i, other in enumerate(owners) if other == name]
            together = np.logical_or.accumulate(noisy[:, mine].any(axis=1)) | self._noise.get(name, np.False_)
            noisy[:, mine] = together[:, None]
            self._noise[name] = together[-1]
        return ~noisy

    def _ratios(self, run: Curves, other: Curves, envelopes: Mapping[str, Array]) -> dict[str, Array]:
        """The distance between two runs in envelopes, per quantity and step; NaN if unknown."""
        n_steps = min(run.n_steps, other.n_steps, len(envelopes["loss"]))
        ratios = {}
        for name in SCALARS:
            mine, theirs = getattr(run, name)[:n_steps], getattr(other, name)[:n_steps]
            ratios[name] = quotient(np.abs(mine - theirs), envelopes[name][:n_steps], mine, theirs)
        for curves in (run, other):
            hidden = np.isnan(curves.grad_norm[:n_steps]) & np.isfinite(curves.loss[:n_steps])
            ratios["grad_norm"] = np.where(hidden, np.nan, ratios["grad_norm"])
        shared = [name in run.tracked and name in other.tracked for name in self.tracked]
        for quantity in POOLED:
            at = [i for i, name in enumerate(self.tracked) if shared[i] and name.startswith(f"{quantity}.")]
            if at:
                names = [self.tracked[i] for i in at]
                distance = distances(run, other, names, n_steps)
                mine, theirs = columns(run, names, n_steps)[0], columns(other, names, n_steps)[0]
                squares = quotient(distance, envelopes["tensors"][:n_steps, at], mine, theirs) ** 2
                ratios[quantity] = pooled(
                    np.nan_to_num(squares, nan=0.0, posinf=np.inf), envelopes["usable"][:n_steps, at]
                )
        return ratios


def columns(curves: Curves, names: Sequence[str], n_steps: int) -> Array:
    """The norms and the projections of these tensors, [2, steps, names]."""
    at = [curves.tracked.index(name) for name in names]
    return np.stack([curves.norms[:n_steps, at], curves.sketches[:n_steps, at]])


def distances(one: Curves, other: Curves, names: Sequence[str], n_steps: int) -> Array:
    """The distance between these tensors of two runs, by norm and projection, [steps, names]."""
    with np.errstate(invalid="ignore"):
        norms, sketches = np.abs(columns(one, names, n_steps) - columns(other, names, n_steps))
    distance: Array = np.hypot(norms, sketches) / np.sqrt(2.0)
    return distance


def pooled(squares: Array, usable: NDArray[np.bool_]) -> Array:
    """The root mean square over the usable tensors at every step; NaN if there are none."""
    counted = usable.sum(axis=1)
    total = np.sqrt(np.where(usable, squares, 0.0).sum(axis=1) / np.maximum(counted, 1))
    roots: Array = np.where(counted > 0, total, np.nan)
    return roots


def running_max(values: Array, start: Array | float) -> Array:
    """The running maximum over the first axis, from `start` on; NaN is ignored."""
    largest: Array = np.fmax.accumulate(np.fmax(np.nan_to_num(values, nan=0.0, posinf=np.inf), start), axis=0)
    return largest


def largest(spread: Sequence[Array], like: Array) -> Array:
    """The elementwise maximum; zeros if there are no arrays."""
    values: Array = np.fmax.reduce(list(spread)) if spread else np.zeros_like(like)
    return values


def quotient(distance: Array, envelope: Array, mine: Array, theirs: Array) -> Array:
    """A distance in envelopes; inf where only one run is finite, 0 where neither is."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(distance > 0.0, distance / envelope, 0.0)
    both = np.isfinite(mine) & np.isfinite(theirs)
    result: Array = np.where(both, ratio, np.where(np.isfinite(mine) == np.isfinite(theirs), 0.0, np.inf))
    return result
