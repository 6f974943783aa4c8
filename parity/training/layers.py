"""The kinds of layers: their options, whose fields are the YAML keys, the sizes that follow, and how weights start.

Weights start as those of PyTorch's layers do: linear and convolution uniformly within 1 / sqrt(fan_in) (He et al. 2015
with torch.nn's gain), embeddings from N(0, 1), norms with 1 and 0. `init_std` draws the weight from N(0, init_std)
instead, and makes the bias 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite, prod, sqrt
from typing import Any, Literal, get_args

from parity.cases.draw import Constant, Draw, Normal, Shape, Uniform
from parity.cases.op import CaseError
from parity.training.spec import Layer, Parameter

Function = Literal["relu", "gelu", "tanh", "silu", "sigmoid"]


@dataclass(frozen=True)
class Signal:
    """What goes from layer to layer: the `shape` of one example, of which a micro-batch has `rows`.

    `tokens` is how many different integers it holds, None where it holds floats.
    """

    shape: Shape
    rows: int
    tokens: int | None = None


@dataclass(frozen=True)
class Resolved:
    """A layer for a signal: all its options, the shape of its answer, its weights by their own names.

    `scratch` is how many numbers it computes for an example besides its answer.
    """

    shape: Shape
    options: Mapping[str, Any] = field(default_factory=dict)
    parameters: tuple[Parameter, ...] = ()
    scratch: int = 0


@dataclass(frozen=True)
class Kind:
    """A kind of layer. `resolve(options, signal)` raises CaseError, whose key is the option, for what does not fit.

    `short` is the option that may stand for all of them: `activation: gelu`. A kind that `adds` holds layers whose
    answer is added to its own, x.
    """

    name: str
    summary: str
    options: type[Any]
    resolve: Callable[[Any, Signal], Resolved]
    short: str = ""
    adds: bool = False


NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,59}")

MOST = 2**31
"""Sizes below it fit into a framework's integers."""

LIMITS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "name": (lambda v: NAME.fullmatch(v) is not None, "a word of letters, digits and _ (60 at most), no digit first"),
    "init_std": (lambda v: isfinite(v) and v > 0, "a finite number above 0"),
    "eps": (lambda v: isfinite(v) and v > 0, "a finite number above 0"),
    "momentum": (lambda v: 0 <= v <= 1, "from 0 to 1"),
    "padding": (lambda v: 0 <= v < MOST, "0 or more (below 2**31)"),
}
"""What the options take; any other number is a size, 1 or more."""

SIZE: tuple[Callable[[Any], bool], str] = (lambda v: 1 <= v < MOST, "1 or more (below 2**31)")


def check_limits(options: Any) -> None:
    """Raise CaseError for the first option outside of its limits."""
    for name, value in vars(options).items():
        numbers = value if isinstance(value, tuple) else (value,)
        fits, wanted = LIMITS.get(name, SIZE)
        for number in numbers:
            checked = name in LIMITS or (isinstance(number, int) and not isinstance(number, bool))
            if number is not None and checked and not fits(number):
                raise CaseError(name, f"{name} must be {wanted}, not {number}")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What every layer takes: its `name`, by default its kind and a number."""

    name: str | None = None

    def __post_init__(self) -> None:
        check_limits(self)


@dataclass(frozen=True, kw_only=True)
class Drawn(Options):
    """What a layer with a matrix takes: `init_std`, the deviation of the normal weights it starts with."""

    init_std: float | None = None


@dataclass(frozen=True)
class Linear(Drawn):
    """torch.nn.Linear over the last axis."""

    out_features: int
    bias: bool = True


@dataclass(frozen=True)
class Conv2d(Drawn):
    """torch.nn.Conv2d with a square kernel."""

    out_channels: int
    kernel_size: int
    stride: int = 1
    padding: int = 0
    bias: bool = True


@dataclass(frozen=True)
class Embedding(Drawn):
    """torch.nn.Embedding; `num_embeddings` is by default as many as there are tokens."""

    embedding_dim: int
    num_embeddings: int | None = None


@dataclass(frozen=True)
class PositionEmbedding(Drawn):
    """A learnt vector for each position; `num_embeddings` is by default the length of the sequence."""

    num_embeddings: int | None = None


@dataclass(frozen=True)
class MultiHeadAttention(Drawn):
    """Self-attention (Vaswani et al. 2017) over [length, dim], without mask and dropout."""

    num_heads: int


@dataclass(frozen=True)
class LayerNorm(Options):
    """torch.nn.LayerNorm over the last axis."""

    eps: float = 1e-5


@dataclass(frozen=True)
class BatchNorm(Options):
    """torch.nn.BatchNorm1d or 2d, in training; `momentum` is the share of the new statistics."""

    eps: float = 1e-5
    momentum: float = 0.1


@dataclass(frozen=True)
class Activation(Options):
    """An activation function; gelu is the exact one."""

    function: Function


@dataclass(frozen=True)
class AvgPool2d(Options):
    """torch.nn.AvgPool2d; the stride is the kernel's size."""

    kernel_size: int


@dataclass(frozen=True)
class Residual(Options):
    """x + what its layers make of it."""

    layers: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.layers:
            raise CaseError("layers", "residual needs layers: [linear: {out_features: 64}, ...]")


def require_floats(signal: Signal, ranks: tuple[int, ...], layout: str) -> Shape:
    """The shape of a signal of floats, an example of which has one of the numbers of axes (empty: any)."""
    if signal.tokens is not None:
        raise CaseError("", "it takes floats, and what comes here are tokens (integers): an embedding comes first")
    if ranks and len(signal.shape) not in ranks:
        raise CaseError("", f"it takes {layout} per example, and what comes here is {list(signal.shape)}")
    return signal.shape


def weights(started: Drawn, weight: Shape, bias: int, fan_in: int, prefix: str = "") -> tuple[Parameter, ...]:
    """The weight of a matrix, and its bias of this length unless that is 0."""
    bound = Uniform(-1 / sqrt(fan_in), 1 / sqrt(fan_in))
    drawn: tuple[Draw, Draw] = (bound, bound)
    if started.init_std is not None:
        drawn = (Normal(0.0, started.init_std), Constant(0.0))
    named = Parameter(f"{prefix}weight", weight, drawn[0])
    return (named, Parameter(f"{prefix}bias", (bias,), drawn[1])) if bias else (named,)


def affine(n: int) -> tuple[Parameter, Parameter]:
    """The weight and bias of a norm."""
    return Parameter("weight", (n,), Constant(1.0)), Parameter("bias", (n,), Constant(0.0))


def linear(options: Linear, signal: Signal) -> Resolved:
    """[..., in] to [..., out]."""
    *outer, n_in = require_floats(signal, (), "") or (0,)
    if not n_in:
        raise CaseError("", "it takes at least one axis per example")
    n_out = options.out_features
    sizes = {"in_features": n_in, "out_features": n_out, "bias": options.bias}
    return Resolved((*outer, n_out), sizes, weights(options, (n_out, n_in), n_out * options.bias, n_in))


def conv2d(options: Conv2d, signal: Signal) -> Resolved:
    """[channels, height, width] to [out_channels, ...]."""
    n_in, *size = require_floats(signal, (3,), "[channels, height, width]")
    k, n_out = options.kernel_size, options.out_channels
    if k > min(size) + 2 * options.padding:
        raise CaseError("kernel_size", f"a kernel of {k} is larger than {size} with a padding of {options.padding}")
    after = tuple((n + 2 * options.padding - k) // options.stride + 1 for n in size)
    sizes = {key: getattr(options, key) for key in ("out_channels", "kernel_size", "stride", "padding", "bias")}
    fan_in = n_in * k * k
    drawn = weights(options, (n_out, n_in, k, k), n_out * options.bias, fan_in)
    return Resolved((n_out, *after), {"in_channels": n_in, **sizes}, drawn, scratch=fan_in * prod(after))


def embedding(options: Embedding, signal: Signal) -> Resolved:
    """Tokens [...] to [..., dim]."""
    if signal.tokens is None:
        raise CaseError("", "it takes tokens (integers), and what comes here are floats")
    rows, dim = options.num_embeddings or signal.tokens, options.embedding_dim
    if rows < signal.tokens:
        raise CaseError("num_embeddings", f"{rows} embeddings for {signal.tokens} different tokens")
    drawn = Parameter("weight", (rows, dim), Normal(0.0, options.init_std or 1.0))
    return Resolved((*signal.shape, dim), {"num_embeddings": rows, "embedding_dim": dim}, (drawn,))


def position_embedding(options: PositionEmbedding, signal: Signal) -> Resolved:
    """[length, dim] plus a vector for each position."""
    length, dim = require_floats(signal, (2,), "[length, dim]")
    rows = options.num_embeddings or length
    if rows < length:
        raise CaseError("num_embeddings", f"{rows} positions for a sequence of {length}")
    drawn = Parameter("weight", (rows, dim), Normal(0.0, options.init_std or 1.0))
    return Resolved((length, dim), {"num_embeddings": rows, "embedding_dim": dim}, (drawn,))


def layer_norm(options: LayerNorm, signal: Signal) -> Resolved:
    """Any shape, normalised over its last axis."""
    shape = require_floats(signal, (), "")
    if not shape:
        raise CaseError("", "it takes at least one axis per example")
    return Resolved(shape, {"normalized_shape": [shape[-1]], "eps": options.eps}, affine(shape[-1]))


def batch_norm(options: BatchNorm, signal: Signal) -> Resolved:
    """[channels] or [channels, height, width], normalised over the micro-batch and the places."""
    shape = require_floats(signal, (1, 3), "[channels] or [channels, height, width]")
    if signal.rows * prod(shape[1:]) < 2:
        raise CaseError("", "a micro-batch of one example has one value per channel, which has no variance")
    running = (("running_mean", 0.0), ("running_var", 1.0))
    buffers = (Parameter(name, shape[:1], Constant(value), trained=False) for name, value in running)
    sizes = {"num_features": shape[0], "eps": options.eps, "momentum": options.momentum}
    return Resolved(shape, sizes, (*affine(shape[0]), *buffers))


def activation(options: Activation, signal: Signal) -> Resolved:
    """Any shape, element by element."""
    return Resolved(require_floats(signal, (), ""), {"function": options.function})


PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")


def multi_head_attention(options: MultiHeadAttention, signal: Signal) -> Resolved:
    """[length, dim] to the same."""
    length, dim = require_floats(signal, (2,), "[length, dim]")
    heads = options.num_heads
    if dim % heads:
        raise CaseError("num_heads", f"{heads} heads do not divide {dim} features evenly")
    drawn = (weights(options, (dim, dim), dim, dim, f"{name}.") for name in PROJECTIONS)
    scratch = 4 * length * dim + 2 * heads * length * length
    named = tuple(parameter for pair in drawn for parameter in pair)
    return Resolved((length, dim), {"embed_dim": dim, "num_heads": heads}, named, scratch)


def residual(_options: Any, signal: Signal) -> Resolved:
    """Any shape."""
    return Resolved(require_floats(signal, (), ""))


def flatten(_options: Options, signal: Signal) -> Resolved:
    """[...] to one axis."""
    return Resolved((prod(require_floats(signal, (), "")),))


def avg_pool2d(options: AvgPool2d, signal: Signal) -> Resolved:
    """[channels, height, width] to the means of squares."""
    channels, *size = require_floats(signal, (3,), "[channels, height, width]")
    k = options.kernel_size
    if any(n % k for n in size):
        raise CaseError("kernel_size", f"squares of {k} do not cover {size} evenly")
    return Resolved((channels, *(n // k for n in size)), {"kernel_size": k})


KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("linear", "a matrix and a bias over the last axis", Linear, linear),
        Kind("conv2d", "a convolution of images", Conv2d, conv2d),
        Kind("embedding", "a vector for each token", Embedding, embedding),
        Kind("position_embedding", "adds a vector for each position", PositionEmbedding, position_embedding),
        Kind("layer_norm", "layer normalisation over the last axis", LayerNorm, layer_norm),
        Kind("batch_norm", "batch normalisation, with running statistics", BatchNorm, batch_norm),
        Kind("activation", "relu, gelu, tanh, silu or sigmoid", Activation, activation, short="function"),
        Kind("multi_head_attention", "self-attention", MultiHeadAttention, multi_head_attention),
        Kind("residual", "x + its layers' answer", Residual, residual, short="layers", adds=True),
        Kind("flatten", "all axes of an example into one", Options, flatten),
        Kind("avg_pool2d", "means of squares of an image", AvgPool2d, avg_pool2d),
    )
}
"""Every kind of layer, by the name that a config calls it by."""

INSTEAD: Mapping[str, str] = {
    "dropout": "there is no dropout: frameworks cannot share its random masks; leave it out",
    **{name: f"an activation is written {{activation: {name}}}" for name in get_args(Function)},
}
"""What is said to those who ask for other layers."""


def named(kind: str, name: str, resolved: Resolved, layers: tuple[Layer, ...] = ()) -> Layer:
    """The layer under its name, which goes before those of its weights."""
    own = tuple(Parameter(f"{name}.{p.name}", p.shape, p.draw, p.trained) for p in resolved.parameters)
    return Layer(kind, name, dict(resolved.options), layers, own)
