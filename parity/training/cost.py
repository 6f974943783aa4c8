"""Estimates how long the oracle takes for a step, which decides whether it can run beside the backends."""

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
"""Seconds on one core of a server (AMD EPYC, 2023) in float64: for a multiplication and addition of a matrix product;
for an element of a layer's output, forward and backward; for a layer of any size; for the update of a parameter."""

LONGDOUBLE = 20.0
"""A step in longdouble takes so many times as long as in float64."""


@dataclass
class CountedPass(Pass):
    """A forward pass that counts the elements of all layers' outputs."""

    elements: int = 0

    def apply(self, layer: Layer, x: Any) -> Any:
        """The layer's output."""
        output = super().apply(layer, x)
        self.elements += output.size
        return output


@dataclass(eq=False)  # a function of a program's steps, which are looked up in sets
class CountedProducts:
    """Counts the multiplications and the elements of matrix products without computing them."""

    multiplications: int = 0
    elements: int = 0

    def __call__(self, a: Any, b: Any) -> Any:
        """Zeros in the shape of `a @ b`."""
        product = np.zeros((*a.shape[:-1], b.shape[-1]), a.dtype)
        self.multiplications += a.size * b.shape[-1]
        self.elements += product.size
        return product


def cost(training: Training) -> float:
    """Approximate seconds that the oracle takes for one step in float64; in longdouble `LONGDOUBLE` times as long."""
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
