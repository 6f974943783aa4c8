"""The model in NumPy through HIPS autograd: output, loss and gradients of a step from the same lines, in any dtype.

Knobs are a mapping from what they change to keyword arguments: `{"layer_norm": {"ddof": 1}}` for all layers of a kind,
`{"layer_norm@encoder.norm": {...}}` for one by its name. Beside the layers' kinds there are `matmul` (`operands` and
`result` of `functions.product`), `loss` (that of `losses.py`), `accumulation` and `ranks` (those of `gradients`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd import make_vjp
from autograd.builtins import tuple as traced_tuple
from autograd.tracer import getval
from numpy.typing import DTypeLike, NDArray

from parity.cases import functions
from parity.cases.batch_norm import BATCH_NORM, BatchNormParams
from parity.cases.layer_norm import LAYER_NORM, LayerNormParams
from parity.cases.loss import LOSSES
from parity.training.spec import Layer, Training

Arrays = Mapping[str, NDArray[Any]]
Knobs = Mapping[str, Mapping[str, Any]]
Batch = tuple[NDArray[Any], NDArray[Any]]
"""x and target of a micro-batch."""

NONE: Knobs = {}


@dataclass
class Pass:
    """One forward pass: the weights, the knobs, and the buffers as it leaves them."""

    weights: Mapping[str, Any]
    knobs: Knobs = field(default_factory=dict)
    buffers: dict[str, Any] = field(default_factory=dict)

    def run(self, layers: Sequence[Layer], x: Any) -> Any:
        """What the layers make of `x`, one after the other."""
        for layer in layers:
            x = self.apply(layer, x)
        return x

    def apply(self, layer: Layer, x: Any) -> Any:
        """What one layer makes of `x`."""
        knobs = {**self.knobs.get(layer.kind, {}), **self.knobs.get(f"{layer.kind}@{layer.name}", {})}
        return FORWARDS[layer.kind](self, layer, x, **knobs)

    def own(self, layer: Layer, absent: Sequence[str] = ()) -> dict[str, Any]:
        """The layer's weights and buffers by their own names, without those in `absent`."""
        names = {p.name.removeprefix(f"{layer.name}."): p.name for p in layer.parameters}
        wanted = {own: name for own, name in names.items() if own not in absent}
        return {own: self.weights[n] if n in self.weights else self.buffers[n] for own, n in wanted.items()}

    def product(self, a: Any, b: Any) -> Any:
        """`a @ b` in the precision that the knobs say."""
        return functions.product(a, b, **self.knobs.get("matmul", {}))

    def affine(self, x: Any, weight: Any, bias: Any | None = None, *, transposed: bool = False) -> Any:
        """x @ weight^T + bias; `transposed` takes the weight as it is stored."""
        y = self.product(x, weight if transposed else anp.transpose(weight))
        return y if bias is None else y + bias


def linear(run: Pass, layer: Layer, x: Any, *, transposed: bool = False, absent: Sequence[str] = ()) -> Any:
    """x @ weight^T + bias; `transposed` takes a square weight as it is stored."""
    own = run.own(layer, absent)
    square = len(set(own["weight"].shape)) == 1
    return run.affine(x, own["weight"], own.get("bias"), transposed=transposed and square)


def conv2d(run: Pass, layer: Layer, x: Any, *, absent: Sequence[str] = (), flipped: bool = False) -> Any:
    """The correlation of (N, C, H, W) with the kernel; `flipped` is the convolution in the strict sense."""
    own, options = run.own(layer, absent), layer.options
    kernel = own["weight"][:, :, ::-1, ::-1] if flipped else own["weight"]
    squares = functions.patches(x, options["kernel_size"], options["stride"], options["padding"])
    return anp.transpose(run.affine(squares, functions.flat(kernel), own.get("bias")), (0, 3, 1, 2))


def embedding(run: Pass, layer: Layer, x: Any) -> Any:
    """A row of the weight for every integer."""
    return functions.rows_of(run.own(layer)["weight"], x)


def position_embedding(run: Pass, layer: Layer, x: Any) -> Any:
    """x plus a row of the weight for every position."""
    return x + run.own(layer)["weight"][: x.shape[1]]


def layer_norm(run: Pass, layer: Layer, x: Any, *, absent: Sequence[str] = (), **knobs: Any) -> Any:
    """parity.cases.layer_norm, whose knobs and params these are."""
    params = LayerNormParams(tuple(layer.options["normalized_shape"]), layer.options["eps"])
    params, rest = overridden(params, knobs)
    return LAYER_NORM.forward({"x": x, **run.own(layer, absent)}, params, **rest)["y"]


def batch_norm(run: Pass, layer: Layer, x: Any, *, absent: Sequence[str] = (), **knobs: Any) -> Any:
    """parity.cases.batch_norm in training, whose knobs and params these are."""
    params = BatchNormParams(True, layer.options["momentum"], layer.options["eps"])
    params, rest = overridden(params, knobs)
    found = BATCH_NORM.forward({"x": x, **run.own(layer, absent)}, params, **rest)
    run.buffers.update({f"{layer.name}.{name}": found[name] for name in ("running_mean", "running_var")})
    return found["y"]


def overridden(params: Any, knobs: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The params with those knobs that are fields of theirs, and the other knobs."""
    names = {f.name for f in fields(params)}
    changed = replace(params, **{name: value for name, value in knobs.items() if name in names})
    return changed, {name: value for name, value in knobs.items() if name not in names}


FUNCTIONS: Mapping[str, Callable[[Any], Any]] = {
    "relu": functions.relu,
    "gelu": functions.gelu,
    "gelu-tanh": functions.gelu_tanh,
    "gelu-sigmoid": functions.gelu_sigmoid,
    "tanh": anp.tanh,
    "silu": functions.silu,
    "sigmoid": functions.sigmoid,
}


def activation(_run: Pass, layer: Layer, x: Any, **instead: str) -> Any:
    """A function of every element; the knob `gelu` names another one in its place."""
    function = layer.options["function"]
    return FUNCTIONS[instead.get(function, function)](x)


def multi_head_attention(
    run: Pass,
    layer: Layer,
    x: Any,
    *,
    scale: str = "head",
    axis: int = -1,
    absent: Sequence[str] = (),
    transposed: bool = False,
    detached: bool = False,
) -> Any:
    """softmax(q k^T / sqrt(d)) v in every head (Vaswani et al. 2017).

    `scale`: d is the length of a head, with `embedding` of all of them, with `none` 1. `axis` is the softmax's;
    `transposed` takes the four matrices as they are stored; `detached` takes its sums for constants in the gradient.
    """
    own, heads = run.own(layer, absent), layer.options["num_heads"]
    n, length, width = x.shape

    def projected(name: str, values: Any) -> Any:
        return run.affine(values, own[f"{name}.weight"], own.get(f"{name}.bias"), transposed=transposed)

    def split(name: str) -> Any:
        return anp.transpose(projected(name, x).reshape((n, length, heads, width // heads)), (0, 2, 1, 3))

    query, key, value = (split(name) for name in ("q_proj", "k_proj", "v_proj"))
    divisor = {"head": width // heads, "embedding": width, "none": 1}[scale]
    scores = run.product(query, anp.swapaxes(key, -1, -2)) / np.sqrt(getval(x).dtype.type(divisor))
    mixed = anp.transpose(run.product(functions.softmax(scores, axis, detached=detached), value), (0, 2, 1, 3))
    return projected("out_proj", mixed.reshape((n, length, width)))


def residual(run: Pass, layer: Layer, x: Any) -> Any:
    """x plus what the layers make of it."""
    return x + run.run(layer.layers, x)


def flatten(_run: Pass, _layer: Layer, x: Any) -> Any:
    """All axes but the first into one."""
    return functions.flat(x)


def avg_pool2d(_run: Pass, layer: Layer, x: Any, *, summed: bool = False) -> Any:
    """Means over squares; `summed` takes their sums."""
    size = layer.options["kernel_size"]
    return functions.avg_pool(x, size) * (size**2 if summed else 1)


FORWARDS: Mapping[str, Callable[..., Any]] = {
    "embedding": embedding,
    "position_embedding": position_embedding,
    "linear": linear,
    "conv2d": conv2d,
    "layer_norm": layer_norm,
    "batch_norm": batch_norm,
    "activation": activation,
    "multi_head_attention": multi_head_attention,
    "residual": residual,
    "flatten": flatten,
    "avg_pool2d": avg_pool2d,
}
"""The lines of every kind of layer: (pass, layer, x, **knobs) to y."""


@dataclass(frozen=True)
class Share:
    """What one pass takes: the rows of one rank of one micro-batch.

    Its gradient is divided by `divisor` in the step's, or left out where that is 0. Only what `leads`, the first
    rank's, changes the buffers.
    """

    x: NDArray[Any]
    target: NDArray[Any]
    divisor: int
    leads: bool


def shares(batches: Sequence[Batch], knobs: Knobs) -> list[Share]:
    """The passes of a step whose micro-batches these are, in the order of the rows."""
    ranks = knobs.get("ranks", {})
    count, reduction = ranks.get("count", 1), ranks.get("reduction", "mean")
    summed = knobs.get("accumulation", {}).get("reduction", "mean") == "sum"
    divisor = (1 if summed else len(batches)) * (count if reduction == "mean" else 1)
    return [
        Share(x, target, divisor if rank == 0 or reduction != "first" else 0, rank == 0)
        for batch in batches
        for rank, (x, target) in enumerate(zip(*(np.array_split(v, count) for v in batch), strict=True))
    ]


@dataclass(frozen=True)
class StepGradients:
    """What the micro-batches of a step give: all outputs [rows, ...], the mean of the losses, the gradient of that mean
    by parameter (none where it was not asked for), and the buffers after it."""

    output: NDArray[Any]
    loss: NDArray[Any]
    grads: dict[str, NDArray[Any]]
    buffers: dict[str, NDArray[Any]]


def gradients(
    training: Training,
    tensors: Arrays,
    batches: Sequence[Batch],
    *,
    dtype: DTypeLike = np.float64,
    knobs: Knobs = NONE,
    left: Arrays | None = None,
    backward: bool = True,
) -> StepGradients:
    """A step's forward and backward passes over its micro-batches `(x, target)`, in `dtype`.

    `tensors` are all parameters and buffers; `left` are gradients that nobody cleared. Knobs of `accumulation`:
    `reduction` `sum` adds the gradients of the micro-batches up. Of `ranks`: `count` ranks share every micro-batch in
    passes of their own, and the gradient is the mean of theirs, with `reduction` `sum` their sum, with `first` that of
    the first one.
    """
    cast = {p.name: np.asarray(tensors[p.name], dtype) for p in training.tensors}
    buffers = {p.name: cast.pop(p.name) for p in training.buffers}
    found = [one_pass(training, cast, buffers, share, knobs, backward) for share in shares(batches, knobs)]
    grads = {name: added([g for _, _, g in found], name, left or {}, value) for name, value in cast.items()}
    loss = np.sum([loss for _, loss, _ in found], dtype=dtype) / np.dtype(dtype).type(len(found))
    output = np.concatenate([output for output, _, _ in found])
    return StepGradients(output, np.asarray(loss), grads if backward else {}, buffers)


Passed = tuple[NDArray[Any], NDArray[Any], dict[str, NDArray[Any]]]


def one_pass(
    training: Training, weights: Arrays, buffers: dict[str, Any], share: Share, knobs: Knobs, backward: bool
) -> Passed:
    """Output, loss and gradients of one pass, which moves the `buffers` on."""
    names, values = list(weights), tuple(weights.values())
    kind = values[0].dtype.type
    run, seen = Pass({}, knobs, dict(buffers)), []

    def loss_of(leaves: Any) -> Any:
        run.weights = dict(zip(names, leaves, strict=True))
        output = run.run(training.layers, in_kind(share.x, kind))
        seen.append(np.asarray(getval(output)))
        return loss_function(training, knobs)(output, in_kind(share.target, kind))

    with np.errstate(all="ignore"):
        if backward:
            vjp, loss = make_vjp(loss_of)(traced_tuple(values))
            grads = dict(zip(names, vjp(1 / kind(share.divisor)), strict=True)) if share.divisor else {}
        else:
            loss, grads = loss_of(values), {}
    if share.leads:
        buffers.update(run.buffers)
    return seen[0], np.asarray(getval(loss)), grads


def added(grads: Sequence[Mapping[str, NDArray[Any]]], name: str, left: Arrays, like: NDArray[Any]) -> NDArray[Any]:
    """The sum of a parameter's gradients, in the order of the passes, upon what is `left`."""
    found = np.asarray(left[name], like.dtype) if name in left else np.zeros_like(like)
    for some in grads:
        found = found + some.get(name, 0)
    return found


def in_kind(values: NDArray[Any], kind: Any) -> NDArray[Any]:
    """Floats in the dtype; integers as they are."""
    return values if values.dtype.kind in "iu" else values.astype(kind)


def loss_function(training: Training, knobs: Knobs) -> Callable[[Any, Any], Any]:
    """The loss of the training, as the knobs have it."""
    return partial(LOSSES[training.loss.name], **knobs.get("loss", {}))


def loss_of_output(
    training: Training, output: NDArray[Any], target: NDArray[Any], *, ranks: int = 1, knobs: Knobs = NONE
) -> NDArray[Any]:
    """The step's loss from the output of all its rows, in the dtype of `output`."""
    n = training.accumulation * ranks
    parts = zip(np.array_split(output, n), np.array_split(target, n), strict=True)
    kind, function = output.dtype.type, loss_function(training, knobs)
    with np.errstate(all="ignore"):
        return np.asarray(sum(function(some, in_kind(of, kind)) for some, of in parts) / kind(n))
