"""Gradients of PyTorch for given gradients of outputs."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any


def scalar_of(outputs: Sequence[Any], grad_outputs: Sequence[Any]) -> Any:
    """A scalar for `torch.autograd.backward` or `grad`: what arrives at each output is its grad_output itself.

    PyTorch imports its compiler (sympy; a second) to check grad_outputs that are given to it, but not for a scalar.
    """
    return end_of_graph().apply(tuple(grad_outputs), *outputs)


@functools.cache
def end_of_graph() -> Any:
    """The function at the end of a graph: 0, whose gradients are given."""
    import torch

    class EndOfGraph(torch.autograd.Function):  # type: ignore[misc] # PyTorch has no types here
        """See `scalar_of`."""

        @staticmethod
        def forward(ctx: Any, grad_outputs: Any, *outputs: Any) -> Any:
            """0, where the first output is."""
            ctx.grad_outputs = grad_outputs
            return outputs[0].new_zeros((), dtype=torch.float32)

        @staticmethod
        def backward(ctx: Any, *_: Any) -> Any:
            """The gradients that are given."""
            return (None, *ctx.grad_outputs)

    return EndOfGraph
