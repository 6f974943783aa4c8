"""WHAT is computed: one file per op, with its params, tensors, inputs and oracle."""

from __future__ import annotations

from collections.abc import Mapping

from parity.cases.batch_norm import BATCH_NORM
from parity.cases.clip_grad import CLIP_GRAD_NORM, CLIP_GRAD_VALUE
from parity.cases.group_norm import GROUP_NORM
from parity.cases.instance_norm import INSTANCE_NORM
from parity.cases.lamb import LAMB
from parity.cases.layer_norm import LAYER_NORM
from parity.cases.linear import LINEAR
from parity.cases.op import Op
from parity.cases.optimizers import ADAGRAD, ADAM, ADAMW, RMSPROP, SGD

OPS: Mapping[str, Op] = {
    op.name: op
    for op in (
        LAYER_NORM,
        GROUP_NORM,
        INSTANCE_NORM,
        BATCH_NORM,
        LINEAR,
        CLIP_GRAD_NORM,
        CLIP_GRAD_VALUE,
        SGD,
        ADAM,
        ADAMW,
        LAMB,
        RMSPROP,
        ADAGRAD,
    )
}
"""Every op that parity knows, by name."""
