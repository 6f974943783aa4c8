"""parity's ops as functions of arrays and params by keyword, which recorded code calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from parity.cases import OPS
from parity.cases.writable import TRACING, unwrapped, wrapped


def op_outputs(name: str, changes: Mapping[str, Any] | None = None, **given: Any) -> dict[str, Any]:
    """The outputs of an op's reference by name; tensors and params by keyword. Raises KeyError for an unknown op.

    `changes` are arguments of the reference with which it computes a variant of the op.
    """
    definition, is_traced = OPS[name], TRACING.get()
    given = unwrapped(given) if is_traced else given
    known = {item.name for item in definition.inputs}
    params = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    params = {name: value for name, value in params.items() if name not in known}
    outputs = definition.reference(
        {n: v for n, v in given.items() if n in known}, definition.params(**params), **(changes or {})
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
