"""Tensors in nested arguments and results, by path: `0`, `mask`, `1.hidden`."""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Mapping, Optional, Tuple


@dataclass(frozen=True)
class Placeholder:
    """Stands for the tensor of this name or number in nested arguments."""

    key: Any


def visit(value: Any, is_tensor: Callable[[Any], bool], function: Callable[[str, Any], Any], path: str = "") -> Any:
    """`value` with function(path, tensor) in place of each tensor; unchanged containers are not copied.

    It visits tuples, lists, dicts and dataclasses, and keeps all other objects.
    """
    if is_tensor(value):
        return function(path, value)
    changed = {}
    for key, item in _items(value) or ():
        new = visit(item, is_tensor, function, f"{path}.{key}" if path else str(key))
        if new is not item:
            changed[key] = new
    return _with(value, changed) if changed else value


def filled(value: Any, tensors: Mapping[Any, Any]) -> Any:
    """`value` with tensors in place of its placeholders, by their keys."""
    return visit(value, is_placeholder, lambda _, placeholder: tensors[placeholder.key])


def is_placeholder(value: Any) -> bool:
    """Whether this stands for a tensor."""
    return isinstance(value, Placeholder)


def _items(value: Any) -> Optional[Iterable[Tuple[Any, Any]]]:
    if isinstance(value, Mapping):
        return value.items()
    if isinstance(value, (list, tuple)):
        return enumerate(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    return None


def _with(value: Any, changed: Mapping[Any, Any]) -> Any:
    if isinstance(value, tuple):
        items = [changed.get(key, item) for key, item in enumerate(value)]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    new = copy.copy(value)
    for key, item in changed.items():
        if isinstance(value, (Mapping, list)):
            new[key] = item
        else:
            object.__setattr__(new, key, item)
    return new
