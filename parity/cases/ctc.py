"""ctc_loss (Graves et al. 2006): all alignments of a sequence with its target, in logarithms."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd.extend import defvjp
from autograd.tracer import getval

from parity.cases.draw import Shape
from parity.cases.loss import SEVERAL, Reduction, X, reductions
from parity.cases.op import CaseError, Input, Op, TensorShapes, Variant, require_shape, require_x
from parity.cases.primitives import Array, entries, rows_of, scalar
from parity.cases.program import by_hand, primitive

NEVER = -1e30
"""The logarithm of an impossible alignment's probability: finite, so that no gradient is NaN."""


@dataclass(frozen=True)
class CtcLossParams:
    """torch.nn.functional.ctc_loss: `blank` is the class between labels; a mean divides by each target's length."""

    blank: int = 0
    reduction: Reduction = "mean"


def by_columns(values: Array, n: int, fill: float) -> Array:
    """values [rows, columns], `n` columns to the right, or to the left; `fill` comes in."""
    result = np.full_like(values, fill)
    result[:, max(n, 0) : values.shape[1] + min(n, 0)] = values[:, max(-n, 0) : values.shape[1] - max(n, 0)]
    return result


def paths_to(states: Array, skips: Array) -> Array:
    """The logarithms [3, N, states] of what comes to each state: from itself, the one before, and over a blank."""
    return np.stack([states, by_columns(states, 1, NEVER), np.where(skips, by_columns(states, 2, NEVER), NEVER)])


def walked(emitted: Array, skips: Array, ends: Array) -> list[Array]:
    """The states [N, states] after each step, which stay as they are from `ends` on."""
    walk = [np.where(np.arange(skips.shape[1]) < 2, emitted[0], emitted.dtype.type(NEVER))]
    for step in range(1, len(emitted)):
        paths = paths_to(walk[-1], skips)
        largest = paths.max(axis=0)
        following = np.log(np.sum(np.exp(paths - largest), axis=0)) + largest + emitted[step]
        walk.append(np.where(step < ends[:, None], following, walk[-1]))
    return walk


@primitive
def last_states(emitted: Array, skips: Array, ends: Array) -> Array:
    """log of the probability of all alignments that end in each state [N, states].

    `emitted` [T, N, states] are the log-probabilities of the states' labels; `skips`: a state is reached from the last
    but one; `ends` [N] are the numbers of steps. One step of a program, whatever T: a step for each would be thousands.
    """
    return walked(emitted, skips, ends)[-1]


@primitive
def flows(g: Array, emitted: Array, skips: Array, ends: Array) -> Array:
    """The gradient of `last_states`: what of `g` flows through each state, back along the walk."""
    walk, result = walked(emitted, skips, ends), np.zeros_like(emitted)
    for step in reversed(range(1, len(emitted))):
        going = np.where(step < ends[:, None], g, 0)
        powers = np.exp(paths_to(walk[step - 1], skips) - paths_to(walk[step - 1], skips).max(axis=0))
        same, before, skipped = powers / powers.sum(axis=0) * going
        result[step] = going
        g = (g - going) + same + by_columns(before, -1, 0) + by_columns(skipped, -2, 0)
    result[0] = np.where(np.arange(g.shape[1]) < 2, g, 0)
    return result


@primitive
def flows_both_ways(g: Array, emitted: Array, skips: Array, ends: Array) -> Array:
    """The same from the walk and one back from the end, in logarithms (alpha and beta of Graves et al. 2006), as
    kernels compute it: where they cancel, digits are lost. The elements of a row of `g` have one sign."""
    walk, result = walked(emitted, skips, ends), np.zeros_like(emitted)
    back = np.where(g != 0, np.log(np.where(g != 0, np.abs(g), 1)) - walk[-1], g.dtype.type(NEVER))
    for step in reversed(range(1, len(emitted))):
        inside = step < ends[:, None]
        result[step] = np.where(inside, np.exp(walk[step] + back), 0)
        onward = back + emitted[step]
        paths = np.stack([onward, by_columns(onward, -1, NEVER), by_columns(np.where(skips, onward, NEVER), -2, NEVER)])
        largest = paths.max(axis=0)
        back = np.where(inside, np.log(np.sum(np.exp(paths - largest), axis=0)) + largest, back)
    result[0] = np.where(np.arange(g.shape[1]) < 2, np.exp(walk[0] + back), 0)
    result *= np.sign(np.sum(g, axis=1, keepdims=True))
    return result


@primitive
def last_states_both_ways(emitted: Array, skips: Array, ends: Array) -> Array:
    """last_states with the gradient `flows_both_ways`."""
    return walked(emitted, skips, ends)[-1]


defvjp(last_states, lambda _, emitted, skips, ends: lambda g: flows(g, emitted, skips, ends), None, None)
defvjp(
    last_states_both_ways,
    lambda _, emitted, skips, ends: lambda g: flows_both_ways(g, emitted, skips, ends),
    None,
    None,
)


def log_sum_exp(one: Any, other: Any) -> Any:
    """log(exp(one) + exp(other))."""
    largest = np.maximum(getval(one), getval(other))
    return anp.log(anp.exp(one - largest) + anp.exp(other - largest)) + largest


def log_softmax(x: Any) -> Any:
    """x - log(sum(exp(x))) along the last axis."""
    shifted = x - getval(x).max(axis=-1, keepdims=True)
    return shifted - anp.log(anp.sum(anp.exp(shifted), axis=-1, keepdims=True))


LOGS: Mapping[str, Callable[[Any], Any]] = {
    "": log_softmax,
    "raw": lambda x: x,
    "raw-values": by_hand(lambda x: x, lambda g, _y, x: g - anp.exp(x) * anp.sum(g, axis=-1, keepdims=True)),
}
"""The logarithms of probabilities: normalised, taken as they are, or so in values only. PyTorch's ctc_loss does the
last: its gradient is that of log_softmax, whatever the input comes from (aten/src/ATen/native/LossCTC.cpp)."""


def ctc_loss(
    tensors: Mapping[str, Any],
    params: CtcLossParams,
    *,
    reduction: str = "",
    logs: str = "",
    merged: bool = False,
    padded: bool = False,
    both_ways: bool = False,
) -> dict[str, Any]:
    """-log of the probability of every target [N, S], from log-probabilities x [T, N, C].

    x goes through log_softmax, which leaves log-probabilities as they are, or through another of `LOGS`. `reduction`
    replaces that of the params: `batch` divides by N, `labels` by the sum of the targets' lengths, `steps` each loss by
    its input's length. A label that comes twice may be `merged`: no blank is needed between them. `padded` takes all
    steps of x. The gradient may follow from walks `both_ways`.
    """
    x, target, lengths = tensors["x"], tensors["target"], tensors["target_lengths"]
    n_steps, n, n_classes = x.shape
    labels = labels_between_blanks(target, params.blank)
    rows = np.reshape(np.arange(n), (-1, 1)) * n_classes + labels
    by_class = rows_of(anp.reshape(anp.transpose(LOGS[logs](x), (1, 2, 0)), (n * n_classes, n_steps)), rows)
    skips = labels != params.blank
    if not merged:
        first = np.full((n, 2), True)
        skips = skips & np.concatenate([first, labels[:, 2:] != labels[:, :-2]], axis=1)
    ends = np.full(n, n_steps) if padded else tensors["input_lengths"]
    last = last_states_both_ways if both_ways else last_states
    states = last(anp.transpose(by_class, (2, 0, 1)), skips, ends)
    losses = -anp.reshape(log_sum_exp(entries(states, 2 * lengths), entries(states, 2 * lengths - 1)), (n,))
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
    """x: (T, N, C), logits, to which the op itself applies log_softmax; target: integers (N, S); lengths: integers
    (N,); y: a scalar, or (N,).

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
    yield Variant("probability-form", {"logs": "raw"}, shown_by="the gradient of log-probabilities")
    yield Variant("probability-form", {"logs": "raw-values"}, shown_by="logits")
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
    forms=({"both_ways": True},),
)
OPS = (CTC_LOSS,)
