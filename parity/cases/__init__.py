"""WHAT is computed: every op with its params, tensors, reference and variants, defined once."""

from __future__ import annotations

from collections.abc import Mapping

from parity.cases import (
    attention,
    clip,
    conv,
    elementwise,
    embedding,
    indexing,
    loss,
    matmul,
    norm,
    optimizer,
    pooling,
    recurrent,
    reduction,
    shape,
)
from parity.cases.op import Op

FAMILIES = (
    norm,
    matmul,
    conv,
    embedding,
    indexing,
    attention,
    recurrent,
    elementwise,
    reduction,
    pooling,
    shape,
    loss,
    clip,
    optimizer,
)
OPS: Mapping[str, Op] = {op.name: op for family in FAMILIES for op in family.OPS}
"""Every op that parity knows, by name."""
