"""A model whose layers are an adapter's ops, for frameworks whose modules keep parameters and buffers by name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parity.adapters.base import Adapter, named_outputs, with_tuples
from parity.training.worker.job import Own

Function = Callable[..., Any]


@dataclass(frozen=True)
class OpLayer:
    """An op, the model's attributes that hold its tensors (None for an absent one), and its params.

    A residual has no op but `layers`, whose output is added to x.
    """

    op: Function | None
    tensors: Mapping[str, str | None]
    params: Mapping[str, Any]
    layers: Sequence[OpLayer] = ()


def op_layer(message: Mapping[str, Any], adapter: Adapter, own: Own) -> OpLayer:
    """The layer of a message."""
    if "layers" in message:
        return OpLayer(None, {}, {}, [op_layer(item, adapter, own) for item in message["layers"]])
    tensors = {op_name: name and attribute_of(name) for op_name, name in message["tensors"].items()}
    return OpLayer(function_of(message, adapter, own), tensors, with_tuples(message["params"]))


def function_of(message: Mapping[str, Any], adapter: Adapter, own: Own) -> Function:
    """The function that computes a layer's op or a loss: the user's of that name, else the adapter's method."""
    absent = [name for name, value in message.get("tensors", {}).items() if value is None]
    function = own(message["op"], optional=(*message["droppable"], *absent))
    if function is None:
        return adapter.method(message["op"])
    return lambda **given: named_outputs(function(**given))


def attribute_of(name: str) -> str:
    """The model's attribute for a tensor; modules do not allow the dots of its canonical name."""
    return name.replace(".", "-")


def flat(layers: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The messages of all layers, including those inside residuals."""
    for layer in layers:
        yield layer
        yield from flat(layer.get("layers", ()))


def model_class(base: type[Any], transposed: Collection[str], assign: Callable[[Any, Any], None]) -> type[Any]:
    """The class of models, derived from a framework's class of modules.

    `transposed` are the attributes with matrices that the framework keeps transposed; `assign(buffer, value)`
    overwrites a buffer.
    """

    # OneFlow's graphs call `forward` with a proxy for `self`, which has no super() and rebinds bound methods.
    class OpModel(base):  # type: ignore[misc]
        def __init__(self, layers: Sequence[OpLayer]) -> None:
            super().__init__()
            self.op_layers = layers

        def forward(self, x: Any) -> Any:
            return self.through(self.op_layers, x)

        def through(self, layers: Sequence[OpLayer], x: Any) -> Any:
            for layer in layers:
                x = x + self.through(layer.layers, x) if layer.layers else self.computed(layer, x)
            return x

        def computed(self, layer: OpLayer, x: Any) -> Any:
            tensors = {name: None if at is None else self.in_layout(at) for name, at in layer.tensors.items()}
            outputs = layer.op(x=x, **tensors, **layer.params)  # type: ignore[misc]
            if not isinstance(outputs, Mapping):
                return outputs
            for name, value in outputs.items():
                # Running statistics, unless the framework's kernel has changed them in place.
                if name in tensors and value is not tensors[name]:
                    assign(tensors[name], value)
            return outputs["y"]

        def in_layout(self, attribute: str) -> Any:
            tensor = getattr(self, attribute)
            return tensor.t() if attribute in transposed else tensor

    return OpModel
