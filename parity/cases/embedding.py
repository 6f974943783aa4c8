"""Lookups: embedding, position_embedding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from parity.cases.draw import Normal, Shape
from parity.cases.op import CaseError, Input, Op, TensorShapes, require_shape, require_x
from parity.cases.primitives import part, rows_of

WEIGHT = Input("weight", Normal(), differentiable=True, start=Normal())


@dataclass(frozen=True)
class EmbeddingParams:
    """The shape of weight, which may be given instead."""

    num_embeddings: int | None = field(default=None, metadata={"implied": True})
    embedding_dim: int | None = field(default=None, metadata={"implied": True})


@dataclass(frozen=True)
class PositionParams:
    """How many positions have a vector; by default as many as x has."""

    num_embeddings: int | None = field(default=None, metadata={"implied": True})


def embedding_shapes(params: EmbeddingParams, given: Mapping[str, Shape]) -> TensorShapes:
    """x: integers of any shape; weight: (num_embeddings, embedding_dim); y: (*x, embedding_dim)."""
    x, stated = require_x(given, (), ""), given.get("weight", ())
    rows, dim = (
        getattr(params, name) or (stated[i] if len(stated) == 2 else None)
        for i, name in enumerate(("num_embeddings", "embedding_dim"))
    )
    if rows is None or dim is None:
        name = "embedding_dim" if rows else "num_embeddings"
        raise CaseError(f"params.{name}", f"{name} is needed, or a shape for weight: [num_embeddings, embedding_dim]")
    weight = require_shape(given, "weight", (rows, dim), f"num_embeddings {rows} and embedding_dim {dim}")
    return TensorShapes(inputs={"x": x, "weight": weight}, outputs={"y": (*x, dim)}, integers={"x": (0, rows)})


def position_shapes(params: PositionParams, given: Mapping[str, Shape]) -> TensorShapes:
    """x: (N, length, dim); weight: (num_embeddings, dim); y: as x."""
    x = require_x(given, (3,), "(N, length, dim)")
    rows = params.num_embeddings or (given["weight"][0] if given.get("weight") else x[1])
    if rows < x[1]:
        raise CaseError("params.num_embeddings", f"{rows} positions for a sequence of {x[1]}")
    weight = require_shape(given, "weight", (rows, x[2]), f"x {list(x)} and {rows} positions")
    return TensorShapes(inputs={"x": x, "weight": weight}, outputs={"y": x})


def position_embedding(tensors: Mapping[str, Any], _params: Any) -> dict[str, Any]:
    """x plus a row of weight for every position."""
    x, weight = tensors["x"], tensors["weight"]
    return {"y": x + (weight if weight.shape[0] == x.shape[1] else part(weight, (slice(x.shape[1]),)))}


EMBEDDING = Op(
    name="embedding",
    summary="a row of weight for every integer",
    params=EmbeddingParams,
    inputs=(Input("x", integers=True), WEIGHT),
    infer_shapes=embedding_shapes,
    reference=lambda tensors, _params: {"y": rows_of(tensors["weight"], tensors["x"])},
)
POSITION_EMBEDDING = Op(
    name="position_embedding",
    summary="x plus a row of weight for every position",
    params=PositionParams,
    inputs=(Input("x", Normal(), differentiable=True), WEIGHT),
    infer_shapes=position_shapes,
    reference=position_embedding,
)
