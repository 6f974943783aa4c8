"""Keras: keras.ops, layers, losses and optimizers, on the tensors and the gradients of one of its backends."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from parity.adapters.base import composed, composed_unless, named_outputs
from parity.adapters.functions import NumpyStyleAdapter
from parity.adapters.jax.adapter import JaxTensors
from parity.adapters.shapes import (
    AnyAxesAdapter,
    AttentionAdapter,
    channels_first,
    channels_last,
    conv_pads,
    each,
    pads,
    require,
    resized,
)
from parity.adapters.tensorflow.adapter import TensorflowTensors
from parity.adapters.torch.adapter import TorchTensors

REDUCTIONS = {"mean": "sum_over_batch_size", "sum": "sum", "none": "none"}


class KerasOps(NumpyStyleAdapter, AnyAxesAdapter, AttentionAdapter):
    """Ops with channels last, Keras's default, for which all its backends have kernels."""

    framework: Any

    def __init__(self, device: str, threads: int, mode: str = "eager", ranks: int = 1) -> None:
        # Keras's default backend is TensorFlow.
        os.environ["KERAS_BACKEND"] = "tensorflow" if mode == "eager" else mode
        super().__init__(device, threads, mode, ranks)
        import keras

        self.keras = keras
        self.ops = keras.ops
        self.math = keras.ops
        self.nn = keras.ops

    def version(self) -> str:
        return str(self.keras.__version__)

    def flags(self) -> dict[str, Any]:
        return {"KERAS_BACKEND": os.environ["KERAS_BACKEND"], "backend version": str(self.framework.__version__)}

    def staged(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, run with its tensors' dtype as Keras's floatx and dtype policy."""

        def call(*args: Any, **given: Any) -> Any:
            values = [*args, *given.values()]
            tensors = [part for value in values for part in (value if isinstance(value, list) else [value])]
            dtypes = [self.keras.backend.standardize_dtype(v.dtype) for v in tensors if hasattr(v, "dtype")]
            dtype = next(dtype for dtype in dtypes if "float" in dtype)
            self.keras.config.set_floatx(dtype)
            self.keras.config.set_dtype_policy(dtype)
            return named_outputs(function(*args, **given))

        return call

    def layer(self, layer: Any, x: Any, weights: Sequence[Any], states: Sequence[Any] = (), **options: Any) -> Any:
        """The output of a layer with these tensors as weights, and its states after the call."""
        layer.build(x.shape)
        # A random layer has a seed among its states.
        others = [variable.value for variable in layer.non_trainable_variables][len(states) :]
        given = [weight for weight in weights if weight is not None]
        return layer.stateless_call(given, [*states, *others], x, **options)

    def layer_norm(
        self, x: Any, normalized_shape: Sequence[int], eps: float, weight: Any = None, bias: Any = None
    ) -> Any:
        return self.ops.layer_normalization(x, weight, bias, list(range(-len(normalized_shape), 0)), eps)

    def rms_norm(self, x: Any, normalized_shape: Sequence[int], eps: float, weight: Any = None) -> Any:
        return self.ops.rms_normalization(x, weight, list(range(-len(normalized_shape), 0)), eps)

    def group_norm(self, x: Any, num_groups: int, eps: float, weight: Any = None, bias: Any = None) -> Any:
        layer = self.keras.layers.GroupNormalization(
            num_groups, 1, eps, center=bias is not None, scale=weight is not None
        )
        return self.layer(layer, x, (weight, bias))[0]

    def instance_norm(self, x: Any, eps: float, weight: Any = None, bias: Any = None) -> Any:
        return self.group_norm(x=x, num_groups=-1, eps=eps, weight=weight, bias=bias)

    def batch_norm(
        self,
        x: Any,
        running_mean: Any,
        running_var: Any,
        training: bool,
        momentum: float,
        eps: float,
        weight: Any = None,
        bias: Any = None,
    ) -> Any:
        # Keras's momentum is the weight of the old statistics.
        layer = self.keras.layers.BatchNormalization(
            1, 1 - momentum, eps, center=bias is not None, scale=weight is not None
        )
        y, after = self.layer(layer, x, (weight, bias), (running_mean, running_var), training=training)
        return {"y": y, "running_mean": after[0], "running_var": after[1]}

    def normalize(self, x: Any, p: float, dim: int, eps: float) -> Any:
        require(p == int(p), "keras.ops.normalize has whole orders")
        return self.ops.normalize(x, dim, int(p), eps)

    def dropout(self, x: Any, p: float, training: bool) -> Any:
        return self.layer(self.keras.layers.Dropout(p), x, (), training=training)[0]

    def linear(self, x: Any, weight: Any, bias: Any = None) -> Any:
        # Keras's kernel is [in, out].
        layer = self.keras.layers.Dense(weight.shape[0], use_bias=bias is not None)
        return self.layer(layer, x, (self.ops.transpose(weight), bias))[0]

    def bmm(self, x: Any, other: Any) -> Any:
        return self.ops.matmul(x, other)

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
        last = channels_last(self.ops, x)
        if not isinstance(padding, str):
            around = conv_pads(padding, weight.shape[2:], dilation)
            last, padding = self.ops.pad(last, [(0, 0), *around, (0, 0)]), "valid"
        layer = getattr(self.keras.layers, f"Conv{n}D")(
            weight.shape[0],
            tuple(weight.shape[2:]),
            each(stride, n),
            padding,
            "channels_last",
            each(dilation, n),
            groups,
            use_bias=bias is not None,
        )
        kernel = self.ops.transpose(weight, [*range(2, n + 2), 1, 0])
        return channels_first(self.ops, self.layer(layer, last, (kernel, bias))[0])

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
        n = x.ndim - 2
        plain = groups == 1 and not any(each(output_padding, n)) and set(each(dilation, n)) == {1}
        # Keras's "valid" keeps more than PyTorch's padding of 0 if the stride exceeds the kernel.
        fits = all(s <= k for s, k in zip(each(stride, n), weight.shape[2:]))
        require(
            plain and fits,
            "keras.layers.Conv2DTranspose has no groups, and other meanings of output_padding and dilation",
        )
        layer = getattr(self.keras.layers, f"Conv{n}DTranspose")(
            weight.shape[1],
            tuple(weight.shape[2:]),
            each(stride, n),
            data_format="channels_last",
            use_bias=bias is not None,
        )
        kernel = self.ops.transpose(weight, [*range(2, n + 2), 1, 0])
        y = self.layer(layer, channels_last(self.ops, x), (kernel, bias))[0]
        kept = tuple(slice(p, size - p) for p, size in zip(each(padding, n), y.shape[1:]))
        return channels_first(self.ops, y[(slice(None), *kept)])

    def max_pool(
        self,
        x: Any,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> Any:
        n = x.ndim - 2
        lacking = ceil_mode or any(each(padding, n)) or set(each(dilation, n)) != {1}
        require(not lacking, "keras.ops.max_pool has no padding in numbers, dilation or ceil_mode")
        strides = each(kernel_size if stride is None else stride, n)
        y = self.ops.max_pool(channels_last(self.ops, x), each(kernel_size, n), strides, "valid", "channels_last")
        return channels_first(self.ops, y)

    def avg_pool(
        self,
        x: Any,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,  # noqa: ARG002 - nothing is padded
    ) -> Any:
        n = x.ndim - 2
        require(
            not (ceil_mode or any(each(padding, n))), "keras.ops.average_pool has no padding in numbers or ceil_mode"
        )
        strides = each(kernel_size if stride is None else stride, n)
        y = self.ops.average_pool(channels_last(self.ops, x), each(kernel_size, n), strides, "valid", "channels_last")
        return channels_first(self.ops, y)

    def adaptive_pool(self, kind: str, x: Any, output_size: Any) -> Any:
        function = getattr(self.ops, f"adaptive_{kind}_pool")
        y = function(channels_last(self.ops, x), each(output_size, x.ndim - 2), data_format="channels_last")
        return channels_first(self.ops, y)

    def adaptive_avg_pool1d(self, x: Any, output_size: Any) -> Any:
        return self.adaptive_pool("average", x, output_size)

    def adaptive_avg_pool2d(self, x: Any, output_size: Any) -> Any:
        return self.adaptive_pool("average", x, output_size)

    def adaptive_max_pool1d(self, x: Any, output_size: Any) -> Any:
        return self.adaptive_pool("max", x, output_size)

    def adaptive_max_pool2d(self, x: Any, output_size: Any) -> Any:
        return self.adaptive_pool("max", x, output_size)

    def interpolate(
        self, x: Any, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: Any = None
    ) -> Any:
        known = x.ndim == 4 and mode in ("nearest", "bilinear", "bicubic") and not align_corners
        require(known, f"keras.ops.image.resize has no {mode} of these axes, or none with align_corners")
        sizes = resized(x.shape[2:], size, scale_factor)
        y = self.ops.image.resize(channels_last(self.ops, x), sizes, mode, data_format="channels_last")
        return channels_first(self.ops, y)

    def flatten(self, x: Any) -> Any:
        return self.ops.reshape(x, (x.shape[0], -1))

    def pad(self, x: Any, pad: Sequence[int], mode: str = "constant", value: float = 0.0) -> Any:
        known = mode in ("constant", "reflect") and not any(n < 0 for n in pad)
        require(
            known, "keras.ops.pad has only the modes constant and reflect on every backend, and no negative padding"
        )
        widths = list(zip(pad[::2], pad[1::2]))[::-1]
        filler = value if mode == "constant" else None
        return self.ops.pad(x, pads(0, x.ndim - len(widths)) + widths, mode, filler)

    def pixel_shuffle(self, x: Any, upscale_factor: int) -> Any:
        return channels_first(self.ops, self.ops.depth_to_space(channels_last(self.ops, x), upscale_factor))

    def flip(self, x: Any, dims: Any) -> Any:
        return self.ops.flip(x, each(dims, 1))

    # The call of keras.layers.Embedding.
    def embedding(self, x: Any, weight: Any) -> Any:
        return self.ops.take(weight, x, 0)

    @composed
    def position_embedding(self, x: Any, weight: Any) -> Any:
        return self.ops.add(x, self.ops.take(weight, self.ops.arange(x.shape[-2]), 0))

    def gather(self, x: Any, index: Any, dim: int) -> Any:
        kept = tuple(slice(None if axis == dim % x.ndim else size) for axis, size in enumerate(index.shape))
        return self.ops.take_along_axis(x[kept], index, dim)

    def scatter_add(self, x: Any, index: Any, src: Any, dim: int) -> Any:
        ranges = (self.ops.arange(size, dtype="int64") for size in index.shape)
        indices = list(self.ops.meshgrid(*ranges, indexing="ij"))
        indices[dim] = index
        rows = self.ops.reshape(self.ops.stack(indices, -1), (-1, x.ndim))
        updates = self.ops.reshape(src[tuple(slice(size) for size in index.shape)], (-1,))
        return self.ops.scatter_update(x, rows, updates, reduction="add")

    def sort(self, x: Any, dim: int = -1, descending: bool = False) -> Any:
        require(not descending, "keras.ops.sort is ascending")
        return {"y": self.ops.sort(x, dim), "indices": self.ops.argsort(x, dim)}

    def topk(self, x: Any, k: int, dim: int = -1, largest: bool = True) -> Any:
        require(largest and dim % x.ndim == x.ndim - 1, "keras.ops.top_k takes the largest of the last axis")
        y, indices = self.ops.top_k(x, k)
        return {"y": y, "indices": indices}

    def celu(self, x: Any, alpha: float = 1.0) -> Any:
        return self.ops.celu(x, alpha)

    def gelu(self, x: Any, approximate: str = "none") -> Any:
        return self.ops.gelu(x, approximate == "tanh")

    def mish(self, x: Any) -> Any:
        return self.keras.activations.mish(x)

    def softplus(self, x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:  # noqa: ARG002 - it has none
        require(beta == 1, "keras.ops.softplus has no beta")
        return self.ops.softplus(x)

    def hardswish(self, x: Any) -> Any:
        return self.ops.hard_silu(x)

    def hardsigmoid(self, x: Any) -> Any:
        return self.ops.hard_sigmoid(x)

    def hardtanh(self, x: Any, min_val: float = -1.0, max_val: float = 1.0) -> Any:
        require((min_val, max_val) == (-1, 1), "keras.ops.hard_tanh has the fixed range -1 to 1")
        return self.ops.hard_tanh(x)

    def logsigmoid(self, x: Any) -> Any:
        return self.ops.log_sigmoid(x)

    def clamp(self, x: Any, min: Any = None, max: Any = None) -> Any:  # noqa: A002 - PyTorch's names
        require(min is not None and max is not None, "keras.ops.clip needs both limits")
        return self.ops.clip(x, min, max)

    def remainder(self, x: Any, other: Any) -> Any:
        return self.ops.mod(x, other)

    def fmod(self, x: Any, other: Any) -> Any:
        return self.ops.fmod(x, other)

    def var(self, x: Any, dim: Any = None, correction: int = 1, keepdim: bool = False) -> Any:
        require(correction == 0, "keras.ops.var has no correction")
        return self.ops.var(x, dim, keepdim)

    def std(self, x: Any, dim: Any = None, correction: int = 1, keepdim: bool = False) -> Any:
        require(correction == 0, "keras.ops.std has no correction")
        return self.ops.std(x, dim, keepdim)

    def vector_norm(self, x: Any, ord: float = 2.0, dim: Any = None, keepdim: bool = False) -> Any:  # noqa: A002
        require(isinstance(dim, int), "keras.ops.norm over two axes is a matrix norm")
        return self.ops.norm(x, ord, dim, keepdim)

    def scaled_dot_product_attention(
        self,
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        keep_mask: Any = None,
        is_causal: bool = False,
        scale: Any = None,
        enable_gqa: bool = False,
    ) -> Any:
        require(not enable_gqa, "keras.ops.dot_product_attention has as many keys as queries, in heads")
        # Keras takes [N, L, heads, d], and masks of four axes.
        query, key, value = (self.heads_first(tensor) for tensor in (query, key, value))
        bias, mask = (m if m is None else m[(None,) * (4 - m.ndim)] for m in (attn_mask, keep_mask))
        y = self.ops.dot_product_attention(
            query, key, value, bias, None if mask is None else mask != 0, scale, is_causal, flash_attention=False
        )
        return self.heads_first(y)

    def reshaped(self, x: Any, shape: Sequence[int]) -> Any:
        return self.ops.reshape(x, shape)

    def heads_first(self, x: Any) -> Any:
        """[N, L, heads, d] to [N, heads, L, d], or back."""
        return self.ops.swapaxes(x, 1, 2)

    # Keras's recurrent layers have the batch axis before the steps, kernels [in, gates], and one bias instead of two.
    @composed_unless(bias_ih=None)
    def lstm(
        self,
        x: Any,
        weight_ih: Any,
        weight_hh: Any,
        bias_ih: Any = None,
        bias_hh: Any = None,
        h0: Any = None,
        c0: Any = None,
    ) -> Any:
        bias = None if bias_ih is None else bias_ih + bias_hh
        weights = self.ops.transpose(weight_ih), self.ops.transpose(weight_hh), bias
        y, h, c = self.recurrent(self.keras.layers.LSTM, x, weights, (h0, c0))
        return {"y": y, "h": h, "c": c}

    def gru(
        self, x: Any, weight_ih: Any, weight_hh: Any, bias_ih: Any = None, bias_hh: Any = None, h0: Any = None
    ) -> Any:
        # Keras's first gate is the update gate.
        given = [v if v is None else self.update_first(v) for v in (weight_ih, weight_hh, bias_ih, bias_hh)]
        bias = None if bias_ih is None else self.ops.stack(given[2:])
        weights = self.ops.transpose(given[0]), self.ops.transpose(given[1]), bias
        y, h = self.recurrent(self.keras.layers.GRU, x, weights, (h0,))
        return {"y": y, "h": h}

    def update_first(self, weight: Any) -> Any:
        """The gates r, z, n as z, r, n."""
        r, z, n = self.ops.split(weight, 3, 0)
        return self.ops.concatenate([z, r, n], 0)

    def recurrent(self, kind: Any, x: Any, weights: Sequence[Any], states: Sequence[Any]) -> Sequence[Any]:
        """All outputs, steps first, and the last states."""
        size = weights[1].shape[0]
        # The default orthogonal initialiser has no kernel in bfloat16.
        options = {"use_bias": weights[2] is not None, "recurrent_initializer": "zeros"}
        layer = kind(size, return_sequences=True, return_state=True, **options)
        zeros = self.ops.zeros((x.shape[1], size), x.dtype)
        initial = [zeros if state is None else state for state in states]
        (y, *after), _ = self.layer(layer, self.ops.swapaxes(x, 0, 1), weights, initial_state=initial)
        return [self.ops.swapaxes(y, 0, 1), *after]

    def cross_entropy(
        self,
        x: Any,
        target: Any,
        weight: Any = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> Any:
        require(
            weight is None and not label_smoothing, "Keras has no weights of classes, and smooths rows of them only"
        )
        losses = self.keras.losses
        return losses.SparseCategoricalCrossentropy(True, ignore_index, REDUCTIONS[reduction])(target, x)

    def soft_cross_entropy(self, x: Any, target: Any, reduction: str = "mean", label_smoothing: float = 0.0) -> Any:
        losses = self.keras.losses
        return losses.CategoricalCrossentropy(True, label_smoothing, reduction=REDUCTIONS[reduction])(target, x)

    def of_mean(self, loss: Any, x: Any, target: Any, reduction: str) -> Any:
        """A loss that takes the mean over the last axis for any reduction."""
        require(reduction == "mean", "Keras takes the mean over the last axis first")
        return loss(target, x)

    def l1_loss(self, x: Any, target: Any, reduction: str = "mean") -> Any:
        return self.of_mean(self.keras.losses.MeanAbsoluteError(), x, target, reduction)

    def mse_loss(self, x: Any, target: Any, reduction: str = "mean") -> Any:
        return self.of_mean(self.keras.losses.MeanSquaredError(), x, target, reduction)

    def huber_loss(self, x: Any, target: Any, reduction: str = "mean", delta: float = 1.0) -> Any:
        return self.of_mean(self.keras.losses.Huber(delta), x, target, reduction)

    def binary_cross_entropy(self, x: Any, target: Any, reduction: str = "mean") -> Any:
        return self.of_mean(self.keras.losses.BinaryCrossentropy(), x, target, reduction)

    def binary_cross_entropy_with_logits(
        self, x: Any, target: Any, pos_weight: Any = None, reduction: str = "mean"
    ) -> Any:
        require(pos_weight is None, "keras.losses.BinaryCrossentropy has no weights of classes")
        return self.of_mean(self.keras.losses.BinaryCrossentropy(from_logits=True), x, target, reduction)

    # Keras has it as a loss, which falls with the similarity, and with another epsilon.
    def cosine_similarity(self, x: Any, other: Any, dim: int = 1, eps: float = 1e-8) -> Any:  # noqa: ARG002
        return -self.keras.losses.cosine_similarity(x, other, dim)

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
        logits = self.ops.swapaxes(x, 0, 1)
        losses = self.ops.ctc_loss(target, logits, target_lengths, input_lengths, blank)
        if reduction == "mean":
            losses = losses / self.ops.cast(self.ops.maximum(target_lengths, 1), losses.dtype)
        if reduction == "none":
            return losses
        return self.ops.mean(losses) if reduction == "mean" else self.ops.sum(losses)

    # Keras's optimizers clip in a private method; this is what it does for `clipvalue`.
    def clip_grad_value(self, grads: Sequence[Any], clip_value: float) -> Any:
        return {"grads": [self.ops.clip(grad, -clip_value, clip_value) for grad in grads]}

    def stepped(self, optimizer: Any, param: Any, grad: Any, step: int, **states: Any) -> Any:
        """One step of an optimizer from these states, in its order; returns the new parameter and states."""
        variable = self.keras.Variable(param)
        optimizer.build([variable])
        optimizer.iterations.assign(step - 1)
        kept = dict(zip(states, optimizer.variables[2:]))
        for name, own in kept.items():
            own.assign(states[name])
        optimizer.apply([grad], [variable])
        return {"param": variable.value, **{name: own.value for name, own in kept.items()}}

    @composed_unless(momentum=0.0)
    def sgd(
        self,
        param: Any,
        grad: Any,
        lr: float,
        momentum: float,
        dampening: float,
        weight_decay: float,
        nesterov: bool,
        step: int,
        momentum_buffer: Any = None,
    ) -> Any:
        require(not dampening, "keras.optimizers.SGD has no dampening")
        require(not weight_decay, "Keras decays the parameter, not the gradient")
        optimizer = self.keras.optimizers.SGD(lr, momentum, nesterov)
        if not momentum:
            return self.stepped(optimizer, param, grad, step)
        # Keras's velocity includes the rate, and has the opposite sign of PyTorch's buffer.
        velocity = momentum_buffer * (0 if step == 1 else -lr)
        after = self.stepped(optimizer, param, grad, step, velocity=velocity)
        return {"param": after["param"], "momentum_buffer": after["velocity"] / -lr}

    def adam(
        self, param: Any, grad: Any, lr: float, betas: Any, eps: float, weight_decay: float, step: int, **states: Any
    ) -> Any:
        require(not weight_decay, "Keras decays the parameter, not the gradient")
        return self.stepped(self.keras.optimizers.Adam(lr, *betas, eps), param, grad, step, **states)

    def adamw(
        self, param: Any, grad: Any, lr: float, betas: Any, eps: float, weight_decay: float, step: int, **states: Any
    ) -> Any:
        optimizer = self.keras.optimizers.AdamW(lr, weight_decay, *betas, eps)
        return self.stepped(optimizer, param, grad, step, **states)

    def lamb(
        self, param: Any, grad: Any, lr: float, betas: Any, eps: float, weight_decay: float, step: int, **states: Any
    ) -> Any:
        optimizer = self.keras.optimizers.Lamb(lr, *betas, eps, weight_decay)
        return self.stepped(optimizer, param, grad, step, **states)

    def adagrad(
        self,
        param: Any,
        grad: Any,
        lr: float,
        eps: float,
        weight_decay: float,
        lr_decay: float,
        step: int,
        **states: Any,
    ) -> Any:
        require(not (weight_decay or lr_decay), "keras.optimizers.Adagrad has no such decays")
        return self.stepped(self.keras.optimizers.Adagrad(lr, 0.0, eps), param, grad, step, **states)


class KerasTensorflow(KerasOps, TensorflowTensors):
    """On TensorFlow."""


class KerasJax(KerasOps, JaxTensors):
    """On JAX."""


class KerasTorch(KerasOps, TorchTensors):
    """On PyTorch."""

    def in_mode(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return self.staged(function)
