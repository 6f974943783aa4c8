"""Functions of every element: a row of the table each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import autograd.numpy as anp

from parity.cases.draw import Normal, Shape
from parity.cases.op import Input, Op, TensorShapes, Variant, require_x
from parity.cases.primitives import erf, pi, scalar
from parity.cases.program import by_hand


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


def relu(x: Any) -> Any:
    """max(x, 0), whose gradient at 0 is 0."""
    return anp.where(x <= 0, 0.0, x)


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x))."""
    return 1 / (1 + anp.exp(-x))


def silu(x: Any) -> Any:
    """x * sigmoid(x) (Elfwing, Uchibe, Doya 2018)."""
    return x * sigmoid(x)


def gelu(x: Any) -> Any:
    """x times the normal distribution function of x (Hendrycks and Gimpel 2016)."""
    return x * (erf(x * anp.sqrt(scalar(0.5, x))) + 1) * 0.5


def gelu_tanh(x: Any) -> Any:
    """The approximation of `gelu` by tanh (their section 2)."""
    inner = (x + x * x * x * 0.044715) * anp.sqrt(2 / pi(x))
    return x * (anp.tanh(inner) + 1) * 0.5


def gelu_sigmoid(x: Any) -> Any:
    """The approximation of `gelu` by a sigmoid (their section 2)."""
    return x * sigmoid(x * 1.702)


FORMS: Mapping[str, Callable[[Any], Any]] = {"none": gelu, "tanh": gelu_tanh, "sigmoid": gelu_sigmoid}
"""The forms of gelu: `approximate` of PyTorch, and the one by a sigmoid."""


def relu_slope(x: Any, _y: Any) -> Any:
    """The derivative of `relu`."""
    return anp.where(x <= 0, scalar(0, x), scalar(1, x))


def tanh_slope(_x: Any, y: Any) -> Any:
    """The derivative of tanh."""
    return 1 - y * y


def sigmoid_slope(_x: Any, y: Any) -> Any:
    """The derivative of `sigmoid`."""
    return y * (1 - y)


def silu_slope(x: Any, _y: Any) -> Any:
    """The derivative of `silu`."""
    s = sigmoid(x)
    return s * (1 + x * (1 - s))


def gelu_slope(x: Any, _y: Any) -> Any:
    """The derivative of `gelu`: the normal distribution function, plus x times its density."""
    cdf = 0.5 * (1 + erf(x * anp.sqrt(scalar(0.5, x))))
    pdf = anp.exp(-0.5 * x * x) / anp.sqrt(2 * pi(x))
    return cdf + x * pdf


def gelu_tanh_slope(x: Any, _y: Any) -> Any:
    """The derivative of `gelu_tanh`."""
    c = anp.sqrt(2 / pi(x))
    t = anp.tanh(c * (x + 0.044715 * x * x * x))
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * (0.044715 * x * x))


def gelu_sigmoid_slope(x: Any, _y: Any) -> Any:
    """The derivative of `gelu_sigmoid`."""
    s = sigmoid(1.702 * x)
    return s * (1 + 1.702 * x * (1 - s))


SLOPES: Mapping[Callable[[Any], Any], Callable[[Any, Any], Any]] = {
    relu: relu_slope,
    anp.tanh: tanh_slope,
    sigmoid: sigmoid_slope,
    silu: silu_slope,
    gelu: gelu_slope,
    gelu_tanh: gelu_tanh_slope,
    gelu_sigmoid: gelu_sigmoid_slope,
}
"""The derivatives as kernels compute them, in x and y = f(x)."""
BY_HAND = {f: by_hand(f, lambda g, y, x, slope=slope: g * slope(x, y)) for f, slope in SLOPES.items()}


def clipped(x: Any, low: float, high: float) -> Any:
    """x, `low` at least and `high` at most."""
    return anp.where(x < low, scalar(low, x), anp.where(x > high, scalar(high, x), x))


OTHERS: Mapping[Callable[[Any], Any], Mapping[str, Callable[[Any], Any]]] = {
    relu: {"leaky_relu": lambda x: anp.where(x <= 0, 0.01 * x, x), "relu6": lambda x: clipped(x, 0.0, 6.0)},
    anp.tanh: {
        "hardtanh": lambda x: clipped(x, -1.0, 1.0),
        "softsign": lambda x: x / (1 + anp.abs(x)),
        "pade": lambda x: clipped(x * (27 + x * x) / (27 + 9 * x * x), -1.0, 1.0),
    },
    sigmoid: {
        "hardsigmoid": lambda x: clipped(x / 6 + 0.5, 0.0, 1.0),
        "hard_sigmoid": lambda x: clipped(0.2 * x + 0.5, 0.0, 1.0),
        "softsign": lambda x: 0.5 + 0.5 * x / (1 + anp.abs(x)),
    },
    silu: {"hardswish": lambda x: x * clipped(x / 6 + 0.5, 0.0, 1.0), "sigmoid-1.702": gelu_sigmoid},
}
"""Cheaper or mistaken replacements of a function: PyTorch's names, Keras's `hard_sigmoid`."""


OTHERS_BY_HAND = {
    (f, name): by_hand(other, lambda g, y, x, slope=SLOPES[f]: g * slope(x, y))
    for f, others in OTHERS.items()
    for name, other in others.items()
}
"""The same with the derivative of the replaced function."""


def gelu_reference(
    tensors: Mapping[str, Any], params: GeluParams, *, form: str = "", fused: bool = False
) -> dict[str, Any]:
    """gelu; `form` replaces the form in the params, `fused` uses its derivative in `SLOPES`."""
    function = FORMS[form or params.approximate]
    return {"y": (BY_HAND[function] if fused else function)(tensors["x"])}


def gelu_variants(params: GeluParams, _shapes: Mapping[str, Shape]) -> Iterable[Variant]:
    """The other forms."""
    others = [form for form in FORMS if form != params.approximate]
    return [Variant("activation-form", {"form": form}, shown_by="inputs that are not near 0") for form in others]


def elementwise(name: str, function: Callable[[Any], Any], summary: str) -> Op:
    """The op y = function(x)."""

    def reference(tensors: Mapping[str, Any], _params: Any, *, fused: bool = False, form: str = "") -> dict[str, Any]:
        if form:
            used = OTHERS_BY_HAND[function, form] if fused else OTHERS[function][form]
        else:
            used = BY_HAND[function] if fused else function
        return {"y": used(tensors["x"])}

    def variants(_params: Any, _shapes: Mapping[str, Shape]) -> Iterable[Variant]:
        others = OTHERS.get(function, {})
        forms = [{"form": form} for form in others] + [{"form": form, "fused": True} for form in others]
        return [Variant("activation-form", form, shown_by="inputs that are not near 0") for form in forms]

    return Op(
        name=name,
        summary=summary,
        params=NoParams,
        inputs=(Input("x", Normal(), differentiable=True),),
        infer_shapes=shapes,
        reference=reference,
        variants=variants,
        forms=({"fused": True},),
    )


RELU = elementwise("relu", relu, "max(x, 0)")
TANH = elementwise("tanh", anp.tanh, "hyperbolic tangent")
SIGMOID = elementwise("sigmoid", sigmoid, "1 / (1 + exp(-x))")
SILU = elementwise("silu", silu, "x * sigmoid(x)")
GELU = Op(
    name="gelu",
    summary="x times the normal distribution function of x",
    params=GeluParams,
    inputs=RELU.inputs,
    infer_shapes=shapes,
    reference=gelu_reference,
    variants=gelu_variants,
    forms=({"fused": True},),
)
OPS = (RELU, GELU, TANH, SILU, SIGMOID)
