"""One step of an optimizer (torch.optim): sgd, adam, adamw, lamb, rmsprop, adagrad.

The state's tensors are inputs and outputs. `step` is the number of this step, from 1, so that bias correction and
exceptions for the first step have an effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from parity.cases.clip import vector_norm
from parity.cases.draw import Normal, Shape, Uniform
from parity.cases.op import CaseError, Fit, Input, Op, TensorShapes, Variant
from parity.cases.primitives import narrow, root

PARAM, GRAD = Input("param", default=Normal()), Input("grad", default=Normal())
SQUARES = Uniform(0.0, 1.0)
FLOAT32 = "float32"


@dataclass(frozen=True)
class SgdParams:
    """torch.optim.SGD: step 1 does not read `momentum_buffer` but initializes it with the gradient."""

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
class LambParams(AdamParams):
    """Adam's direction plus `weight_decay` times the parameter, scaled to the parameter's norm."""

    eps: float = 1e-6
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
    """Raise CaseError for an invalid number."""
    for name, value in vars(params).items():
        numbers = value if isinstance(value, tuple) else (value,)
        fraction = name in FRACTIONS or name == "betas"
        if not all((name in POSITIVE) <= v < (1 if fraction else np.inf) for v in numbers):
            limits = "at least 0 and below 1" if fraction else "1, 2, ..." if name in POSITIVE else "0 or more"
            raise CaseError(f"params.{name}", f"{name} must be {limits}, not {value}")
    if getattr(params, "nesterov", False) and (not params.momentum or params.dampening):
        raise CaseError("params.nesterov", "nesterov needs a momentum and no dampening")


def layout_with(states: Callable[[Any], Sequence[str]]) -> Callable[[Any, Mapping[str, Shape]], TensorShapes]:
    """The layout of an op whose state is `states(params)`: all tensors have the shape of param, or of grad."""

    def infer_shapes(params: Any, given: Mapping[str, Shape]) -> TensorShapes:
        """All tensors: the shape of param, or of grad; the outputs are the new param and the new state."""
        check(params)
        names = ("param", "grad", *states(params))
        stated = [given[name] for name in names if name in given]
        if not stated:
            raise CaseError("inputs.param", "a shape (or `values`, or a `file`) is needed for param or grad")
        shapes = dict.fromkeys(names, stated[0])
        return TensorShapes(inputs=shapes, outputs={name: shape for name, shape in shapes.items() if name != "grad"})

    return infer_shapes


def decayed(
    tensors: Mapping[str, Any],
    lr: Any,
    weight_decay: Any,
    *,
    decoupled: bool,
    dtype: str | None = None,
    factored: bool = False,
) -> tuple[Any, Any]:
    """Parameter and gradient after weight decay, which changes the gradient, or if `decoupled` the parameter.

    `dtype` is what lr * weight_decay is computed in; `factored` multiplies by 1 - lr * weight_decay.
    """
    param, grad = tensors["param"], tensors["grad"]
    if not weight_decay:
        return param, grad
    if not decoupled:
        return param, grad + weight_decay * param
    shrink = kept(kept(lr, dtype) * kept(weight_decay, dtype), dtype)
    return param * (1 - shrink) if factored else param - shrink * param, grad


def kept(value: Any, dtype: str | None) -> Any:
    """A number rounded to `dtype`; None: unchanged."""
    return value if dtype is None else narrow(value, dtype)


def sgd(
    tensors: Mapping[str, Any],
    params: SgdParams,
    *,
    decoupled: bool = False,
    dampened_first: bool = False,
    lr_inside: bool = False,
    nesterov: bool | None = None,
) -> dict[str, Any]:
    """torch.optim.SGD. `decoupled` decays the parameter; `dampened_first` dampens the first step as well; `lr_inside`
    keeps the rate in the buffer; `nesterov` overrides the param."""
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


Placement = Literal["after", "hat", "inside"]


def adam(
    tensors: Mapping[str, Any],
    params: AdamParams,
    *,
    decoupled: bool = False,
    rates_dtype: str | None = None,
    textbook: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Kingma and Ba, 2015, algorithm 1; `decoupled` is AdamW's decay.

    `rates_dtype` is the dtype of lr over the correction and of lr * weight_decay; the other options are those of
    `adam_update`.
    """
    param, grad = decayed(
        tensors, params.lr, params.weight_decay, decoupled=decoupled, dtype=rates_dtype, factored=textbook
    )
    given, options = {**tensors, "grad": grad}, {**options, "rates_dtype": rates_dtype, "textbook": textbook}
    update, state = adam_update(given, params, params.lr, params.eps, **options)
    return {"param": param - update, **state}


def adam_update(
    tensors: Mapping[str, Any],
    params: AdamParams,
    lr: Any,
    eps: Any,
    *,
    eps_placement: Placement = "after",
    bias_correction: bool = True,
    betas_dtype: str | None = None,
    powers_dtype: str | None = None,
    products_dtype: str | None = None,
    corrections_dtype: str | None = None,
    rates_dtype: str | None = None,
    textbook: bool = False,
) -> tuple[Any, dict[str, Any]]:
    """`lr` times the corrected first moment over the root of the second, and both moments.

    `eps_placement`: `after` adds eps to sqrt(v / bc2), `hat` to sqrt(v) with the correction in the rate (Kingma and Ba,
    section 2's last remark), `inside` under the root. `betas_dtype` is the dtype of the moments' betas, `powers_dtype`
    of the powers beta^t of the correction, `products_dtype` of all their factors but the first, and `corrections_dtype`
    of 1 - beta^t and its root. `textbook` corrects both moments, as algorithm 1 does, and updates them as m + (1 -
    beta) * (g - m).
    """
    grad = tensors["grad"]
    beta1, beta2 = (kept(beta, betas_dtype) for beta in params.betas)
    if textbook:
        exp_avg = tensors["exp_avg"] + (1.0 - beta1) * (grad - tensors["exp_avg"])
        exp_avg_sq = tensors["exp_avg_sq"] + (1.0 - beta2) * (np.square(grad) - tensors["exp_avg_sq"])
    else:
        exp_avg = beta1 * tensors["exp_avg"] + (1.0 - beta1) * grad
        exp_avg_sq = beta2 * tensors["exp_avg_sq"] + (1.0 - beta2) * np.square(grad)
    powers = [power(beta, params.step, products_dtype) for beta in params.betas]
    if bias_correction:
        bc1, bc2 = (kept(1.0 - kept(beta_t, powers_dtype), corrections_dtype) for beta_t in powers)
    else:
        bc1 = bc2 = 1.0
    if textbook:
        m_hat, v_hat = exp_avg / bc1, exp_avg_sq / bc2
        return lr * m_hat / (np.sqrt(v_hat) + eps), {"exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq}
    rate = kept(kept(lr, rates_dtype) / kept(bc1, rates_dtype), rates_dtype)
    root_dtype = corrections_dtype or rates_dtype
    spread = kept(root(kept(bc2, root_dtype)), root_dtype)
    if eps_placement == "hat":
        update = rate * spread * exp_avg / (np.sqrt(exp_avg_sq) + eps)
    elif eps_placement == "inside":
        update = rate * exp_avg / np.sqrt(exp_avg_sq / (spread * spread) + eps)
    else:
        update = rate * exp_avg / (np.sqrt(exp_avg_sq) / spread + eps)
    return update, {"exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq}


def power(beta: Any, step: int, products_dtype: str | None) -> Any:
    """beta^step; all factors but the first are rounded to `products_dtype`."""
    return beta**step if products_dtype is None else beta * kept(beta, products_dtype) ** (step - 1)


Trust = Literal["always", "decayed", "clamped", "never"]
Decay = Literal["inside", "unmeasured", "outside", "gradient"]
LARGEST = 10.0


def lamb(
    tensors: Mapping[str, Any],
    params: LambParams,
    *,
    trust: Trust = "always",
    decay: Decay = "inside",
    options_dtype: str | None = None,
    rates_dtype: str | None = None,
    **options: Any,
) -> dict[str, Any]:
    """param - lr * ratio * u, where u = adam's direction + weight_decay * param and ratio = |param| / |u|.

    You et al. 2020, algorithm 2 (arXiv:1904.00962), with Adam's bias correction. `trust`: `decayed` has a ratio of 1
    without decay, `clamped` limits |param| to 10, `never` has no ratio. `decay`: `unmeasured` is scaled by the ratio
    but left out of |u|, `outside` is not scaled, `gradient` adds it to the gradient. eps and weight_decay are rounded
    to `options_dtype`, lr and its product with the ratio in `rates_dtype`. The other options are those of
    `adam_update`.
    """
    lr = kept(params.lr, rates_dtype)
    eps, weight_decay = kept(params.eps, options_dtype), kept(params.weight_decay, options_dtype)
    param, shrink = tensors["param"], weight_decay * tensors["param"]
    grad = tensors["grad"] + shrink if decay == "gradient" else tensors["grad"]
    update, state = adam_update({**tensors, "grad": grad}, params, 1.0, eps, **options)
    measured = update + shrink if decay == "inside" else update
    scaled = update + shrink if decay in ("inside", "unmeasured") else update
    fixed = trust == "never" or (trust == "decayed" and not params.weight_decay)
    ratio = 1.0 if fixed else trust_ratio(param, measured, LARGEST if trust == "clamped" else np.inf)
    moved = param - kept(lr * ratio, rates_dtype) * scaled
    return {"param": moved - lr * shrink if decay == "outside" else moved, **state}


def trust_ratio(param: Any, update: Any, largest: float) -> Any:
    """|param| (`largest` at most) over |update|, 1 where one of them is 0; in their dtype."""
    param_norm, update_norm = vector_norm([param], 2.0), vector_norm([update], 2.0)
    ratio = np.minimum(param_norm, largest) / update_norm
    return np.where((param_norm > 0) & (update_norm > 0), ratio, 1.0)


def rmsprop(
    tensors: Mapping[str, Any],
    params: RmspropParams,
    *,
    decoupled: bool = False,
    eps_inside: bool = False,
    lr_inside: bool = False,
    alpha_dtype: str | None = None,
    lerp: bool = False,
) -> dict[str, Any]:
    """RMSprop (Tieleman and Hinton, 2012; centered: Graves, 2013). `eps_inside` adds eps under the root, `lr_inside`
    keeps the rate in the momentum buffer; `lerp` writes the averages as m + (1 - beta) * (g - m)."""
    param, grad = decayed(tensors, params.lr, params.weight_decay, decoupled=decoupled)
    alpha = kept(params.alpha, alpha_dtype)
    before = tensors["square_avg"]
    square_avg = (
        before + (1.0 - alpha) * (np.square(grad) - before)
        if lerp
        else alpha * before + (1.0 - alpha) * np.square(grad)
    )
    state, spread = {"square_avg": square_avg}, square_avg
    if params.centered:
        grad_avg = alpha * tensors["grad_avg"] + (1.0 - alpha) * grad
        state["grad_avg"], spread = grad_avg, square_avg - np.square(grad_avg)
    root = np.sqrt(spread + params.eps) if eps_inside else np.sqrt(spread) + params.eps
    if not params.momentum:
        return {"param": param - params.lr * grad / root, **state}
    rate = params.lr if lr_inside else 1.0
    buffer = params.momentum * tensors["momentum_buffer"] + rate * grad / root
    return {"param": param - (1.0 if lr_inside else params.lr) * buffer, **state, "momentum_buffer": buffer}


def adagrad(
    tensors: Mapping[str, Any],
    params: AdagradParams,
    *,
    decoupled: bool = False,
    eps_inside: bool = False,
    rate_dtype: str | None = None,
) -> dict[str, Any]:
    """Adagrad (Duchi, Hazan and Singer, 2011). `eps_inside` adds eps under the root; the decayed rate is computed in
    `rate_dtype`."""
    param, grad = decayed(tensors, params.lr, params.weight_decay, decoupled=decoupled)
    slower = kept(1.0 + kept((params.step - 1) * kept(params.lr_decay, rate_dtype), rate_dtype), rate_dtype)
    rate = kept(kept(params.lr, rate_dtype) / slower, rate_dtype)
    total = tensors["sum"] + np.square(grad)
    root = np.sqrt(total + params.eps) if eps_inside else np.sqrt(total) + params.eps
    return {"param": param - rate * grad / root, "sum": total}


TINY = "a state so small that eps matters"
COUPLING = "a weight_decay that is not 0"
EXACT = "an option that float32 cannot represent"


def coupling(params: Any, *, decoupled: bool) -> list[Variant]:
    """The other kind of weight decay, if there is any."""
    variant = Variant("weight-decay-coupling", {"decoupled": not decoupled}, shown_by=COUPLING)
    return [variant] if params.weight_decay else []


def counted(params: Any) -> list[Variant]:
    """The step counted from a different start."""
    return [
        Variant("step-offset", params={"step": step}, shown_by="an early step")
        for step in (params.step - 1, params.step + 1)
        if step > 0
    ]


def sgd_variants(params: SgdParams, _shapes: Mapping[str, Shape]) -> tuple[Variant, ...]:
    """The hypotheses about SGD."""
    variants = coupling(params, decoupled=False)
    if params.momentum:
        variants.append(Variant("lr-in-momentum", {"lr_inside": True}, shown_by="a rate that is not 1"))
        variants.append(Variant("nesterov-form", {"nesterov": not params.nesterov}, shown_by="any gradient"))
        if params.dampening and params.step == 1:
            variants.append(Variant("dampening-first-step", {"dampened_first": True}, shown_by="step 1"))
    return tuple(variants)


NARROW = (
    ("betas_dtype",),
    ("powers_dtype",),
    ("rates_dtype",),
    ("betas_dtype", "powers_dtype"),
    ("betas_dtype", "rates_dtype"),
)
"""What observed kernels store as float32, alone and together."""


def adam_variants(params: AdamParams, _shapes: Mapping[str, Shape]) -> tuple[Variant, ...]:
    """The hypotheses about Adam and AdamW."""
    return (
        *coupling(params, decoupled=isinstance(params, AdamWParams)),
        *(Variant("eps-placement", {"eps_placement": where}, shown_by=TINY) for where in ("hat", "inside")),
        Variant("bias-correction", {"bias_correction": False}, shown_by="an early step"),
        *counted(params),
        *(Variant("attribute-precision", dict.fromkeys(kept, FLOAT32), shown_by=EXACT) for kept in NARROW),
    )


NARROW_LAMB = (
    ("betas_dtype",),
    ("rates_dtype",),
    ("betas_dtype", "options_dtype"),
    ("betas_dtype", "options_dtype", "products_dtype"),
    ("betas_dtype", "options_dtype", "corrections_dtype", "rates_dtype"),
)
"""What observed kernels store as float32, alone and together."""


DECAYS = (
    ("unmeasured", "trust-ratio"),
    ("outside", "weight-decay-coupling"),
    ("gradient", "weight-decay-coupling"),
)


def lamb_variants(params: LambParams, _shapes: Mapping[str, Shape]) -> tuple[Variant, ...]:
    """The hypotheses about LAMB."""
    trusts = ["never", "clamped", *([] if params.weight_decay else ["decayed"])]
    norms = "a parameter whose norm is 10 or more and not that of its update"
    return (
        *(Variant("trust-ratio", {"trust": trust}, shown_by=norms) for trust in trusts),
        *(Variant(which, {"decay": decay}, shown_by=COUPLING) for decay, which in DECAYS if params.weight_decay),
        *(Variant("eps-placement", {"eps_placement": where}, shown_by=TINY) for where in ("hat", "inside")),
        Variant("bias-correction", {"bias_correction": False}, shown_by="an early step"),
        *counted(params),
        *(Variant("attribute-precision", dict.fromkeys(kept, FLOAT32), shown_by=EXACT) for kept in NARROW_LAMB),
    )


def rmsprop_variants(params: RmspropParams, _shapes: Mapping[str, Shape]) -> tuple[Variant, ...]:
    """The hypotheses about RMSprop."""
    variants = coupling(params, decoupled=False)
    variants.append(Variant("eps-placement", {"eps_inside": True}, shown_by=TINY))
    variants.append(Variant("attribute-precision", {"alpha_dtype": FLOAT32}, shown_by=EXACT))
    if params.momentum:
        variants.append(Variant("lr-in-momentum", {"lr_inside": True}, shown_by="a rate that is not 1"))
    return tuple(variants)


def adagrad_variants(params: AdagradParams, _shapes: Mapping[str, Shape]) -> tuple[Variant, ...]:
    """The hypotheses about Adagrad."""
    variants = coupling(params, decoupled=False)
    variants.append(Variant("eps-placement", {"eps_inside": True}, shown_by=TINY))
    if params.lr_decay:
        variants += [*counted(params), Variant("attribute-precision", {"rate_dtype": FLOAT32}, shown_by=EXACT)]
    return tuple(variants)


EPS = Fit("eps-value", "eps", lambda params: float(params.eps), shown_by=TINY)
MOMENTS = (Input("exp_avg", default=Normal(0.0, 0.1), state=True), Input("exp_avg_sq", default=SQUARES, state=True))
BUFFER = Input("momentum_buffer", default=Normal(), state=True)


def rmsprop_states(params: RmspropParams) -> list[str]:
    """The state of RMSprop."""
    centered = ["grad_avg"] if params.centered else []
    return ["square_avg", *centered, *(["momentum_buffer"] if params.momentum else [])]


SGD = Op(
    name="sgd",
    summary="one step of stochastic gradient descent",
    params=SgdParams,
    inputs=(PARAM, GRAD, BUFFER),
    infer_shapes=layout_with(lambda params: ("momentum_buffer",) if params.momentum else ()),
    reference=sgd,
    variants=sgd_variants,
    grad_outputs=(),
)
ADAM = Op(
    name="adam",
    summary="one step of Adam",
    params=AdamParams,
    inputs=(PARAM, GRAD, *MOMENTS),
    infer_shapes=layout_with(lambda _: ("exp_avg", "exp_avg_sq")),
    reference=adam,
    variants=adam_variants,
    forms=({"textbook": True},),
    fits=(EPS,),
    grad_outputs=(),
)
ADAMW = replace(
    ADAM, name="adamw", summary="one step of AdamW", params=AdamWParams, reference=partial(adam, decoupled=True)
)
LAMB = replace(ADAM, name="lamb", summary="one step of LAMB", params=LambParams, reference=lamb, variants=lamb_variants)
RMSPROP = Op(
    name="rmsprop",
    summary="one step of RMSprop",
    params=RmspropParams,
    inputs=(
        PARAM,
        GRAD,
        Input("square_avg", default=SQUARES, state=True),
        Input("grad_avg", default=Normal(0.0, 0.1), state=True),
        BUFFER,
    ),
    infer_shapes=layout_with(rmsprop_states),
    reference=rmsprop,
    variants=rmsprop_variants,
    forms=({"lerp": True},),
    fits=(EPS,),
    grad_outputs=(),
)
ADAGRAD = Op(
    name="adagrad",
    summary="one step of Adagrad",
    params=AdagradParams,
    inputs=(PARAM, GRAD, Input("sum", default=SQUARES, state=True)),
    infer_shapes=layout_with(lambda _: ("sum",)),
    reference=adagrad,
    variants=adagrad_variants,
    fits=(EPS,),
    grad_outputs=(),
)
OPS = (SGD, ADAM, ADAMW, LAMB, RMSPROP, ADAGRAD)
