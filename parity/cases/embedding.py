"""Lookups: embedding, position_embedding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from parity.cases.draw import Normal, Shape
from parity.cases.op import CaseError, Input, Op, TensorShapes, Variant, require_shape, require_x
from parity.cases.primitives import last_rows, mean_rows, part, rows_of
from parity.cases.program import by_hand

WEIGHT = Input("weight", Normal(), differentiable=True, start=Normal())


@dataclass(frozen=True)
class EmbeddingParams:
    """The shape of weight, which may be given instead."""

    num_embeddings: int | None = field(default=None, metadata={"implied": True})
    embedding_dim: int | None = field(default=None, metadata={"implied": True})


@dataclass(frozen=True)
class PositionParams:
    """The number of positions with a vector; by default those of x."""

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


def embedding(tensors: Mapping[str, Any], _params: Any, *, repeated: str = "added") -> dict[str, Any]:
    """A row of weight for every integer of x; gradients of rows that are `repeated` are added, or one of `GATHERS`."""
    return {"y": GATHERS[repeated](tensors["weight"], tensors["x"])}


GATHERS = {
    "added": rows_of,
    "overwritten": by_hand(rows_of, lambda g, _y, weight, index: last_rows(g, index, weight.shape[0])),
    "averaged": by_hand(rows_of, lambda g, _y, weight, index: mean_rows(g, index, weight.shape[0])),
}


def embedding_variants(_params: Any, _shapes: Mapping[str, Shape]) -> Iterable[Variant]:
    """Variants of the gradient of a row that is looked up several times."""
    repeated = "an integer that comes twice"
    yield Variant("repeated-rows", {"repeated": "overwritten"}, shown_by=repeated)
    yield Variant("mean-vs-sum", {"repeated": "averaged"}, shown_by=repeated)


def position_embedding(tensors: Mapping[str, Any], _params: Any, *, first: int = 0) -> dict[str, Any]:
    """x plus a row of weight for every position, from `first` on; the last row is repeated if there are no more."""
    x, weight = tensors["x"], tensors["weight"]
    if first:
        return {"y": x + rows_of(weight, np.minimum(np.arange(x.shape[1]) + first, weight.shape[0] - 1))}
    return {"y": x + (weight if weight.shape[0] == x.shape[1] else part(weight, (slice(x.shape[1]),)))}


def position_variants(_params: Any, shapes: Mapping[str, Shape]) -> Iterable[Variant]:
    """Positions counted from 1, or from 2 as in fairseq's RoBERTa."""
    if shapes["weight"][0] > 1:
        yield from (Variant("position-offset", {"first": n}, shown_by="rows that differ") for n in (1, 2))


EMBEDDING = Op(
    name="embedding",
    summary="a row of weight for every integer",
    params=EmbeddingParams,
    inputs=(Input("x", integers=True), WEIGHT),
    infer_shapes=embedding_shapes,
    reference=embedding,
    variants=embedding_variants,
)
POSITION_EMBEDDING = Op(
    name="position_embedding",
    summary="x plus a row of weight for every position",
    params=PositionParams,
    inputs=(Input("x", Normal(), differentiable=True), WEIGHT),
    infer_shapes=position_shapes,
    reference=position_embedding,
    variants=position_variants,
)
OPS = (EMBEDDING, POSITION_EMBEDDING)
