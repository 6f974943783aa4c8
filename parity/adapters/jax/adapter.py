"""JAX: jax.nn, jax.numpy, jax.lax and jax.image, and Optax for losses, clips and optimizers."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

from parity.adapters.base import Job, composed, composed_unless
from parity.adapters.functions import NumpyStyleAdapter
from parity.adapters.shapes import AnyAxesAdapter, AttentionAdapter, conv_pads, each, pads, pool_pads, require, resized
from parity.adapters.transform import TransformAdapter

RESIZES = {"nearest": "nearest", "linear": "linear", "bilinear": "linear", "trilinear": "linear", "bicubic": "cubic"}
"""Interpolation mode to JAX's name."""

PADS = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}
"""Padding mode to NumPy's name."""

STATES = {
    "momentum_buffer": "trace",
    "exp_avg": "mu",
    "exp_avg_sq": "nu",
    "square_avg": "nu",
    "grad_avg": "mu",
    "sum": "sum_of_squares",
}
"""State of an optimizer to Optax's name."""

KEPT = 64
"""After so many cells JAX's caches are cleared: it keeps the compiled primitives of every shape, 30 MB a cell."""


class JaxTensors(TransformAdapter):
    """JAX's arrays and its gradients, by jax.vjp."""

    dtypes = None
    no_kernel: ClassVar[tuple[str, ...]] = (r"not implemented|not supported|No module named 'optax'",)

    def __init__(self, device: str, threads: int, mode: str = "eager", ranks: int = 1) -> None:
        # XLA would use all cores otherwise.
        if threads == 1:
            os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
        import jax

        super().__init__(device, threads, mode, ranks)
        jax.config.update("jax_platforms", device)
        self.framework = jax
        self.numpy = jax.numpy
        self.math = jax.numpy
        self.nn = jax.nn
        self.latest = SimpleNamespace()
        self.n_cells = 0

    def run(self, job: Job) -> dict[str, Any]:
        self.n_cells += 1
        if self.n_cells % KEPT == 0:
            self.framework.clear_caches()
        return super().run(job)

    def version(self) -> str:
        return str(self.framework.__version__)

    def flags(self) -> dict[str, Any]:
        return {"XLA_FLAGS": os.environ.get("XLA_FLAGS", "")}

    def leaf(self, array: Any, requires_grad: bool) -> Any:  # noqa: ARG002 - jax.vjp is told at the call
        # float64 needs it. Without it, JAX's default, a user's jnp.zeros(n) does not turn float32 into float64.
        if array.dtype.kind in "fu":
            self.framework.config.update("jax_enable_x64", array.dtype.itemsize == 8)
        return self.numpy.array(array.view(self.numpy.bfloat16.dtype) if array.dtype == "uint16" else array)

    def stored(self, tensor: Any, storage: str) -> Any:
        return tensor.astype(storage)

    def to_numpy(self, tensor: Any) -> Any:
        values = tensor.__array__()
        return values.view("uint16") if values.dtype == self.numpy.bfloat16 else values

    def pullback(self, forward: Callable[..., Any], leaves: Sequence[Any], grad_outputs: Sequence[Any]) -> list[Any]:
        _, back = self.framework.vjp(forward, *leaves)
        return list(back(list(grad_outputs)))


class JaxAdapter(JaxTensors, NumpyStyleAdapter, AnyAxesAdapter, AttentionAdapter):
    """Eager, op by op, on the CPU."""

    def optax(self) -> Any:
        """Optax, imported by the first cell that needs it, since few do."""
        import optax

        return optax

    def affine(self, y: Any, weight: Any, bias: Any, shape: Sequence[int]) -> Any:
        """y * weight + bias, with weight and bias in this shape."""
        y = y if weight is None else y * weight.reshape(shape)
        return y if bias is None else y + bias.reshape(shape)

    @composed_unless(weight=None, bias=None)
    def layer_norm(
        self, x: Any, normalized_shape: Sequence[int], eps: float, weight: Any = None, bias: Any = None
    ) -> Any:
        axes = tuple(range(-len(normalized_shape), 0))
        y = self.framework.nn.standardize(x, axes, epsilon=eps)
        return self.affine(y, weight, bias, tuple(normalized_shape))

    @composed_unless(weight=None, bias=None)
    def group_norm(self, x: Any, num_groups: int, eps: float, weight: Any = None, bias: Any = None) -> Any:
        groups = x.reshape((x.shape[0], num_groups, -1))
        y = self.framework.nn.standardize(groups, -1, epsilon=eps).reshape(x.shape)
        return self.affine(y, weight, bias, (-1, *(1 for _ in x.shape[2:])))

    @composed_unless(weight=None, bias=None)
    def instance_norm(self, x: Any, eps: float, weight: Any = None, bias: Any = None) -> Any:
        y = self.framework.nn.standardize(x, tuple(range(2, x.ndim)), epsilon=eps)
        return self.affine(y, weight, bias, (-1, *(1 for _ in x.shape[2:])))

    # JAX has no function for it: this is how models write it (Gemma, MaxText).
    @composed
    def rms_norm(self, x: Any, normalized_shape: Sequence[int], eps: float, weight: Any = None) -> Any:
        axes = tuple(range(-len(normalized_shape), 0))
        square = self.numpy.mean(self.numpy.square(x), axes, keepdims=True)
        return self.affine(x * self.framework.lax.rsqrt(square + eps), weight, None, tuple(normalized_shape))

    # JAX has no function for a linear layer: this is how its users write it.
    @composed_unless(bias=None)
    def linear(self, x: Any, weight: Any, bias: Any = None) -> Any:
        y = self.numpy.matmul(x, weight.T)
        return y if bias is None else y + bias

    @composed_unless(bias=None)
    def stored_linear(self, x: Any, weight: Any, dtype: str, bias: Any = None) -> Any:
        y = self.stored_matmul(x, weight.T, dtype)
        return y if bias is None else y + bias

    def stored_matmul(self, x: Any, other: Any, dtype: str) -> Any:
        return self.numpy.matmul(x, other, preferred_element_type=dtype)

    def bmm(self, x: Any, other: Any) -> Any:
        return self.framework.lax.batch_matmul(x, other)

    @composed_unless(bias=None)
    def convolution(
        self,
        x: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Any:
        n = x.ndim - 2
        axes = "DHW"[-n:]
        y = self.framework.lax.conv_general_dilated(
            x,
            weight,
            each(stride, n),
            conv_pads(padding, weight.shape[2:], dilation),
            rhs_dilation=each(dilation, n),
            dimension_numbers=(f"NC{axes}", f"OI{axes}", f"NC{axes}"),
            feature_group_count=groups,
        )
        return self.affine(y, None, bias, (-1, *(1 for _ in x.shape[2:])))

    @composed_unless(bias=None)
    def transposed_convolution(
        self,
        x: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> Any:
        require(groups == 1, "jax.lax.conv_transpose has no groups")
        n = x.ndim - 2
        axes = "DHW"[-n:]
        sizes = zip(weight.shape[2:], each(padding, n), each(output_padding, n), each(dilation, n))
        y = self.framework.lax.conv_transpose(
            x,
            weight,
            each(stride, n),
            [(d * (k - 1) - p, d * (k - 1) - p + extra) for k, p, extra, d in sizes],
            rhs_dilation=each(dilation, n),
            dimension_numbers=(f"NC{axes}", f"OI{axes}", f"NC{axes}"),
            transpose_kernel=True,
        )
        return self.affine(y, None, bias, (-1, *(1 for _ in x.shape[2:])))

    def windows(self, x: Any, start: Any, step: Any, kernel: Any, stride: Any, around: Any, dilation: Any) -> Any:
        """`step` reduced over each window: JAX's primitive for pooling."""
        n = x.ndim - 2
        stride = each(kernel if stride is None else stride, n)
        return self.framework.lax.reduce_window(
            x,
            start,
            step,
            (1, 1, *each(kernel, n)),
            (1, 1, *stride),
            [(0, 0), (0, 0), *around],
            window_dilation=(1, 1, *each(dilation, n)),
        )

    def max_pool(
        self,
        x: Any,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> Any:
        steps = kernel_size if stride is None else stride
        around = pool_pads(x.shape[2:], kernel_size, steps, padding, dilation, ceil_mode)
        lowest = -self.numpy.inf
        return self.windows(x, lowest, self.framework.lax.max, kernel_size, stride, around, dilation)

    @composed
    def avg_pool(
        self,
        x: Any,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> Any:
        n, steps = x.ndim - 2, kernel_size if stride is None else stride
        around = pool_pads(x.shape[2:], kernel_size, steps, padding, 1, ceil_mode)
        add, ones = self.framework.lax.add, self.numpy.ones_like(x)
        sums = self.windows(x, 0.0, add, kernel_size, stride, around, 1)
        if count_include_pad:
            inside = pads(padding, n)
            ones = self.numpy.pad(ones, [(0, 0), (0, 0), *inside], constant_values=1)
            around = [(0, behind - p) for (_, behind), (p, _) in zip(around, inside)]
        return sums / self.windows(ones, 0.0, add, kernel_size, stride, around, 1)

    def interpolate(
        self, x: Any, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: Any = None
    ) -> Any:
        require(mode in RESIZES and not align_corners, f"jax.image.resize has no {mode}, or none with align_corners")
        shape = (*x.shape[:2], *resized(x.shape[2:], size, scale_factor))
        return self.framework.image.resize(x, shape, RESIZES[mode], antialias=False)

    def flatten(self, x: Any) -> Any:
        return x.reshape((x.shape[0], -1))

    def pad(self, x: Any, pad: Sequence[int], mode: str = "constant", value: float = 0.0) -> Any:
        widths = list(zip(pad[::2], pad[1::2]))[::-1]
        widths = [(0, 0)] * (x.ndim - len(widths)) + widths
        if mode == "constant":
            return self.framework.lax.pad(x, self.numpy.array(value, x.dtype), [(*width, 0) for width in widths])
        return self.numpy.pad(x, widths, PADS[mode])

    def flip(self, x: Any, dims: Any) -> Any:
        return self.numpy.flip(x, dims)

    def embedding(self, x: Any, weight: Any) -> Any:
        return self.numpy.take(weight, x, axis=0)

    @composed
    def position_embedding(self, x: Any, weight: Any) -> Any:
        return x + self.numpy.take(weight, self.numpy.arange(x.shape[-2]), axis=0)

    def gather(self, x: Any, index: Any, dim: int) -> Any:
        others = tuple(slice(size) for size in index.shape)
        kept = x[tuple(slice(None) if axis == dim % x.ndim else part for axis, part in enumerate(others))]
        return self.numpy.take_along_axis(kept, index, dim)

    def scatter_add(self, x: Any, index: Any, src: Any, dim: int) -> Any:
        indices = list(self.numpy.indices(index.shape, sparse=True))
        indices[dim] = index
        return x.at[tuple(indices)].add(src[tuple(slice(size) for size in index.shape)])

    def sort(self, x: Any, dim: int = -1, descending: bool = False) -> Any:
        y = self.numpy.sort(x, dim, descending=descending)
        return {"y": y, "indices": self.numpy.argsort(x, dim, descending=descending)}

    def topk(self, x: Any, k: int, dim: int = -1, largest: bool = True) -> Any:
        require(largest, "jax.lax.top_k takes the largest only")
        y, indices = self.framework.lax.top_k(x, k, axis=dim)
        return {"y": y, "indices": indices}

    def celu(self, x: Any, alpha: float = 1.0) -> Any:
        return self.framework.nn.celu(x, alpha)

    def gelu(self, x: Any, approximate: str = "none") -> Any:
        return self.framework.nn.gelu(x, approximate == "tanh")

    def mish(self, x: Any) -> Any:
        return self.framework.nn.mish(x)

    def softplus(self, x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:  # noqa: ARG002 - it has none
        require(beta == 1, "jax.nn.softplus has no beta")
        return self.framework.nn.softplus(x)

    def softsign(self, x: Any) -> Any:
        return self.framework.nn.soft_sign(x)

    def hardswish(self, x: Any) -> Any:
        return self.framework.nn.hard_swish(x)

    def hardsigmoid(self, x: Any) -> Any:
        return self.framework.nn.hard_sigmoid(x)

    def hardtanh(self, x: Any, min_val: float = -1.0, max_val: float = 1.0) -> Any:
        require((min_val, max_val) == (-1, 1), "jax.nn.hard_tanh has the fixed range -1 to 1")
        return self.framework.nn.hard_tanh(x)

    def logsigmoid(self, x: Any) -> Any:
        return self.framework.nn.log_sigmoid(x)

    def rsqrt(self, x: Any) -> Any:
        return self.framework.lax.rsqrt(x)

    def erf(self, x: Any) -> Any:
        return self.framework.lax.erf(x)

    def fmod(self, x: Any, other: Any) -> Any:
        return self.numpy.fmod(x, other)

    def logsumexp(self, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        return self.framework.nn.logsumexp(x, dim, keepdims=keepdim)

    def var(self, x: Any, dim: Any = None, correction: Any = 1, keepdim: bool = False) -> Any:
        return self.numpy.var(x, dim, correction=correction, keepdims=keepdim)

    def std(self, x: Any, dim: Any = None, correction: Any = 1, keepdim: bool = False) -> Any:
        return self.numpy.std(x, dim, correction=correction, keepdims=keepdim)

    def vector_norm(self, x: Any, ord: float = 2.0, dim: Any = None, keepdim: bool = False) -> Any:  # noqa: A002
        return self.numpy.linalg.vector_norm(x, ord=ord, axis=dim, keepdims=keepdim)

    def argmax(self, x: Any, dim: Any = -1, keepdim: bool = False) -> Any:
        return self.numpy.argmax(x, dim, keepdims=keepdim)

    def scaled_dot_product_attention(
        self,
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        keep_mask: Any = None,
        is_causal: bool = False,
        scale: Any = None,
        enable_gqa: bool = False,  # noqa: ARG002 - JAX groups the heads whenever there are fewer keys
    ) -> Any:
        # JAX takes [N, L, heads, d], and masks of four axes.
        query, key, value = (self.heads_first(tensor) for tensor in (query, key, value))
        bias, mask = (m if m is None else m[(None,) * (4 - m.ndim)] for m in (attn_mask, keep_mask))
        y = self.framework.nn.dot_product_attention(
            query, key, value, bias, None if mask is None else mask != 0, scale=scale, is_causal=is_causal
        )
        return self.heads_first(y)

    def heads_first(self, x: Any) -> Any:
        """[N, L, heads, d] to [N, heads, L, d], or back."""
        return self.numpy.swapaxes(x, -3, -2)

    # JAX has no function for it: this is how models write it (Gemma, MaxText).
    @composed
    def rotary_embedding(self, x: Any, base: float = 10000.0, interleaved: bool = False) -> Any:
        (length, d), numpy = x.shape[-2:], self.numpy
        frequencies = base ** (-numpy.arange(0, d, 2, dtype=x.dtype) / d)
        angles = numpy.arange(length, dtype=x.dtype)[:, None] * frequencies
        cos, sin = numpy.cos(angles), numpy.sin(angles)
        a, b = (x[..., 0::2], x[..., 1::2]) if interleaved else numpy.split(x, 2, -1)
        rotated = a * cos - b * sin, b * cos + a * sin
        return numpy.stack(rotated, -1).reshape(x.shape) if interleaved else numpy.concatenate(rotated, -1)

    def reduced(self, losses: Any, reduction: str) -> Any:
        """The losses, or their mean or sum."""
        if reduction == "none":
            return losses
        return self.numpy.mean(losses) if reduction == "mean" else self.numpy.sum(losses)

    @composed_unless(reduction="none", label_smoothing=0.0)
    def cross_entropy(
        self,
        x: Any,
        target: Any,
        weight: Any = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> Any:
        require(weight is None, "Optax has no weights of classes")
        # Optax has no ignored targets, so their losses are masked.
        keep = target != ignore_index
        labels, losses = self.numpy.where(keep, target, 0), self.optax().losses
        if label_smoothing:
            classes = self.framework.nn.one_hot(labels, x.shape[-1], dtype=x.dtype)
            smoothed = losses.smooth_labels(classes, label_smoothing)
            rows = losses.softmax_cross_entropy(x, smoothed)
        else:
            rows = losses.softmax_cross_entropy_with_integer_labels(x, labels)
        rows = self.numpy.where(keep, rows, 0)
        return self.numpy.sum(rows) / self.numpy.sum(keep) if reduction == "mean" else self.reduced(rows, reduction)

    @composed_unless(reduction="none", label_smoothing=0.0)
    def soft_cross_entropy(self, x: Any, target: Any, reduction: str = "mean", label_smoothing: float = 0.0) -> Any:
        losses = self.optax().losses
        labels = losses.smooth_labels(target, label_smoothing) if label_smoothing else target
        return self.reduced(losses.softmax_cross_entropy(x, labels), reduction)

    @composed_unless(reduction="none")
    def mse_loss(self, x: Any, target: Any, reduction: str = "mean") -> Any:
        return self.reduced(self.optax().losses.squared_error(x, target), reduction)

    @composed_unless(reduction="none")
    def huber_loss(self, x: Any, target: Any, reduction: str = "mean", delta: float = 1.0) -> Any:
        return self.reduced(self.optax().losses.huber_loss(x, target, delta=delta), reduction)

    @composed_unless(reduction="none")
    def binary_cross_entropy_with_logits(
        self, x: Any, target: Any, pos_weight: Any = None, reduction: str = "mean"
    ) -> Any:
        require(pos_weight is None, "Optax has no weights of classes")
        return self.reduced(self.optax().losses.sigmoid_binary_cross_entropy(x, target), reduction)

    @composed
    def kl_div(self, x: Any, target: Any, reduction: str = "mean", log_target: bool = False) -> Any:
        require(reduction != "none", "Optax sums the divergence over an axis")
        losses = self.optax().losses
        function = losses.kl_divergence_with_log_targets if log_target else losses.kl_divergence
        total = self.numpy.sum(function(x, target))
        return total / {"mean": x.size, "batchmean": x.shape[0], "sum": 1}[reduction]

    def cosine_similarity(self, x: Any, other: Any, dim: int = 1, eps: float = 1e-8) -> Any:
        # Optax's epsilon is the smallest square of a norm.
        return self.optax().losses.cosine_similarity(x, other, epsilon=eps**2, axis=dim)

    @composed_unless(reduction="none")
    def ctc_loss(
        self,
        x: Any,
        target: Any,
        input_lengths: Any,
        target_lengths: Any,
        blank: int = 0,
        reduction: str = "mean",
    ) -> Any:
        logits = self.numpy.swapaxes(x, 0, 1)
        beyond = (
            (self.numpy.arange(size) >= lengths[:, None]).astype(x.dtype)
            for size, lengths in ((logits.shape[1], input_lengths), (target.shape[1], target_lengths))
        )
        losses = self.optax().losses.ctc_loss(logits, next(beyond), target, next(beyond), blank_id=blank)
        if reduction == "mean":
            losses = losses / self.numpy.maximum(target_lengths, 1).astype(x.dtype)
        return self.reduced(losses, reduction)

    def clip_grad_norm(self, grads: Sequence[Any], max_norm: float, norm_type: float, scope: str) -> Any:
        require(norm_type == 2, "Optax clips norms of order 2")
        optax = self.optax()
        clip = optax.clip_by_global_norm(max_norm)
        groups = [list(grads)] if scope == "global" else [[grad] for grad in grads]
        clipped = [grad for group in groups for grad in clip.update(group, clip.init(group))[0]]
        return {"grads": clipped, "total_norm": optax.global_norm(list(grads))}

    def clip_grad_value(self, grads: Sequence[Any], clip_value: float) -> Any:
        clip = self.optax().clip(clip_value)
        return {"grads": clip.update(list(grads), clip.init(list(grads)))[0]}

    def stepped(
        self, optimizer: Any, weight_decay: float, param: Any, grad: Any, count: Any = None, **state: Any
    ) -> Any:
        """One step of an optimizer, with decay added to the gradient; `state` is that after `count` steps."""
        optax = self.optax()
        if weight_decay:
            optimizer = optax.chain(optax.add_decayed_weights(weight_decay), optimizer)
        given = {STATES[name]: value for name, value in state.items()}
        given = given if count is None else {**given, "count": self.numpy.asarray(count, "int32")}
        before = optax.tree_utils.tree_set(optimizer.init(param), **given)
        updates, after = optimizer.update(grad, before, param)
        kept = {name: optax.tree_utils.tree_get(after, STATES[name]) for name in state}
        return {"param": optax.apply_updates(param, updates), **kept}

    def sgd(
        self,
        lr: float,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        step: int = 2,
        **given: Any,
    ) -> Any:
        require(not dampening, "Optax's SGD has no dampening")
        if momentum and step == 1:
            given["momentum_buffer"] = self.numpy.zeros_like(given["param"])
        return self.stepped(self.optax().sgd(lr, momentum or None, nesterov), weight_decay, **given)

    def adam(
        self, lr: float, betas: Sequence[float], eps: float, weight_decay: float = 0.0, step: int = 2, **given: Any
    ) -> Any:
        return self.stepped(self.optax().adam(lr, *betas, eps), weight_decay, count=step - 1, **given)

    def adamw(
        self, lr: float, betas: Sequence[float], eps: float, weight_decay: float, step: int = 2, **given: Any
    ) -> Any:
        optimizer = self.optax().adamw(lr, *betas, eps, weight_decay=weight_decay)
        return self.stepped(optimizer, 0.0, count=step - 1, **given)

    def lamb(
        self, lr: float, betas: Sequence[float], eps: float, weight_decay: float, step: int = 2, **given: Any
    ) -> Any:
        optimizer = self.optax().lamb(lr, *betas, eps, weight_decay=weight_decay)
        return self.stepped(optimizer, 0.0, count=step - 1, **given)

    def rmsprop(
        self,
        lr: float,
        alpha: float,
        eps: float,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        **given: Any,
    ) -> Any:
        optimizer = self.optax().rmsprop(
            lr, alpha, eps, eps_in_sqrt=False, centered=centered, momentum=momentum or None
        )
        if not momentum:
            return self.stepped(optimizer, weight_decay, **given)
        # Optax's buffer is added to the parameter, PyTorch's is subtracted.
        given["momentum_buffer"] = -given["momentum_buffer"]
        after = self.stepped(optimizer, weight_decay, **given)
        return {**after, "momentum_buffer": -after["momentum_buffer"]}

    def adagrad(
        self, lr: float, eps: float, weight_decay: float = 0.0, lr_decay: float = 0.0, step: int = 2, **given: Any
    ) -> Any:
        require(not lr_decay or step == 1, "Optax's Adagrad has no lr_decay")
        return self.stepped(self.optax().adagrad(lr, eps=eps), weight_decay, **given)
