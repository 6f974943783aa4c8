"""parity's ops as functions of arrays and params by keyword, which recorded code calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from parity.cases import OPS
from parity.cases.writable import TRACING, unwrapped, wrapped


@dataclass
class InnerOps:
    """The ops that a function calls: the params and shapes of the first call of each, by name. `changes` are arguments
    of their references with which they compute a variant."""

    changes: Mapping[str, Any] = field(default_factory=dict)
    params: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    shapes: dict[str, Mapping[str, tuple[int, ...]]] = field(default_factory=dict)


INNER: ContextVar[InnerOps | None] = ContextVar("INNER", default=None)


@contextmanager
def inner_ops(changes: Mapping[str, Any]) -> Iterator[InnerOps]:
    """Inside, calls of ops are noted, and changed."""
    calls = InnerOps(changes)
    token = INNER.set(calls)
    try:
        yield calls
    finally:
        INNER.reset(token)


def op_outputs(name: str, changes: Mapping[str, Any] | None = None, **given: Any) -> dict[str, Any]:
    """The outputs of an op's reference by name; tensors and params by keyword. Raises KeyError for an unknown op.

    `changes` are arguments of the reference with which it computes a variant of the op.
    """
    definition, is_traced = OPS[name], TRACING.get()
    given = unwrapped(given) if is_traced else given
    known = {item.name for item in definition.inputs}
    params = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    params = {name: value for name, value in params.items() if name not in known}
    if (inner := INNER.get()) is not None and name not in inner.params:
        inner.params[name] = params
        inner.shapes[name] = {n: tuple(v.shape) for n, v in given.items() if n in known and hasattr(v, "shape")}
    changes = {**(inner.changes if inner is not None else {}), **(changes or {})}
    outputs = definition.reference(
        {n: v for n, v in given.items() if n in known}, definition.params(**params), **changes
    )
    return {n: wrapped(value) for n, value in outputs.items()} if is_traced else dict(outputs)


def op(name: str, changes: Mapping[str, Any] | None = None, **given: Any) -> Any:
    """The first output of an op's reference, of those that have gradients if there are any."""
    outputs, names = op_outputs(name, changes, **given), OPS[name].grad_outputs
    return outputs[names[0]] if names else next(iter(outputs.values()))


def lifted(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of arrays as one of arrays that code may write to."""

    def compute(*operands: Any, **keywords: Any) -> Any:
        if not TRACING.get():
            return function(*operands, **keywords)
        return wrapped(function(*unwrapped(operands), **unwrapped(keywords)))

    return compute
