"""Models by name: a preset is a list of layers, written as in a config, and data that fit them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from parity.cases.draw import Shape
from parity.cases.op import CaseError
from parity.training.layers import Function, check_limits

Written = str | Mapping[str, Any]
"""A layer as a config writes it."""

MAX_BLOCKS = 200


@dataclass(frozen=True)
class Preset:
    """A model by name. `data(options)` is its default data set, as written in a config.

    `layers(options, x, outputs)` are the layers for examples of shape `x`; the last one has `outputs` outputs.
    """

    name: str
    summary: str
    options: type[Any]
    data: Callable[[Any], Mapping[str, Any]]
    layers: Callable[[Any, Shape, int], list[Written]]


@dataclass(frozen=True)
class MlpOptions:
    """A perceptron with `hidden` units in each of its inner layers."""

    hidden: tuple[int, ...] = (64, 64)
    activation: Function = "relu"

    def __post_init__(self) -> None:
        check_limits(self)


@dataclass(frozen=True)
class CnnOptions:
    """A block of convolution, batch normalisation, activation and pooling for each of `channels`."""

    channels: tuple[int, ...] = (8, 16)
    activation: Function = "relu"

    def __post_init__(self) -> None:
        check_limits(self)
        if not self.channels:
            raise CaseError("channels", "channels needs at least one number")


@dataclass(frozen=True)
class BertOptions:
    """An encoder (Devlin et al. 2019) without dropout and segments; `ffn` is 4 * `hidden` by default."""

    layers: int = 2
    hidden: int = 128
    heads: int = 4
    ffn: int | None = None
    vocab: int = 1024
    sequence: int = 64

    def __post_init__(self) -> None:
        check_limits(self)
        if self.layers > MAX_BLOCKS:
            raise CaseError("layers", f"layers must be {MAX_BLOCKS} or fewer, not {self.layers}")
        if self.hidden % self.heads:
            raise CaseError("heads", f"{self.heads} heads do not divide {self.hidden} hidden features evenly")


def mlp(options: MlpOptions, x: Shape, outputs: int) -> list[Written]:
    """Linear layers with activations between them."""
    layers: list[Written] = ["flatten"] if len(x) > 1 else []
    for n in options.hidden:
        layers += [{"linear": {"out_features": n}}, {"activation": options.activation}]
    return [*layers, {"linear": {"out_features": outputs, "name": "head"}}]


def cnn(options: CnnOptions, _x: Shape, outputs: int) -> list[Written]:
    """Blocks that halve the image, then a linear layer."""
    layers: list[Written] = []
    for n in options.channels:
        conv: Written = {"conv2d": {"out_channels": n, "kernel_size": 3, "padding": 1}}
        layers += [conv, "batch_norm", {"activation": options.activation}, {"avg_pool2d": {"kernel_size": 2}}]
    return [*layers, "flatten", {"linear": {"out_features": outputs, "name": "head"}}]


INIT_STD = 0.02
BERT_EPS = 1e-12


def drawn(kind: str, name: str, **sizes: int) -> Written:
    """A layer with a matrix that is initialised as in BERT."""
    return {kind: {**sizes, "name": name, "init_std": INIT_STD}}


def norm(name: str) -> Written:
    """BERT's layer norm."""
    return {"layer_norm": {"name": name, "eps": BERT_EPS}}


def bert(options: BertOptions, _x: Shape, outputs: int) -> list[Written]:
    """Embeddings, blocks of attention and feed-forward with post-norm, and the head for masked tokens."""
    layers = [
        drawn("embedding", "embedding", embedding_dim=options.hidden, num_embeddings=options.vocab),
        drawn("position_embedding", "position", num_embeddings=options.sequence),
        norm("embedding_norm"),
    ]
    for i in range(options.layers):
        layers += bert_block(f"block{i}", options)
    transform: list[Written] = [drawn("linear", "transform", out_features=options.hidden), {"activation": "gelu"}]
    return [*layers, *transform, norm("transform_norm"), drawn("linear", "head", out_features=outputs)]


def bert_block(name: str, options: BertOptions) -> list[Written]:
    """norm(x + attention(x)), then norm(x + feed-forward(x))."""
    attention = drawn("multi_head_attention", "self", num_heads=options.heads)
    feed_forward = [
        drawn("linear", "inner", out_features=options.ffn or 4 * options.hidden),
        {"activation": "gelu"},
        drawn("linear", "outer", out_features=options.hidden),
    ]
    return [
        {"residual": {"name": f"{name}_attention", "layers": [attention]}},
        norm(f"{name}_attention_norm"),
        {"residual": {"name": f"{name}_ffn", "layers": feed_forward}},
        norm(f"{name}_ffn_norm"),
    ]


PRESETS: Mapping[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset(
            "mlp",
            "a perceptron",
            MlpOptions,
            lambda _: {"name": "classification", "features": [16], "classes": 10},
            mlp,
        ),
        Preset(
            "cnn",
            "convolutions with batch normalisation",
            CnnOptions,
            lambda options: {"name": "classification", "features": [1, *image(options)], "classes": 10},
            cnn,
        ),
        Preset(
            "bert",
            "a transformer's encoder",
            BertOptions,
            lambda options: {"name": "masked_lm", "vocab": options.vocab, "sequence": options.sequence},
            bert,
        ),
    )
}
"""Every model that a config may name."""


def image(options: CnnOptions) -> tuple[int, int]:
    """A height and width, at least 8, that can be halved once per block."""
    n = max(8, 2 ** min(len(options.channels), 30))
    return n, n
