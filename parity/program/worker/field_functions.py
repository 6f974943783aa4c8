"""Functions of PyTorch spelled out for arithmetic in finite fields (`field_mode.py`): those whose own code takes a root
that no field has, factors matrices, or is one call of the dispatcher without a rule."""

from __future__ import annotations

from typing import Any, Callable, Mapping

import torch


def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Any = None,
    enable_gqa: bool = False,
) -> Any:
    """`torch.nn.functional.scaled_dot_product_attention`, which takes the root of the scale."""
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = (tensor.repeat_interleave(groups, -3) for tensor in (key, value))
    scores = query @ key.transpose(-2, -1)
    scores = scores / query.shape[-1] ** 0.5 if scale is None else scores * scale
    if is_causal:
        causal = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~causal, float("-inf"))
    if attn_mask is not None:
        is_bool = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, float("-inf")) if is_bool else scores + attn_mask
    weights = torch._safe_softmax(scores, -1)
    return (torch.dropout(weights, dropout_p, True) if dropout_p else weights) @ value


def distances(x1: Any, x2: Any, p: float = 2.0, compute_mode: str = "") -> Any:
    """`torch.cdist`, by differences, whatever `compute_mode` says."""
    del compute_mode
    return torch.linalg.vector_norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), p, dim=-1)


class Determinant(torch.autograd.Function):  # type: ignore[misc]  # PyTorch's types are not read.
    """The determinant of matrices; its gradient is that times the transposed inverse (Jacobi)."""

    @staticmethod
    def forward(ctx: Any, a: Any) -> Any:
        """One number for each matrix."""
        value = torch.ops.aten._linalg_det(a)[0]
        ctx.save_for_backward(a, value)
        return value

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """The gradient of the matrices."""
        a, value = ctx.saved_tensors
        return (gradient * value)[..., None, None] * torch.linalg.inv(a).transpose(-2, -1)


def determinant(a: Any) -> Any:
    """`torch.linalg.det`."""
    return Determinant.apply(a)


def log_determinant(a: Any) -> Any:
    """`torch.logdet`."""
    return determinant(a).log()


def solution(a: Any, b: Any, *, left: bool = True) -> Any:
    """`torch.linalg.solve`."""
    if not left:
        return b @ torch.linalg.inv(a)
    is_vector = b.dim() == a.dim() - 1
    x = torch.linalg.inv(a) @ (b.unsqueeze(-1) if is_vector else b)
    return x.squeeze(-1) if is_vector else x


def bags(inputs: Any, weight: Any, offsets: Any = None, *args: Any, **options: Any) -> Any:
    """`torch.nn.functional.embedding_bag` with rows of indices, or offsets; NotImplemented for rarer options."""
    mode, weights = options.pop("mode", "mean"), options.pop("per_sample_weights", None)
    if args or any(value not in (None, False, 2.0) for value in options.values()):
        return NotImplemented
    rows = torch.nn.functional.embedding(inputs, weight)
    rows = rows if weights is None else rows * weights.unsqueeze(-1)
    parts = list(rows.unbind()) if offsets is None else list(rows.tensor_split(offsets.tolist()[1:]))
    return torch.stack([combined(part, mode) for part in parts])


def combined(part: Any, mode: str) -> Any:
    """The rows of a bag as one; zeros for an empty one."""
    if mode == "sum" or not len(part):
        return part.sum(0)
    return part.mean(0) if mode == "mean" else part.amax(0)


SPELLED: Mapping[Any, Callable[..., Any]] = {
    torch.nn.functional.scaled_dot_product_attention: attention,
    torch.nn.functional.embedding_bag: bags,
    torch.cdist: distances,
    **dict.fromkeys((torch.det, torch.linalg.det, torch.Tensor.det), determinant),
    **dict.fromkeys((torch.logdet, torch.Tensor.logdet), log_determinant),
    torch.linalg.solve: solution,
}
"""What is called instead, by PyTorch's function."""
