"""A model of `nn` modules, for PyTorch and what follows its interface."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from parity.training.worker.job import Own
from parity.training.worker.own_layers import own_layer

Message = Mapping[str, Any]

ACTIVATIONS = {"relu": "ReLU", "gelu": "GELU", "tanh": "Tanh", "silu": "SiLU", "sigmoid": "Sigmoid"}
STATISTICS = frozenset(("running_mean", "running_var"))
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")


class TorchStyleLayers:
    """Makes modules of `framework.nn`, one method per kind of layer; their parameters have the canonical names.

    `n_axes` is the number of axes of what comes next, the rows' included.
    """

    def __init__(self, framework: Any, own: Own, n_axes: int) -> None:
        self.framework = framework
        self.nn = framework.nn
        self.own = own
        self.n_axes = n_axes

    def sequence(self, layers: Sequence[Message]) -> Any:
        """The layers one after the other."""
        return self.nn.Sequential(self.named(layers))

    def named(self, layers: Sequence[Message]) -> OrderedDict[str, Any]:
        """The layers' modules by their own names; those of a residual carry its name as well."""
        return OrderedDict((layer["name"].rpartition(".")[2], self.layer(layer)) for layer in layers)

    def layer(self, layer: Message) -> Any:
        """One layer's module, or the user's function in its place with the module's parameters."""
        module = getattr(self, layer["kind"])(layer)
        own = own_layer(self.own, layer, lambda name: getattr(module, name, None))
        if own is not None:
            module.forward = self.in_place_of(module, own)
        return module

    def in_place_of(self, module: Any, own: Callable[[Any], Mapping[str, Any]]) -> Callable[[Any], Any]:
        """The user's function as a forward pass; the running statistics that it returns go into the module's."""

        def forward(x: Any) -> Any:
            outputs = own(x)
            with self.framework.no_grad():
                for name in STATISTICS.intersection(outputs):
                    getattr(module, name).copy_(outputs[name])
            return outputs["y"]

        return forward

    def embedding(self, layer: Message) -> Any:
        self.n_axes += 1
        return self.nn.Embedding(layer["num_embeddings"], layer["embedding_dim"])

    def position_embedding(self, layer: Message) -> Any:
        return position_embedding_class(self.framework)(layer["num_embeddings"], layer["embedding_dim"])

    def linear(self, layer: Message) -> Any:
        return self.nn.Linear(layer["in_features"], layer["out_features"], bias=layer["bias"])

    def conv2d(self, layer: Message) -> Any:
        names = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "bias")
        return self.nn.Conv2d(**{name: layer[name] for name in names})

    def layer_norm(self, layer: Message) -> Any:
        return self.nn.LayerNorm(tuple(layer["normalized_shape"]), eps=layer["eps"])

    def batch_norm(self, layer: Message) -> Any:
        kind = self.nn.BatchNorm1d if self.n_axes == 2 else self.nn.BatchNorm2d
        return kind(layer["num_features"], eps=layer["eps"], momentum=layer["momentum"])

    def activation(self, layer: Message) -> Any:
        return getattr(self.nn, ACTIVATIONS[layer["function"]])()

    def multi_head_attention(self, layer: Message) -> Any:
        width = layer["embed_dim"]
        linear = {"kind": "linear", "in_features": width, "out_features": width, "bias": True}
        projections = {name: self.layer({**linear, "name": name}) for name in PROJECTIONS}
        return attention_class(self.nn)(projections, layer["num_heads"], self.attention())

    def attention(self) -> Callable[[Any, Any, Any], Any]:
        """softmax(query key^T / sqrt(d)) value over tensors [N, heads, L, d]."""
        own = self.own("scaled_dot_product_attention")
        if own is not None:
            return lambda query, key, value: own(query=query, key=key, value=value)
        return self.framework.nn.functional.scaled_dot_product_attention  # type: ignore[no-any-return]

    def residual(self, layer: Message) -> Any:
        return residual_class(self.nn)(self.named(layer["layers"]))

    def flatten(self, layer: Message) -> Any:  # noqa: ARG002 - it has no options
        self.n_axes = 2
        return self.nn.Flatten()

    def avg_pool2d(self, layer: Message) -> Any:
        return self.nn.AvgPool2d(layer["kernel_size"])


# Classes are made where a framework is known; it has no types. OneFlow's graphs call `forward` with a stand-in for
# `self`, which knows no super().


def position_embedding_class(framework: Any) -> Any:
    """x plus the embedding of each position."""

    class PositionEmbedding(framework.nn.Embedding):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            positions = framework.arange(x.shape[-2], device=x.device)
            return x + framework.nn.functional.embedding(positions, self.weight)

    return PositionEmbedding


def residual_class(nn: Any) -> Any:
    """x plus what a sequence of layers makes of it."""

    class Residual(nn.Module):  # type: ignore[misc]
        def __init__(self, layers: Mapping[str, Any]) -> None:
            super().__init__()
            self.names = list(layers)
            for name, layer in layers.items():
                setattr(self, name, layer)

        def forward(self, x: Any) -> Any:
            y = x
            for name in self.names:
                y = getattr(self, name)(y)
            return x + y

    return Residual


def attention_class(nn: Any) -> Any:
    """Self-attention (Vaswani et al. 2017) of linear projections around a function of query, key and value."""

    class MultiHeadAttention(nn.Module):  # type: ignore[misc]
        def __init__(self, projections: Mapping[str, Any], num_heads: int, attention: Callable[..., Any]) -> None:
            super().__init__()
            for name, projection in projections.items():
                setattr(self, name, projection)
            self.num_heads = num_heads
            self.attention = attention

        def forward(self, x: Any) -> Any:
            n, length, width = x.shape
            shape = (n, length, self.num_heads, width // self.num_heads)
            query, key, value = (
                projection(x).reshape(shape).transpose(1, 2) for projection in (self.q_proj, self.k_proj, self.v_proj)
            )
            mixed = self.attention(query, key, value).transpose(1, 2)
            return self.out_proj(mixed.reshape((n, length, width)))

    return MultiHeadAttention
