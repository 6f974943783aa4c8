"""Learning-rate schedules in closed form (torch.optim.lr_scheduler): the rate of step t = 0, 1, ... of a group.

A schedule's options are a frozen dataclass whose fields are its YAML keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from parity.cases.op import CaseError, Variant


@dataclass(frozen=True)
class ConstantSchedule:
    """The group's base rate in every step."""


@dataclass(frozen=True)
class LinearSchedule:
    """torch.optim.lr_scheduler.LinearLR with end_factor 1: from `start_factor` times the rate to the rate."""

    total_iters: int
    start_factor: float = 0.0


@dataclass(frozen=True)
class PolynomialSchedule:
    """torch.optim.lr_scheduler.PolynomialLR, down to `end_lr` (as paddle.optimizer.lr.PolynomialDecay has it)."""

    total_iters: int
    power: float = 1.0
    end_lr: float = 0.0


@dataclass(frozen=True)
class CosineSchedule:
    """torch.optim.lr_scheduler.CosineAnnealingLR (Loshchilov and Hutter, 2017); it rises again after `T_max`."""

    T_max: int
    eta_min: float = 0.0


@dataclass(frozen=True)
class StepSchedule:
    """torch.optim.lr_scheduler.StepLR: multiplied by `gamma` after every `step_size` steps."""

    step_size: int
    gamma: float = 0.1


@dataclass(frozen=True)
class WarmupPolynomialSchedule:
    """BERT's: linear for t < `warmup_steps`, then polynomial, at `end_lr` from `total_iters` on (warm-up included)."""

    warmup_steps: int
    total_iters: int
    start_factor: float = 0.0
    power: float = 1.0
    end_lr: float = 0.0


def constant(lr: Any, _t: Any, _options: ConstantSchedule) -> Any:
    """lr."""
    return lr


def linear(lr: Any, t: Any, options: LinearSchedule) -> Any:
    """lr * (start + (1 - start) * min(t, T) / T)."""
    start, end = options.start_factor, options.total_iters
    return lr * (start + (1 - start) * np.minimum(t, end) / end)


def polynomial(lr: Any, t: Any, options: PolynomialSchedule) -> Any:
    """(lr - end) * (1 - min(t, T) / T) ** power + end."""
    left = 1 - np.minimum(t, options.total_iters) / options.total_iters
    return (lr - options.end_lr) * left**options.power + options.end_lr


def cosine(lr: Any, t: Any, options: CosineSchedule) -> Any:
    """eta_min + (lr - eta_min) * (1 + cos(pi * t / T_max)) / 2."""
    return options.eta_min + (lr - options.eta_min) * (1 + np.cos(np.pi * t / options.T_max)) / 2


def step(lr: Any, t: Any, options: StepSchedule) -> Any:
    """lr * gamma ** floor(t / step_size)."""
    return lr * options.gamma ** np.floor(t / options.step_size)


def warmup_polynomial(lr: Any, t: Any, options: WarmupPolynomialSchedule) -> Any:
    """`linear` over the warm-up, then `polynomial` in t - W over T - W."""
    warmup = options.warmup_steps
    since, length = (steps - warmup for steps in (t, options.total_iters))
    decayed = polynomial(lr, since, PolynomialSchedule(length, options.power, options.end_lr))
    return np.where(t < warmup, linear(lr, t, LinearSchedule(warmup, options.start_factor)), decayed)


@dataclass(frozen=True)
class ScheduleKind:
    """A schedule: its options, and `formula(lr, t, options)`, where `lr` and `t` are scalars or arrays.

    `warmup` names the option with the length of the warm-up, if there is one.
    """

    name: str
    summary: str
    options: type[Any]
    formula: Callable[[Any, Any, Any], Any]
    warmup: str = ""

    def rate(
        self,
        lr: float,
        t: int,
        options: Any,
        *,
        offset: int = 0,
        warmup_offset: int = 0,
        warmup_longer: int = 0,
        ignored: bool = False,
        dtype: str = "float64",
    ) -> float:
        """The rate of step `t` = 0, 1, ... of a group with the base rate `lr`, computed in `dtype`.

        `offset` is added to all step numbers, `warmup_offset` to those of the warm-up, which is `warmup_longer` steps
        longer. If the schedule is `ignored`, the rate is `lr`.
        """
        if ignored:
            return lr
        if self.warmup:
            length = getattr(options, self.warmup) + warmup_longer
            options = replace(options, **{self.warmup: length})
            t += warmup_offset if t < length else 0
        kind = np.dtype(dtype).type
        with np.errstate(all="ignore"):
            return float(self.formula(kind(lr), kind(max(0, t + offset)), options))

    def variants(self, options: Any) -> tuple[Variant, ...]:
        """The variants of the schedule; their `arguments` are those of `rate`."""
        if not fields(options):
            return ()
        boundaries = BOUNDARIES if self.warmup and getattr(options, self.warmup) > 1 else ()
        return (
            *(Variant("schedule-off-by-one", {"offset": by}, shown_by=CHANGES) for by in (1, -1)),
            *(Variant("warmup-boundary", arguments, shown_by=WARMS_UP) for arguments in boundaries),
            Variant("schedule-ignored", {"ignored": True}, shown_by=CHANGES),
            Variant("attribute-precision", {"dtype": "float32"}, shown_by="a rate that float32 cannot hold"),
        )


CHANGES = "steps in which the rate changes"
WARMS_UP = "steps around the end of the warm-up"
BOUNDARIES: tuple[Mapping[str, int], ...] = (
    {"warmup_offset": 1},
    {"warmup_longer": -1},
    {"warmup_longer": 1},
    {"warmup_offset": 1, "warmup_longer": 1},
)
"""Warm-ups t / W whose last step is at 1 (inclusive), a step shorter or longer, or from 1 / (W + 1) on (exclusive)."""

SCHEDULES: Mapping[str, ScheduleKind] = {
    kind.name: kind
    for kind in (
        ScheduleKind("constant", "the same rate in every step", ConstantSchedule, constant),
        ScheduleKind("linear", "a linear warm-up", LinearSchedule, linear, warmup="total_iters"),
        ScheduleKind("polynomial", "a polynomial decay", PolynomialSchedule, polynomial),
        ScheduleKind("cosine", "half a cosine", CosineSchedule, cosine),
        ScheduleKind("step", "a factor after every so many steps", StepSchedule, step),
        ScheduleKind(
            "warmup_polynomial",
            "a linear warm-up, then a polynomial decay",
            WarmupPolynomialSchedule,
            warmup_polynomial,
            warmup="warmup_steps",
        ),
    )
}
"""Every schedule, by its name in a config."""

COUNTS = frozenset(("total_iters", "T_max", "step_size"))
INT32_END = 2**31


def check(options: Any) -> None:
    """Raise CaseError, keyed by the option, for a number out of range."""
    for name, value in vars(options).items():
        if not (name in COUNTS) <= value < INT32_END:
            limits = "1, 2, ..." if name in COUNTS else "0 or more"
            raise CaseError(name, f"{name} must be {limits} (below 2**31), not {value}")
    if isinstance(options, WarmupPolynomialSchedule) and options.warmup_steps >= options.total_iters:
        raise CaseError(
            "warmup_steps",
            f"the warm-up of {options.warmup_steps} steps must end before total_iters, {options.total_iters}",
        )
