"""Functions of every element: a row of the table each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import autograd.numpy as anp

from parity.cases.draw import Normal, Shape
from parity.cases.op import Input, Op, TensorShapes, Variant, require_x
from parity.cases.primitives import erf, pi, scalar


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


def gelu_reference(tensors: Mapping[str, Any], params: GeluParams, *, form: str = "") -> dict[str, Any]:
    """gelu; `form` replaces the form that the params ask for."""
    return {"y": FORMS[form or params.approximate](tensors["x"])}


def gelu_variants(params: GeluParams, _shapes: Mapping[str, Shape]) -> Iterable[Variant]:
    """The other forms."""
    others = [form for form in FORMS if form != params.approximate]
    return [Variant("activation-form", {"form": form}, shown_by="inputs that are not near 0") for form in others]


def elementwise(name: str, function: Callable[[Any], Any], summary: str) -> Op:
    """The op y = function(x)."""
    return Op(
        name=name,
        summary=summary,
        params=NoParams,
        inputs=(Input("x", Normal(), differentiable=True),),
        infer_shapes=shapes,
        reference=lambda tensors, _params: {"y": function(tensors["x"])},
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
)
