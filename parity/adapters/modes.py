"""What modes of execution have in common: which ops no graph of a framework can hold."""

from __future__ import annotations

from parity.adapters.base import Unsupported

STEPS = ("adagrad", "adam", "adamw", "clip_grad_norm", "clip_grad_value", "lamb", "rmsprop", "sgd")
"""Ops that change parameters and gradients in place instead of computing tensors from tensors."""


def check_traceable(op: str, tracer: str) -> None:
    """Raise Unsupported for an op that `tracer` cannot make a graph of by itself."""
    if op in STEPS:
        raise Unsupported(f"{tracer} traces a function of tensors, and {op} is a step that changes parameters in place")
