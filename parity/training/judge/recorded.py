"""Judges the rows and rates of every step, which takes no oracle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from math import inf
from typing import Any

import numpy as np

from parity.judge.bound.envelope import ERROR_BOUND, UNIT_ROUNDOFF
from parity.judge.compare.metrics import Metrics, compare
from parity.judge.diagnose.causes import Cause
from parity.judge.diagnose.findings import summary
from parity.outcome import Array
from parity.training.judge.causes import NAMED
from parity.training.judge.inquiry import StageFault
from parity.training.judge.schedule_search import explanations
from parity.training.schedules import SCHEDULES
from parity.training.spec import Training
from parity.training.steps import rates

OF_NO_STEP = Cause("unexplained", {"rows": "of no step"})
SHUFFLED = Cause("batch-order", {"rows": "another shuffle: no row comes twice in an epoch"})
SHARE = 0.5
SHOWN = 3
"""At most so many unexplained rates are shown."""


def rivals(best: Cause, causes: Iterable[Cause]) -> list[dict[str, Any]]:
    """Equally simple causes with other ids, one of each."""
    others = {c.id: dict(c.parameters) for c in causes if c.id != best.id and c.weight <= best.weight}
    return [{"id": name, "parameters": parameters} for name, parameters in others.items()]


@dataclass
class UsedRows:
    """The rows that one backend used, compared with the planned ones, `order` [steps, batch]."""

    order: Array
    accumulation: int = 1
    ranks: int = 1
    wrong_steps: dict[int, Cause] = field(default_factory=dict)
    metrics: Metrics | None = None
    used: list[Array] = field(default_factory=list)

    def take(self, first: int, rows: Array) -> None:
        """Take the rows [n, batch] of the steps from `first` on."""
        wanted = self.order[first - 1 : first - 1 + len(rows)]
        for step, (used, right) in enumerate(zip(rows, wanted, strict=False), first):
            if not self._is_right(used, right):
                self.wrong_steps[step] = self._cause(step, used, right)
            if self.metrics is None or len(self.wrong_steps) == 1:
                self.metrics = compare(used.astype(np.int64), right.astype(np.int64), 0.0, 0.0)
            self.used.append(used)

    def _is_right(self, used: Array, right: Array) -> bool:
        """Whether these are the rows of a step; ranks may share those of a micro-batch in any way."""
        if self.ranks == 1 or used.shape != right.shape:
            return np.array_equal(used, right)
        parts = (np.split(rows, self.accumulation) for rows in (used, right))
        return all(np.array_equal(np.sort(one), np.sort(other)) for one, other in zip(*parts, strict=True))

    def _cause(self, step: int, used: Array, right: Array) -> Cause:
        """The cause of a step's wrong rows."""
        if len(np.unique(used)) < min(len(used), len(np.unique(right))):
            return Cause("repeated-data", {"rows": self._repeated(used)})
        if np.array_equal(np.sort(used), np.sort(right)):
            return Cause("batch-order", {"rows": "those of the step in another order"})
        if self.used and np.array_equal(np.sort(used), np.sort(self.used[-1])):
            return Cause("repeated-data", {"rows": "those of the previous step"})
        others = np.flatnonzero((np.sort(self.order, axis=1) == np.sort(used)).all(axis=1)) + 1
        if others.size:
            nearest = int(others[np.argmin(np.abs(others - step))])
            return Cause("batch-order", {"rows": f"those of another step, {nearest - step:+d}"})
        return OF_NO_STEP

    def _repeated(self, used: Array) -> str:
        """How rows repeat within a step."""
        batches = np.split(used, self.accumulation)
        shards = [np.array_split(batch, self.ranks) for batch in batches]
        same = all(np.array_equal(np.sort(part), np.sort(parts[0])) for parts in shards for part in parts)
        return "every rank has the same rows" if same and self.ranks > 1 else "rows come more than once in a step"

    def _is_shuffled(self) -> bool:
        """Whether no row comes twice in an epoch, as in a shuffle with another seed."""
        n_rows = [len(np.unique(self.order[:n])) for n in range(1, len(self.order) + 1)]
        epoch = sum(n == (i + 1) * self.order.shape[1] for i, n in enumerate(n_rows))
        epochs = [np.concatenate(self.used[i : i + epoch]) for i in range(0, len(self.used), epoch)]
        return epoch > 1 and all(len(np.unique(rows)) == len(rows) for rows in epochs)

    @property
    def fault(self) -> StageFault | None:
        """The fault, with the cause of most steps with wrong rows; None if all rows are right."""
        if not self.wrong_steps:
            return None
        causes = {repr(cause): cause for cause in self.wrong_steps.values()}
        [(usual, count)] = Counter(map(repr, self.wrong_steps.values())).most_common(1)
        cause = SHUFFLED if causes[usual] is OF_NO_STEP and self._is_shuffled() else causes[usual]
        fault = StageFault("data", tuple(self.wrong_steps), ("data",), inf)
        if cause is OF_NO_STEP or count <= SHARE * len(self.wrong_steps):
            return fault
        return replace(fault, causes=(cause,), left=0.0, evidence={"not_told_from": rivals(cause, causes.values())})


def other_orders(order: Array, n_rows: int) -> Iterator[tuple[Cause, Array]]:
    """Mistakes in the choice of rows, each with the rows [steps, batch] that it would take instead of `order`."""
    per_epoch = max(1, n_rows // order.shape[1])
    positions = np.arange(len(order))
    in_order = np.arange(order.size).reshape(order.shape) % (per_epoch * order.shape[1])
    several = "several steps in an epoch"
    yield (
        Cause("repeated-data", {"rows": "those of the previous step"}, shown_by=several),
        order[np.maximum(positions - 1, 0)],
    )
    yield Cause("repeated-data", {"rows": "those of the first step"}, shown_by=several), order[0 * positions]
    again = order[positions % per_epoch]
    yield Cause("batch-order", {"rows": "the first epoch's in every epoch"}, shown_by="a second, shuffled epoch"), again
    yield Cause("batch-order", {"rows": "not shuffled"}, shown_by="shuffled rows"), in_order
    yield Cause("batch-order", {"rows": "in reverse within a step"}, shown_by="several rows in a step"), order[:, ::-1]


@dataclass
class UsedRates:
    """The rates that one backend used, compared with the schedule's."""

    training: Training
    dtype: str
    seen: list[Array] = field(default_factory=list)

    def take(self, lr: Array) -> None:
        """Take the rates [n, groups] of the next steps."""
        self.seen += list(np.asarray(lr, np.float64))

    @property
    def ratios(self) -> Array:
        """The distance of every step's rates from the schedule's, in unit roundoffs."""
        return self._ratios(self._expected()) if self.seen else np.zeros(0)

    @property
    def worst(self) -> tuple[float, Metrics] | None:
        """The largest ratio, and the metrics of all rates; None if the rates are unknown."""
        if not self.seen or not np.isfinite(self.seen).any():
            return None
        return float(self.ratios.max()), compare(np.stack(self.seen), self._expected(), 0.0, 0.0)

    @property
    def fault(self) -> StageFault | None:
        """The fault with its cause; None if the rates are right."""
        ratios = self.ratios
        steps = tuple((np.flatnonzero(ratios >= ERROR_BOUND) + 1).tolist())
        if not steps:
            return None
        wrong, right = self._wrong_groups(), self._expected()
        tried = [(float(self._ratios(np.where(wrong, rates, right)).max()), cause) for cause, rates in self._causes()]
        fault = StageFault("schedule", steps, ("schedule",), float(ratios.max()), parts=self._parameters(wrong))
        good = sorted(((left, c) for left, c in tried if left < ERROR_BOUND), key=lambda one: (one[1].weight, one[0]))
        if not good:
            return self._edited(replace(fault, evidence={"tried": len(tried)}))
        left, best = good[0]
        evidence = {"not_told_from": rivals(best, (c for _, c in good)), "tried": len(tried)}
        return replace(fault, causes=(best,), left=left, evidence=evidence)

    def effects(self) -> Iterator[tuple[Cause, float]]:
        """The possible causes, each with the largest distance that it would make from these rates."""
        for cause, other in self._causes():
            if cause.id != "scaled":
                yield cause, float(self._ratios(other).max())

    def _edited(self, fault: StageFault) -> StageFault:
        """The fault with an edit of the schedule that gives these rates; if there is none, with some of the rates."""
        wrong = self._wrong_groups()
        seen, exact, unit = (values[:, wrong] for values in (np.stack(self.seen), self._expected(), self._unit()))
        lr = np.array([float(group.options["lr"]) for group in self.training.groups])[wrong]
        edits = explanations(self.training.schedule, lr, seen, exact, unit) if np.isfinite(seen).all() else []
        if not edits:
            return replace(fault, evidence={**fault.evidence, "rates": self._first_rates(fault.steps)})
        best = edits[0]
        (cause,) = best.causes
        simple = [e for e in edits[1:] if e.weight <= best.weight and e.ids != best.ids]
        evidence = {**fault.evidence, "not_told_from": [summary(e) for e in simple]}
        plain, left = replace(cause, alteration=None), max(best.left.values())
        return replace(fault, causes=(plain,), left=left, evidence=evidence, expressions=(best.expression(cause),))

    def _wrong_groups(self) -> Array:
        """Whether each group has wrong rates."""
        return np.asarray((self._distances(self._expected()) >= ERROR_BOUND).any(axis=0))

    def _parameters(self, wrong: Array) -> tuple[str, ...]:
        """The parameters of the wrong groups; none if all groups are wrong."""
        groups = () if wrong.all() else [self.training.groups[i] for i in np.flatnonzero(wrong)]
        return tuple(name for group in groups for name in group.parameters)

    def _first_rates(self, steps: Sequence[int]) -> dict[str, list[Any]]:
        """The first wrong rates of the worst group, beside the exact ones."""
        first, seen, exact = list(steps[:SHOWN]), np.stack(self.seen), self._expected()
        group = int(np.argmax(np.nan_to_num(self._distances(exact), nan=inf)[first[0] - 1]))
        rows = [step - 1 for step in first]
        return {"steps": first, "mine": seen[rows, group].tolist(), "exact": exact[rows, group].tolist()}

    def _causes(self) -> Iterator[tuple[Cause, Array]]:
        """Possible causes, each with the rates [steps, groups] that it predicts."""
        expected = self._expected()
        kind = SCHEDULES[self.training.schedule.name]
        for variant in kind.variants(kind.options(**self.training.schedule.options)):
            shown = {"arguments": dict(variant.arguments)}
            yield Cause(variant.id, shown, shown_by=variant.shown_by), self._expected(**variant.arguments)
        ignored = Cause(
            "schedule-ignored", {"constant": expected[0].tolist()}, shown_by="steps in which the rate changes"
        )
        yield ignored, np.broadcast_to(expected[0], expected.shape)
        yield from self._of_other_groups(expected)
        narrow = Cause("attribute-precision", {"rounded": "float32"}, shown_by="a rate that float32 cannot represent")
        yield narrow, expected.astype(np.float32).astype(np.float64)
        factors = np.unique(np.round(np.stack(self.seen)[expected != 0] / expected[expected != 0], 6))
        if len(factors) == 1 and factors[0]:
            factor = float(factors[0])
            yield Cause("scaled", {"factor": factor}, weight=1.0), expected * factor

    def _of_other_groups(self, expected: Array) -> Iterator[tuple[Cause, Array]]:
        """A group with the rates of another group; all groups with those of the first."""
        groups = self.training.groups
        for i, j in permutations(range(len(groups)), 2):
            changed = expected.copy()
            changed[:, i] = expected[:, j]
            of, others = (list(groups[k].parameters[:3]) for k in (i, j))
            yield Cause("group-options", {"group": of, "has the rate of": others}, weight=NAMED), changed
        if len(groups) > 2:
            first = Cause("group-options", {"every group": "has the rate of the first"}, weight=NAMED)
            yield first, np.broadcast_to(expected[:, :1], expected.shape)

    def _expected(self, **arguments: Any) -> Array:
        """The schedule's rates [steps, groups], with changed arguments."""
        return np.array([rates(self.training, step, **arguments) for step in range(1, len(self.seen) + 1)])

    def _ratios(self, expected: Array) -> Array:
        """The largest distance in each step."""
        worst: Array = self._distances(expected).max(axis=1)
        return worst

    def _distances(self, expected: Array) -> Array:
        """The distance of each rate in unit roundoffs."""
        seen = np.stack(self.seen)
        with np.errstate(invalid="ignore"):
            ratios = np.abs(seen - expected) / self._unit()
        unknown = np.where(np.isfinite(seen).any(axis=0), np.inf, 0.0)
        distances: Array = np.where(np.isfinite(seen), ratios, unknown)
        return distances

    def _unit(self) -> Array:
        """The unit roundoff of the largest rate of each group, [steps, groups].

        A schedule that is updated in float64 from step to step may lose one unit roundoff of float64 in each step.
        """
        scale = np.maximum(np.abs(self._expected()).max(axis=0), np.finfo(np.float64).tiny)
        lost = 2.0**-53 * np.arange(1, len(self.seen) + 1)[:, None]
        unit: Array = scale * np.maximum(UNIT_ROUNDOFF[self.dtype], lost)
        return unit
