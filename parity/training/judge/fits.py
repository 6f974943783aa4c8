"""The numbers of an optimizer that a side may have others for: what to try, and what that changes of the update."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from parity.training.judge.oracle import Changes
from parity.training.spec import Training
from parity.training.steps import Update

FRACTIONS = (0.0, 0.3, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9999)
SMALL = tuple(10.0 ** (k / 2) for k in range(-32, 1))
"""Where a fit begins: what optimizers are given as a part of 1, and what is added to something."""

COARSE: Mapping[str, Sequence[float]] = {
    "eps": SMALL,
    "weight_decay": (0.0, *SMALL),
    "lr_decay": (0.0, *SMALL),
    "momentum": FRACTIONS,
    "dampening": FRACTIONS,
    "alpha": FRACTIONS,
    "beta1": FRACTIONS,
    "beta2": FRACTIONS,
}
IDS = {"eps": "eps-value"}
"""Numbers with a diagnosis of their own; the others are `option-value`."""


@dataclass(frozen=True)
class Number:
    """A number that `groups` share, by their places: its name, what the recipe has, where a fit begins, and the options
    with another value."""

    name: str
    asked: float
    groups: Sequence[int]
    options: Callable[[float], Mapping[str, Any]]

    @property
    def id(self) -> str:
        """As what another value is told."""
        return IDS.get(self.name, "option-value")

    @property
    def coarse(self) -> Sequence[float]:
        """Where a fit begins."""
        return COARSE[self.name]

    def changes(self, value: float) -> Changes:
        """What another value changes of the update."""
        return Changes(update=Update(options={group: self.options(value) for group in self.groups}))


def numbers(training: Training) -> Iterator[Number]:
    """The numbers of the optimizer but for the rate, each of the groups that have it. A state that the recipe does not
    keep tells nothing of its number, and one that has different values is not tried."""
    groups = [group.options for group in training.groups]
    for name in groups[0]:
        having = [i for i, options in enumerate(groups) if options[name]] or [*range(len(groups))]
        value = groups[having[0]][name]
        if any(groups[i][name] != value for i in having):
            continue
        if name == "betas":
            yield Number("beta1", value[0], having, partial(first_beta, value))
            yield Number("beta2", value[1], having, partial(second_beta, value))
        elif name in COARSE and (value or name == "weight_decay"):
            yield Number(name, value, having, partial(option, name))


def option(name: str, value: float) -> dict[str, float]:
    """A number by its name."""
    return {name: value}


def first_beta(betas: Sequence[float], value: float) -> dict[str, Any]:
    """The first beta."""
    return {"betas": (value, betas[1])}


def second_beta(betas: Sequence[float], value: float) -> dict[str, Any]:
    """The second beta."""
    return {"betas": (betas[0], value)}
