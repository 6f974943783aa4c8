"""Matrix products: linear."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import autograd.numpy as anp

from parity.cases.draw import Normal, Shape
from parity.cases.exact.matmul import matmul
from parity.cases.op import CaseError, Input, Op, TensorShapes, Variant, affine_remarks, require_shape, require_x


@dataclass(frozen=True)
class LinearParams:
    """Both are optional: `in_features` follows from x, `out_features` from the shape of weight or bias."""

    in_features: int | None = field(default=None, metadata={"implied": True})
    out_features: int | None = field(default=None, metadata={"implied": True})


def linear_shapes(params: LinearParams, given: Mapping[str, Shape]) -> TensorShapes:
    """x: (*, in_features); weight: (out_features, in_features); bias: (out_features,); y: (*, out_features)."""
    x = require_x(given, (), "linear")
    if not x:
        raise CaseError("inputs.x", "x needs at least one axis; the last has length in_features")
    if params.in_features is not None and params.in_features != x[-1]:
        raise CaseError("params.in_features", f"{params.in_features} is not the last axis of x, {x[-1]}")
    n_out = out_features(params, given)
    weight = require_shape(given, "weight", (n_out, x[-1]), f"x {list(x)} and out_features {n_out}")
    bias = require_shape(given, "bias", (n_out,), f"out_features {n_out}")
    return TensorShapes(inputs={"x": x, "weight": weight, "bias": bias}, outputs={"y": (*x[:-1], n_out)})


def out_features(params: LinearParams, given: Mapping[str, Shape]) -> int:
    """out_features from the params, else from the first axis of weight or bias."""
    if params.out_features is not None:
        return params.out_features
    for name, rank in (("weight", 2), ("bias", 1)):
        if len(given.get(name, ())) == rank:
            return given[name][0]
    raise CaseError("params.out_features", "out_features is needed, or a shape for weight: [out_features, in_features]")


def linear_reference(tensors: Mapping[str, Any], params: LinearParams, *, transposed: bool = False) -> dict[str, Any]:  # noqa: ARG001 - shapes say it all
    """The oracle; `transposed` multiplies with the weight as it is stored (a square weight allows it)."""
    return {"y": linear(tensors["x"], tensors["weight"], tensors.get("bias"), transposed=transposed)}


def linear(x: Any, weight: Any, bias: Any = None, *, transposed: bool = False) -> Any:
    """x @ weight^T + bias; `transposed` multiplies with a square weight as it is stored."""
    square = weight.shape[0] == weight.shape[1]
    y = matmul(x, weight if transposed and square else anp.transpose(weight))
    return y if bias is None else y + bias


def linear_variants(_params: LinearParams, shapes: Mapping[str, Shape]) -> tuple[Variant, ...]:
    """The hypotheses about linear kernels."""
    square = shapes["weight"][0] == shapes["weight"][1]
    variants = (
        [Variant("transposed", {"transposed": True}, shown_by="a weight that is not symmetric")] if square else []
    )
    if "bias" in shapes:
        variants.append(Variant("affine-missing", absent=("bias",), shown_by="a bias that is not 0"))
    return tuple(variants)


LINEAR = Op(
    name="linear",
    summary="x times the transposed weight, plus bias",
    params=LinearParams,
    inputs=(
        Input("x", differentiable=True),
        Input("weight", default=Normal(0.0, 1.0), differentiable=True),
        Input("bias", default=Normal(0.0, 1.0), differentiable=True, optional=True),
    ),
    infer_shapes=linear_shapes,
    reference=linear_reference,
    variants=linear_variants,
    remarks=lambda _op, _params, tensors: affine_remarks(tensors),
    rounded_together=(("x",), ("x", "weight")),
)
"""torch.nn.functional.linear: y = x W^T + b."""
OPS = (LINEAR,)
