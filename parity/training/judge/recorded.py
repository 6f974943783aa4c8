"""What every step tells without the oracle: the rows that were used, and the rates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.judge.bound.envelope import OFF, UNIT_ROUNDOFF
from parity.judge.compare.metrics import Metrics, compare
from parity.training.judge.hypotheses import Hypothesis
from parity.training.schedules import SCHEDULES
from parity.training.spec import Training

Array = NDArray[Any]
UNEXPLAINED = "unexplained"
SHARE = 0.5


@dataclass(frozen=True)
class Told:
    """What explains a stage that needs no oracle, from its first step outside on; `hypothesis` is None where nothing
    does. `left` is what remains, `others` explain as much."""

    steps: tuple[int, ...]
    before: float
    hypothesis: Hypothesis | None
    left: float
    others: tuple[Hypothesis, ...] = ()


@dataclass
class Rows:
    """The rows that one side used, against those of the steps, [steps, batch]."""

    order: Array
    accumulation: int = 1
    ranks: int = 1
    off: dict[int, Hypothesis] = field(default_factory=dict)
    metrics: Metrics | None = None
    _last: Array | None = None

    def take(self, first: int, rows: Array) -> None:
        """The rows [n, batch] of the steps from `first` on."""
        wanted = self.order[first - 1 : first - 1 + len(rows)]
        for i, (mine, right) in enumerate(zip(rows, wanted, strict=False)):
            if not np.array_equal(mine, right):
                self.off[first + i] = self._cause(first + i, mine, right)
            if self.metrics is None or len(self.off) == 1:
                self.metrics = compare(mine.astype(np.int64), right.astype(np.int64), 0.0, 0.0)
            self._last = mine

    def _cause(self, step: int, mine: Array, right: Array) -> Hypothesis:
        """Why a step has other rows."""
        if len(np.unique(mine)) < min(len(mine), len(np.unique(right))):
            return Hypothesis("repeated-data", {"rows": self._within(mine)})
        if np.array_equal(np.sort(mine), np.sort(right)):
            return Hypothesis("batch-order", {"rows": "those of the step in another order"})
        if self._last is not None and np.array_equal(np.sort(mine), np.sort(self._last)):
            return Hypothesis("repeated-data", {"rows": "those of the step before"})
        others = np.flatnonzero((np.sort(self.order, axis=1) == np.sort(mine)).all(axis=1)) + 1
        if others.size:
            nearest = int(others[np.argmin(np.abs(others - step))])
            return Hypothesis("batch-order", {"rows": f"those of another step, {nearest - step:+d}"})
        return Hypothesis(UNEXPLAINED, {"rows": "of no step"})

    def _within(self, mine: Array) -> str:
        """Where the same rows are found twice in a step."""
        batches = np.split(mine, self.accumulation)
        shards = [np.array_split(batch, self.ranks) for batch in batches]
        same = all(np.array_equal(np.sort(part), np.sort(parts[0])) for parts in shards for part in parts)
        return "every rank has the same rows" if same and self.ranks > 1 else "rows come more than once in a step"

    @property
    def told(self) -> Told | None:
        """The cause of most of the steps with other rows; None where there are none."""
        if not self.off:
            return None
        causes = {(h.id, repr(h.parameters)): h for h in self.off.values()}
        counts = Counter((h.id, repr(h.parameters)) for h in self.off.values())
        [(key, count)] = counts.most_common(1)
        best = causes[key]
        others = tuple(h for k, h in causes.items() if k != key and h.id != best.id)
        found = None if best.id == UNEXPLAINED else best
        left = 0.0 if found is not None and count > SHARE * len(self.off) else float("inf")
        return Told(tuple(self.off), float("inf"), found, left, others)


@dataclass
class Rates:
    """The rates that one side used, against the schedule's."""

    training: Training
    dtype: str
    seen: list[Array] = field(default_factory=list)

    def take(self, lr: Array) -> None:
        """The rates [n, groups] of the next steps."""
        self.seen += list(np.asarray(lr, np.float64))

    @property
    def ratios(self) -> Array:
        """How far the rates of every step are from the schedule's, in unit roundoffs."""
        return self._ratios({})

    @property
    def worst(self) -> tuple[float, Metrics] | None:
        """The largest ratio, and the metrics of all rates; None where they are not shown."""
        if not self.seen or not np.isfinite(self.seen).any():
            return None
        return float(self.ratios.max()), compare(np.stack(self.seen), self.expected({}), 0.0, 0.0)

    @property
    def told(self) -> Told | None:
        """What explains rates that are off; None where there are none."""
        before = self.ratios
        off = np.flatnonzero(before >= OFF)
        if not off.size:
            return None
        steps = tuple(int(i) + 1 for i in off)
        tried = [(h, float(self._left(h).max())) for h in self._hypotheses(before)]
        good = [(h, left) for h, left in tried if left < OFF]
        worst = float(before.max())
        if not good:
            return Told(steps, worst, None, worst)
        best, left = min(good, key=lambda pair: pair[0].weight)
        others = {h.id: h for h, _ in good if h.id != best.id and h.weight <= best.weight}
        return Told(steps, worst, best, left, tuple(others.values()))

    def _hypotheses(self, before: Array) -> Iterator[Hypothesis]:
        kind = SCHEDULES[self.training.schedule.name]
        for knob in kind.knobs(kind.options(**self.training.schedule.options)):
            yield Hypothesis(knob.id, {"arguments": dict(knob.arguments)}, told_by=knob.told_by)
        first = self.expected({})[0].tolist()
        yield Hypothesis("schedule-ignored", {"constant": first}, told_by="steps in which the rate changes")
        yield Hypothesis("attribute-precision", {"rounded": "float32"}, told_by="a rate that float32 cannot hold")
        factor = self._factor()
        if factor is not None and before.size:
            yield Hypothesis("scaled", {"factor": factor}, weight=1.0)

    def _left(self, hypothesis: Hypothesis) -> Array:
        """What a hypothesis leaves at every step."""
        shown = hypothesis.parameters
        if "arguments" in shown:
            return self._ratios(shown["arguments"])
        expected = self.expected({})
        if "constant" in shown:
            expected = np.broadcast_to(np.asarray(shown["constant"]), expected.shape)
        elif "rounded" in shown:
            expected = expected.astype(np.float32).astype(np.float64)
        else:
            expected = expected * shown["factor"]
        return self._away(expected)

    def _factor(self) -> float | None:
        """The factor that all rates have from what they should be."""
        seen, expected = np.stack(self.seen), self.expected({})
        usable = expected != 0
        factors = np.unique(np.round(seen[usable] / expected[usable], 6))
        return float(factors[0]) if len(factors) == 1 and factors[0] else None

    def _ratios(self, arguments: Mapping[str, Any]) -> Array:
        return self._away(self.expected(arguments)) if self.seen else np.zeros(0)

    def expected(self, arguments: Mapping[str, Any]) -> Array:
        """The schedule's rates [steps, groups], with its lines' arguments changed."""
        kind = SCHEDULES[self.training.schedule.name]
        options = kind.options(**self.training.schedule.options)
        own = [float(group.options["lr"]) for group in self.training.groups]
        return np.array([[kind.rate(lr, t, options, **arguments) for lr in own] for t in range(len(self.seen))])

    def _away(self, expected: Array) -> Array:
        """The largest distance of each step in unit roundoffs of the largest rate of a group.

        A schedule that is computed from step to step may lose one in each, in float64, in which it is computed.
        """
        seen = np.stack(self.seen)
        scale = np.maximum(np.abs(self.expected({})).max(axis=0), np.finfo(np.float64).tiny)
        lost = 2.0**-53 * np.arange(1, len(seen) + 1)[:, None]
        with np.errstate(invalid="ignore"):
            away = np.abs(seen - expected) / (scale * np.maximum(UNIT_ROUNDOFF[self.dtype], lost))
        unknown = np.where(np.isfinite(seen).any(axis=0), np.inf, 0.0)
        found: Array = np.where(np.isfinite(seen), away, unknown).max(axis=1)
        return found


def listed(steps: Sequence[int]) -> str:
    """`1, 2 and 3`."""
    names = [str(step) for step in steps]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
