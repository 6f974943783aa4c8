"""Healthy formulations of every op, as plain NumPy functions with a hand-written backward.

A form takes tensors and params by keyword, `grad.y` as `grad_y`, and returns outputs and gradients by parity's names.
Each names the public formulation that it follows; none was taken from parity's references.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.faults.forms import (
    activations,
    attention,
    clip,
    conv,
    elementwise,
    losses,
    matmul,
    normalization,
    optimizers,
    products,
    reductions,
    resample,
    sequences,
    uncentered,
    values,
    windows,
)
from parity.cases import OPS
from parity.cases.dtypes import COMPUTED_IN, as_dtype
from parity.cases.op import group_lists

Tensors = Mapping[str, NDArray[Any]]
Form = Callable[..., Mapping[str, Any]]

FORMS: Mapping[str, tuple[Form, ...]] = {
    "layer_norm": (
        normalization.layer_norm_textbook,
        normalization.layer_norm_fused,
        normalization.layer_norm_shifted,
        normalization.layer_norm_moments_by_blocks,
    ),
    "group_norm": (
        normalization.group_norm_textbook,
        normalization.group_norm_decomposition,
        normalization.group_norm_shifted,
    ),
    "instance_norm": (
        normalization.instance_norm_textbook,
        normalization.instance_norm_fused,
        normalization.instance_norm_by_planes,
    ),
    "batch_norm": (
        normalization.batch_norm_textbook,
        normalization.batch_norm_decomposition,
        normalization.batch_norm_welford,
    ),
    "linear": (matmul.linear_matmul, matmul.linear_einsum, matmul.linear_from_bias),
    "conv2d": (conv.conv2d_im2col, conv.conv2d_by_taps, conv.conv2d_by_pixels),
    "embedding": (matmul.embedding_gather, matmul.embedding_one_hot, matmul.embedding_rows),
    "position_embedding": (
        matmul.position_embedding_slice,
        matmul.position_embedding_gather,
        matmul.position_embedding_loop,
    ),
    "scaled_dot_product_attention": (
        attention.attention_textbook,
        attention.attention_flash,
        attention.attention_logsumexp,
    ),
    "multi_head_attention": (
        attention.multi_head_reshaped,
        attention.multi_head_by_heads,
        attention.multi_head_packed,
    ),
    "relu": (activations.relu_maximum, activations.relu_where, activations.relu_absolute),
    "gelu": (activations.gelu_textbook, activations.gelu_decomposition, activations.gelu_sigmoid),
    "tanh": (activations.tanh_library, activations.tanh_expm1),
    "silu": (activations.silu_sigmoid, activations.silu_quotient, activations.silu_decomposition),
    "sigmoid": (activations.sigmoid_textbook, activations.sigmoid_piecewise, activations.sigmoid_tanh),
    "avg_pool2d": (conv.avg_pool2d_reshaped, conv.avg_pool2d_by_taps, conv.avg_pool2d_by_windows),
    "flatten": (conv.flatten_reshape, conv.flatten_rows),
    "cross_entropy": (
        losses.cross_entropy_log_softmax,
        losses.cross_entropy_logsumexp,
        losses.cross_entropy_online,
    ),
    "mse_loss": (losses.mse_loss_textbook, losses.mse_loss_decomposition, losses.mse_loss_by_rows),
    "clip_grad_norm": (clip.clip_grad_norm_stacked, clip.clip_grad_norm_concatenated, clip.clip_grad_norm_scaled),
    "clip_grad_value": (clip.clip_grad_value_clip, clip.clip_grad_value_where, clip.clip_grad_value_sign),
    "sgd": (optimizers.sgd_single_tensor, optimizers.sgd_trace, optimizers.sgd_lerp),
    "adam": (optimizers.adam_textbook, optimizers.adam_step_size, optimizers.adam_corrected_rate),
    "adamw": (optimizers.adamw_textbook, optimizers.adamw_step_size, optimizers.adamw_chained),
    "lamb": (optimizers.lamb_paper, optimizers.lamb_two_stages),
    "rmsprop": (optimizers.rmsprop_single_tensor, optimizers.rmsprop_chained, optimizers.rmsprop_reciprocal),
    "adagrad": (optimizers.adagrad_single_tensor, optimizers.adagrad_chained),
    **elementwise.FORMS,
    **reductions.FORMS,
    **values.FORMS,
    **products.FORMS,
    **windows.FORMS,
    **uncentered.FORMS,
    **resample.FORMS,
    **sequences.FORMS,
}
"""The forms of every op, the plainest first: it is the reference of the rules that compare with one."""

UNSTABLE = frozenset((activations.sigmoid_tanh,))
"""Forms that are not counted as healthy, though faults are planted in them: they lose far more than their peers.

`sigmoid_tanh`: 0.5 + 0.5 t cancels for x < 0. In float32 y is off by 25 unit roundoffs at x = -4 and by 10,000 at
x = -10, the two others by 4 at most; pytorch/xla had it replaced because it was negative at x = -16.74 (its pull
request 4311).
"""


def run(form: Form, op: str, params: Any, tensors: Tensors, dtype: str) -> dict[str, NDArray[Any]]:
    """Outputs and gradients of a form in `dtype`; floating inputs are rounded to it first.

    What comes in float16 or bfloat16 is computed in float32 and rounded once; integers stay. What is absent of a weight is one, of a bias or state
    zero; neither it nor its gradient is returned. Without gradients of the outputs no gradient is.
    """
    working = COMPUTED_IN.get(dtype, dtype)
    cast = {n: v.astype(v.dtype if v.dtype.kind == "i" else working) for n, v in tensors.items()}
    absent = absent_inputs(op, params, cast)
    given = {name.replace(".", "_"): value for name, value in group_lists(cast | absent, OPS[op]).items()}
    arguments = given | asdict(params)
    with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
        outputs = form(**{name: arguments[name] for name in inspect.signature(form).parameters})
        flat = {n: rounded(v, dtype) for name, value in outputs.items() for n, v in named(name, value)}
    forward = any(f"grad.{name}" in absent for name in OPS[op].grad_outputs)
    return {
        n: v
        for n, v in flat.items()
        if n.removeprefix("grad.") not in absent and not (forward and n.startswith("grad."))
    }


def rounded(values: Any, dtype: str) -> NDArray[Any]:
    """What is returned, in `dtype`; integers stay."""
    array = np.asarray(values)
    return array if array.dtype.kind in "iu" else as_dtype(array, dtype)


def named(name: str, value: Any) -> list[tuple[str, Any]]:
    """A list of tensors as `name.0`, `name.1`, ...; anything else as it is."""
    return [(f"{name}.{i}", v) for i, v in enumerate(value)] if isinstance(value, list) else [(name, value)]


def absent_inputs(op: str, params: Any, tensors: Tensors) -> dict[str, NDArray[Any]]:
    """What inputs that a case lacks stand for: weights of one, biases and states of zero, gradients of outputs of one."""
    items = [item.name for item in OPS[op].inputs if not item.listed and item.name not in tensors]
    grad_outputs = [name for name in OPS[op].grad_outputs if f"grad.{name}" not in tensors]
    if not items and not grad_outputs:
        return {}
    shapes = {name: tuple(value.shape) for name, value in tensors.items() if OPS[op].input(name)}
    every = OPS[op].infer_shapes(params, shapes)
    first = next(v for v in tensors.values() if v.dtype.kind == "f")
    found = {n: np.full(every.inputs.get(n, first.shape), float(n.endswith("weight")), first.dtype) for n in items}
    return found | {f"grad.{name}": np.ones(every.outputs[name], first.dtype) for name in grad_outputs}
