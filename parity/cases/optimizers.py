"""One step of an optimizer (torch.optim): sgd, adam, adamw, rmsprop, adagrad, from a parameter, gradient and state.

The state's tensors are inputs and outputs. `step` is the number of this step, from 1, so that bias correction and the
first step's exceptions show.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from parity.cases.draw import Normal, Shape, Uniform
from parity.cases.op import CaseError, Fit, Input, Knob, Layout, Op

PARAM, GRAD = Input("param", default=Normal()), Input("grad", default=Normal())
SQUARES = Uniform(0.0, 1.0)
FLOAT32 = "float32"
LATER = "a step after the first"


@dataclass(frozen=True)
class SgdParams:
    """torch.optim.SGD: `momentum_buffer` is not read in step 1, which starts it with the gradient itself."""

    lr: float = 1e-3
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    step: int = 2


@dataclass(frozen=True)
class AdamParams:
    """torch.optim.Adam: `weight_decay` is added to the gradient."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    step: int = 2


@dataclass(frozen=True)
class AdamWParams(AdamParams):
    """torch.optim.AdamW: `weight_decay` shrinks the parameter (Loshchilov and Hutter, 2019)."""

    weight_decay: float = 1e-2


@dataclass(frozen=True)
class RmspropParams:
    """torch.optim.RMSprop."""

    lr: float = 1e-2
    alpha: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.0
    centered: bool = False


@dataclass(frozen=True)
class AdagradParams:
    """torch.optim.Adagrad."""

    lr: float = 1e-2
    eps: float = 1e-10
    weight_decay: float = 0.0
    lr_decay: float = 0.0
    step: int = 2


POSITIVE = frozenset(("step",))
FRACTIONS = frozenset(("momentum", "dampening", "alpha"))


def check(params: Any) -> None:
    """Raise CaseError for a number that no optimizer takes."""
    for name, value in vars(params).items():
        numbers = value if isinstance(value, tuple) else (value,)
        fraction = name in FRACTIONS or name == "betas"
        if not all((name in POSITIVE) <= v < (1 if fraction else np.inf) for v in numbers):
            limits = "from 0 up to, but not, 1" if fraction else "1, 2, ..." if name in POSITIVE else "0 or more"
            raise CaseError(f"params.{name}", f"{name} must be {limits}, not {value}")
    if getattr(params, "nesterov", False) and (not params.momentum or params.dampening):
        raise CaseError("params.nesterov", "nesterov needs a momentum, and no dampening")


def layout_with(states: Callable[[Any], Sequence[str]]) -> Callable[[Any, Mapping[str, Shape]], Layout]:
    """The layout of an op whose state is `states(params)`: all tensors have the shape of param, or of grad."""

    def layout(params: Any, given: Mapping[str, Shape]) -> Layout:
        check(params)
        names = ("param", "grad", *states(params))
        stated = [given[name] for name in names if name in given]
        if not stated:
            raise CaseError("inputs.param", "a shape (or `values`, or a `file`) is needed for param or grad")
        shapes = dict.fromkeys(names, stated[0])
        return Layout(inputs=shapes, outputs={name: shape for name, shape in shapes.items() if name != "grad"})

    return layout


def decayed(
    tensors: Mapping[str, Any], lr: float, weight_decay: float, *, decoupled: bool, dtype: str | None = None
) -> tuple[Any, Any]:
    """Parameter and gradient after weight decay: the gradient takes it, or, `decoupled`, the parameter.

    `dtype` is what lr * weight_decay is computed in.
    """
    param, grad = tensors["param"], tensors["grad"]
    if not weight_decay:
        return param, grad
    kind = np.dtype(dtype or np.float64).type
    shrink = float(kind(lr) * kind(weight_decay))
    return (param - shrink * param, grad) if decoupled else (param, grad + weight_decay * param)


def narrowed(values: Sequence[float], dtype: str | None) -> list[float]:
    """The numbers as `dtype` keeps them."""
    return [float(np.dtype(dtype).type(value)) if dtype else value for value in values]


def sgd(
    tensors: Mapping[str, Any],
    params: SgdParams,
    *,
    decoupled: bool = False,
    dampened_first: bool = False,
    lr_inside: bool = False,
    nesterov: bool | None = None,
) -> dict[str, Any]:
    """The oracle. `decoupled` decays the parameter; `dampened_first` dampens the first step as well; `lr_inside` keeps
    the rate in the buffer; `nesterov` overrides the param."""
    param, grad = decayed(tensors, params.lr, params.weight_decay, decoupled=decoupled)
    if not params.momentum:
        return {"param": param - params.lr * grad}
    rate = params.lr if lr_inside else 1.0
    if params.step == 1:
        buffer = rate * (1.0 - params.dampening if dampened_first else 1.0) * grad
    else:
        buffer = params.momentum * tensors["momentum_buffer"] + rate * (1.0 - params.dampening) * grad
    ahead = params.nesterov if nesterov is None else nesterov
    update = rate * grad + params.momentum * buffer if ahead else buffer
    return {"param": param - (1.0 if lr_inside else params.lr) * update, "momentum_buffer": buffer}


def rate_and_root(lr: float, bc1: float, bc2: float, dtype: str | None) -> tuple[float, float]:
    """lr / bc1 and the root of bc2, computed in `dtype` (None: in float64)."""
    kind = np.dtype(dtype or np.float64).type
    return float(kind(lr) / kind(bc1)), float(np.sqrt(kind(bc2)))


Placement = Literal["after", "hat", "inside"]


def adam(
    tensors: Mapping[str, Any],
    params: AdamParams,
    *,
    decoupled: bool | None = None,
    rates_dtype: str | None = None,
    **knobs: Any,
) -> dict[str, Any]:
    """The oracle (Kingma and Ba, 2015, algorithm 1); `decoupled` is AdamW's decay.

    `rates_dtype` is what lr over the correction and lr * weight_decay are computed in; the other knobs are those of
    `adam_update`.
    """
    shrink = isinstance(params, AdamWParams) if decoupled is None else decoupled
    param, grad = decayed(tensors, params.lr, params.weight_decay, decoupled=shrink, dtype=rates_dtype)
    update, state = adam_update({**tensors, "grad": grad}, params, params.lr, rates_dtype=rates_dtype, **knobs)
    return {"param": param - update, **state}


def adam_update(
    tensors: Mapping[str, Any],
    params: Any,
    lr: float,
    *,
    eps_placement: Placement = "after",
    bias_correction: bool = True,
    betas_dtype: str | None = None,
    powers_dtype: str | None = None,
    products_dtype: str | None = None,
    corrections_dtype: str | None = None,
    rates_dtype: str | None = None,
) -> tuple[Any, dict[str, Any]]:
    """`lr` times the corrected first moment over the root of the second, and both moments.

    `eps_placement`: `after` adds eps to sqrt(v / bc2), `hat` to sqrt(v) with the correction in the rate (Kingma and Ba,
    section 2's last remark), `inside` under the root. `betas_dtype` is what the moments' betas are kept in,
    `powers_dtype` the powers beta^t of the correction, `products_dtype` all factors of theirs but the first, and
    `corrections_dtype` 1 - beta^t and its root.
    """
    grad = tensors["grad"]
    beta1, beta2 = narrowed(params.betas, betas_dtype)
    first = beta1 * tensors["exp_avg"] + (1.0 - beta1) * grad
    second = beta2 * tensors["exp_avg_sq"] + (1.0 - beta2) * grad * grad
    powers = [beta**params.step for beta in params.betas]
    if products_dtype is not None:
        factors = narrowed(params.betas, products_dtype)
        powers = [beta * factor ** (params.step - 1) for beta, factor in zip(params.betas, factors, strict=True)]
    powers = narrowed(powers, powers_dtype)
    bc1, bc2 = (1.0 - power if bias_correction else 1.0 for power in powers)
    bc1, bc2 = narrowed((bc1, bc2), corrections_dtype)
    rate, _ = rate_and_root(lr, bc1, bc2, rates_dtype)
    _, root = rate_and_root(lr, bc1, bc2, corrections_dtype or rates_dtype)
    if eps_placement == "hat":
        update = rate * root * first / (np.sqrt(second) + params.eps)
    elif eps_placement == "inside":
        update = rate * first / np.sqrt(second / (root * root) + params.eps)
    else:
        update = rate * first / (np.sqrt(second) / root + params.eps)
    return update, {"exp_avg": first, "exp_avg_sq": second}


def rmsprop(
    tensors: Mapping[str, Any],
    params: RmspropParams,
    *,
    decoupled: bool = False,
    eps_inside: bool = False,
    lr_inside: bool = False,
    alpha_dtype: str | None = None,
) -> dict[str, Any]:
    """The oracle (Tieleman and Hinton, 2012; centered: Graves, 2013). `eps_inside` adds eps under the root, `lr_inside`
    keeps the rate in the momentum buffer."""
    param, grad = decayed(tensors, params.lr, params.weight_decay, decoupled=decoupled)
    [alpha] = narrowed((params.alpha,), alpha_dtype)
    squares = alpha * tensors["square_avg"] + (1.0 - alpha) * grad * grad
    found, spread = {"square_avg": squares}, squares
    if params.centered:
        found["grad_avg"] = alpha * tensors["grad_avg"] + (1.0 - alpha) * grad
        spread = squares - found["grad_avg"] * found["grad_avg"]
    root = np.sqrt(spread + params.eps) if eps_inside else np.sqrt(spread) + params.eps
    if not params.momentum:
        return {"param": param - params.lr * grad / root, **found}
    rate = params.lr if lr_inside else 1.0
    buffer = params.momentum * tensors["momentum_buffer"] + rate * grad / root
    return {"param": param - (1.0 if lr_inside else params.lr) * buffer, **found, "momentum_buffer": buffer}


def adagrad(
    tensors: Mapping[str, Any],
    params: AdagradParams,
    *,
    decoupled: bool = False,
    eps_inside: bool = False,
    rate_dtype: str | None = None,
) -> dict[str, Any]:
    """The oracle (Duchi, Hazan and Singer, 2011). `eps_inside` adds eps under the root; the decayed rate is computed in
    `rate_dtype`."""
    param, grad = decayed(tensors, params.lr, params.weight_decay, decoupled=decoupled)
    kind = np.dtype(rate_dtype or np.float64).type
    rate = float(kind(params.lr) / (kind(1) + kind(params.step - 1) * kind(params.lr_decay)))
    total = tensors["sum"] + grad * grad
    root = np.sqrt(total + params.eps) if eps_inside else np.sqrt(total) + params.eps
    return {"param": param - rate * grad / root, "sum": total}


TINY = "a state so small that eps beside it counts"
COUPLING = "a weight_decay that is not 0"
EXACT = "a weight that float32 cannot hold"


def coupling(params: Any, *, decoupled: bool) -> list[Knob]:
    """The other way to decay, where there is a decay."""
    knob = Knob("weight-decay-coupling", {"decoupled": not decoupled}, told_by=COUPLING)
    return [knob] if params.weight_decay else []


def counted(params: Any) -> list[Knob]:
    """The step counted from another start."""
    return [
        Knob("step-offset", params={"step": step}, told_by="an early step")
        for step in (params.step - 1, params.step + 1)
        if step > 0
    ]


def sgd_knobs(params: SgdParams, _shapes: Mapping[str, Shape]) -> tuple[Knob, ...]:
    """The hypotheses about SGD."""
    found = coupling(params, decoupled=False)
    if params.momentum:
        found.append(Knob("lr-in-momentum", {"lr_inside": True}, told_by="a rate that is not 1"))
        found.append(Knob("nesterov-form", {"nesterov": not params.nesterov}, told_by="any gradient"))
        if params.dampening and params.step == 1:
            found.append(Knob("dampening-first-step", {"dampened_first": True}, told_by="step 1"))
    return tuple(found)


NARROW = (
    ("betas_dtype",),
    ("powers_dtype",),
    ("rates_dtype",),
    ("betas_dtype", "powers_dtype"),
    ("betas_dtype", "rates_dtype"),
)
"""What kernels were seen to keep in float32, alone and together."""


def adam_knobs(params: AdamParams, _shapes: Mapping[str, Shape]) -> tuple[Knob, ...]:
    """The hypotheses about Adam and AdamW."""
    return (
        *coupling(params, decoupled=isinstance(params, AdamWParams)),
        *(Knob("eps-placement", {"eps_placement": where}, told_by=TINY) for where in ("hat", "inside")),
        Knob("bias-correction", {"bias_correction": False}, told_by="an early step"),
        *counted(params),
        *(Knob("attribute-precision", dict.fromkeys(kept, FLOAT32), told_by=EXACT) for kept in NARROW),
    )


def rmsprop_knobs(params: RmspropParams, _shapes: Mapping[str, Shape]) -> tuple[Knob, ...]:
    """The hypotheses about RMSprop."""
    found = coupling(params, decoupled=False)
    found.append(Knob("eps-placement", {"eps_inside": True}, told_by=TINY))
    found.append(Knob("attribute-precision", {"alpha_dtype": FLOAT32}, told_by=EXACT))
    if params.momentum:
        found.append(Knob("lr-in-momentum", {"lr_inside": True}, told_by="a rate that is not 1"))
    return tuple(found)


def adagrad_knobs(params: AdagradParams, _shapes: Mapping[str, Shape]) -> tuple[Knob, ...]:
    """The hypotheses about Adagrad."""
    found = coupling(params, decoupled=False)
    found.append(Knob("eps-placement", {"eps_inside": True}, told_by=TINY))
    if params.lr_decay:
        found += [*counted(params), Knob("attribute-precision", {"rate_dtype": FLOAT32}, told_by=EXACT)]
    return tuple(found)


EPS = Fit("eps-value", "eps", lambda params: float(params.eps), told_by=TINY)
MOMENTS = (Input("exp_avg", default=Normal(0.0, 0.1)), Input("exp_avg_sq", default=SQUARES))
BUFFER = Input("momentum_buffer", default=Normal())


def rmsprop_states(params: RmspropParams) -> list[str]:
    """What RMSprop keeps."""
    centered = ["grad_avg"] if params.centered else []
    return ["square_avg", *centered, *(["momentum_buffer"] if params.momentum else [])]


SGD = Op(
    name="sgd",
    summary="one step of stochastic gradient descent",
    params=SgdParams,
    inputs=(PARAM, GRAD, BUFFER),
    layout=layout_with(lambda params: ("momentum_buffer",) if params.momentum else ()),
    forward=sgd,
    knobs=sgd_knobs,
    upstream=(),
)
ADAM = Op(
    name="adam",
    summary="one step of Adam",
    params=AdamParams,
    inputs=(PARAM, GRAD, *MOMENTS),
    layout=layout_with(lambda _: ("exp_avg", "exp_avg_sq")),
    forward=adam,
    knobs=adam_knobs,
    fits=(EPS,),
    upstream=(),
)
ADAMW = replace(ADAM, name="adamw", summary="one step of AdamW", params=AdamWParams)
RMSPROP = Op(
    name="rmsprop",
    summary="one step of RMSprop",
    params=RmspropParams,
    inputs=(PARAM, GRAD, Input("square_avg", default=SQUARES), Input("grad_avg", default=Normal(0.0, 0.1)), BUFFER),
    layout=layout_with(rmsprop_states),
    forward=rmsprop,
    knobs=rmsprop_knobs,
    fits=(EPS,),
    upstream=(),
)
ADAGRAD = Op(
    name="adagrad",
    summary="one step of Adagrad",
    params=AdagradParams,
    inputs=(PARAM, GRAD, Input("sum", default=SQUARES)),
    layout=layout_with(lambda _: ("sum",)),
    forward=adagrad,
    knobs=adagrad_knobs,
    fits=(EPS,),
    upstream=(),
)
