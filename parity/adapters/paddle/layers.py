"""A model of paddle.nn's layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from parity.training.worker.own_layers import own_layer
from parity.training.worker.torch_layers import PROJECTIONS, Message, TorchStyleLayers

STATISTICS = {"running_mean": "_mean", "running_var": "_variance"}
"""Paddle's names of the statistics of batch normalisation."""

ACTIVATIONS = {"relu": "ReLU", "gelu": "GELU", "tanh": "Tanh", "silu": "Silu", "sigmoid": "Sigmoid"}
LINEAR: Message = {"kind": "linear", "bias": True}


class PaddleLayers(TorchStyleLayers):
    """Translated here: a Linear's weight is [in, out], and BatchNorm's momentum weighs the old statistic."""

    def sequence(self, layers: Sequence[Message]) -> Any:
        return self.nn.Sequential(*self.named(layers).items())

    def layer(self, layer: Message) -> Any:
        return self.replaced(layer, getattr(self, layer["kind"])(layer))

    def replaced(self, layer: Message, module: Any) -> Any:
        """The module, with the user's function in the place of its forward pass where there is one."""
        own = own_layer(self.own, layer, partial(tensor_of, module, layer["kind"] == "linear"))
        if own is not None:
            module.forward = self.in_place_of(module, own)
        return module

    def in_place_of(self, module: Any, own: Callable[[Any], Mapping[str, Any]]) -> Callable[[Any], Any]:
        def forward(x: Any) -> Any:
            outputs = own(x)
            for name in STATISTICS:
                if name in outputs:
                    tensor_of(module, False, name).set_value(outputs[name].detach())
            return outputs["y"]

        return forward

    def position_embedding(self, layer: Message) -> Any:
        class PositionEmbedding(self.nn.Embedding):  # type: ignore[misc,name-defined]
            def forward(self, x: Any) -> Any:
                return x + super().forward(paddle.arange(x.shape[-2]))

        paddle = self.framework
        return PositionEmbedding(layer["num_embeddings"], layer["embedding_dim"])

    def linear(self, layer: Message) -> Any:
        return self.nn.Linear(layer["in_features"], layer["out_features"], bias_attr=bias(layer))

    def conv2d(self, layer: Message) -> Any:
        sizes = [layer[name] for name in ("in_channels", "out_channels", "kernel_size", "stride", "padding")]
        return self.nn.Conv2D(*sizes, bias_attr=bias(layer))

    def layer_norm(self, layer: Message) -> Any:
        return self.nn.LayerNorm(layer["normalized_shape"], epsilon=layer["eps"])

    def batch_norm(self, layer: Message) -> Any:
        kind = self.nn.BatchNorm1D if self.n_axes == 2 else self.nn.BatchNorm2D
        return kind(layer["num_features"], momentum=1.0 - layer["momentum"], epsilon=layer["eps"])

    def activation(self, layer: Message) -> Any:
        return getattr(self.nn, ACTIVATIONS[layer["function"]])()

    def multi_head_attention(self, layer: Message) -> Any:
        module = self.nn.MultiHeadAttention(layer["embed_dim"], layer["num_heads"])
        for name in PROJECTIONS:
            self.replaced(LINEAR, getattr(module, name))
        own = self.own("scaled_dot_product_attention")
        if own is not None:
            module.forward = partial(attended, module, own)
        return module

    def residual(self, layer: Message) -> Any:
        class Residual(self.nn.Sequential):  # type: ignore[misc,name-defined]
            def forward(self, x: Any) -> Any:
                return x + super().forward(x)

        return Residual(*self.named(layer["layers"]).items())

    def avg_pool2d(self, layer: Message) -> Any:
        return self.nn.AvgPool2D(layer["kernel_size"])


def bias(layer: Message) -> bool | None:
    """Paddle's `bias_attr`: None for a bias, False for none."""
    return None if layer["bias"] else False


def tensor_of(module: Any, transposed: bool, name: str) -> Any:
    """A layer's parameter or statistic by PyTorch's name, in its layout; None where it has none."""
    tensor: Any = getattr(module, STATISTICS.get(name, name), None)
    return tensor.t() if transposed and name == "weight" else tensor


def attended(module: Any, attention: Callable[..., Any], x: Any) -> Any:
    """What paddle.nn.MultiHeadAttention does, around another function of query, key and value [N, heads, L, d]."""
    n, length, width = x.shape
    shape, swapped = [n, length, module.num_heads, module.head_dim], [0, 2, 1, 3]
    query, key, value = (
        projection(x).reshape(shape).transpose(swapped) for projection in (module.q_proj, module.k_proj, module.v_proj)
    )
    mixed = attention(query=query, key=key, value=value).transpose(swapped)
    return module.out_proj(mixed.reshape([n, length, width]))
