"""The hypotheses about a model's kernels: which knob of which lines, for the layers that a training has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import numpy as np

from parity.cases import OPS
from parity.cases.batch_norm import BATCH_NORM, BatchNormParams
from parity.cases.layer_norm import LAYER_NORM, LayerNormParams
from parity.cases.loss import LOSS_KNOBS
from parity.cases.op import Knob
from parity.training.spec import Layer, Training, walk
from parity.training.steps import narrowed_options

BIAS = "a bias that is not 0"
FORMATS = ("bfloat16", "tf32", "float16")


def model_knobs(training: Training) -> tuple[tuple[str, Knob], ...]:
    """The hypotheses about forward pass, loss and their gradients: what they turn, and the knob.

    A knob's `arguments`, `params` and `absent` are together the keyword arguments under that key of `model.Knobs`. What
    `on` makes of the key turns the knob of one layer only.
    """
    found = [(layer.kind, knob) for layer in walk(training.layers) for knob in LAYER_KNOBS.get(layer.kind, none)(layer)]
    found += [("loss", knob) for knob in LOSS_KNOBS[training.loss.name]]
    if any(kind in MATRICES for kind in {layer.kind for layer in walk(training.layers)}):
        found += [("matmul", knob) for knob in precisions()]
    return tuple({(key, repr(knob)): (key, knob) for key, knob in found}.values())


def on(kind: str, layer: Layer) -> str:
    """The key under which a knob is turned of one layer only."""
    return f"{kind}@{layer.name}"


def precisions() -> Iterator[Knob]:
    """Matrix products in fewer digits, their results rounded or not."""
    told_by = "operands that the format cannot hold"
    for name in FORMATS:
        yield Knob("reduced-precision", {"operands": name}, told_by=told_by)
        if name != "tf32":
            yield Knob("reduced-precision", {"operands": name, "result": name}, told_by=told_by)


def none(_layer: Layer) -> Iterator[Knob]:
    """A layer of whose lines nothing can be told."""
    return iter(())


def linear(layer: Layer) -> Iterator[Knob]:
    """A bias left out, a square matrix as it is stored."""
    if layer.options["bias"]:
        yield Knob("affine-missing", absent=("bias",), told_by=BIAS)
    if layer.options["in_features"] == layer.options["out_features"]:
        yield Knob("transposed", {"transposed": True}, told_by="a weight that is not symmetric")


def conv2d(layer: Layer) -> Iterator[Knob]:
    """A bias left out, a kernel turned round."""
    if layer.options["bias"]:
        yield Knob("affine-missing", absent=("bias",), told_by=BIAS)
    if layer.options["kernel_size"] > 1:
        yield Knob("permuted-elements", {"flipped": True}, told_by="a kernel that is not symmetric")


def layer_norm(layer: Layer) -> Iterator[Knob]:
    """Those of the op, but for the axes."""
    shape = tuple(layer.options["normalized_shape"])
    shapes = {"x": shape, "weight": shape, "bias": shape}
    knobs = LAYER_NORM.knobs(LayerNormParams(shape, layer.options["eps"]), shapes)
    yield from (knob for knob in knobs if knob.id != "wrong-axis")
    yield from attributes(layer, "eps")


def batch_norm(layer: Layer) -> Iterator[Knob]:
    """Those of the op in training, but for the axes."""
    options, shape = layer.options, (layer.options["num_features"],)
    params = BatchNormParams(True, options["momentum"], options["eps"])
    knobs = BATCH_NORM.knobs(params, {"x": (1, *shape), "weight": shape, "bias": shape})
    for knob in knobs:
        if knob.id == "statistics-source":
            yield replace(knob, id="batch-norm-statistics")
        elif knob.id != "wrong-axis":
            yield knob
    yield from attributes(layer, "eps", "momentum")


def attributes(layer: Layer, *names: str) -> Iterator[Knob]:
    """Options that are kept in float32, in every combination; a momentum m also as 1 - float32(1 - m)."""
    forms = []
    for name in names:
        value = layer.options[name]
        narrow = [float(np.float32(value)), *([1.0 - float(np.float32(1.0 - value))] if name == "momentum" else [])]
        forms.append([value, *(v for v in dict.fromkeys(narrow) if v != value)])
    for values in product(*forms):
        changed = {name: v for name, v in zip(names, values, strict=True) if v != layer.options[name]}
        if changed:
            yield Knob("attribute-precision", params=changed, told_by="a value that float32 cannot hold, in float64")


def activation(layer: Layer) -> Iterator[Knob]:
    """Another form of gelu."""
    if layer.options["function"] == "gelu":
        for form in ("gelu-tanh", "gelu-sigmoid"):
            yield Knob("activation-form", {"gelu": form}, told_by="inputs that are not near 0")


def multi_head_attention(_layer: Layer) -> Iterator[Knob]:
    """Another scale of the scores, another axis of the softmax, biases left out."""
    for scale in ("none", "embedding"):
        yield Knob("scaled", {"scale": scale}, told_by="queries and keys that are not 0")
    yield Knob("wrong-axis", {"axis": -2}, told_by="queries and keys that are not 0")
    yield Knob("detached-statistics", {"detached": True}, told_by="an upstream gradient that is not constant")
    biases = tuple(f"{name}_proj.bias" for name in ("q", "k", "v", "out"))
    yield Knob("affine-missing", absent=biases, told_by=BIAS)
    yield Knob("transposed", {"transposed": True}, told_by="a weight that is not symmetric")


def avg_pool2d(_layer: Layer) -> Iterator[Knob]:
    """Sums for means."""
    yield Knob("mean-vs-sum", {"summed": True}, told_by="any input")


TERMS: Mapping[str, Mapping[str, Any]] = {
    "layer_norm": LAYER_NORM.terms,
    "batch_norm": BATCH_NORM.terms,
    "multi_head_attention": {"detached": True},
}
"""Knobs under which nothing cancels in a gradient: they give it a scale where the exact one is zero, as that of a key's
bias is, or of a bias before a batch normalisation."""


def narrow_options(training: Training) -> tuple[frozenset[str], ...]:
    """The sets of the optimizer's options that a kernel may keep in float32: `steps.Update.narrowed`."""
    op = OPS[training.optimizer]
    found = set()
    for group in training.groups:
        params = op.params(**group.options)
        found |= {name for name, value in narrowed_options(params, "float32") if value != getattr(params, name)}
    names = sorted(found | {"lr"})
    return tuple(frozenset(some) for n in range(1, len(names) + 1) for some in combinations(names, n))


MATRICES = frozenset(("linear", "conv2d", "multi_head_attention"))

LAYER_KNOBS: Mapping[str, Callable[[Layer], Iterator[Knob]]] = {
    "linear": linear,
    "conv2d": conv2d,
    "layer_norm": layer_norm,
    "batch_norm": batch_norm,
    "activation": activation,
    "multi_head_attention": multi_head_attention,
    "avg_pool2d": avg_pool2d,
}
"""The hypotheses about each kind of layer that has any."""
