"""TensorFlow: tf.nn, tf.math and tf.image, without Keras."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

from parity.adapters.base import Adapter, composed, composed_unless, named_outputs
from parity.adapters.functions import FunctionsAdapter
from parity.adapters.shapes import AnyAxesAdapter, conv_pads, each, pads, pool_pads, require, resized

LAYOUTS = {1: "NWC", 2: "NHWC", 3: "NDHWC"}
PADS = {"constant": "CONSTANT", "reflect": "REFLECT"}


class TensorflowTensors(Adapter):
    """TensorFlow's tensors and its gradients, by tf.GradientTape."""

    dtypes = None
    no_kernel: ClassVar[tuple[str, ...]] = (
        r"gradient registry has no entry for",
        r"not in (the )?list of allowed values",
        r"No OpKernel was registered|[Cc]ould not find (device|valid device) for node",
        r"not (yet )?(supported|implemented)|unsupported operations",
        # Optimizers create variables.
        r"tf.function only supports singleton tf.Variables|failed to lift variable creations",
    )

    def __init__(self, device: str, threads: int, mode: str = "eager", ranks: int = 1) -> None:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        import tensorflow

        super().__init__(device, threads, mode, ranks)
        tensorflow.config.threading.set_intra_op_parallelism_threads(threads)
        tensorflow.config.threading.set_inter_op_parallelism_threads(1)
        self.framework = tensorflow
        self.math = tensorflow.math
        self.nn = tensorflow.nn
        self.latest = SimpleNamespace()

    def version(self) -> str:
        return str(self.framework.__version__)

    def flags(self) -> dict[str, Any]:
        return {"TF_ENABLE_ONEDNN_OPTS": os.environ.get("TF_ENABLE_ONEDNN_OPTS", "1")}

    def describe(self, error: BaseException) -> str:
        """The message without the graph nodes after it."""
        return str(error).partition("\n")[0]

    def leaf(self, array: Any, requires_grad: bool) -> Any:  # noqa: ARG002 - the tape watches at the call
        low = self.framework.bfloat16.as_numpy_dtype
        return self.framework.constant(array.view(low) if array.dtype == "uint16" else array)

    def to_numpy(self, tensor: Any) -> Any:
        return tensor.numpy().view("uint16") if tensor.dtype == "bfloat16" else tensor.numpy()

    def in_mode(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The staged function, recorded by the tape that `gradients` reads."""
        staged = self.staged(function)

        def call(**given: Any) -> Any:
            # tf.custom_gradient silently ignores a user's gradient for tensors passed by keyword.
            bound = inspect.signature(function).bind(**given)
            with self.framework.GradientTape() as self.latest.tape:
                for value in given.values():
                    if self.framework.is_tensor(value) and value.dtype.is_floating:
                        self.latest.tape.watch(value)
                return named_outputs(staged(*bound.args, **bound.kwargs))

        return call

    def staged(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function as it is in eager mode."""
        return function

    def gradients(self, outputs: Sequence[Any], grad_outputs: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
        given = [self.framework.cast(dy, y.dtype) for y, dy in zip(outputs, grad_outputs)]
        grads = self.latest.tape.gradient(list(outputs), list(leaves), output_gradients=given)
        return [None if grad is None else self.framework.convert_to_tensor(grad) for grad in grads]


class TensorflowAdapter(TensorflowTensors, FunctionsAdapter, AnyAxesAdapter):
    """Eager, on the CPU, whose kernels have channels last."""

    def channels_last(self, x: Any) -> Any:
        """[N, C, ...] to [N, ..., C]."""
        return self.framework.transpose(x, [0, *range(2, x.ndim), 1])

    def channels_first(self, x: Any) -> Any:
        """[N, ..., C] to [N, C, ...]."""
        return self.framework.transpose(x, [0, x.ndim - 1, *range(1, x.ndim - 1)])

    def normalized(self, x: Any, axes: Sequence[int], eps: float, weight: Any, bias: Any) -> Any:
        """tf.nn.moments and tf.nn.batch_normalization, as TensorFlow documents the pair for any axes."""
        mean, variance = self.framework.nn.moments(x, axes, keepdims=True)
        return self.framework.nn.batch_normalization(x, mean, variance, bias, weight, eps)

    def of_channels(self, x: Any, values: Any) -> Any:
        """A weight or bias of channels, shaped to broadcast with x [N, C, ...]."""
        return None if values is None else self.framework.reshape(values, [-1, *(1 for _ in x.shape[2:])])

    @composed
    def layer_norm(
        self, x: Any, normalized_shape: Sequence[int], eps: float, weight: Any = None, bias: Any = None
    ) -> Any:
        return self.normalized(x, list(range(-len(normalized_shape), 0)), eps, weight, bias)

    # TensorFlow leaves group norm to Keras: the same with groups, as Wu and He write it (2018, figure 3).
    @composed
    def group_norm(self, x: Any, num_groups: int, eps: float, weight: Any = None, bias: Any = None) -> Any:
        groups = self.framework.reshape(x, [x.shape[0], num_groups, -1])
        y = self.framework.reshape(self.normalized(groups, [2], eps, None, None), x.shape)
        y = y if weight is None else y * self.of_channels(x, weight)
        return y if bias is None else y + self.of_channels(x, bias)

    @composed
    def instance_norm(self, x: Any, eps: float, weight: Any = None, bias: Any = None) -> Any:
        axes = list(range(2, x.ndim))
        return self.normalized(x, axes, eps, self.of_channels(x, weight), self.of_channels(x, bias))

    # TensorFlow has no function for it: this is how models write it (T5).
    @composed
    def rms_norm(self, x: Any, normalized_shape: Sequence[int], eps: float, weight: Any = None) -> Any:
        math, axes = self.framework.math, list(range(-len(normalized_shape), 0))
        y = x * math.rsqrt(math.reduce_mean(math.square(x), axes, keepdims=True) + eps)
        return y if weight is None else weight * y

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
        last = self.channels_last(x)
        y, mean, var = self.framework.compat.v1.nn.fused_batch_norm(
            self.framework.reshape(last, [x.shape[0], -1, 1, x.shape[1]]),
            self.framework.ones_like(running_mean) if weight is None else weight,
            self.framework.zeros_like(running_mean) if bias is None else bias,
            running_mean,
            running_var,
            epsilon=eps,
            is_training=training,
            exponential_avg_factor=momentum,
        )
        y = self.channels_first(self.framework.reshape(y, last.shape))
        return {"y": y, "running_mean": mean, "running_var": var}

    def local_response_norm(self, x: Any, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Any:
        # TensorFlow has a radius, and an alpha for each element of the window.
        require(size % 2 == 1, "tf.nn.local_response_normalization has windows of odd sizes")
        last, radius = self.channels_last(x), size // 2
        y = self.framework.nn.local_response_normalization(last, radius, k, alpha / size, beta)
        return self.channels_first(y)

    def normalize(self, x: Any, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Any:
        # TensorFlow's epsilon is the smallest square of a norm.
        require(p == 2, "tf.math.l2_normalize is of order 2")
        return self.framework.math.l2_normalize(x, dim, eps**2)

    def dropout(self, x: Any, p: float = 0.5, training: bool = False) -> Any:
        return self.framework.nn.dropout(x, p if training else 0.0)

    @composed_unless(bias=None)
    def linear(self, x: Any, weight: Any, bias: Any = None) -> Any:
        y = self.framework.matmul(x, weight, transpose_b=True)
        return y if bias is None else self.framework.nn.bias_add(y, bias)

    def matmul(self, x: Any, other: Any) -> Any:
        require(x.ndim > 1 and other.ndim > 1, "tf.matmul takes no vectors")
        return self.framework.matmul(x, other)

    def bmm(self, x: Any, other: Any) -> Any:
        return self.framework.matmul(x, other)

    def outer(self, x: Any, other: Any) -> Any:
        return self.framework.tensordot(x, other, 0)

    def einsum(self, x: Any, other: Any, equation: str) -> Any:
        return self.framework.einsum(equation, x, other)

    @composed_unless(bias=None)
    def convolution(
        self,
        x: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,  # noqa: ARG002 - TensorFlow sees them in the shape of the weight
    ) -> Any:
        n = x.ndim - 2
        around = conv_pads(padding, weight.shape[2:], dilation)
        y = self.framework.nn.convolution(
            self.channels_last(self.framework.pad(x, [(0, 0), (0, 0), *around])),
            self.framework.transpose(weight, [*range(2, n + 2), 1, 0]),
            each(stride, n),
            "VALID",
            # Without the name of the layout, the gradient for three axes fails.
            LAYOUTS[n],
            each(dilation, n),
        )
        return self.channels_first(y if bias is None else self.framework.nn.bias_add(y, bias))

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
        require(groups == 1, "tf.nn.conv_transpose has no groups")
        n = x.ndim - 2
        axes = list(zip(x.shape[2:], weight.shape[2:], *(each(v, n) for v in (stride, output_padding, dilation))))
        whole = [(size - 1) * s + d * (k - 1) + 1 + extra for size, k, s, extra, d in axes]
        y = self.framework.nn.conv_transpose(
            self.channels_last(x),
            self.framework.transpose(weight, [*range(2, n + 2), 1, 0]),
            [x.shape[0], *whole, weight.shape[1]],
            each(stride, n),
            "VALID",
            dilations=each(dilation, n),
        )
        kept = tuple(slice(p, size - p) for p, size in zip(each(padding, n), whole))
        y = y[(slice(None), *kept)]
        return self.channels_first(y if bias is None else self.framework.nn.bias_add(y, bias))

    def pooled(self, kind: str, x: Any, kernel: Any, stride: Any, around: Any, dilation: Any, value: float) -> Any:
        """Windows of x, padded with `value`."""
        n = x.ndim - 2
        padded = self.framework.pad(x, [(0, 0), (0, 0), *around], constant_values=value)
        y = self.framework.nn.pool(
            self.channels_last(padded),
            each(kernel, n),
            kind,
            each(kernel if stride is None else stride, n),
            "VALID",
            dilations=each(dilation, n),
        )
        return self.channels_first(y)

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
        return self.pooled("MAX", x, kernel_size, stride, around, dilation, x.dtype.min)

    def avg_pool(
        self,
        x: Any,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> Any:
        around = pads(padding, x.ndim - 2)
        padded = any(before for before, _ in around)
        require(not ceil_mode and (count_include_pad or not padded), "tf.nn.pool counts every element that is padded")
        return self.pooled("AVG", x, kernel_size, stride, around, 1, 0.0)

    def interpolate(
        self, x: Any, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: Any = None
    ) -> Any:
        require(
            x.ndim == 4 and mode in ("nearest", "bilinear", "bicubic"), f"tf.image.resize has no {mode} of these axes"
        )
        require(mode == "nearest" or x.dtype != "float64", "tf.image.resize returns float32")
        last, sizes = self.channels_last(x), resized(x.shape[2:], size, scale_factor)
        if align_corners:
            resize = self.framework.compat.v1.image.resize
            return self.channels_first(resize(last, sizes, mode, align_corners=True))
        return self.channels_first(self.framework.image.resize(last, sizes, mode))

    def flatten(self, x: Any) -> Any:
        return self.framework.reshape(x, [x.shape[0], -1])

    def pad(self, x: Any, pad: Sequence[int], mode: str = "constant", value: float = 0.0) -> Any:
        require(mode in PADS, f"tf.pad has no mode for {mode}")
        require(not any(n < 0 for n in pad), "tf.pad has no negative padding")
        widths = list(zip(pad[::2], pad[1::2]))[::-1]
        return self.framework.pad(x, pads(0, x.ndim - len(widths)) + widths, PADS[mode], value)

    def pixel_shuffle(self, x: Any, upscale_factor: int) -> Any:
        return self.channels_first(self.framework.nn.depth_to_space(self.channels_last(x), upscale_factor))

    def flip(self, x: Any, dims: Any) -> Any:
        return self.framework.reverse(x, each(dims, 1))

    def roll(self, x: Any, shifts: Any, dims: Any = None) -> Any:
        require(dims is not None, "tf.roll needs axes")
        return self.framework.roll(x, shifts, dims)

    def embedding(self, x: Any, weight: Any) -> Any:
        return self.framework.nn.embedding_lookup(weight, x)

    @composed
    def position_embedding(self, x: Any, weight: Any) -> Any:
        return x + self.framework.nn.embedding_lookup(weight, self.framework.range(x.shape[-2]))

    def gather(self, x: Any, index: Any, dim: int) -> Any:
        kept = tuple(slice(None if axis == dim % x.ndim else size) for axis, size in enumerate(index.shape))
        return self.framework.experimental.numpy.take_along_axis(x[kept], index, dim)

    def scatter_add(self, x: Any, index: Any, src: Any, dim: int) -> Any:
        ranges = [self.framework.range(size, dtype=index.dtype) for size in index.shape]
        indices = self.framework.meshgrid(*ranges, indexing="ij")
        indices[dim] = index
        updates = src[tuple(slice(size) for size in index.shape)]
        return self.framework.tensor_scatter_nd_add(x, self.framework.stack(indices, -1), updates)

    def index_select(self, x: Any, index: Any, dim: int) -> Any:
        return self.framework.gather(x, index, axis=dim)

    def sort(self, x: Any, dim: int = -1, descending: bool = False) -> Any:
        direction = "DESCENDING" if descending else "ASCENDING"
        return {
            "y": self.framework.sort(x, dim, direction),
            "indices": self.framework.argsort(x, dim, direction, stable=True),
        }

    def topk(self, x: Any, k: int, dim: int = -1, largest: bool = True) -> Any:
        require(largest and dim % x.ndim == x.ndim - 1, "tf.math.top_k takes the largest of the last axis")
        y, indices = self.framework.math.top_k(x, k)
        return {"y": y, "indices": indices}

    def elu(self, x: Any, alpha: float = 1.0) -> Any:
        require(alpha == 1, "tf.nn.elu has no alpha")
        return self.framework.nn.elu(x)

    def gelu(self, x: Any, approximate: str = "none") -> Any:
        return self.framework.nn.gelu(x, approximate == "tanh")

    def softplus(self, x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:  # noqa: ARG002 - it has none
        require(beta == 1, "tf.nn.softplus has no beta")
        return self.framework.nn.softplus(x)

    # TensorFlow has no function for the next three: this is how models write them (MobileNetV3).
    @composed
    def hardsigmoid(self, x: Any) -> Any:
        return self.framework.nn.relu6(x + 3.0) * (1.0 / 6.0)

    @composed
    def hardswish(self, x: Any) -> Any:
        return x * self.hardsigmoid(x)

    def hardtanh(self, x: Any, min_val: float = -1.0, max_val: float = 1.0) -> Any:
        return self.framework.clip_by_value(x, min_val, max_val)

    def logsigmoid(self, x: Any) -> Any:
        return self.framework.math.log_sigmoid(x)

    def pow(self, x: Any, exponent: float = 2.0) -> Any:
        return self.framework.math.pow(x, exponent)

    def clamp(self, x: Any, min: Any = None, max: Any = None) -> Any:  # noqa: A002 - PyTorch's names
        low, high = x.dtype.min if min is None else min, x.dtype.max if max is None else max
        return self.framework.clip_by_value(x, low, high)

    def remainder(self, x: Any, other: Any) -> Any:
        return self.framework.math.floormod(x, other)

    def fmod(self, x: Any, other: Any) -> Any:
        return self.framework.truncatemod(x, other)

    def atan2(self, x: Any, other: Any) -> Any:
        return self.framework.math.atan2(x, other)

    def where(self, condition: Any, x: Any, other: Any) -> Any:
        return self.framework.where(condition != 0, x, other)

    def sum(self, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        return self.framework.math.reduce_sum(x, dim, keepdim)

    def mean(self, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        return self.framework.math.reduce_mean(x, dim, keepdim)

    def prod(self, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        return self.framework.math.reduce_prod(x, dim, keepdim)

    def amax(self, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        return self.framework.math.reduce_max(x, dim, keepdim)

    def amin(self, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        return self.framework.math.reduce_min(x, dim, keepdim)

    def logsumexp(self, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        return self.framework.math.reduce_logsumexp(x, dim, keepdim)

    def var(self, x: Any, dim: Any = None, correction: Any = 1, keepdim: bool = False) -> Any:
        require(correction == 0, "tf.math.reduce_variance has no correction")
        return self.framework.math.reduce_variance(x, dim, keepdim)

    def std(self, x: Any, dim: Any = None, correction: Any = 1, keepdim: bool = False) -> Any:
        require(correction == 0, "tf.math.reduce_std has no correction")
        return self.framework.math.reduce_std(x, dim, keepdim)

    def vector_norm(self, x: Any, ord: float = 2.0, dim: Any = None, keepdim: bool = False) -> Any:  # noqa: A002
        require(dim is None or isinstance(dim, int), "tf.norm over two axes is a matrix norm")
        return self.framework.norm(x, ord, dim, keepdim)

    def argmax(self, x: Any, dim: int = -1, keepdim: bool = False) -> Any:
        require(not keepdim, "tf.argmax keeps no axis")
        return self.framework.math.argmax(x, dim)

    def reduced(self, losses: Any, reduction: str) -> Any:
        """The losses, or their mean or sum."""
        if reduction == "none":
            return losses
        return (
            self.framework.math.reduce_mean(losses) if reduction == "mean" else self.framework.math.reduce_sum(losses)
        )

    @composed_unless(reduction="none")
    def cross_entropy(
        self,
        x: Any,
        target: Any,
        weight: Any = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> Any:
        require(weight is None and not label_smoothing, "TensorFlow has no weights or label smoothing of classes")
        # TensorFlow has no ignored targets, so their losses are masked.
        keep = target != ignore_index
        labels = self.framework.where(keep, target, self.framework.zeros_like(target))
        losses = self.framework.nn.sparse_softmax_cross_entropy_with_logits(labels, x)
        losses = self.framework.where(keep, losses, self.framework.zeros_like(losses))
        if reduction == "mean":
            mask = self.framework.cast(keep, x.dtype)
            return self.framework.math.reduce_sum(losses) / self.framework.math.reduce_sum(mask)
        return self.reduced(losses, reduction)

    @composed_unless(reduction="none")
    def soft_cross_entropy(self, x: Any, target: Any, reduction: str = "mean", label_smoothing: float = 0.0) -> Any:
        require(not label_smoothing, "tf.nn.softmax_cross_entropy_with_logits has no label smoothing")
        return self.reduced(self.framework.nn.softmax_cross_entropy_with_logits(target, x), reduction)

    @composed_unless(reduction="none")
    def binary_cross_entropy_with_logits(
        self, x: Any, target: Any, pos_weight: Any = None, reduction: str = "mean"
    ) -> Any:
        if pos_weight is None:
            return self.reduced(self.framework.nn.sigmoid_cross_entropy_with_logits(target, x), reduction)
        losses = self.framework.nn.weighted_cross_entropy_with_logits(target, x, pos_weight)
        return self.reduced(losses, reduction)

    @composed_unless(reduction="none")
    def mse_loss(self, x: Any, target: Any, reduction: str = "mean") -> Any:
        return self.reduced(self.framework.math.squared_difference(x, target), reduction)

    def weighed(self, losses: Any, x: Any, target: Any, reduction: str, **options: Any) -> Any:
        """A loss of tf.compat.v1.losses, which computes its own sum and mean."""
        require(x.dtype == "float32", "tf.compat.v1.losses computes in float32")
        reductions = {"mean": "weighted_mean", "sum": "weighted_sum"}
        return losses(target, x, reduction=reductions.get(reduction, reduction), **options)

    def l1_loss(self, x: Any, target: Any, reduction: str = "mean") -> Any:
        return self.weighed(self.framework.compat.v1.losses.absolute_difference, x, target, reduction)

    def huber_loss(self, x: Any, target: Any, reduction: str = "mean", delta: float = 1.0) -> Any:
        return self.weighed(self.framework.compat.v1.losses.huber_loss, x, target, reduction, delta=delta)

    def binary_cross_entropy(self, x: Any, target: Any, reduction: str = "mean") -> Any:
        return self.weighed(self.framework.compat.v1.losses.log_loss, x, target, reduction)

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
        require(x.dtype == "float32", "tf.nn.ctc_loss computes in float32")
        integers = (self.framework.cast(v, "int32") for v in (target, target_lengths, input_lengths))
        labels, label_length, logit_length = integers
        losses = self.framework.nn.ctc_loss(labels, x, label_length, logit_length, blank_index=blank)
        if reduction == "mean":
            losses = losses / self.framework.cast(self.framework.math.maximum(target_lengths, 1), x.dtype)
        return self.reduced(losses, reduction)

    # Not BlockLSTMV2: in 2.21.0 its gradient is this op's, which has the gates in another order.
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
        framework, size = self.framework, weight_hh.shape[1]
        bias = framework.zeros([4 * size], x.dtype) if bias_ih is None else bias_ih + bias_hh

        def ordered(rows: Any) -> Any:
            """PyTorch's gates i, f, g, o as i, g, f, o."""
            i, f, g, o = framework.split(rows, 4)
            return framework.concat([i, g, f, o], 0)

        zeros = framework.zeros([x.shape[1], size], x.dtype)
        returned = framework.raw_ops.BlockLSTM(
            seq_len_max=framework.constant(x.shape[0], "int64"),
            x=x,
            cs_prev=zeros if c0 is None else c0,
            h_prev=zeros if h0 is None else h0,
            w=framework.transpose(ordered(framework.concat([weight_ih, weight_hh], 1))),
            b=ordered(bias),
            forget_bias=0.0,
            cell_clip=-1.0,
            **dict.fromkeys(("wci", "wcf", "wco"), framework.zeros([size], x.dtype)),
        )
        return {"y": returned.h, "h": returned.h[-1], "c": returned.cs[-1]}

    # TensorFlow has no function for it: this is how models write it (GPT-J).
    @composed
    def rotary_embedding(self, x: Any, base: float = 10000.0, interleaved: bool = False) -> Any:
        (length, d), framework = x.shape[-2:], self.framework
        frequencies = base ** (framework.range(0.0, d, 2.0, dtype=x.dtype) / -d)
        angles = framework.reshape(framework.range(0.0, length, dtype=x.dtype), [-1, 1]) * frequencies
        cos, sin = framework.cos(angles), framework.sin(angles)
        a, b = (x[..., 0::2], x[..., 1::2]) if interleaved else framework.split(x, 2, -1)
        rotated = [a * cos - b * sin, a * sin + b * cos]
        if interleaved:
            return framework.reshape(framework.stack(rotated, -1), x.shape)
        return framework.concat(rotated, -1)

    def clip_grad_norm(self, grads: Sequence[Any], max_norm: float, norm_type: float, scope: str) -> Any:
        require(norm_type == 2, "TensorFlow clips norms of order 2")
        if scope == "global":
            clipped, total = self.framework.clip_by_global_norm(grads, max_norm)
            return {"grads": clipped, "total_norm": total}
        clipped = [self.framework.clip_by_norm(grad, max_norm) for grad in grads]
        return {"grads": clipped, "total_norm": self.framework.linalg.global_norm(grads)}

    def clip_grad_value(self, grads: Sequence[Any], clip_value: float) -> Any:
        return {"grads": [self.framework.clip_by_value(grad, -clip_value, clip_value) for grad in grads]}

    # The kernels of the optimizers of tf.compat.v1.train; decay is added to the gradient.
    def stepped(self, kind: str, slots: Mapping[str, str], given: Mapping[str, Any], **options: Any) -> Any:
        """One step of the kernel `kind`; `slots` maps the tensors that it updates (0 if not given) to its names."""
        framework, zeros = self.framework, self.framework.zeros_like(given["param"])
        variables = {slot: framework.Variable(given.get(name, zeros)) for name, slot in slots.items()}
        getattr(framework.raw_ops, kind)(
            **{slot: variable.handle for slot, variable in variables.items()},
            **{
                n: v if isinstance(v, bool) else framework.convert_to_tensor(v, zeros.dtype) for n, v in options.items()
            },
        )
        return {name: framework.convert_to_tensor(variables[slot]) for name, slot in slots.items() if name in given}

    def decayed(self, given: Mapping[str, Any], weight_decay: float) -> Any:
        """The gradient plus that of the L2 penalty."""
        return given["grad"] + weight_decay * given["param"] if weight_decay else given["grad"]

    @composed_unless(weight_decay=0.0)
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
        require(not dampening, "TensorFlow's momentum has no dampening")
        grad = self.decayed(given, weight_decay)
        if not momentum:
            return self.stepped("ResourceApplyGradientDescent", {"param": "var"}, given, alpha=lr, delta=grad)
        if step == 1:
            given["momentum_buffer"] = self.framework.zeros_like(grad)
        slots = {"param": "var", "momentum_buffer": "accum"}
        options = {"lr": lr, "grad": grad, "momentum": momentum, "use_nesterov": nesterov}
        return self.stepped("ResourceApplyMomentum", slots, given, **options)

    @composed_unless(weight_decay=0.0)
    def adam(
        self, lr: float, betas: Sequence[float], eps: float, weight_decay: float = 0.0, step: int = 2, **given: Any
    ) -> Any:
        slots = {"param": "var", "exp_avg": "m", "exp_avg_sq": "v"}
        powers = {f"beta{i}_power": beta**step for i, beta in enumerate(betas, 1)}
        options = {"lr": lr, "beta1": betas[0], "beta2": betas[1], "epsilon": eps, **powers}
        return self.stepped("ResourceApplyAdam", slots, given, grad=self.decayed(given, weight_decay), **options)

    @composed_unless(weight_decay=0.0)
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
        kind = "ResourceApplyCenteredRMSProp" if centered else "ResourceApplyRMSProp"
        slots = {
            "param": "var",
            "square_avg": "ms",
            "momentum_buffer": "mom",
            **({"grad_avg": "mg"} if centered else {}),
        }
        options = {"lr": lr, "rho": alpha, "momentum": momentum, "epsilon": eps}
        return self.stepped(kind, slots, given, grad=self.decayed(given, weight_decay), **options)

    @composed_unless(weight_decay=0.0)
    def adagrad(
        self, lr: float, eps: float, weight_decay: float = 0.0, lr_decay: float = 0.0, step: int = 2, **given: Any
    ) -> Any:
        require(not lr_decay or step == 1, "TensorFlow's Adagrad has no lr_decay")
        slots = {"param": "var", "sum": "accum"}
        options = {"lr": lr, "epsilon": eps, "grad": self.decayed(given, weight_decay)}
        return self.stepped("ResourceApplyAdagradV2", slots, given, **options)
