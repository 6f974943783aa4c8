"""The base of PyTorch's adapter and those of frameworks with its interface, or parts of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from parity.adapters.base import Adapter, NotATensor, Unsupported, composed
from parity.adapters.functions import FunctionsAdapter

OPTIMIZERS = {
    "sgd": "SGD",
    "adam": "Adam",
    "adamw": "AdamW",
    "rmsprop": "RMSprop",
    "adagrad": "Adagrad",
    "lamb": "LAMB",
}
"""Optimizer to its class in `optim`, which may lack some."""

STATES = ("momentum_buffer", "exp_avg", "exp_avg_sq", "square_avg", "grad_avg", "sum")
"""The states that optimizers keep for a parameter."""


class TapeAdapter(Adapter):
    """Tensors with an autograd history, and gradients by `framework.autograd`."""

    framework: Any
    dtypes = None
    strided = True

    def version(self) -> str:
        return str(self.framework.__version__)

    def settings(self) -> tuple[Any, bool]:
        return self.framework.get_default_dtype(), self.framework.is_grad_enabled()

    def restore(self, settings: tuple[Any, bool]) -> None:
        self.framework.set_default_dtype(settings[0])
        self.framework.set_grad_enabled(settings[1])

    def shared(self, tensor: Any, requires_grad: bool) -> Any:
        return tensor.detach().requires_grad_(requires_grad)

    def gradients(self, outputs: Sequence[Any], grad_outputs: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
        pairs = [(y, dy) for y, dy in zip(outputs, grad_outputs) if self.has_history(y)]
        if pairs:
            self.backward(*map(list, zip(*pairs)))
        return [leaf.grad for leaf in leaves]

    def backward(self, outputs: list[Any], grad_outputs: list[Any]) -> None:
        """Leave the gradients of all leaves with them."""
        self.framework.autograd.backward(outputs, grad_outputs)

    def returned(self, value: Any) -> Any:
        kind = type(value)
        is_array = kind.__module__ == "numpy" and not isinstance(value, (int, float))
        return NotATensor(f"numpy.{kind.__name__}", value.shape) if is_array else value

    def has_history(self, tensor: Any) -> Any:
        """Whether a tensor can be differentiated."""
        return tensor.requires_grad


class FunctionalAdapter(TapeAdapter, FunctionsAdapter):
    """Ops through `framework.nn.functional`; a subclass imports the framework."""

    def layer_norm(
        self, x: Any, normalized_shape: Sequence[int], eps: float, weight: Any = None, bias: Any = None
    ) -> Any:
        return self.framework.nn.functional.layer_norm(x, tuple(normalized_shape), weight, bias, eps)

    def batch_norm(
        self, x: Any, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None, **options: Any
    ) -> Any:
        y = self.framework.nn.functional.batch_norm(x, running_mean, running_var, weight, bias, **options)
        return {"y": y, "running_mean": running_mean, "running_var": running_var}

    def rms_norm(self, x: Any, normalized_shape: Sequence[int], eps: float, weight: Any = None) -> Any:
        return self.framework.nn.functional.rms_norm(x, tuple(normalized_shape), weight, eps)

    def local_response_norm(self, x: Any, **options: Any) -> Any:
        return self.framework.nn.functional.local_response_norm(x, **options)

    def normalize(self, x: Any, p: float, dim: int, eps: float) -> Any:
        return self.framework.nn.functional.normalize(x, p, dim, eps)

    @composed
    def evonorm_s0(self, x: Any, num_groups: int, eps: float, weight: Any, bias: Any, v: Any) -> Any:
        # No framework has it; users write it with primitives, as in timm's EvoNorm2dS0.
        def per_channel(values: Any) -> Any:
            return values.reshape((1, -1) + (1,) * (len(x.shape) - 2))

        groups = x.reshape((x.shape[0], num_groups, -1))
        deviation = (groups.var(-1, unbiased=False, keepdim=True) + eps).sqrt()
        gated = x * self.framework.nn.functional.sigmoid(per_channel(v) * x)
        y = (gated.reshape(groups.shape) / deviation).reshape(x.shape)
        return y * per_channel(weight) + per_channel(bias)

    def dropout(self, x: Any, p: float, training: bool) -> Any:
        return self.framework.nn.functional.dropout(x, p, training=training)

    def linear(self, x: Any, weight: Any, bias: Any = None) -> Any:
        return self.framework.nn.functional.linear(x, weight, bias)

    def bmm(self, x: Any, other: Any) -> Any:
        return self.framework.bmm(x, other)

    def outer(self, x: Any, other: Any) -> Any:
        return self.framework.outer(x, other)

    def einsum(self, x: Any, other: Any, equation: str) -> Any:
        return self.framework.einsum(equation, x, other)

    def bilinear(self, x: Any, other: Any, weight: Any, bias: Any = None) -> Any:
        return self.framework.nn.functional.bilinear(x, other, weight, bias)

    def conv1d(self, x: Any, weight: Any, bias: Any = None, **options: Any) -> Any:
        return self.framework.nn.functional.conv1d(x, weight, bias, **options)

    def conv2d(self, x: Any, weight: Any, bias: Any = None, **options: Any) -> Any:
        return self.framework.nn.functional.conv2d(x, weight, bias, **options)

    def conv3d(self, x: Any, weight: Any, bias: Any = None, **options: Any) -> Any:
        return self.framework.nn.functional.conv3d(x, weight, bias, **options)

    def conv_transpose1d(self, x: Any, weight: Any, bias: Any = None, **options: Any) -> Any:
        return self.framework.nn.functional.conv_transpose1d(x, weight, bias, **options)

    def conv_transpose2d(self, x: Any, weight: Any, bias: Any = None, **options: Any) -> Any:
        return self.framework.nn.functional.conv_transpose2d(x, weight, bias, **options)

    def conv_transpose3d(self, x: Any, weight: Any, bias: Any = None, **options: Any) -> Any:
        return self.framework.nn.functional.conv_transpose3d(x, weight, bias, **options)

    def max_pool1d(self, x: Any, **options: Any) -> Any:
        return self.framework.nn.functional.max_pool1d(x, **options)

    def max_pool2d(self, x: Any, **options: Any) -> Any:
        return self.framework.nn.functional.max_pool2d(x, **options)

    def max_pool3d(self, x: Any, **options: Any) -> Any:
        return self.framework.nn.functional.max_pool3d(x, **options)

    def avg_pool1d(self, x: Any, **options: Any) -> Any:
        return self.framework.nn.functional.avg_pool1d(x, **options)

    def avg_pool2d(self, x: Any, **options: Any) -> Any:
        return self.framework.nn.functional.avg_pool2d(x, **options)

    def avg_pool3d(self, x: Any, **options: Any) -> Any:
        return self.framework.nn.functional.avg_pool3d(x, **options)

    def adaptive_avg_pool1d(self, x: Any, output_size: Any) -> Any:
        return self.framework.nn.functional.adaptive_avg_pool1d(x, output_size)

    def adaptive_avg_pool2d(self, x: Any, output_size: Any) -> Any:
        return self.framework.nn.functional.adaptive_avg_pool2d(x, output_size)

    def adaptive_max_pool1d(self, x: Any, output_size: Any) -> Any:
        return self.framework.nn.functional.adaptive_max_pool1d(x, output_size)

    def adaptive_max_pool2d(self, x: Any, output_size: Any) -> Any:
        return self.framework.nn.functional.adaptive_max_pool2d(x, output_size)

    def interpolate(self, x: Any, **options: Any) -> Any:
        return self.framework.nn.functional.interpolate(x, **options)

    def grid_sample(self, x: Any, grid: Any, **options: Any) -> Any:
        return self.framework.nn.functional.grid_sample(x, grid, **options)

    def flatten(self, x: Any) -> Any:
        return self.framework.flatten(x, 1)

    def embedding(self, x: Any, weight: Any) -> Any:
        return self.framework.nn.functional.embedding(x, weight)

    @composed
    def position_embedding(self, x: Any, weight: Any) -> Any:
        positions = self.framework.arange(x.shape[-2], device=x.device)
        return x + self.framework.nn.functional.embedding(positions, weight)

    def gather(self, x: Any, index: Any, dim: int) -> Any:
        return self.framework.gather(x, dim, index)

    def scatter_add(self, x: Any, index: Any, src: Any, dim: int) -> Any:
        return self.framework.scatter_add(x, dim, index, src)

    def index_select(self, x: Any, index: Any, dim: int) -> Any:
        return self.framework.index_select(x, dim, index)

    def sort(self, x: Any, dim: int, descending: bool) -> Any:
        y, indices = self.framework.sort(x, dim=dim, descending=descending)
        return {"y": y, "indices": indices}

    def topk(self, x: Any, k: int, dim: int, largest: bool) -> Any:
        y, indices = self.framework.topk(x, k, dim=dim, largest=largest)
        return {"y": y, "indices": indices}

    def pad(self, x: Any, pad: Sequence[int], mode: str, value: float) -> Any:
        return self.framework.nn.functional.pad(x, list(pad), mode=mode, value=value)

    def pixel_shuffle(self, x: Any, upscale_factor: int) -> Any:
        return self.framework.nn.functional.pixel_shuffle(x, upscale_factor)

    def flip(self, x: Any, dims: Sequence[int]) -> Any:
        return self.framework.flip(x, list(dims))

    def roll(self, x: Any, shifts: Sequence[int], dims: Sequence[int]) -> Any:
        return self.framework.roll(x, tuple(shifts), tuple(dims))

    def gelu(self, x: Any, approximate: str = "none") -> Any:
        return self.framework.nn.functional.gelu(x, approximate=approximate)

    def celu(self, x: Any, alpha: float = 1.0) -> Any:
        return self.framework.nn.functional.celu(x, alpha=alpha)

    def mish(self, x: Any) -> Any:
        return self.framework.nn.functional.mish(x)

    def hardswish(self, x: Any) -> Any:
        return self.framework.nn.functional.hardswish(x)

    def hardsigmoid(self, x: Any) -> Any:
        return self.framework.nn.functional.hardsigmoid(x)

    def logsigmoid(self, x: Any) -> Any:
        return self.framework.nn.functional.logsigmoid(x)

    def softplus(self, x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
        return self.framework.nn.functional.softplus(x, beta, threshold)

    def hardtanh(self, x: Any, min_val: float = -1.0, max_val: float = 1.0) -> Any:
        return self.framework.nn.functional.hardtanh(x, min_val, max_val)

    def pow(self, x: Any, exponent: float = 2.0) -> Any:
        return self.framework.pow(x, exponent)

    def clamp(self, x: Any, min: float | None = None, max: float | None = None) -> Any:  # noqa: A002 - PyTorch's names
        return self.framework.clamp(x, min=min, max=max)

    def remainder(self, x: Any, other: Any) -> Any:
        return self.framework.remainder(x, other)

    def fmod(self, x: Any, other: Any) -> Any:
        return self.framework.fmod(x, other)

    def atan2(self, x: Any, other: Any) -> Any:
        return self.framework.atan2(x, other)

    def sum(self, x: Any, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Any:
        return self.framework.sum(x, dim=dim, keepdim=keepdim)

    def mean(self, x: Any, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Any:
        return self.framework.mean(x, dim=dim, keepdim=keepdim)

    def amax(self, x: Any, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Any:
        return self.framework.amax(x, dim=self.axes(x, dim), keepdim=keepdim)

    def amin(self, x: Any, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Any:
        return self.framework.amin(x, dim=self.axes(x, dim), keepdim=keepdim)

    def logsumexp(self, x: Any, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Any:
        return self.framework.logsumexp(x, dim=self.axes(x, dim), keepdim=keepdim)

    def prod(self, x: Any, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Any:
        if dim is None and not keepdim:
            return self.framework.prod(x)
        if not isinstance(dim, int):
            raise Unsupported(f"{self.framework.__name__}.prod takes one axis, or all without keepdim")
        return self.framework.prod(x, dim=dim, keepdim=keepdim)

    def var(self, x: Any, dim: int | Sequence[int] | None = None, correction: int = 1, keepdim: bool = False) -> Any:
        return self.framework.var(x, dim=dim, correction=correction, keepdim=keepdim)

    def std(self, x: Any, dim: int | Sequence[int] | None = None, correction: int = 1, keepdim: bool = False) -> Any:
        return self.framework.std(x, dim=dim, correction=correction, keepdim=keepdim)

    def vector_norm(
        self,
        x: Any,
        ord: float = 2.0,  # noqa: A002 - PyTorch's name
        dim: int | Sequence[int] | None = None,
        keepdim: bool = False,
    ) -> Any:
        return self.framework.linalg.vector_norm(x, ord, dim, keepdim)

    def argmax(self, x: Any, dim: int = -1) -> Any:
        return self.framework.argmax(x, dim)

    @staticmethod
    def axes(x: Any, dim: int | Sequence[int] | None) -> Any:
        """The axes of a reduction; all for None."""
        return tuple(range(len(x.shape))) if dim is None else dim

    def scaled_dot_product_attention(
        self, query: Any, key: Any, value: Any, attn_mask: Any = None, keep_mask: Any = None, **options: Any
    ) -> Any:
        mask = attn_mask if keep_mask is None else keep_mask.bool()
        return self.framework.nn.functional.scaled_dot_product_attention(query, key, value, mask, **options)

    def multi_head_attention(self, x: Any, num_heads: int, **tensors: Any) -> Any:
        n, length, _ = x.shape
        query, key, value = (
            self.heads_first(self.projected(x, name, tensors).reshape((n, length, num_heads, -1)))
            for name in ("q_proj", "k_proj", "v_proj")
        )
        mixed = self.heads_first(self.scaled_dot_product_attention(query=query, key=key, value=value))
        return self.projected(mixed.reshape((n, length, -1)), "out_proj", tensors)

    # Not as a decorator: with one, to_static of Paddle 3.3.1 loses `**tensors`.
    composed(multi_head_attention)

    def projected(self, x: Any, name: str, tensors: Mapping[str, Any]) -> Any:
        return self.linear(x=x, weight=tensors[f"{name}.weight"], bias=tensors.get(f"{name}.bias"))

    def heads_first(self, x: Any) -> Any:
        """[N, L, heads, d] to [N, heads, L, d], or back."""
        return x.transpose(1, 2)

    @composed
    def rotary_embedding(self, x: Any, base: float, interleaved: bool) -> Any:
        # No framework has a function for it on a CPU; models write these lines (transformers, GPT-J).
        (length, d), stack = x.shape[-2:], self.framework.stack
        frequencies = base ** (self.number_range(0, d, 2, x) / -d)
        angles = self.number_range(0, length, 1, x).reshape((-1, 1)) * frequencies
        cos, sin = angles.cos(), angles.sin()
        a, b = (x[..., 0::2], x[..., 1::2]) if interleaved else (x[..., : d // 2], x[..., d // 2 :])
        rotated = a * cos - b * sin, a * sin + b * cos
        if interleaved:
            return stack(rotated, -1).reshape(x.shape)
        return self.framework.concat(rotated, -1)

    def number_range(self, start: int, stop: int, step: int, like: Any) -> Any:
        return self.framework.arange(start, stop, step, dtype=like.dtype, device=like.device)

    def cross_entropy(self, x: Any, target: Any, weight: Any = None, **options: Any) -> Any:
        return self.of_rows(self.framework.nn.functional.cross_entropy, x, target, weight=weight, **options)

    def soft_cross_entropy(self, x: Any, target: Any, **options: Any) -> Any:
        rows = target.reshape((-1, target.shape[-1]))
        losses = self.framework.nn.functional.cross_entropy(x.reshape((-1, x.shape[-1])), rows, **options)
        return losses.reshape(x.shape[:-1]) if losses.shape else losses

    def nll_loss(self, x: Any, target: Any, weight: Any = None, **options: Any) -> Any:
        return self.of_rows(self.framework.nn.functional.nll_loss, x, target, weight=weight, **options)

    def of_rows(self, function: Any, x: Any, target: Any, **options: Any) -> Any:
        """A loss of x [rows, C] and target [rows]; without reduction it has the shape of `target`."""
        losses = function(x.reshape((-1, x.shape[-1])), target.reshape((-1,)), **options)
        return losses.reshape(target.shape) if losses.shape else losses

    @composed
    def ctc_loss(self, x: Any, target: Any, input_lengths: Any, target_lengths: Any, **options: Any) -> Any:
        functional = self.framework.nn.functional
        return functional.ctc_loss(functional.log_softmax(x, -1), target, input_lengths, target_lengths, **options)

    def l1_loss(self, x: Any, target: Any, reduction: str = "mean") -> Any:
        return self.framework.nn.functional.l1_loss(x, target, reduction=reduction)

    def mse_loss(self, x: Any, target: Any, reduction: str = "mean") -> Any:
        return self.framework.nn.functional.mse_loss(x, target, reduction=reduction)

    def smooth_l1_loss(self, x: Any, target: Any, **options: Any) -> Any:
        return self.framework.nn.functional.smooth_l1_loss(x, target, **options)

    def huber_loss(self, x: Any, target: Any, **options: Any) -> Any:
        return self.framework.nn.functional.huber_loss(x, target, **options)

    def binary_cross_entropy(self, x: Any, target: Any, reduction: str = "mean") -> Any:
        return self.framework.nn.functional.binary_cross_entropy(x, target, reduction=reduction)

    def binary_cross_entropy_with_logits(self, x: Any, target: Any, **options: Any) -> Any:
        return self.framework.nn.functional.binary_cross_entropy_with_logits(x, target, **options)

    def kl_div(self, x: Any, target: Any, **options: Any) -> Any:
        return self.framework.nn.functional.kl_div(x, target, **options)

    def cosine_similarity(self, x: Any, other: Any, dim: int = 1, eps: float = 1e-8) -> Any:
        return self.framework.nn.functional.cosine_similarity(x, other, dim, eps)

    def updated(self, op: str, param: Any, grad: Any, step: int = 2, **given: Any) -> Any:
        """One step of an optimizer from the states in `given`; RMSprop does not count its steps."""
        raise NotImplementedError

    def sgd(self, **given: Any) -> Any:
        return self.updated("sgd", **given)

    def adam(self, **given: Any) -> Any:
        return self.updated("adam", **given)

    def adamw(self, **given: Any) -> Any:
        return self.updated("adamw", **given)

    def rmsprop(self, **given: Any) -> Any:
        return self.updated("rmsprop", **given)

    def adagrad(self, **given: Any) -> Any:
        return self.updated("adagrad", **given)

    def parameters_with(self, grads: Sequence[Any]) -> list[Any]:
        """Parameters with these gradients."""
        parameters = [self.leaf(np.zeros_like(self.to_numpy(grad)), True) for grad in grads]
        for parameter, grad in zip(parameters, grads):
            parameter.grad = grad
        return parameters


class TorchStyleAdapter(FunctionalAdapter):
    """Also clips and optimizers, by `framework.nn.utils` and `framework.optim`."""

    def clip_grad_norm(self, grads: Sequence[Any], max_norm: float, norm_type: float, scope: str) -> Any:
        parameters = self.parameters_with(grads)
        groups = [parameters] if scope == "global" else [[p] for p in parameters]
        whole = self.framework.cat([grad.reshape((-1,)) for grad in grads])
        norms = [self.framework.nn.utils.clip_grad_norm_(group, max_norm, norm_type) for group in groups]
        # PyTorch has no norm of all tensors where each is clipped alone, so it is computed separately.
        total = norms[0] if scope == "global" else self.framework.linalg.vector_norm(whole, norm_type)
        return {"grads": [p.grad for p in parameters], "total_norm": total}

    def clip_grad_value(self, grads: Sequence[Any], clip_value: float) -> Any:
        parameters = self.parameters_with(grads)
        self.framework.nn.utils.clip_grad_value_(parameters, clip_value)
        return {"grads": [p.grad for p in parameters]}

    def stepped(self, kind: str, param: Any, grad: Any, state: Any, step: int, **options: Any) -> Any:
        """One step of the optimizer `kind` from a state; returns the new parameter and state."""
        raise NotImplementedError

    def updated(self, op: str, param: Any, grad: Any, step: int = 2, **given: Any) -> Any:
        state = {name: given.pop(name) for name in STATES if name in given}
        return self.stepped(OPTIMIZERS[op], param, grad, state, step, **given)
