"""Checks what the functions of a user's file return; an error names the function, its result, and the remedy."""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping

import numpy as np

from parity.models.worker.ports.base import Port, PortError
from parity.worker.user_ops import where

Function = Callable[..., Any]

MAX_SHOWN = 40


def refused(key: str, function: Function, what: str, remedy: str) -> PortError:
    """The error about a function's result; `key` is the config's."""
    return PortError(f"{where(function)} returned {what}; {remedy}", key)


def shown(value: Any) -> str:
    """A value that is no tensor, for a message."""
    if value is None:
        return "None (is a `return` missing?)"
    if isinstance(value, type):
        return f"the class {value.__name__}, not an instance of it"
    if isinstance(value, (str, int, float)):
        return f"the {type(value).__name__} {repr(value)[:MAX_SHOWN]}"
    return f"a {type(value).__name__}"


def batch_of(function: Function) -> Dict[str, Any]:
    """The arrays of a batch by name; raises PortError."""
    given = function()
    remedy = 'return NumPy arrays by name, such as {"x": x, "labels": labels}'
    if not isinstance(given, Mapping) or not given:
        what = "an empty mapping" if isinstance(given, Mapping) else shown(given)
        raise refused("batch", function, what, remedy)
    arrays = {str(name): as_array(value) for name, value in given.items()}
    for name, array in arrays.items():
        if array is None or array.dtype.kind not in "fiub":
            raise refused("batch", function, f"{shown(given[name])} as {name!r}, which is no array of numbers", remedy)
    return arrays


def as_array(value: Any) -> Any:
    """A value as an array; None if it is none."""
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError):
        return None


def check_loss(port: Port, function: Function, value: Any, *, differentiated: bool) -> None:
    """Raises PortError unless the loss is a tensor of one number, and depends on parameters if it is differentiated."""
    if not port.is_tensor(value):
        plain = isinstance(value, (int, float)) or np.isscalar(value)
        cut = ": `.item()` and `float()` cut it off from the parameters" if plain else ""
        raise refused("loss", function, shown(value), f"return the loss, a tensor of one number{cut}")
    shape = list(port.to_array(value).shape)
    if int(np.prod(shape)) != 1:
        raise refused("loss", function, f"a tensor of shape {shape}", "return one number: its mean or its sum")
    if differentiated and not port.depends(value):
        remedy = "leave out what cuts it off: `detach`, `no_grad`, NumPy, or a model whose parameters are all frozen"
        raise refused("loss", function, "a tensor that depends on no parameter", remedy)


def metrics_of(function: Function, outputs: Any, batch: Mapping[str, Any]) -> Dict[str, float]:
    """The numbers of a metric by name; raises PortError."""
    returned = function(outputs, batch)
    named = returned if isinstance(returned, Mapping) else {function.__name__: returned}
    numbers = {str(name): number_of(value) for name, value in named.items()}
    for name, value in named.items():
        if numbers[str(name)] is None:
            what = f"{shown(value)} as {name!r}" if returned is named else shown(value)
            raise refused("metric", function, what, "return a number, or a mapping of names to numbers")
    return {name: number for name, number in numbers.items() if number is not None}


def number_of(value: Any) -> Any:
    """A value as a number; None if it is none."""
    try:
        return None if isinstance(value, (str, bytes)) else float(value)
    except (TypeError, ValueError, RuntimeError):
        return None
