"""lamb: one step of LAMB (You et al. 2020, algorithm 2, arXiv:1904.00962), with Adam's bias correction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from parity.cases.clip_grad import vector_norm
from parity.cases.draw import Shape
from parity.cases.op import Knob, Op
from parity.cases.optimizers import (
    ADAM,
    COUPLING,
    EXACT,
    FLOAT32,
    TINY,
    AdamParams,
    adam_update,
    counted,
    narrowed,
)


@dataclass(frozen=True)
class LambParams(AdamParams):
    """Adam's direction plus `weight_decay` times the parameter, scaled to the parameter's norm."""

    eps: float = 1e-6
    weight_decay: float = 1e-2


Trust = Literal["always", "decayed", "clamped", "never"]
Decay = Literal["inside", "unmeasured", "outside", "gradient"]
LARGEST = 10.0
KEPT = (
    ("betas_dtype",),
    ("rates_dtype",),
    ("betas_dtype", "options_dtype"),
    ("betas_dtype", "options_dtype", "products_dtype"),
    ("betas_dtype", "options_dtype", "corrections_dtype", "rates_dtype"),
)
"""What kernels were seen to keep in float32, alone and together."""


def lamb(
    tensors: Mapping[str, Any],
    params: LambParams,
    *,
    trust: Trust = "always",
    decay: Decay = "inside",
    options_dtype: str | None = None,
    rates_dtype: str | None = None,
    **knobs: Any,
) -> dict[str, Any]:
    """The oracle: param - lr * ratio * u, where u = adam's direction + weight_decay * param and ratio = |param| / |u|.

    `trust`: `decayed` has a ratio of 1 where nothing decays, `clamped` takes |param| for 10 at most, `never` has no
    ratio. `decay`: `unmeasured` is scaled by the ratio but left out of |u|, `outside` is not scaled, `gradient` adds it
    to the gradient. eps and weight_decay are kept in `options_dtype`, lr and its product with the ratio in
    `rates_dtype`. The other knobs are those of `adam_update`.
    """
    [lr] = narrowed((params.lr,), rates_dtype)
    eps, weight_decay = narrowed((params.eps, params.weight_decay), options_dtype)
    param, shrink = tensors["param"], weight_decay * tensors["param"]
    grad = tensors["grad"] + shrink if decay == "gradient" else tensors["grad"]
    update, state = adam_update({**tensors, "grad": grad}, replace(params, eps=eps), 1.0, **knobs)
    measured = update + shrink if decay == "inside" else update
    scaled = update + shrink if decay in ("inside", "unmeasured") else update
    fixed = trust == "never" or (trust == "decayed" and not params.weight_decay)
    ratio = 1.0 if fixed else trust_ratio(param, measured, LARGEST if trust == "clamped" else np.inf)
    [rate] = narrowed((lr * ratio,), rates_dtype)
    moved = param - rate * scaled
    return {"param": moved - lr * shrink if decay == "outside" else moved, **state}


def trust_ratio(param: Any, update: Any, largest: float) -> Any:
    """|param| (`largest` at most) over |update|, 1 where one of them is 0; in their dtype."""
    norms = vector_norm([param], 2.0), vector_norm([update], 2.0)
    return np.minimum(norms[0], largest) / norms[1] if all(norm > 0 for norm in norms) else norms[0].dtype.type(1)


DECAYS = (
    ("unmeasured", "trust-ratio"),
    ("outside", "weight-decay-coupling"),
    ("gradient", "weight-decay-coupling"),
)


def lamb_knobs(params: LambParams, _shapes: Mapping[str, Shape]) -> tuple[Knob, ...]:
    """The hypotheses about LAMB."""
    trusts = ["never", "clamped", *([] if params.weight_decay else ["decayed"])]
    norms = "a parameter whose norm is not that of its update, nor below 10"
    return (
        *(Knob("trust-ratio", {"trust": trust}, told_by=norms) for trust in trusts),
        *(Knob(which, {"decay": decay}, told_by=COUPLING) for decay, which in DECAYS if params.weight_decay),
        *(Knob("eps-placement", {"eps_placement": where}, told_by=TINY) for where in ("hat", "inside")),
        Knob("bias-correction", {"bias_correction": False}, told_by="an early step"),
        *counted(params),
        *(Knob("attribute-precision", dict.fromkeys(kept, FLOAT32), told_by=EXACT) for kept in KEPT),
    )


LAMB = Op(
    name="lamb",
    summary="one step of LAMB",
    params=LambParams,
    inputs=ADAM.inputs,
    layout=ADAM.layout,
    forward=lamb,
    knobs=lamb_knobs,
    fits=ADAM.fits,
    upstream=(),
)
