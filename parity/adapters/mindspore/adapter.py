"""MindSpore: mindspore.ops, and mindspore.nn and mindspore.mint where a CPU has nothing else."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

from parity.adapters.base import composed, composed_unless, named_outputs
from parity.adapters.bits import values_of
from parity.adapters.functions import FunctionsAdapter
from parity.adapters.shapes import AnyAxesAdapter, each, require

OPTIMIZERS = {
    "sgd": ("SGD", {"momentum_buffer": "accum"}),
    "adam": ("Adam", {"exp_avg": "moment1", "exp_avg_sq": "moment2"}),
    "adamw": ("AdamWeightDecay", {"exp_avg": "moments1", "exp_avg_sq": "moments2"}),
    "rmsprop": ("RMSProp", {"square_avg": "ms", "grad_avg": "mg", "momentum_buffer": "moment"}),
    "adagrad": ("Adagrad", {"sum": "accum"}),
}
"""Optimizer to its class in mindspore.nn, and the states to MindSpore's names."""


class MindsporeAdapter(FunctionsAdapter, AnyAxesAdapter):
    """PyNative mode on the CPU; gradients by mindspore.vjp."""

    dtypes = None
    no_kernel: ClassVar[tuple[str, ...]] = (
        r"kernel \w+ unregistered|Unsupported op \[|Not found op|Create kernelmod for op|KernelMod Init Failed",
        r"Unsupported data type|not support this kernel (data )?type|only supports Ascend",
        r"must be (a type of \{|one of Tensor)|supports types: ",
        r"'epsilon' can not be zero|type of the input must be \[|input dtype (must|should) be",
    )

    def __init__(self, device: str, threads: int, mode: str = "eager", ranks: int = 1) -> None:
        # MindSpore would write files about failed graphs into the working directory.
        os.environ.setdefault("MS_OM_PATH", tempfile.gettempdir())
        import mindspore

        super().__init__(device, threads, mode, ranks)
        mindspore.set_device(device.upper())
        mindspore.set_context(runtime_num_threads=threads)
        # Otherwise a later op may raise an op's error.
        mindspore.runtime.launch_blocking()
        self.framework = mindspore
        self.ops = mindspore.ops
        self.math = mindspore.ops
        self.nn = mindspore.ops
        self.latest = SimpleNamespace()

    def version(self) -> str:
        return str(self.framework.__version__)

    def describe(self, error: BaseException) -> str:
        """The message without the rules before it, and the graph nodes and C++ frames after it."""
        lines = (line for line in str(error).splitlines() if line.strip() and not line.startswith("-"))
        return next(lines, str(error))

    def leaf(self, array: Any, requires_grad: bool) -> Any:  # noqa: ARG002 - mindspore.vjp is told at the call
        if array.dtype == "uint16":
            return self.framework.Tensor(values_of(array)).astype(self.framework.bfloat16)
        return self.framework.Tensor(array)

    def to_numpy(self, tensor: Any) -> Any:
        if tensor.dtype == self.framework.bfloat16:
            return (tensor.astype(self.framework.float32).asnumpy().view("uint32") >> 16).astype("uint16")
        return tensor.asnumpy()

    def in_mode(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function in its stage; the latest call is kept, since mindspore.vjp calls it again."""
        staged = self.staged(function)

        def call(**given: Any) -> Any:
            outputs = named_outputs(staged(**given))
            self.latest.function, self.latest.given, self.latest.outputs = staged, given, outputs
            return outputs

        return call

    def staged(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function as it is in PyNative mode."""
        return function

    def gradients(self, outputs: Sequence[Any], grad_outputs: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
        function, given = self.latest.function, self.latest.given
        wanted = [name for y in outputs for name, value in self.latest.outputs.items() if value is y]
        names = [name for leaf in leaves for name, value in given.items() if value is leaf]

        def forward(*values: Any) -> Any:
            results = named_outputs(function(**{**given, **dict(zip(names, values))}))
            return tuple(results[name] for name in wanted) if len(wanted) > 1 else results[wanted[0]]

        _, pullback = self.framework.vjp(forward, *leaves)
        return list(pullback(*(dy.astype(y.dtype) for y, dy in zip(outputs, grad_outputs))))

    def layer_norm(
        self, x: Any, normalized_shape: Sequence[int], eps: float, weight: Any = None, bias: Any = None
    ) -> Any:
        shape, first = tuple(normalized_shape), x.ndim - len(normalized_shape)
        weight = self.ops.ones(shape, x.dtype) if weight is None else weight
        bias = self.ops.zeros(shape, x.dtype) if bias is None else bias
        return self.ops.LayerNorm(first, first, eps)(x, weight, bias)[0]

    def group_norm(self, x: Any, num_groups: int, eps: float, weight: Any = None, bias: Any = None) -> Any:
        return self.ops.group_norm(x, num_groups, weight, bias, eps)

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
        mean, var = running_mean.copy(), running_var.copy()
        weight = self.ops.ones_like(mean) if weight is None else weight
        bias = self.ops.zeros_like(mean) if bias is None else bias
        y = self.ops.batch_norm(x, mean, var, weight, bias, training, momentum, eps)
        return {"y": y, "running_mean": mean, "running_var": var}

    def local_response_norm(self, x: Any, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Any:
        # MindSpore has a radius, and an alpha for each element of the window.
        require(size % 2 == 1 and x.ndim == 4, "mindspore.ops.lrn takes four axes and windows of odd sizes")
        return self.ops.lrn(x, size // 2, k, alpha / size, beta)

    def normalize(self, x: Any, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Any:
        # MindSpore's epsilon is the smallest square of a norm.
        require(p == 2, "mindspore.ops.L2Normalize is of order 2")
        return self.ops.L2Normalize(dim, eps**2)(x)

    def dropout(self, x: Any, p: float = 0.5, training: bool = False) -> Any:
        return self.ops.dropout(x, p, training)

    def linear(self, x: Any, weight: Any, bias: Any = None) -> Any:
        return self.ops.dense(x, weight, bias)

    def bilinear(self, x: Any, other: Any, weight: Any, bias: Any = None) -> Any:
        return self.ops.bidense(x, other, weight, bias)

    def bmm(self, x: Any, other: Any) -> Any:
        return self.ops.bmm(x, other)

    def outer(self, x: Any, other: Any) -> Any:
        return self.ops.outer(x, other)

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
        function = (self.ops.conv1d, self.ops.conv2d, self.ops.conv3d)[n - 1]
        mode, padding = (padding, 0) if isinstance(padding, str) else ("pad", padding)
        stride, padding, dilation = (self.of_axes(value, n) for value in (stride, padding, dilation))
        return function(x, weight, bias, stride, mode, padding, dilation, groups)

    @staticmethod
    def of_axes(value: Any, n: int) -> Any:
        """A param of `n` axes; one axis takes a number."""
        return each(value, n)[0] if n == 1 else each(value, n)

    # mindspore.nn's layers own their weights, so their operators are called instead.
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
        n = x.ndim - 2
        stride, padding, extra, dilation = (each(value, n) for value in (stride, padding, output_padding, dilation))
        kernel = tuple(weight.shape[2:])
        around = tuple(p for p in padding for _ in range(2))
        if n == 3:
            layer = self.ops.Conv3DTranspose(
                weight.shape[0], weight.shape[1] * groups, kernel, 1, "pad", around, stride, dilation, groups, extra
            )
            y = layer(x, weight)
        elif n == 2:
            axes = zip(x.shape[2:], kernel, stride, padding, dilation)
            sizes = tuple((size - 1) * s + d * (k - 1) + 1 - 2 * p for size, k, s, p, d in axes)
            layer = self.ops.Conv2DTranspose(
                weight.shape[0], kernel, "pad", around, stride=stride, dilation=dilation, group=groups
            )
            y = layer(x, weight, (x.shape[0], weight.shape[1] * groups, *sizes))
            y = self.ops.Pad(((0, 0), (0, 0), *((0, more) for more in extra)))(y) if any(extra) else y
        else:
            require(extra == (0,), "mindspore.nn.Conv1dTranspose has no output_padding")
            y = self.transposed_convolution(
                x.expand_dims(2),
                weight.expand_dims(2),
                stride=(1, *stride),
                padding=(0, *padding),
                groups=groups,
                dilation=(1, *dilation),
            ).squeeze(2)
        return y if bias is None else y + bias.reshape((-1, *(1 for _ in range(n))))

    def max_pool(self, x: Any, kernel_size: Any, stride: Any = None, **options: Any) -> Any:
        stride = kernel_size if stride is None else stride
        if x.ndim == 3:
            numbers = {name: each(value, 1)[0] for name, value in options.items()}
            kernel, step = each(kernel_size, 1)[0], each(stride, 1)[0]
            return self.framework.nn.MaxPool1d(kernel, step, "pad", **numbers)(x)
        function = self.ops.max_pool2d if x.ndim == 4 else self.ops.max_pool3d
        return function(x, kernel_size, stride, **options)

    def avg_pool(self, x: Any, kernel_size: Any, stride: Any = None, **options: Any) -> Any:
        n = x.ndim - 2
        function = (self.ops.avg_pool1d, self.ops.avg_pool2d, self.ops.avg_pool3d)[n - 1]
        return function(x, kernel_size, kernel_size if stride is None else stride, **options)

    def adaptive_avg_pool1d(self, x: Any, output_size: Any) -> Any:
        require(x.shape[-1] % output_size == 0, "mindspore.ops.adaptive_avg_pool1d needs a divisor of the size")
        return self.ops.adaptive_avg_pool1d(x, output_size)

    def adaptive_avg_pool2d(self, x: Any, output_size: Any) -> Any:
        return self.ops.adaptive_avg_pool2d(x, output_size)

    def adaptive_max_pool1d(self, x: Any, output_size: Any) -> Any:
        require(x.shape[-1] % output_size == 0, "mindspore.ops.adaptive_max_pool1d needs a divisor of the size")
        return self.ops.adaptive_max_pool1d(x, output_size)

    def adaptive_max_pool2d(self, x: Any, output_size: Any) -> Any:
        return self.ops.adaptive_max_pool2d(x, output_size)

    def interpolate(
        self, x: Any, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: Any = None
    ) -> Any:
        require(mode != "nearest-exact", "mindspore.ops.interpolate has no mode nearest-exact")
        n = x.ndim - 2
        if size is None:
            # mindspore.ops takes factors only in some modes.
            functional = self.framework.mint.nn.functional
            return functional.interpolate(x, None, each(scale_factor, n), mode, align_corners)
        return self.ops.interpolate(x, each(size, n), None, mode, align_corners)

    def grid_sample(
        self, x: Any, grid: Any, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool = False
    ) -> Any:
        require(mode != "bicubic", "mindspore.ops.grid_sample has no mode bicubic")
        return self.ops.grid_sample(x, grid, mode, padding_mode, align_corners)

    def flatten(self, x: Any) -> Any:
        return self.ops.flatten(x)

    def pad(self, x: Any, pad: Sequence[int], mode: str = "constant", value: float = 0.0) -> Any:
        return self.ops.pad(x, tuple(pad), mode, value if mode == "constant" else None)

    def pixel_shuffle(self, x: Any, upscale_factor: int) -> Any:
        return self.ops.pixel_shuffle(x, upscale_factor)

    def flip(self, x: Any, dims: Any) -> Any:
        return self.ops.flip(x, each(dims, 1))

    def embedding(self, x: Any, weight: Any) -> Any:
        return self.ops.gather(weight, x, 0)

    @composed
    def position_embedding(self, x: Any, weight: Any) -> Any:
        return x + self.ops.gather(weight, self.ops.arange(x.shape[-2]), 0)

    def gather(self, x: Any, index: Any, dim: int) -> Any:
        return self.ops.gather_elements(x, dim, index)

    def scatter_add(self, x: Any, index: Any, src: Any, dim: int) -> Any:
        return self.ops.tensor_scatter_elements(x, index, src, dim, "add")

    def index_select(self, x: Any, index: Any, dim: int) -> Any:
        return self.ops.index_select(x, dim, index)

    def sort(self, x: Any, dim: int = -1, descending: bool = False) -> Any:
        y, indices = self.ops.sort(x, dim, descending)
        return {"y": y, "indices": indices}

    def topk(self, x: Any, k: int, dim: int = -1, largest: bool = True) -> Any:
        y, indices = self.ops.topk(x, k, dim, largest)
        return {"y": y, "indices": indices}

    def elu(self, x: Any, alpha: float = 1.0) -> Any:
        require(alpha == 1, "mindspore.ops.elu has an alpha of 1 only")
        return self.ops.elu(x, alpha)

    def celu(self, x: Any, alpha: float = 1.0) -> Any:
        return self.ops.celu(x, alpha)

    def gelu(self, x: Any, approximate: str = "none") -> Any:
        return self.ops.gelu(x, approximate)

    def mish(self, x: Any) -> Any:
        return self.ops.mish(x)

    def softplus(self, x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
        return self.ops.softplus(x, beta, threshold)

    def hardswish(self, x: Any) -> Any:
        return self.ops.hardswish(x)

    def hardsigmoid(self, x: Any) -> Any:
        return self.ops.hardsigmoid(x)

    def hardtanh(self, x: Any, min_val: float = -1.0, max_val: float = 1.0) -> Any:
        return self.ops.hardtanh(x, min_val, max_val)

    def logsigmoid(self, x: Any) -> Any:
        return self.ops.logsigmoid(x)

    def pow(self, x: Any, exponent: float = 2.0) -> Any:
        return self.ops.pow(x, exponent)

    def clamp(self, x: Any, min: Any = None, max: Any = None) -> Any:  # noqa: A002 - PyTorch's names
        return self.ops.clamp(x, min, max)

    def remainder(self, x: Any, other: Any) -> Any:
        return self.ops.remainder(x, other)

    def fmod(self, x: Any, other: Any) -> Any:
        return self.ops.fmod(x, other)

    def atan2(self, x: Any, other: Any) -> Any:
        return self.ops.atan2(x, other)

    def sum(self, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        return self.ops.sum(x, dim, keepdim)

    def mean(self, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        return self.ops.mean(x, dim, keepdim)

    def prod(self, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        return self.ops.prod(x, dim, keepdim)

    def amax(self, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        return self.ops.amax(x, dim, keepdim)

    def amin(self, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        return self.ops.amin(x, dim, keepdim)

    def logsumexp(self, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        return self.ops.logsumexp(x, tuple(range(x.ndim)) if dim is None else dim, keepdim)

    def var(self, x: Any, dim: Any = None, correction: Any = 1, keepdim: bool = False) -> Any:
        return self.ops.var(x, dim, correction, keepdim)

    def std(self, x: Any, dim: Any = None, correction: Any = 1, keepdim: bool = False) -> Any:
        return self.ops.std(x, dim, correction, keepdim)

    def vector_norm(self, x: Any, ord: float = 2.0, dim: Any = None, keepdim: bool = False) -> Any:  # noqa: A002
        return self.ops.vector_norm(x, ord, dim, keepdim)

    def argmax(self, x: Any, dim: int = -1, keepdim: bool = False) -> Any:
        return self.ops.argmax(x, dim, keepdim)

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
        plain = scale is None and not enable_gqa and not is_causal
        require(plain, "mindspore.nn.MultiheadAttention has no scale, no grouped heads and no causal mask")
        if keep_mask is not None:
            # As nn.MultiheadAttention does with a boolean mask of positions to leave out.
            attn_mask = self.ops.zeros_like(keep_mask).masked_fill(keep_mask == 0, float("-inf"))
        # What nn.MultiheadAttention calls; no other attention runs on a CPU.
        attention = self.ops.function.nn_func._scaled_dot_product_attention
        return attention(query, key, value, attn_mask, 0.0, False, True, query.dtype)[0]

    def heads_first(self, x: Any) -> Any:
        """[N, L, heads, d] to [N, heads, L, d], or back."""
        return x.swapaxes(1, 2)

    @composed
    def multi_head_attention(self, x: Any, num_heads: int, **tensors: Any) -> Any:
        n, length, _ = x.shape
        query, key, value = (
            self.heads_first(self.projected(x, name, tensors).reshape((n, length, num_heads, -1)))
            for name in ("q_proj", "k_proj", "v_proj")
        )
        mixed = self.heads_first(self.scaled_dot_product_attention(query=query, key=key, value=value))
        return self.projected(mixed.reshape((n, length, -1)), "out_proj", tensors)

    def projected(self, x: Any, name: str, tensors: Mapping[str, Any]) -> Any:
        return self.linear(x=x, weight=tensors[f"{name}.weight"], bias=tensors.get(f"{name}.bias"))

    def lstm(self, x: Any, h0: Any = None, c0: Any = None, **weights: Any) -> Any:
        states = tuple(self.state(state, x, weights) for state in (h0, c0))
        y, (h, c) = self.recurrent(self.framework.nn.LSTM, x, states, weights)
        return {"y": y, "h": h.reshape(states[0].shape), "c": c.reshape(states[1].shape)}

    def gru(self, x: Any, h0: Any = None, **weights: Any) -> Any:
        y, h = self.recurrent(self.framework.nn.GRU, x, self.state(h0, x, weights), weights)
        return {"y": y, "h": h}

    def state(self, state: Any, x: Any, weights: Mapping[str, Any]) -> Any:
        """The initial state of a single layer; zeros if none is given."""
        return self.ops.zeros((x.shape[1], weights["weight_hh"].shape[1]), x.dtype) if state is None else state

    @staticmethod
    def recurrent(kind: Any, x: Any, states: Any, weights: Mapping[str, Any]) -> Any:
        """The output of one layer; since its weights are Parameters, its steps are called with other tensors."""
        steps = kind(x.shape[2], weights["weight_hh"].shape[1], has_bias="bias_ih" in weights).rnn
        given = (weights.get(name) for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
        return steps(x, states, None, *given)

    def rows(self, function: Callable[..., Any], x: Any, target: Any, **options: Any) -> Any:
        """A loss of x [rows, C] and target [rows]; without reduction it has the shape of `target`."""
        losses = function(x.reshape((-1, x.shape[-1])), target.reshape((-1,)), **options)
        return losses.reshape(target.shape) if losses.shape else losses

    def cross_entropy(self, x: Any, target: Any, **options: Any) -> Any:
        return self.rows(self.ops.cross_entropy, x, target, **options)

    def nll_loss(self, x: Any, target: Any, **options: Any) -> Any:
        return self.rows(self.ops.nll_loss, x, target, **options)

    def soft_cross_entropy(self, x: Any, target: Any, **options: Any) -> Any:
        flat = (tensor.reshape((-1, x.shape[-1])) for tensor in (x, target))
        losses = self.ops.cross_entropy(*flat, **options)
        return losses.reshape(x.shape[:-1]) if losses.shape else losses

    @composed
    def ctc_loss(self, x: Any, target: Any, input_lengths: Any, target_lengths: Any, **options: Any) -> Any:
        return self.ops.ctc_loss(self.ops.log_softmax(x, -1), target, input_lengths, target_lengths, **options)[0]

    def l1_loss(self, x: Any, target: Any, reduction: str = "mean") -> Any:
        return self.ops.l1_loss(x, target, reduction)

    def mse_loss(self, x: Any, target: Any, reduction: str = "mean") -> Any:
        return self.ops.mse_loss(x, target, reduction)

    def smooth_l1_loss(self, x: Any, target: Any, **options: Any) -> Any:
        return self.ops.smooth_l1_loss(x, target, **options)

    def huber_loss(self, x: Any, target: Any, **options: Any) -> Any:
        return self.ops.huber_loss(x, target, **options)

    def binary_cross_entropy(self, x: Any, target: Any, reduction: str = "mean") -> Any:
        return self.ops.binary_cross_entropy(x, target, None, reduction)

    def binary_cross_entropy_with_logits(
        self, x: Any, target: Any, pos_weight: Any = None, reduction: str = "mean"
    ) -> Any:
        return self.ops.binary_cross_entropy_with_logits(x, target, None, pos_weight, reduction)

    def kl_div(self, x: Any, target: Any, reduction: str = "mean", log_target: bool = False) -> Any:
        require(not log_target, "mindspore.ops.kl_div takes no logarithms of targets")
        return self.ops.kl_div(x, target, reduction)

    def cosine_similarity(self, x: Any, other: Any, dim: int = 1, eps: float = 1e-8) -> Any:
        return self.ops.cosine_similarity(x, other, dim, eps)

    def clip_grad_norm(self, grads: Sequence[Any], max_norm: float, norm_type: float, scope: str) -> Any:
        groups = [grads] if scope == "global" else [[grad] for grad in grads]
        clipped = [grad for group in groups for grad in self.ops.clip_by_norm(group, max_norm, norm_type)]
        # MindSpore does not return the norm, so it is computed separately.
        flat = self.ops.cat([grad.reshape((-1,)) for grad in grads])
        return {"grads": clipped, "total_norm": self.ops.vector_norm(flat, norm_type)}

    def clip_grad_value(self, grads: Sequence[Any], clip_value: float) -> Any:
        return {"grads": list(self.ops.clip_by_value(grads, -clip_value, clip_value))}

    def sgd(self, **given: Any) -> Any:
        return self.updated("sgd", **given)

    def adam(self, betas: Sequence[float], **given: Any) -> Any:
        return self.updated("adam", beta1=betas[0], beta2=betas[1], **given)

    def adamw(self, betas: Sequence[float], **given: Any) -> Any:
        return self.updated("adamw", beta1=betas[0], beta2=betas[1], **given)

    def rmsprop(self, alpha: float, eps: float, **given: Any) -> Any:
        return self.updated("rmsprop", decay=alpha, epsilon=eps, **given)

    def adagrad(self, eps: float, lr_decay: float = 0.0, **given: Any) -> Any:  # noqa: ARG002 - it has no epsilon
        require(not lr_decay, "mindspore.nn.Adagrad has no lr_decay")
        return self.updated("adagrad", **given)

    def updated(self, op: str, param: Any, grad: Any, lr: float, step: int = 2, **given: Any) -> Any:
        """One step of an optimizer from the states in `given`; RMSprop does not count its steps."""
        kind, names = OPTIMIZERS[op]
        states = {name: given.pop(name) for name in names if name in given}
        leaf = self.framework.Parameter(param, name="param")
        optimizer = getattr(self.framework.nn, kind)([leaf], learning_rate=lr, **given)
        for name, values in states.items():
            getattr(optimizer, names[name])[0].set_data(values)
        optimizer.global_step.set_data(self.framework.Tensor([step - 1], optimizer.global_step.dtype))
        if op == "sgd" and step > 1:
            # The state that marks the first step.
            optimizer.stat[0].set_data(self.ops.zeros_like(param))
        if op == "adam":
            for power, beta in ((optimizer.beta1_power, given["beta1"]), (optimizer.beta2_power, given["beta2"])):
                power.set_data(self.framework.Tensor(beta ** (step - 1), power.dtype))
        optimizer((grad,))
        return {"param": leaf, **{name: getattr(optimizer, names[name])[0] for name in states}}
