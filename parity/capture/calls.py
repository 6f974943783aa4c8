"""The data that all frameworks share: layers, their calls, and a call's tensors.

A tensor's name within a call is its path in the arguments or the result: `0` for the first positional argument
or the only output, `mask` for a keyword argument, `1.hidden` for an item of a nested tuple, list, dict or dataclass.
Arrays are copies in the tensor's dtype; bfloat16 as its bits in uint16. A dtype that NumPy lacks is float32.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Mapping, Tuple


@dataclass(frozen=True)
class CapturedLayer:
    """A layer of a model: its dotted name ("" is the model), its class's name, and its plain attributes."""

    name: str
    kind: str
    options: Mapping[str, Any]


Arguments = Tuple[Tuple[Any, ...], Mapping[str, Any]]
"""The positional and the keyword arguments of a call, with a `Placeholder` for each tensor."""


@dataclass(frozen=True)
class Call:
    """One call of a layer.

    `order` counts the calls of all layers from 0, in the order in which they begin; `nth` those of this layer;
    `depth` is the number of layers that are being called around it.
    """

    layer: str
    kind: str
    order: int
    depth: int
    nth: int = 0
    arguments: Arguments = field(default=((), {}), repr=False, compare=False)

    def tensor_name(self, role: str, where: str) -> str:
        """The name of a tensor of this call in a dump."""
        return joined(self.layer, f"call{self.nth}.{role}.{where}")


Sink = Callable[[Call, str, str, Any], None]
"""Takes a call, the tensor's role (`input`, `output`, `grad.input`, `grad.output`), its name and its values."""


def joined(prefix: str, name: str) -> str:
    """A dotted name."""
    return f"{prefix}.{name}" if prefix and name else prefix or name


def described(value: Any) -> Any:
    """An option as JSON: numbers, strings, sequences of them; the name of a function, class or dtype.

    NotImplemented for all else.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        items = [described(item) for item in value]
        return NotImplemented if NotImplemented in items else items
    if callable(value) and hasattr(value, "__name__"):
        return value.__name__
    return str(value) if type(value).__name__.lower() in ("dtype", "vartype") else NotImplemented
