"""WHAT is computed: every op with its params, tensors, reference and variants, defined once."""

from __future__ import annotations

from collections.abc import Mapping

from parity.cases import (
    attention,
    clip,
    conv,
    ctc,
    dropout,
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
    resample,
    shape,
    softmax,
    uncentered,
    value_loss,
)
from parity.cases.op import Op

FAMILIES = (
    norm,
    uncentered,
    dropout,
    matmul,
    conv,
    embedding,
    indexing,
    softmax,
    attention,
    recurrent,
    elementwise,
    reduction,
    pooling,
    resample,
    shape,
    loss,
    value_loss,
    ctc,
    clip,
    optimizer,
)
OPS: Mapping[str, Op] = {op.name: op for family in FAMILIES for op in family.OPS}
"""Every op that parity knows, by name."""
