"""PyTorch's recurrent layers, losses and other functions of several steps, as NumPy: rows of `TORCH`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as plain_numpy
from autograd.extend import defvjp

from parity.cases.primitives import erfc
from parity.cases.program import primitive
from parity.cases.writable import NUMPY as np  # noqa: N811 - it is NumPy, whose new arrays may be written to
from parity.program.op_calls import lifted, op, op_outputs

Function = Callable[..., Any]
Array = plain_numpy.ndarray[Any, Any]

# Recurrent layers


def layers_of(
    x: Any, weights: Sequence[Any], has_biases: bool, n_layers: int, bidirectional: bool, run: Function
) -> tuple[Any, list[Any]]:
    """Layers one after the other, each in one direction or two: the steps of the last, and the states of all.

    `run` computes one layer in one direction from the steps, the layer's number and its weights.
    """
    per, directions, states = (4 if has_biases else 2), (2 if bidirectional else 1), []
    for layer in range(n_layers):
        ways = []
        for way in range(directions):
            number = layer * directions + way
            given = x[::-1] if way else x
            y, state = run(given, number, weights[number * per : (number + 1) * per])
            ways.append(y[::-1] if way else y)
            states.append(state)
        x = ways[0] if len(ways) == 1 else np.concatenate(ways, axis=-1)
    return x, states


def recurrent(cell: Function, starts: tuple[str, ...]) -> Function:
    """A recurrent layer of PyTorch: `cell` computes all steps of one layer in one direction."""

    def compute(
        x: Any, hx: Any, weights: Sequence[Any], has_biases: bool, num_layers: int, dropout: float, train: bool,
        bidirectional: bool, batch_first: bool,
    ) -> tuple[Any, ...]:  # fmt: skip
        if not isinstance(weights, (tuple, list)) or (dropout and train):
            raise TypeError("packed sequences and dropout have no meaning here")
        hx = hx if isinstance(hx, (tuple, list)) else (hx,)

        def run(steps: Any, number: int, own: Sequence[Any]) -> tuple[Any, Any]:
            state = {name: h[number] for name, h in zip(starts, hx, strict=True)}
            names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            return cell(x=steps, **dict(zip(names, own, strict=False)), **state)  # type: ignore[no-any-return]

        x = np.swapaxes(x, 0, 1) if batch_first else x
        y, states = layers_of(x, weights, has_biases, num_layers, bidirectional, run)
        y = np.swapaxes(y, 0, 1) if batch_first else y
        return (y, *(np.stack([state[i] for state in states], axis=0) for i in range(len(starts))))

    return compute


def lstm_cell(**given: Any) -> tuple[Any, Any]:
    """The op lstm: its steps, and its last states."""
    outputs = op_outputs("lstm", **given)
    return outputs["y"], (outputs["h"], outputs["c"])


def gru_cell(**given: Any) -> tuple[Any, Any]:
    """The op gru: its steps, and its last state."""
    outputs = op_outputs("gru", **given)
    return outputs["y"], (outputs["h"],)


def simple_cell(squash: Function) -> Function:
    """A recurrent layer h' = squash(W x + U h)."""

    def compute(
        x: Any, weight_ih: Any, weight_hh: Any, h0: Any, bias_ih: Any = None, bias_hh: Any = None
    ) -> tuple[Any, Any]:
        h, steps = h0, []
        for t in range(x.shape[0]):
            biases = 0 if bias_ih is None else bias_ih + bias_hh
            h = squash(x[t] @ weight_ih.T + h @ weight_hh.T + biases)
            steps.append(h)
        return np.stack(steps, axis=0), (h,)

    return compute


def one_step(cell: Function, starts: tuple[str, ...]) -> Function:
    """A recurrent cell of PyTorch: one step of `cell`."""

    def compute(x: Any, hx: Any, *weights: Any) -> Any:
        hx = hx if isinstance(hx, (tuple, list)) else (hx,)
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        given = {name: w for name, w in zip(names, weights, strict=False) if w is not None}
        _, state = cell(x=np.expand_dims(x, 0), **given, **dict(zip(starts, hx, strict=True)))
        return state if len(state) > 1 else state[0]

    return compute


# Pooling


def windows_of(length: int, n: int) -> Iterator[slice]:
    """The windows of adaptive pooling along an axis."""
    return (slice(i * length // n, -(-(i + 1) * length // n)) for i in range(n))


def adaptive_average(x: Any, output_size: Any) -> Any:
    """F.adaptive_avg_pool3d: means of windows, axis by axis."""
    sizes = output_size if isinstance(output_size, (tuple, list)) else (output_size,) * 3
    for axis, n in zip(range(-len(sizes), 0), sizes, strict=True):
        rest = (slice(None),) * (-axis - 1)
        if n is not None:
            means = [np.mean(x[(..., w, *rest)], axis=axis, keepdims=True) for w in windows_of(x.shape[axis], n)]
            x = np.concatenate(means, axis=axis)
    return x


# Losses

REDUCTIONS: Mapping[Any, Function] = {
    **dict.fromkeys(("none", 0), lambda x: x),
    **dict.fromkeys(("mean", 1), np.mean),
    **dict.fromkeys(("sum", 2), np.sum),
}
"""How a loss adds up its elements; the numbers are those of PyTorch's inner functions."""


def loss(elements: Function, n_tensors: int = 2) -> Function:
    """A loss with a `reduction`, from its elements; the legacy arguments that PyTorch replaced must be left out."""

    def compute(*args: Any, reduction: Any = "mean", size_average: Any = None, reduce: Any = None, **rest: Any) -> Any:
        if size_average is not None or reduce is not None or len(args) > n_tensors + 1:
            raise TypeError("legacy arguments of a loss")
        return REDUCTIONS[reduction](elements(*args, **rest))

    return compute


def distance(x: Any, other: Any, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Any:
    """F.pairwise_distance"""
    return op("vector_norm", x=x - other + eps, ord=float(p), dim=-1, keepdim=keepdim)


def triplet(
    anchor: Any, positive: Any, negative: Any, margin: float = 1.0, p: float = 2.0, eps: float = 1e-6,
    swap: bool = False,
) -> Any:  # fmt: skip
    """The elements of F.triplet_margin_loss."""
    far = distance(anchor, negative, p, eps)
    if swap:
        far = np.minimum(far, distance(positive, negative, p, eps))
    return np.maximum(margin + distance(anchor, positive, p, eps) - far, 0)


# Along an axis


@primitive
def running_products(x: Array, axis: int) -> Array:
    """np.cumprod."""
    return plain_numpy.cumprod(x, axis=axis)


@primitive
def products_gradient(arriving: Array, x: Array, axis: int) -> Array:
    """The gradient of `running_products`: of each element, what it is multiplied with in all products that it is in."""
    rows, gradients = plain_numpy.moveaxis(x, axis, 0), plain_numpy.moveaxis(arriving, axis, 0)
    result = plain_numpy.empty_like(rows)
    for i in range(len(rows)):
        others = rows.copy()
        others[i] = 1
        result[i] = (plain_numpy.cumprod(others, axis=0)[i:] * gradients[i:]).sum(axis=0)
    return plain_numpy.moveaxis(result, 0, axis)


defvjp(running_products, lambda _, x, axis: lambda g: products_gradient(g, x, axis), None)


def order_of(x: Any, dim: int, descending: bool) -> Any:
    """The positions of elements in their order."""
    return np.argsort(-x if descending else x, axis=dim, kind="stable")


def in_order(x: Any, dim: int = -1, descending: bool = False, stable: Any = None) -> tuple[Any, Any]:  # noqa: ARG001
    """x.sort"""
    at = order_of(x, dim, descending)
    return op("gather", x=x, index=at, dim=dim), at


def largest(x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Any, Any]:  # noqa: A002, ARG001
    """x.topk"""
    rest = (slice(None),) * (dim % x.ndim)
    at = order_of(x, dim, largest)[(*rest, slice(k))]
    return op("gather", x=x, index=at, dim=dim), at


# Elementwise


def halves(x: Any, dim: int = -1) -> tuple[Any, Any]:
    """The two halves of an axis."""
    rest, n = (slice(None),) * (dim % x.ndim), x.shape[dim] // 2
    return x[(*rest, slice(n))], x[(*rest, slice(n, None))]


def gated(x: Any, dim: int = -1) -> Any:
    """F.glu"""
    one, other = halves(x, dim)
    return one * op("sigmoid", x=other)


def shrunk(x: Any, lambd: float = 0.5) -> Any:
    """F.softshrink"""
    return np.where(x > lambd, x - lambd, np.where(x < -lambd, x + lambd, 0 * x))


def one_hot(x: Any, num_classes: int) -> Any:
    """F.one_hot"""
    if num_classes < 0:
        raise TypeError("the number of classes depends on values")
    return (np.expand_dims(x, -1) == np.arange(num_classes)).astype("int64")


def unshuffled(x: Any, downscale_factor: int) -> Any:
    """F.pixel_unshuffle"""
    r = downscale_factor
    *rest, c, h, w = x.shape
    n = len(rest)
    split = np.reshape(x, (*rest, c, h // r, r, w // r, r))
    axes = (*range(n), n, n + 2, n + 4, n + 1, n + 3)
    return np.reshape(np.transpose(split, axes), (*rest, c * r * r, h // r, w // r))


LAYERS: Mapping[str, Function] = {
    "lstm": recurrent(lstm_cell, ("h0", "c0")),
    "gru": recurrent(gru_cell, ("h0",)),
    "rnn_tanh": recurrent(simple_cell(np.tanh), ("h0",)),
    "rnn_relu": recurrent(simple_cell(lambda x: np.maximum(x, 0)), ("h0",)),
    "lstm_cell": one_step(lstm_cell, ("h0", "c0")),
    "gru_cell": one_step(gru_cell, ("h0",)),
    "rnn_tanh_cell": one_step(simple_cell(np.tanh), ("h0",)),
    "rnn_relu_cell": one_step(simple_cell(lambda x: np.maximum(x, 0)), ("h0",)),
    "adaptive_avg_pool3d": adaptive_average,
    "pairwise_distance": distance,
    "triplet_margin_loss": loss(triplet, 3),
    "margin_ranking_loss": loss(lambda x, other, y, margin=0.0: np.maximum(-y * (x - other) + margin, 0), 3),
    "hinge_embedding_loss": loss(lambda x, y, margin=1.0: np.where(y == 1, x, np.maximum(margin - x, 0))),
    "soft_margin_loss": loss(lambda x, y: np.log1p(np.exp(-y * x))),
    "cumprod": lambda x, dim: lifted(running_products)(x, dim),
    "argsort": lambda x, dim=-1, descending=False, stable=False: order_of(x, dim, descending),  # noqa: ARG005
    "sort": in_order,
    "topk": largest,
    "erfc": lifted(erfc),
    "glu": gated,
    "softshrink": shrunk,
    "hardshrink": lambda x, lambd=0.5: np.where(np.abs(x) > lambd, x, 0 * x),
    "tanhshrink": lambda x: x - np.tanh(x),
    "threshold": lambda x, threshold, value: np.where(x > threshold, x, value),
    "softmin": lambda x, dim, **_: op("softmax", x=-x, dim=dim),
    "logit": lambda x: np.log(x / (1 - x)),
    "xlogy": lambda x, y: np.where(x == 0, 0 * x, x * np.log(y)),
    "hypot": lambda x, y: np.sqrt(x * x + y * y),
    "frac": lambda x: x - np.trunc(x),
    "one_hot": one_hot,
    "pixel_unshuffle": unshuffled,
}
"""By the function's name."""
