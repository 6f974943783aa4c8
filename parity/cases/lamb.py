"""lamb: one step of LAMB (You et al. 2020, algorithm 2, arXiv:1904.00962), with Adam's bias correction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from parity.cases.clip_grad import vector_norm
from parity.cases.draw import Shape
from parity.cases.op import Knob, Op
from parity.cases.optimizers import ADAM, COUPLING, EXACT, FLOAT32, TINY, AdamParams, adam_update, counted


@dataclass(frozen=True)
class LambParams(AdamParams):
    """Adam's direction plus `weight_decay` times the parameter, scaled to the parameter's norm."""

    eps: float = 1e-6
    weight_decay: float = 1e-2


Trust = Literal["always", "decayed", "clamped", "never"]
LARGEST = 10.0


def lamb(
    tensors: Mapping[str, Any],
    params: LambParams,
    *,
    trust: Trust = "always",
    decay: Literal["inside", "outside", "gradient"] = "inside",
    **knobs: Any,
) -> dict[str, Any]:
    """The oracle: param - lr * ratio * u, where u = adam's direction + weight_decay * param and ratio = |param| / |u|.

    `trust`: `decayed` has a ratio of 1 where nothing decays, `clamped` takes |param| for 10 at most, `never` has no
    ratio. `decay`: `outside` of what the ratio scales, or added to the `gradient`. The other knobs are those of
    `adam_update`.
    """
    param, shrink = tensors["param"], params.weight_decay * tensors["param"]
    grad = tensors["grad"] + shrink if decay == "gradient" else tensors["grad"]
    update, state = adam_update({**tensors, "grad": grad}, params, 1.0, **knobs)
    if decay == "inside":
        update = update + shrink
    fixed = trust == "never" or (trust == "decayed" and not params.weight_decay)
    ratio = 1.0 if fixed else trust_ratio(param, update, LARGEST if trust == "clamped" else np.inf)
    moved = param - params.lr * ratio * update
    return {"param": moved - params.lr * shrink if decay == "outside" else moved, **state}


def trust_ratio(param: Any, update: Any, largest: float) -> Any:
    """|param| (`largest` at most) over |update|, 1 where one of them is 0; in their dtype."""
    norms = vector_norm([param], 2.0), vector_norm([update], 2.0)
    return np.minimum(norms[0], largest) / norms[1] if all(norm > 0 for norm in norms) else norms[0].dtype.type(1)


def lamb_knobs(params: LambParams, _shapes: Mapping[str, Shape]) -> tuple[Knob, ...]:
    """The hypotheses about LAMB."""
    trusts = ["never", "clamped", *([] if params.weight_decay else ["decayed"])]
    norms = "a parameter whose norm is not that of its update, nor below 10"
    decays = ("outside", "gradient") if params.weight_decay else ()
    return (
        *(Knob("trust-ratio", {"trust": trust}, told_by=norms) for trust in trusts),
        *(Knob("weight-decay-coupling", {"decay": decay}, told_by=COUPLING) for decay in decays),
        *(Knob("eps-placement", {"eps_placement": where}, told_by=TINY) for where in ("hat", "inside")),
        Knob("bias-correction", {"bias_correction": False}, told_by="an early step"),
        *counted(params),
        *(
            Knob("attribute-precision", dict.fromkeys(kept, FLOAT32), told_by=EXACT)
            for kept in (("betas_dtype",), ("powers_dtype",), ("betas_dtype", "powers_dtype"))
        ),
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
