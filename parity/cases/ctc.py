"""ctc_loss (Graves et al. 2006): all alignments of a sequence with its target, in logarithms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd.extend import defvjp
from autograd.tracer import getval

from parity.cases.draw import Shape
from parity.cases.loss import SEVERAL, Reduction, X, reductions
from parity.cases.op import CaseError, Input, Op, TensorShapes, Variant, require_shape, require_x
from parity.cases.primitives import Array, entries, part, rows_of, scalar
from parity.cases.program import primitive

NEVER = -1e30
"""The logarithm of an impossible alignment's probability: finite, so that no gradient is NaN."""

EVERY = slice(None)


@dataclass(frozen=True)
class CtcLossParams:
    """torch.nn.functional.ctc_loss: `blank` is the class between labels; a mean divides by each target's length."""

    blank: int = 0
    reduction: Reduction = "mean"


@primitive
def delayed(values: Array, n: int, fill: float) -> Array:
    """values [rows, columns], moved by `n` columns to the right, or to the left; `fill` comes in."""
    result = np.full_like(values, fill)
    result[:, max(n, 0) : result.shape[1] + min(n, 0)] = values[:, max(-n, 0) : values.shape[1] - max(n, 0)]
    return result


defvjp(delayed, lambda _, _values, n, _fill: lambda g: delayed(g, -n, 0.0), None, None)


def log_sum_exp(*terms: Any) -> Any:
    """log(sum(exp(term) for term in terms))."""
    largest = reduce(np.maximum, map(getval, terms))
    return anp.log(sum(anp.exp(term - largest) for term in terms)) + largest


def log_softmax(x: Any) -> Any:
    """x - log(sum(exp(x))) along the last axis."""
    shifted = x - getval(x).max(axis=-1, keepdims=True)
    return shifted - anp.log(anp.sum(anp.exp(shifted), axis=-1, keepdims=True))


def ctc_loss(
    tensors: Mapping[str, Any],
    params: CtcLossParams,
    *,
    reduction: str = "",
    normalized: bool = True,
    merged: bool = False,
    padded: bool = False,
) -> dict[str, Any]:
    """-log of the probability of every target [N, S], from log-probabilities x [T, N, C].

    x is `normalized` by log_softmax, which leaves log-probabilities as they are; every framework's gradient goes
    through it. `reduction` replaces that of the params: `batch` divides by N, `labels` by the sum of the targets'
    lengths, `steps` each loss by its input's length. A label that comes twice may be `merged`: no blank is needed
    between them. `padded` takes all steps of x.
    """
    x, target, lengths = tensors["x"], tensors["target"], tensors["target_lengths"]
    (n_steps, n, n_classes), width = x.shape, 2 * target.shape[1] + 1
    logs = log_softmax(x) if normalized else x
    labels = labels_between_blanks(target, params.blank)
    rows = np.reshape(np.arange(n), (-1, 1)) * n_classes + labels
    emitted = rows_of(anp.reshape(anp.transpose(logs, (1, 2, 0)), (n * n_classes, n_steps)), rows)
    steps = [anp.reshape(part(emitted, (EVERY, EVERY, slice(i, i + 1))), (n, width)) for i in range(n_steps)]
    never = scalar(NEVER, x)
    skips = labels != params.blank
    if not merged:
        skips = skips & (labels != delayed(labels, 2, -1))
    states = anp.where(np.arange(width) < 2, steps[0], never)
    for step in range(1, n_steps):
        skipping = anp.where(skips, delayed(states, 2, NEVER), never)
        reached = log_sum_exp(states, delayed(states, 1, NEVER), skipping)
        following = reached + steps[step]
        ended = step >= tensors["input_lengths"]
        states = following if padded else anp.where(np.reshape(ended, (-1, 1)), states, following)
    ends = (entries(states, 2 * lengths), entries(states, 2 * lengths - 1))
    losses = -anp.reshape(log_sum_exp(*ends), (n,))
    return {"y": reduced(losses, tensors, reduction or params.reduction)}


def labels_between_blanks(target: Any, blank: int) -> Any:
    """The labels with a blank before, between and after them, [N, 2 S + 1]."""
    n, length = target.shape
    pairs = np.stack([np.full((n, length), blank), target], axis=2)
    return np.concatenate([np.reshape(pairs, (n, 2 * length)), np.full((n, 1), blank)], axis=1)


def reduced(losses: Any, tensors: Mapping[str, Any], how: str) -> Any:
    """The losses [N], or their mean or sum."""
    if how == "none":
        return losses
    lengths = {"mean": scalar(tensors["target_lengths"], losses), "steps": scalar(tensors["input_lengths"], losses)}
    if how in lengths:
        return anp.mean(losses / lengths[how])
    divisors = {"sum": 1, "batch": losses.shape[0], "labels": np.sum(lengths["mean"])}
    return anp.sum(losses) / divisors[how]


def ctc_shapes(params: CtcLossParams, given: Mapping[str, Shape]) -> TensorShapes:
    """x: (T, N, C); target: integers (N, S); lengths: integers (N,); y: a scalar, or (N,).

    Lengths are such that every target can be aligned, with blanks between equal labels.
    """
    x = require_x(given, (3,), "(T, N, classes)")
    target = given.get("target", (x[1], (x[0] + 1) // 2))
    if len(target) != 2 or target[0] != x[1]:
        raise CaseError("inputs.target", f"shape {list(target)} does not fit x {list(x)}: (N, S) with N = {x[1]}")
    if not 0 <= params.blank < x[2]:
        raise CaseError("params.blank", f"{params.blank} is none of {x[2]} classes")
    lengths = {name: require_shape(given, name, x[1:2], f"x {list(x)}") for name in ("input_lengths", "target_lengths")}
    return TensorShapes(
        inputs={"x": x, "target": target, **lengths},
        outputs={"y": x[1:2] if params.reduction == "none" else ()},
        integers={
            "target": (1, x[2]) if params.blank == 0 else (0, params.blank),
            "input_lengths": (min(2 * target[1] - 1, x[0]), x[0] + 1),
            "target_lengths": (1, min(target[1], (x[0] + 1) // 2) + 1),
        },
    )


def ctc_variants(params: CtcLossParams, shapes: Mapping[str, Shape]) -> Iterable[Variant]:
    """Another reduction, another blank, no softmax, other alignments."""
    several = dict.fromkeys(("mean", "sum", "batch", "labels", "steps"), SEVERAL)
    yield from reductions(params.reduction, several)
    last = shapes["x"][2] - 1
    yield Variant("ctc-blank", params={"blank": 0 if params.blank == last else last}, shown_by="any target")
    yield Variant("probability-form", {"normalized": False}, shown_by="the gradient of log-probabilities")
    yield Variant("ctc-repeats", {"merged": True}, shown_by="a label that comes twice in a row")
    yield Variant("lengths-ignored", {"padded": True}, shown_by="inputs that are shorter than T")


CTC_LOSS = Op(
    name="ctc_loss",
    summary="-log of the probability of a sequence of labels",
    params=CtcLossParams,
    inputs=(X, *(Input(name, integers=True) for name in ("target", "input_lengths", "target_lengths"))),
    infer_shapes=ctc_shapes,
    reference=ctc_loss,
    variants=ctc_variants,
)
OPS = (CTC_LOSS,)
