"""dropout, where it draws no mask: in evaluation, or with p = 0."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from parity.cases.draw import Normal, Shape
from parity.cases.op import CaseError, Input, Op, TensorShapes, Variant, require_x
from parity.cases.primitives import scalar


@dataclass(frozen=True)
class DropoutParams:
    """torch.nn.functional.dropout; frameworks cannot share a random mask, so p is 0 in `training`."""

    p: float = 0.5
    training: bool = False


def dropout_shapes(params: DropoutParams, given: Mapping[str, Shape]) -> TensorShapes:
    """x: any shape; y: as x."""
    if not 0 <= params.p < 1:
        raise CaseError("params.p", f"p must be at least 0 and below 1, not {params.p}")
    if params.training and params.p:
        raise CaseError("params.p", "in training, p must be 0: frameworks cannot share a random mask")
    x = require_x(given, (), "")
    return TensorShapes(inputs={"x": x}, outputs={"y": x})


def dropout(tensors: Mapping[str, Any], params: DropoutParams, *, scaled: str = "") -> dict[str, Any]:
    """x; `scaled` multiplies it with 1 - p (`down`), or divides by it (`up`)."""
    x = tensors["x"]
    kept = scalar(1, x) - params.p
    return {"y": {"": x, "down": x * kept, "up": x / kept}[scaled]}


def dropout_variants(params: DropoutParams, _shapes: Mapping[str, Shape]) -> Iterator[Variant]:
    """The scale of training, or of frameworks that scale in evaluation instead."""
    if params.p:
        for scaled in ("down", "up"):
            yield Variant("dropout-scaling", {"scaled": scaled}, shown_by="a p that is not 0")


DROPOUT = Op(
    name="dropout",
    summary="x, in evaluation or with p = 0",
    params=DropoutParams,
    inputs=(Input("x", Normal(), differentiable=True),),
    infer_shapes=dropout_shapes,
    reference=dropout,
    variants=dropout_variants,
)
"""Srivastava et al. 2014; torch.nn.functional.dropout."""
OPS = (DROPOUT,)
