"""How long the oracle takes for a step: to decide whether it is quick enough to run beside the backends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from parity.cases.exact.matmul import MATMUL
from parity.cases.program import trace
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
class CountedPass(Pass):
    """A pass that counts the elements of all answers."""

    elements: int = 0

    def apply(self, layer: Layer, x: Any) -> Any:
        """The layer's answer."""
        answer = super().apply(layer, x)
        self.elements += answer.size
        return answer


@dataclass
class CountedProducts:
    """Matrix products that are not computed: how many multiplications they take, and how many elements they have."""

    multiplications: int = 0
    elements: int = 0

    def __call__(self, a: Any, b: Any) -> Any:
        """Zeros in the shape of `a @ b`."""
        answer = np.zeros((*a.shape[:-1], b.shape[-1]), a.dtype)
        self.multiplications += a.size * b.shape[-1]
        self.elements += answer.size
        return answer


def cost(training: Training) -> float:
    """Seconds that the oracle needs for one step in float64, roughly; `LONGDOUBLE` times as many in longdouble."""
    kind, products, counted = GENERATORS[training.data.name], CountedProducts(), CountedPass({})

    def one_row(tensors: Mapping[str, Any], _params: Any) -> dict[str, Any]:
        counted.tensors = tensors
        return {"output": counted.run(training.layers, tensors["x"])}

    tensors = {p.name: np.zeros(p.shape, np.float32) for p in training.tensors}
    x = np.zeros((1, *training.data.x), np.int64 if kind.tokens else np.float32)
    program, _ = trace(one_row, {"x": x, **tensors})
    program.run({"x": x, **tensors}, np.float32, functions={MATMUL: products})
    n_layers = len(list(walk(training.layers)))
    n_parameters = sum(int(np.prod(p.shape)) for p in training.parameters)
    per_row = 3 * MULTIPLY_ADD * products.multiplications + ELEMENT * (products.elements + counted.elements)
    return training.batch_size * per_row + training.accumulation * LAYER * n_layers + PARAMETER * n_parameters
