"""WHAT is computed: every op with its params, tensors, reference and variants, defined once."""

from __future__ import annotations

from collections.abc import Mapping

from parity.cases.attention import MULTI_HEAD_ATTENTION, SCALED_DOT_PRODUCT_ATTENTION
from parity.cases.clip import CLIP_GRAD_NORM, CLIP_GRAD_VALUE
from parity.cases.conv import CONV2D
from parity.cases.elementwise import GELU, RELU, SIGMOID, SILU, TANH
from parity.cases.embedding import EMBEDDING, POSITION_EMBEDDING
from parity.cases.loss import CROSS_ENTROPY, MSE_LOSS
from parity.cases.matmul import LINEAR
from parity.cases.norm import BATCH_NORM, GROUP_NORM, INSTANCE_NORM, LAYER_NORM
from parity.cases.op import Op
from parity.cases.optimizer import ADAGRAD, ADAM, ADAMW, LAMB, RMSPROP, SGD
from parity.cases.pooling import AVG_POOL2D, FLATTEN

OPS: Mapping[str, Op] = {
    op.name: op
    for op in (
        LAYER_NORM,
        GROUP_NORM,
        INSTANCE_NORM,
        BATCH_NORM,
        LINEAR,
        CONV2D,
        EMBEDDING,
        POSITION_EMBEDDING,
        SCALED_DOT_PRODUCT_ATTENTION,
        MULTI_HEAD_ATTENTION,
        RELU,
        GELU,
        TANH,
        SILU,
        SIGMOID,
        AVG_POOL2D,
        FLATTEN,
        CROSS_ENTROPY,
        MSE_LOSS,
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
