"""How long the oracle takes for a step: to decide whether it is quick enough to run beside the backends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from parity.training.data import GENERATORS
from parity.training.model import Pass
from parity.training.spec import Layer, Training, walk

MULTIPLY_ADD = 4e-11
ELEMENT = 1.5e-8
LAYER = 2e-4
PARAMETER = 2.5e-8
"""Seconds of one core of a server (AMD EPYC, 2023) in float64: for a multiplication and addition in a matrix product;
for an element of a layer's answer, forward and backward; for a layer whatever its size; for a parameter's update."""

LONGDOUBLE = 20.0
"""How many times as long a step takes in longdouble."""


@dataclass
class Count(Pass):
    """A pass that multiplies no matrices: it counts the multiplications, and the elements of all answers."""

    products: int = 0
    elements: int = 0

    def product(self, a: Any, b: Any) -> Any:
        """Zeros in the shape of `a @ b`."""
        self.products += a.size * b.shape[-1]
        return self.counted(np.zeros((*a.shape[:-1], b.shape[-1]), np.float32))

    def apply(self, layer: Layer, x: Any) -> Any:
        """The layer's answer."""
        return self.counted(super().apply(layer, x))

    def counted(self, values: Any) -> Any:
        """The values, once their elements are counted."""
        self.elements += values.size
        return values


def cost(training: Training) -> float:
    """Seconds that the oracle needs for one step in float64, roughly; `LONGDOUBLE` times as many in longdouble."""
    n_layers = len(list(walk(training.layers)))
    run = Count({p.name: np.zeros(p.shape, np.float32) for p in training.tensors})
    kind = GENERATORS[training.data.name]
    with np.errstate(all="ignore"):
        run.run(training.layers, np.zeros((1, *training.data.x), np.int64 if kind.tokens else np.float32))
    n_parameters = sum(int(np.prod(p.shape)) for p in training.parameters)
    per_row = 3 * MULTIPLY_ADD * run.products + ELEMENT * run.elements
    return training.batch_size * per_row + training.accumulation * LAYER * n_layers + PARAMETER * n_parameters
