"""The user's functions in the place of layers: what each is called with, in PyTorch's names and layouts."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Optional, Sequence

from parity.adapters.base import named_outputs
from parity.training.worker.job import Own, plain

TENSORS: Mapping[str, Sequence[str]] = {
    "embedding": ("weight",),
    "position_embedding": ("weight",),
    "linear": ("weight", "bias"),
    "conv2d": ("weight", "bias"),
    "layer_norm": ("weight", "bias"),
    "batch_norm": ("running_mean", "running_var", "weight", "bias"),
}
"""The parameters and buffers that a layer's function gets."""

OPTIONS: Mapping[str, Sequence[str]] = {
    "conv2d": ("stride", "padding"),
    "layer_norm": ("normalized_shape", "eps"),
    "batch_norm": ("momentum", "eps"),
    "avg_pool2d": ("kernel_size",),
}
"""The options that a layer's function gets."""


def own_layer(own: Own, layer: Mapping[str, Any], tensor: Callable[[str], Any]) -> Optional[Callable[[Any], Any]]:
    """The user's function in the place of a layer, which takes x and returns its outputs by name; None without one.

    It is named after the layer's kind, an activation's after the function. `tensor(name)` is the layer's own parameter
    or buffer, None where it has none.
    """
    kind = layer["kind"]
    op = layer["function"] if kind == "activation" else kind
    function = own(op, optional=("bias",) if layer.get("bias") is False else ())
    if function is None:
        return None
    options = {name: plain(layer[name]) for name in OPTIONS.get(kind, ())}
    options.update({"training": True} if kind == "batch_norm" else {})

    def call(x: Any) -> Any:
        return named_outputs(function(x=x, **{name: tensor(name) for name in TENSORS.get(kind, ())}, **options))

    return call
