"""Tensors whose numbers carry their residues in two finite fields (`field.py`) beside float64."""

from __future__ import annotations

from typing import Any, ClassVar, Set

import torch
from torch.utils._pytree import tree_map

from parity.program.worker import field, field_constants
from parity.program.worker.field_primes import ORDER, P

MOST_CONSTANTS = 1 << 16
"""Different numbers of a tensor in code that are looked at one by one."""
NOTES: Set[str] = set()
"""The calls without a rule that have been made, and what else makes residues say less."""


class Dispatched(torch.Tensor):  # type: ignore[misc]  # PyTorch's types are not read.
    """A tensor whose calls of PyTorch's dispatcher return what `evaluate` gives (`field_mode.py`)."""

    evaluate: ClassVar[Any] = None
    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return cls.evaluate(func, args, kwargs or {})


class FieldTensor(Dispatched):
    """A tensor of float64 for PyTorch, with `value` and the residues `q` and `p` of each element."""

    value: Any
    q: Any
    p: Any

    def __new__(cls, value: Any, q: Any, p: Any) -> Any:
        """Tensors of one shape, with the same strides."""
        how = {"strides": value.stride(), "storage_offset": value.storage_offset(), "dtype": torch.float64}
        own = torch.Tensor._make_wrapper_subclass(cls, value.shape, **how)
        own.value, own.q, own.p = value, q, p
        return own

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"FieldTensor({self.value!r})"


def is_floating(value: Any) -> bool:
    """Whether an argument is a tensor of floating-point numbers."""
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def of_input(tensor: Any) -> Any:
    """A given tensor: residues are drawn for its numbers; whole numbers are themselves, where there is nothing else."""
    value = tensor.detach().double().contiguous()
    if bool((value == value.round()).all()):
        return of_constants(value)
    return FieldTensor(value, *field.of_values(value, field.NOW.key))


def of_constants(tensor: Any) -> Any:
    """A tensor that code makes: each number is what it is rounded from."""
    value = tensor.detach().double().clone()
    whole = bool((value == value.round()).all()) and bool((value.abs() < 1 << 52).all())
    if whole:
        return FieldTensor(value, torch.remainder(value, ORDER), torch.remainder(value, P))
    distinct, positions = torch.unique(value, return_inverse=True)
    if distinct.numel() > MOST_CONSTANTS:
        return FieldTensor(value, *field.of_values(value, field.NOW.key))
    parts = [field_constants.of_constant(number) for number in distinct.tolist()]
    own = [torch.empty_like(value) for _ in range(2)]
    for part, items in zip(own, zip(*parts)):
        part.copy_(torch.tensor(items, dtype=torch.float64)[positions])
    return FieldTensor(value, own[0], own[1])


def as_field(value: Any) -> Any:
    """An argument, with residues if it is a tensor of floating-point numbers."""
    return of_constants(value) if is_floating(value) and not isinstance(value, FieldTensor) else value


def part_of(values: Any, name: str) -> Any:
    """Arguments with their values, or their residues `q` or `p`, only."""
    return tree_map(lambda value: getattr(value, name) if isinstance(value, FieldTensor) else value, values)
