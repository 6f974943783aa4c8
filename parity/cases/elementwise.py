"""Functions of every element: a row of the table each.

A function's parameters without a default are the op's tensors, those with one its params; keyword-only ones are numbers
that a kernel may add, 0 in the op.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from operator import attrgetter
from typing import Any, Literal, get_type_hints

import autograd.numpy as anp
import numpy as np
from autograd.extend import defvjp

from parity.cases.draw import Draw, LogUniform, Normal, Shape, Uniform
from parity.cases.op import Fit, IncompatibleError, Input, Op, TensorShapes, Variant, require_shape, require_x
from parity.cases.primitives import erf, erfc, narrow, pi, scalar
from parity.cases.program import by_hand, primitive

Function = Callable[..., Any]
POSITIVE: Mapping[str, Draw] = {"x": LogUniform(0.1, 10.0)}
AWAY_FROM_ZERO: Mapping[str, Draw] = {"x": Normal(0.0, 3.0), "other": LogUniform(0.5, 4.0, signed=True)}
USUAL_EPS = 1e-6
ANYWHERE = "inputs that are not near 0"
OVERFLOW, CANCELLATION = "exp-overflow", "cancellation-near-0"
LOSSES = {OVERFLOW: "inputs so large that exp overflows", CANCELLATION: "inputs so small that exp is nearly 1"}


@dataclass(frozen=True)
class NoParams:
    """The op has no params."""


@dataclass(frozen=True)
class GeluParams:
    """`approximate`: `none` is the exact form, `tanh` the approximation (torch.nn.functional.gelu)."""

    approximate: Literal["none", "tanh"] = "none"


def shapes(_params: Any, given: Mapping[str, Shape]) -> TensorShapes:
    """x: any shape; y: as x."""
    x = require_x(given, (), "")
    return TensorShapes(inputs={"x": x}, outputs={"y": x})


# Functions.

# autograd's is exp(x) - 1 + 1, of which nothing is left at -40.
defvjp(anp.expm1, lambda _, x: lambda g: g * anp.exp(x))


def magnitude(x: Any) -> Any:
    """|x|, whose gradient at 0 is 0."""
    return magnitude_of(x)


magnitude_of = by_hand(lambda x: np.abs(x), lambda g, _y, x: g * np.sign(x))


def relu(x: Any) -> Any:
    """max(x, 0), whose gradient at 0 is 0."""
    return anp.where(x <= 0, 0.0, x)


def leaky_relu(x: Any, negative_slope: float = 0.01) -> Any:
    """x, times `negative_slope` below 0."""
    return anp.where(x <= 0, x * negative_slope, x)


def elu(x: Any, alpha: float = 1.0) -> Any:
    """x, below 0 alpha * (exp(x) - 1) (Clevert, Unterthiner, Hochreiter 2015)."""
    return anp.where(x <= 0, alpha * anp.expm1(anp.where(x <= 0, x, 0.0)), x)


ELU_LOSSES: Mapping[str, Function] = {
    OVERFLOW: lambda x, alpha: anp.where(x <= 0, alpha * anp.expm1(x), x),
    CANCELLATION: lambda x, alpha: anp.where(x <= 0, alpha * (anp.exp(anp.where(x <= 0, x, 0.0)) - 1), x),
}


def selu(x: Any) -> Any:
    """`elu` with two constants that keep mean and variance (Klambauer et al. 2017)."""
    return SELU_SCALE * elu(x, SELU_ALPHA)


SELU_ALPHA, SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


def celu(x: Any, alpha: float = 1.0) -> Any:
    """x, below 0 alpha * (exp(x / alpha) - 1) (Barron 2017)."""
    return anp.where(x <= 0, alpha * anp.expm1(anp.where(x <= 0, x, 0.0) / alpha), x)


def softplus(x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    """log(1 + exp(beta * x)) / beta, and x where beta * x is above `threshold`."""
    linear = x * beta > threshold
    return anp.where(linear, x, anp.log1p(anp.exp(anp.where(linear, 0.0, x * beta))) / beta)


SOFTPLUS_LOSSES: Mapping[str, Function] = {
    OVERFLOW: lambda x, beta, _: anp.log1p(anp.exp(x * beta)) / beta,
    CANCELLATION: lambda x, beta, threshold: anp.where(
        x * beta > threshold, x, anp.log(1 + anp.exp(anp.where(x * beta > threshold, 0.0, x * beta))) / beta
    ),
}


def logsigmoid(x: Any) -> Any:
    """log(sigmoid(x)), without overflow."""
    return anp.where(x <= 0, x, 0.0) - anp.log1p(anp.exp(-magnitude(x)))


def mish(x: Any) -> Any:
    """x * tanh(log(1 + exp(x))) (Misra 2019)."""
    return x * anp.tanh(anp.where(x <= 0, 0.0, x) + anp.log1p(anp.exp(-magnitude(x))))


def mish_by_exp(x: Any) -> Any:
    """`mish` as x * n / (n + 2), n = exp(x) * (exp(x) + 2)."""
    e = anp.exp(x)
    n = e * (e + 2)
    return x * n / (n + 2)


MISH_LOSSES: Mapping[str, Function] = {
    OVERFLOW: mish_by_exp,
    CANCELLATION: lambda x: x * anp.tanh(anp.log(1 + anp.exp(x))),
}


def softsign(x: Any) -> Any:
    """x / (1 + |x|)."""
    return x / (1 + magnitude(x))


def hardtanh(x: Any, min_val: float = -1.0, max_val: float = 1.0) -> Any:
    """x, `min_val` at least and `max_val` at most; its gradient is 0 there."""
    return anp.where(x <= min_val, scalar(min_val, x), anp.where(x >= max_val, scalar(max_val, x), x))


def hardsigmoid(x: Any) -> Any:
    """relu6(x + 3) / 6 (Howard et al. 2019)."""
    return hardtanh(x + 3, 0.0, 6.0) / 6


def hardswish(x: Any) -> Any:
    """x * hardsigmoid(x) (Howard et al. 2019)."""
    return x * hardtanh(x + 3, 0.0, 6.0) / 6


def clamp(x: Any, min: float | None = None, max: float | None = None) -> Any:  # noqa: A002 - PyTorch's names
    """x, `min` at least and `max` at most; its gradient is 1 there."""
    above = x if min is None else anp.where(x < min, scalar(min, x), x)
    return above if max is None else anp.where(above > max, scalar(max, x), above)


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x)), whose gradient does not overflow with exp(-x)."""
    return logistic(x)


logistic = by_hand(lambda x: 1 / (1 + np.exp(-x)), lambda g, y, _x: g * (y * (1 - y)))


def silu(x: Any) -> Any:
    """x * sigmoid(x) (Elfwing, Uchibe, Doya 2018)."""
    return x * sigmoid(x)


def gelu(x: Any) -> Any:
    """x times the normal distribution function of x (Hendrycks and Gimpel 2016)."""
    return x * erfc(-x * anp.sqrt(scalar(0.5, x))) * 0.5


def gelu_plus_one(x: Any) -> Any:
    """`gelu` as most kernels compute it, of which nothing is left where 1 + erf is 0."""
    return x * (erf(x * anp.sqrt(scalar(0.5, x))) + 1) * 0.5


def gelu_tanh(x: Any) -> Any:
    """The approximation of `gelu` by tanh (their section 2), where (tanh(z) + 1) / 2 is sigmoid(2 * z)."""
    inner = (x + x * x * x * 0.044715) * anp.sqrt(2 / pi(x))
    return x * sigmoid(inner * 2)


def gelu_tanh_plus_one(x: Any) -> Any:
    """`gelu_tanh` as most kernels compute it, of which nothing is left where tanh + 1 is 0."""
    inner = (x + x * x * x * 0.044715) * anp.sqrt(2 / pi(x))
    return x * (anp.tanh(inner) + 1) * 0.5


def gelu_sigmoid(x: Any) -> Any:
    """The approximation of `gelu` by a sigmoid (their section 2)."""
    return x * sigmoid(x * 1.702)


def log(x: Any, *, eps: float = 0.0) -> Any:
    """The natural logarithm."""
    return anp.log(x + eps if eps else x)


def sqrt(x: Any, *, eps: float = 0.0) -> Any:
    """The square root."""
    return anp.sqrt(x + eps if eps else x)


def rsqrt(x: Any, *, eps: float = 0.0, denominator_eps: float = 0.0) -> Any:
    """1 / sqrt(x)."""
    root = sqrt(x, eps=eps)
    return 1 / (root + denominator_eps if denominator_eps else root)


def power(x: Any, exponent: float = 2.0) -> Any:
    """x^exponent."""
    return raised(x, exponent)


raised = by_hand(lambda x, n: x**n, lambda g, _y, x, n: g * (n * x ** (n - 1)))


def maximum(x: Any, other: Any) -> Any:
    """The larger one; of equal ones, each gets half of the gradient."""
    return anp.where(x > other, x, anp.where(x < other, other, (x + other) / 2))


def minimum(x: Any, other: Any) -> Any:
    """The smaller one; of equal ones, each gets half of the gradient."""
    return anp.where(x < other, x, anp.where(x > other, other, (x + other) / 2))


def where(condition: Any, x: Any, other: Any) -> Any:
    """x where the condition holds, else other."""
    return anp.where(condition != 0, x, other)


def remainder(x: Any, other: Any) -> Any:
    """x - other * floor(x / other), with the sign of `other`."""
    return anp.mod(x, other)


@primitive
def fmod(x: Any, other: Any) -> Any:
    """x - other * trunc(x / other), with the sign of x, exactly."""
    return np.fmod(x, other)


defvjp(fmod, lambda *_: lambda g: g, lambda _, x, other: lambda g: -g * np.trunc(x / other))


def nearest_remainder(x: Any, other: Any) -> Any:
    """x - other * round(x / other), as C's remainder."""
    return x - other * anp.rint(x / other)


def atan2(x: Any, other: Any) -> Any:
    """The angle of the point (other, x), from -pi to pi."""
    return anp.arctan2(x, other)


def half_away(x: Any) -> Any:
    """x rounded to an integer; halves away from 0."""
    return anp.sign(x) * anp.floor(magnitude(x) + 0.5)


# Derivatives as kernels compute them, in x and y = f(x).


def relu_slope(x: Any, _y: Any) -> Any:
    """Of `relu`."""
    return anp.where(x <= 0, scalar(0, x), scalar(1, x))


def elu_slope(x: Any, y: Any, alpha: float) -> Any:
    """Of `elu`, from its result."""
    return anp.where(x <= 0, y + alpha, scalar(1, x))


def selu_slope(x: Any, y: Any) -> Any:
    """Of `selu`, from its result."""
    return anp.where(x <= 0, y + SELU_SCALE * SELU_ALPHA, scalar(SELU_SCALE, x))


def celu_slope(x: Any, y: Any, alpha: float) -> Any:
    """Of `celu`, from its result."""
    return anp.where(x <= 0, y / alpha + 1, scalar(1, x))


def softplus_slope(x: Any, _y: Any, beta: float, threshold: float) -> Any:
    """Of `softplus`."""
    return anp.where(x * beta > threshold, scalar(1, x), sigmoid(x * beta))


def mish_slope(x: Any, _y: Any) -> Any:
    """Of `mish`."""
    t = anp.tanh(softplus(x))
    return t + x * (1 - t * t) * sigmoid(x)


def softsign_slope(x: Any, _y: Any) -> Any:
    """Of `softsign`."""
    d = 1 + magnitude(x)
    return 1 / (d * d)


def tanh_slope(_x: Any, y: Any) -> Any:
    """Of tanh."""
    return 1 - y * y


def sigmoid_slope(_x: Any, y: Any) -> Any:
    """Of `sigmoid`."""
    return y * (1 - y)


def silu_slope(x: Any, _y: Any) -> Any:
    """Of `silu`."""
    s = sigmoid(x)
    return s * (1 + x * (1 - s))


def silu_slope_by_exp(x: Any, _y: Any) -> Any:
    """Of `silu`, by exp(-x)."""
    e = anp.exp(-x)
    return 1 / (1 + e) * (1 + x * e / (1 + e))


def gelu_slope(x: Any, _y: Any) -> Any:
    """Of `gelu`: the normal distribution function, plus x times its density."""
    cdf = 0.5 * erfc(-x * anp.sqrt(scalar(0.5, x)))
    pdf = anp.exp(-0.5 * x * x) / anp.sqrt(2 * pi(x))
    return cdf + x * pdf


def gelu_tanh_slope(x: Any, _y: Any) -> Any:
    """Of `gelu_tanh`."""
    c = anp.sqrt(2 / pi(x))
    s = sigmoid(2 * c * (x + 0.044715 * x * x * x))
    return s + 2 * x * s * (1 - s) * c * (1 + 3 * (0.044715 * x * x))


def gelu_sigmoid_slope(x: Any, _y: Any) -> Any:
    """Of `gelu_sigmoid`."""
    s = sigmoid(1.702 * x)
    return s * (1 + 1.702 * x * (1 - s))


def with_slope(function: Function, slope: Function) -> Function:
    """`function`, whose gradient is computed by `slope`."""
    return by_hand(function, lambda g, y, x, *numbers: g * slope(x, y, *numbers))


FORMS: Mapping[str, Function] = {"none": gelu, "tanh": gelu_tanh, "sigmoid": gelu_sigmoid}
"""The forms of gelu: `approximate` of PyTorch, and the one by a sigmoid."""
NARROW_FORMS: Mapping[str, Function] = {
    "none-float32": lambda x: x * erfc(-x * narrow(np.sqrt(0.5), "float32")) * 0.5,
    "tanh-float32": lambda x: x * sigmoid((x + x * x * x * narrow(0.044715, "float32")) * anp.sqrt(2 / pi(x)) * 2),
}
"""The same with the constant in float32 that kernels keep there."""
PLUS_ONE: Mapping[str, Function] = {"none": gelu_plus_one, "tanh": gelu_tanh_plus_one}
"""The forms as most kernels compute them."""
SLOPES: Mapping[str, Function] = {"none": gelu_slope, "tanh": gelu_tanh_slope, "sigmoid": gelu_sigmoid_slope}


def gelu_reference(
    tensors: Mapping[str, Any], params: GeluParams, *, form: str = "", fused: bool = False, plus_one: bool = False
) -> dict[str, Any]:
    """gelu; `form` replaces the form in the params, `fused` uses a hand-written derivative, `plus_one` adds 1 to erf or
    tanh, as most kernels do."""
    form = form or params.approximate
    function = {**FORMS, **NARROW_FORMS, **(PLUS_ONE if plus_one else {})}[form]
    return {"y": (with_slope(function, SLOPES[form]) if fused and form in SLOPES else function)(tensors["x"])}


def gelu_variants(params: GeluParams, _shapes: Mapping[str, Shape]) -> Iterable[Variant]:
    """The other forms as most kernels compute them, and a constant in float32."""
    for form in (form for form in FORMS if form != params.approximate):
        yield Variant("activation-form", {"form": form, "plus_one": True}, shown_by=ANYWHERE)
    yield Variant("attribute-precision", {"form": f"{params.approximate}-float32"}, shown_by="float64")


# Ops.


def signature(function: Function) -> tuple[Sequence[str], type[Any], Sequence[str]]:
    """A function's tensors, the dataclass of its params, and its keyword-only numbers; NumPy's functions take x."""
    items = inspect.signature(getattr(function, "raw", function)).parameters.values()
    named = [item for item in items if item.kind is item.POSITIONAL_OR_KEYWORD]
    numbers = [item for item in named if item.default is not item.empty]
    tensors = [item.name for item in named if item.default is item.empty]
    added = [item.name for item in items if item.kind is item.KEYWORD_ONLY and named]
    if not numbers:
        return tensors or ["x"], NoParams, added
    hints = get_type_hints(function)
    rows = [(item.name, hints[item.name], field(default=item.default)) for item in numbers]
    return tensors, make_dataclass(f"{function.__name__.title()}Params", rows, frozen=True), added


def elementwise(
    name: str,
    function: Function,
    summary: str,
    *,
    draws: Mapping[str, Draw] | None = None,
    slope: Function | None = None,
    others: Mapping[str, Function] | None = None,
    instead: str = "activation-form",
    unstable: Mapping[str, Function] | None = None,
    values: Mapping[str, Sequence[float]] | None = None,
    condition: str = "",
    exact: bool = False,
) -> Op:
    """The op y = function(x, ...), all tensors of one shape.

    `draws` are the domains of tensors, by default Normal(). `slope(x, y, *numbers)` is the derivative as kernels
    compute it. `others` are functions that a kernel may compute `instead` (the diagnosis); `unstable`, by diagnosis,
    are equal in exact arithmetic alone. `values` are those that frameworks have for a param, beside PyTorch's default.
    The tensor `condition` holds integers, 0 or 1. An `exact` op rounds nothing.
    """
    names, kind, added = signature(function)
    replaced, domains, lossy = dict(others or {}), dict(draws or {}), dict(unstable or {})
    numbers = [f.name for f in fields(kind)]
    usual = {f.name: (f.default,) for f in fields(kind) if isinstance(f.default, float)} | dict(values or {})
    fused_forms = {"": with_slope(function, slope)} if slope else {}
    fused_forms |= {form: with_slope(other, slope) for form, other in replaced.items() if slope}

    def reference(
        tensors: Mapping[str, Any],
        params: Any,
        *,
        fused: bool = False,
        form: str = "",
        loss: str = "",
        **options: float,
    ) -> dict[str, Any]:
        if bool(form or fused) + bool(loss) + bool(options) > 1:
            raise IncompatibleError("another form has neither a lossy one nor further numbers")
        used = fused_forms[form] if fused else (replaced | lossy).get(form or loss, function)
        return {"y": used(*(tensors[n] for n in names), *(getattr(params, n) for n in numbers), **options)}

    def variants(given: Any, _shapes: Mapping[str, Shape]) -> Iterable[Variant]:
        for fused in [{}, {"fused": True}] if slope else [{}]:
            yield from (Variant(instead, {"form": form, **fused}, shown_by=ANYWHERE) for form in replaced)
        yield from (Variant(loss, {"loss": loss}, unstable=True, shown_by=LOSSES[loss]) for loss in lossy)
        for param, defaults in usual.items():
            different = [number for number in defaults if number != getattr(given, param)]
            yield from (Variant("option-value", params={param: number}, shown_by=ANYWHERE) for number in different)

    def infer_shapes(_params: Any, given: Mapping[str, Shape]) -> TensorShapes:
        """Every tensor: any shape, the same; y: as x."""
        x = require_x(given, (), "")
        inputs = {n: x if n == "x" else require_shape(given, n, x, f"x {list(x)}") for n in names}
        return TensorShapes(inputs, {"y": x}, {condition: (0, 2)} if condition else {})

    return Op(
        name=name,
        summary=summary,
        params=kind,
        inputs=tuple(
            Input(n, integers=True) if n == condition else Input(n, domains.get(n, Normal()), differentiable=True)
            for n in names
        ),
        infer_shapes=infer_shapes,
        reference=reference,
        variants=variants,
        fits=(
            *(Fit("option-value", param, attrgetter(param), ANYWHERE) for param in usual),
            *(Fit("eps-value", option, lambda _: USUAL_EPS, "inputs near 0") for option in added),
        ),
        forms=({"fused": True},) if slope else (),
        exact=exact,
    )


GELU = Op(
    name="gelu",
    summary="x times the normal distribution function of x",
    params=GeluParams,
    inputs=(Input("x", Normal(), differentiable=True),),
    infer_shapes=shapes,
    reference=gelu_reference,
    variants=gelu_variants,
    forms=({"fused": True}, {"plus_one": True}),
    customary={"plus_one": True},
)
OPS = (
    elementwise(
        "relu",
        relu,
        "max(x, 0)",
        slope=relu_slope,
        others={"leaky_relu": leaky_relu, "relu6": lambda x: hardtanh(x, 0.0, 6.0)},
    ),
    elementwise("leaky_relu", leaky_relu, "x, less below 0", values={"negative_slope": (0.01, 0.2, 0.3)}),
    elementwise("elu", elu, "x, below 0 alpha * (exp(x) - 1)", slope=elu_slope, unstable=ELU_LOSSES),
    elementwise(
        "selu",
        selu,
        "elu with constants that keep mean and variance",
        slope=selu_slope,
        others={"float32": lambda x: narrow(SELU_SCALE, "float32") * elu(x, narrow(SELU_ALPHA, "float32"))},
        instead="attribute-precision",
        unstable={loss: lambda x, elu=other: SELU_SCALE * elu(x, SELU_ALPHA) for loss, other in ELU_LOSSES.items()},
    ),
    elementwise(
        "celu",
        celu,
        "x, below 0 alpha * (exp(x / alpha) - 1)",
        slope=celu_slope,
        unstable={
            loss: lambda x, alpha, elu=other: anp.where(x <= 0, elu(x / alpha, alpha), x)
            for loss, other in ELU_LOSSES.items()
        },
    ),
    GELU,
    elementwise(
        "silu",
        silu,
        "x * sigmoid(x)",
        slope=silu_slope,
        others={"hardswish": hardswish, "sigmoid-1.702": gelu_sigmoid},
        unstable={OVERFLOW: with_slope(silu, silu_slope_by_exp)},
    ),
    elementwise("mish", mish, "x * tanh(softplus(x))", slope=mish_slope, unstable=MISH_LOSSES),
    elementwise(
        "softplus",
        softplus,
        "log(1 + exp(beta * x)) / beta",
        slope=softplus_slope,
        others={"without threshold": lambda x, beta, _: softplus(x, beta, np.inf)},
        unstable=SOFTPLUS_LOSSES,
    ),
    elementwise("softsign", softsign, "x / (1 + |x|)", slope=softsign_slope),
    elementwise("hardswish", hardswish, "x * hardsigmoid(x)", others={"silu": silu}),
    elementwise(
        "hardsigmoid",
        hardsigmoid,
        "relu6(x + 3) / 6",
        others={
            "hard_sigmoid": lambda x: hardtanh(0.2 * x + 0.5, 0.0, 1.0),
            "0.1666667": lambda x: hardtanh(0.1666667 * x + 0.5, 0.0, 1.0),
            "sigmoid": sigmoid,
        },
    ),
    elementwise("hardtanh", hardtanh, "x between two limits"),
    elementwise(
        "sigmoid",
        sigmoid,
        "1 / (1 + exp(-x))",
        slope=sigmoid_slope,
        others={
            "hardsigmoid": hardsigmoid,
            "hard_sigmoid": lambda x: hardtanh(0.2 * x + 0.5, 0.0, 1.0),
            "softsign": lambda x: 0.5 + 0.5 * softsign(x),
        },
    ),
    elementwise("logsigmoid", logsigmoid, "log(sigmoid(x))", unstable={OVERFLOW: lambda x: anp.log(sigmoid(x))}),
    elementwise(
        "tanh",
        anp.tanh,
        "hyperbolic tangent",
        slope=tanh_slope,
        others={
            "hardtanh": hardtanh,
            "softsign": softsign,
            "pade": lambda x: hardtanh(x * (27 + x * x) / (27 + 9 * x * x)),
        },
    ),
    elementwise("exp", anp.exp, "exponential function"),
    elementwise(
        "expm1",
        anp.expm1,
        "exp(x) - 1",
        slope=lambda _, y: y + 1,
        unstable={CANCELLATION: lambda x: anp.exp(x) - 1},
    ),
    elementwise("log", log, "natural logarithm", draws=POSITIVE),
    elementwise(
        "log1p",
        anp.log1p,
        "log(1 + x)",
        draws={"x": Uniform(-0.7, 2.0)},
        unstable={CANCELLATION: lambda x: anp.log(1 + x)},
    ),
    elementwise("sqrt", sqrt, "square root", draws=POSITIVE, slope=lambda _, y: 0.5 / y),
    elementwise("rsqrt", rsqrt, "1 / sqrt(x)", draws=POSITIVE, slope=lambda _, y: -0.5 * y * y * y),
    elementwise("erf", erf, "error function"),
    elementwise("abs", magnitude, "magnitude"),
    elementwise("sin", anp.sin, "sine"),
    elementwise("cos", anp.cos, "cosine"),
    elementwise("pow", power, "x^exponent", draws=POSITIVE),
    elementwise("clamp", clamp, "x between two limits, of which one may be absent"),
    elementwise(
        "round",
        anp.rint,
        "the nearest integer; of two, the even one",
        draws={"x": Normal(0.0, 3.0)},
        others={
            "half away from 0": half_away,
            "half up": lambda x: anp.floor(x + 0.5),
            "floor": anp.floor,
            "ceil": anp.ceil,
            "trunc": anp.trunc,
        },
        instead="rounding-mode",
        exact=True,
    ),
    elementwise(
        "remainder",
        remainder,
        "x - other * floor(x / other)",
        draws=AWAY_FROM_ZERO,
        others={"fmod": fmod, "nearest": nearest_remainder},
        instead="remainder-sign",
    ),
    elementwise(
        "fmod",
        fmod,
        "x - other * trunc(x / other)",
        draws=AWAY_FROM_ZERO,
        others={"remainder": remainder, "nearest": nearest_remainder},
        instead="remainder-sign",
    ),
    elementwise(
        "atan2",
        atan2,
        "the angle of the point (other, x)",
        others={"atan": lambda x, other: anp.arctan(x / other)},
    ),
    elementwise("maximum", maximum, "the larger of two", others={"minimum": minimum}),
    elementwise("minimum", minimum, "the smaller of two", others={"maximum": maximum}),
    elementwise("where", where, "x where the condition holds, else other", condition="condition"),
)
