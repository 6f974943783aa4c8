"""The layers that a config may name: each is an op, with options and initial weights.

Weights start as in PyTorch's layers: matrices and kernels uniformly within 1 / sqrt(fan_in) (He et al. 2015 with
torch.nn's gain), embeddings from N(0, 1), norms with 1 and 0. With `init_std`, weights are drawn from N(0, init_std)
and biases are 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite, prod, sqrt
from typing import Any, Literal, get_args

from parity.cases import OPS
from parity.cases.draw import Constant, Draw, Normal, Shape, Uniform
from parity.cases.op import CaseError, Input
from parity.training.spec import RESIDUAL, Layer, Parameter

Function = Literal["relu", "gelu", "tanh", "silu", "sigmoid"]


@dataclass(frozen=True)
class Signal:
    """The input of a layer: the `shape` of one example, and the `rows` of a micro-batch.

    `tokens` is the number of different integers in it, None if it holds floats.
    """

    shape: Shape
    rows: int
    tokens: int | None = None


@dataclass(frozen=True)
class Resolved:
    """A layer for a signal: its op and params, the shapes of its input and output, its weights by their own names.

    `scratch` is how many numbers it computes for an example besides its output.
    """

    op: str
    params: Any
    x: Shape
    shape: Shape
    parameters: tuple[Parameter, ...] = ()
    scratch: int = 0


NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,59}")

INT32_END = 2**31
"""Sizes below it fit into every framework's integers."""

LIMITS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "name": (lambda v: NAME.fullmatch(v) is not None, "a word of letters, digits and _ (60 at most), no digit first"),
    "init_std": (lambda v: isfinite(v) and v > 0, "a finite number above 0"),
    "eps": (lambda v: isfinite(v) and v > 0, "a finite number above 0"),
    "momentum": (lambda v: 0 <= v <= 1, "from 0 to 1"),
    "padding": (lambda v: 0 <= v < INT32_END, "0 or more (below 2**31)"),
}
"""The limits of options; any other number is a size, at least 1."""

SIZE: tuple[Callable[[Any], bool], str] = (lambda v: 1 <= v < INT32_END, "1 or more (below 2**31)")


def check_limits(options: Any) -> None:
    """Raise CaseError for the first option that exceeds its limits."""
    for name, value in vars(options).items():
        numbers = value if isinstance(value, tuple) else (value,)
        fits, wanted = LIMITS.get(name, SIZE)
        for number in numbers:
            checked = name in LIMITS or (isinstance(number, int) and not isinstance(number, bool))
            if number is not None and checked and not fits(number):
                raise CaseError(name, f"{name} must be {wanted}, not {number}")


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of every layer: its `name`, by default its kind and a number."""

    name: str | None = None

    def __post_init__(self) -> None:
        check_limits(self)


@dataclass(frozen=True, kw_only=True)
class WithMatrix(Options):
    """The options of a layer with a matrix: `init_std`, the standard deviation of its initial weights."""

    init_std: float | None = None


@dataclass(frozen=True)
class LinearOptions(WithMatrix):
    """torch.nn.Linear over the last axis."""

    out_features: int
    bias: bool = True


@dataclass(frozen=True)
class Conv2dOptions(WithMatrix):
    """torch.nn.Conv2d with a square kernel."""

    out_channels: int
    kernel_size: int
    stride: int = 1
    padding: int = 0
    bias: bool = True


@dataclass(frozen=True)
class EmbeddingOptions(WithMatrix):
    """torch.nn.Embedding; `num_embeddings` defaults to the number of tokens."""

    embedding_dim: int
    num_embeddings: int | None = None


@dataclass(frozen=True)
class PositionOptions(WithMatrix):
    """A learnt vector for each position; `num_embeddings` defaults to the length of the sequence."""

    num_embeddings: int | None = None


@dataclass(frozen=True)
class AttentionOptions(WithMatrix):
    """Self-attention (Vaswani et al. 2017) over [length, dim], without mask and dropout."""

    num_heads: int


@dataclass(frozen=True)
class LayerNormOptions(Options):
    """torch.nn.LayerNorm over the last axis."""

    eps: float = 1e-5


@dataclass(frozen=True)
class BatchNormOptions(Options):
    """torch.nn.BatchNorm1d or 2d in training mode; `momentum` is the weight of the new statistics."""

    eps: float = 1e-5
    momentum: float = 0.1


@dataclass(frozen=True)
class ActivationOptions(Options):
    """An activation function; gelu is the exact form."""

    function: Function


@dataclass(frozen=True)
class PoolOptions(Options):
    """torch.nn.AvgPool2d whose stride is the kernel size."""

    kernel_size: int


@dataclass(frozen=True)
class ResidualOptions(Options):
    """x + the output of its layers."""

    layers: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.layers:
            raise CaseError("layers", "residual needs layers: [linear: {out_features: 64}, ...]")


@dataclass(frozen=True)
class Kind:
    """A kind of layer: the op of its name, or the one of `ops` that its option `short` names.

    `params(options, signal)` returns the op's params by name; it raises CaseError, keyed by the option, if they do not
    fit. `ranks` are the numbers of axes that an example may have (empty: any), and `takes` says so in words. `scratch`
    counts the numbers computed for an example besides the output. `short` is the option that a config may write alone:
    `activation: gelu`. A kind that `adds` has layers whose output is added to its input.
    """

    name: str
    summary: str
    options: type[Any]
    params: Callable[[Any, Signal], Mapping[str, Any]] = lambda _options, _signal: {}
    ranks: tuple[int, ...] = ()
    takes: str = ""
    tokens: bool = False
    ops: tuple[str, ...] = ()
    scratch: Callable[[Any, Signal, Shape], int] = lambda _options, _signal, _shape: 0
    short: str = ""
    adds: bool = False

    def resolve(self, options: Any, signal: Signal) -> Resolved:
        """The layer for a signal; raises CaseError, keyed by the option, if they do not fit."""
        self.check(signal)
        if self.adds:
            return Resolved(RESIDUAL, None, signal.shape, signal.shape)
        op = OPS[getattr(options, self.short) if self.ops else self.name]
        data = op.inputs[0].name
        try:
            params = op.params(**self.params(options, signal))
            shapes = op.infer_shapes(params, {data: (signal.rows, *signal.shape)})
        except CaseError as error:
            raise CaseError(error.key.rpartition(".")[2], error.message) from None
        [output] = [shapes.outputs[name] for name in op.grad_outputs]
        wanted = [
            i for i in op.inputs if i.name != data and not (i.optional and getattr(options, "bias", True) is False)
        ]
        weights = tuple(parameter(item, shapes.inputs, options) for item in wanted)
        return Resolved(op.name, params, signal.shape, output[1:], weights, self.scratch(options, signal, output[1:]))

    def check(self, signal: Signal) -> None:
        """Raise CaseError if this kind cannot take such a signal."""
        if self.tokens is not (signal.tokens is not None):
            wanted = "expects tokens (integers) but gets floats"
            floats = "expects floats but gets tokens (integers); put an embedding before it"
            raise CaseError("", wanted if self.tokens else floats)
        if self.ranks and len(signal.shape) not in self.ranks:
            raise CaseError("", f"expects {self.takes} per example but gets {list(signal.shape)}")


def parameter(item: Input, shapes: Mapping[str, Shape], options: Any) -> Parameter:
    """A weight, bias or buffer of a layer, with its initial values."""
    prefix, _, _ = item.name.rpartition(".")
    matrix = shapes[f"{prefix}.weight" if prefix else "weight"]
    std, shape = getattr(options, "init_std", None), shapes[item.name]
    bound = 1 / sqrt(prod(matrix[1:]))
    start: Draw = item.start or Uniform(-bound, bound)
    if std is not None:
        start = Normal(0.0, std) if len(shape) > 1 else Constant(0.0)
    return Parameter(item.name, shape, start, trained=not item.state)


def conv_params(options: Conv2dOptions, _signal: Signal) -> dict[str, Any]:
    """The options that the op has too."""
    return {name: getattr(options, name) for name in ("out_channels", "kernel_size", "stride", "padding")}


def embedding_params(options: EmbeddingOptions, signal: Signal) -> dict[str, Any]:
    """At least as many rows as tokens."""
    tokens = signal.tokens or 0
    rows = options.num_embeddings or tokens
    if rows < tokens:
        raise CaseError("num_embeddings", f"{rows} embeddings for {tokens} different tokens")
    return {"num_embeddings": rows, "embedding_dim": options.embedding_dim}


def layer_norm_params(options: LayerNormOptions, signal: Signal) -> dict[str, Any]:
    """Over the last axis."""
    return {"normalized_shape": (one_axis(signal),), "eps": options.eps}


def batch_norm_params(options: BatchNormOptions, signal: Signal) -> dict[str, Any]:
    """In training mode, over the micro-batch and the pixels."""
    if signal.rows * prod(signal.shape[1:]) < 2:
        raise CaseError("", "a micro-batch of one example has one value per channel, and so no variance")
    return {"training": True, "momentum": options.momentum, "eps": options.eps}


def linear_params(options: LinearOptions, signal: Signal) -> dict[str, Any]:
    """Over the last axis."""
    return {"in_features": one_axis(signal), "out_features": options.out_features}


def one_axis(signal: Signal) -> int:
    """The length of an example's last axis; raises CaseError if it has none."""
    if not signal.shape:
        raise CaseError("", "expects at least one axis per example")
    return signal.shape[-1]


def pool_params(options: PoolOptions, signal: Signal) -> dict[str, Any]:
    """Squares that cover the image exactly."""
    k, size = options.kernel_size, list(signal.shape[1:])
    if any(n % k for n in size):
        raise CaseError("kernel_size", f"squares of {k} do not cover {size} evenly")
    return {"kernel_size": k}


def conv_scratch(options: Conv2dOptions, signal: Signal, shape: Shape) -> int:
    """The patches of im2col."""
    return signal.shape[0] * options.kernel_size**2 * prod(shape[1:])


def attention_scratch(options: AttentionOptions, signal: Signal, _shape: Shape) -> int:
    """Queries, keys, values, the weighted sum of values, and the scores before and after the softmax."""
    length, dim = signal.shape
    return 4 * length * dim + 2 * options.num_heads * length * length


IMAGE, SEQUENCE = "[channels, height, width]", "[length, dim]"

KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("linear", "a matrix and a bias over the last axis", LinearOptions, linear_params),
        Kind("conv2d", "a convolution of images", Conv2dOptions, conv_params, (3,), IMAGE, scratch=conv_scratch),
        Kind("embedding", "a vector for each token", EmbeddingOptions, embedding_params, tokens=True),
        Kind(
            "position_embedding",
            "adds a vector for each position",
            PositionOptions,
            lambda options, signal: {"num_embeddings": options.num_embeddings or signal.shape[0]},
            (2,),
            SEQUENCE,
        ),
        Kind("layer_norm", "layer normalisation over the last axis", LayerNormOptions, layer_norm_params),
        Kind(
            "batch_norm",
            "batch normalisation, with running statistics",
            BatchNormOptions,
            batch_norm_params,
            (1, 3),
            f"[channels] or {IMAGE}",
        ),
        Kind(
            "activation",
            "relu, gelu, tanh, silu or sigmoid",
            ActivationOptions,
            ops=get_args(Function),
            short="function",
        ),
        Kind(
            "multi_head_attention",
            "self-attention",
            AttentionOptions,
            lambda options, _: {"num_heads": options.num_heads},
            (2,),
            SEQUENCE,
            scratch=attention_scratch,
        ),
        Kind(RESIDUAL, "x + its layers' output", ResidualOptions, short="layers", adds=True),
        Kind("flatten", "all axes of an example into one", Options),
        Kind("avg_pool2d", "means of squares of an image", PoolOptions, pool_params, (3,), IMAGE),
    )
}
"""Every kind of layer, by its name in a config."""

LAYER_OPS = frozenset(op for kind in KINDS.values() for op in kind.ops or (kind.name,) if op in OPS)
"""The ops that a layer may be."""

INSTEAD: Mapping[str, str] = {
    "dropout": "there is no dropout: frameworks cannot share its random masks; leave it out",
    **{name: f"an activation is written {{activation: {name}}}" for name in get_args(Function)},
}
"""The error message for names that users may expect here."""


def named(name: str, resolved: Resolved, layers: tuple[Layer, ...] = ()) -> Layer:
    """The layer under its name, which prefixes the names of its weights."""
    own = tuple(Parameter(f"{name}.{p.name}", p.shape, p.draw, p.trained) for p in resolved.parameters)
    return Layer(resolved.op, name, resolved.params, resolved.x, layers, own)
