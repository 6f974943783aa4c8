"""Pooling and reshaping of images: avg_pool2d, flatten."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import autograd.numpy as anp

from parity.cases.draw import Normal, Shape
from parity.cases.elementwise import NoParams
from parity.cases.exact.summation import total
from parity.cases.op import CaseError, Input, Op, TensorShapes, Variant, require_x
from parity.cases.primitives import part

X = (Input("x", Normal(), differentiable=True),)


@dataclass(frozen=True)
class AvgPool2dParams:
    """`kernel_size`: the side length of the squares, which do not overlap (torch.nn.functional.avg_pool2d)."""

    kernel_size: int


def pool_shapes(params: AvgPool2dParams, given: Mapping[str, Shape]) -> TensorShapes:
    """x: (N, C, H, W); y: (N, C, H // k, W // k)."""
    x, k = require_x(given, (4,), "(N, C, H, W)"), params.kernel_size
    if not 1 <= k <= min(x[2:]):
        raise CaseError("params.kernel_size", f"kernel_size must be from 1 to {min(x[2:])}, not {k}")
    return TensorShapes(inputs={"x": x}, outputs={"y": (*x[:2], x[2] // k, x[3] // k)})


def avg_pool2d(tensors: Mapping[str, Any], params: AvgPool2dParams, *, summed: bool = False) -> dict[str, Any]:
    """Means over squares, or with `summed` sums; rows and columns that fill no square are left out."""
    x, k = tensors["x"], params.kernel_size
    n, c, h, w = x.shape
    high, wide = h // k, w // k
    every = slice(None)
    whole = x if (high * k, wide * k) == (h, w) else part(x, (every, every, slice(high * k), slice(wide * k)))
    sums = anp.reshape(total(anp.reshape(whole, (n, c, high, k, wide, k)), (3, 5)), (n, c, high, wide))
    return {"y": sums if summed else sums / k**2}


def pool_variants(params: AvgPool2dParams, _shapes: Mapping[str, Shape]) -> Iterable[Variant]:
    """Sums instead of means."""
    return [Variant("mean-vs-sum", {"summed": True}, shown_by="any input")] if params.kernel_size > 1 else []


def flat_shapes(_params: Any, given: Mapping[str, Shape]) -> TensorShapes:
    """x: (N, *); y: (N, the product of the others)."""
    x = require_x(given, (), "")
    if not x:
        raise CaseError("inputs.x", "x needs at least one axis")
    return TensorShapes(inputs={"x": x}, outputs={"y": (x[0], prod(x[1:]))})


def flatten(tensors: Mapping[str, Any], _params: Any) -> dict[str, Any]:
    """torch.flatten from axis 1."""
    x = tensors["x"]
    return {"y": anp.reshape(x, (x.shape[0], prod(x.shape[1:])))}


AVG_POOL2D = Op(
    name="avg_pool2d",
    summary="means of the squares of an image",
    params=AvgPool2dParams,
    inputs=X,
    infer_shapes=pool_shapes,
    reference=avg_pool2d,
    variants=pool_variants,
)
FLATTEN = Op(
    name="flatten",
    summary="all axes but the first into one",
    params=NoParams,
    inputs=X,
    infer_shapes=flat_shapes,
    reference=flatten,
)
OPS = (AVG_POOL2D, FLATTEN)
