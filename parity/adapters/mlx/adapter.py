"""MLX: mlx.core, mlx.nn and mlx.optimizers. Channels are last, in images and in weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

from parity.adapters.base import composed, composed_unless
from parity.adapters.functions import NumpyStyleAdapter
from parity.adapters.shapes import (
    AnyAxesAdapter,
    AttentionAdapter,
    channels_first,
    channels_last,
    conv_pads,
    each,
    pads,
    require,
)
from parity.adapters.transform import TransformAdapter

PADS = {"constant": "constant", "reflect": "reflect", "replicate": "edge"}
RESIZES = {"nearest": "nearest", "linear": "linear", "bilinear": "linear", "trilinear": "linear", "bicubic": "cubic"}
STATES = {"momentum_buffer": "v", "exp_avg": "m", "exp_avg_sq": "v", "square_avg": "v", "sum": "v"}
"""State of an optimizer to MLX's name."""


class MlxAdapter(TransformAdapter, NumpyStyleAdapter, AnyAxesAdapter, AttentionAdapter):
    """On the CPU, with MLX's lazy evaluation; gradients by mx.vjp."""

    dtypes = None
    no_kernel: ClassVar[tuple[str, ...]] = (r"unsupported data type|not (yet )?(supported|implemented)",)

    def __init__(self, device: str, threads: int, mode: str = "eager", ranks: int = 1) -> None:
        import mlx.core
        import mlx.nn
        import mlx.optimizers

        super().__init__(device, threads, mode, ranks)
        mlx.core.set_default_device(mlx.core.cpu)
        self.framework = mlx.core
        self.math = mlx.core
        self.nn = mlx.nn
        self.optimizers = mlx.optimizers
        self.latest = SimpleNamespace()

    def version(self) -> str:
        return str(self.framework.__version__)

    def leaf(self, array: Any, requires_grad: bool) -> Any:  # noqa: ARG002 - mx.vjp is told at the call
        tensor = self.framework.array(array, dtype=getattr(self.framework, str(array.dtype)))
        return tensor.view(self.framework.bfloat16) if array.dtype == "uint16" else tensor

    def to_numpy(self, tensor: Any) -> Any:
        return (tensor.view(self.framework.uint16) if tensor.dtype == self.framework.bfloat16 else tensor).__array__()

    def pullback(self, forward: Callable[..., Any], leaves: Sequence[Any], grad_outputs: Sequence[Any]) -> list[Any]:
        return list(self.framework.vjp(forward, list(leaves), list(grad_outputs))[1])

    def filled(self, layer: Any, **tensors: Any) -> Any:
        """A layer of mlx.nn with these tensors as parameters."""
        for name, tensor in tensors.items():
            if tensor is not None:
                setattr(layer, name, tensor)
        return layer

    def affine(self, layer: Any, x: Any, weight: Any, bias: Any) -> Any:
        """A layer's output for x [N, C, ...]; the layer has both weight and bias, or neither."""
        require((weight is None) == (bias is None), "mlx.nn has normalisations with weight and bias, or without")
        y = self.filled(layer, weight=weight, bias=bias)(channels_last(self.framework, x))
        return channels_first(self.framework, y)

    def layer_norm(
        self, x: Any, normalized_shape: Sequence[int], eps: float, weight: Any = None, bias: Any = None
    ) -> Any:
        # MLX's version takes one axis.
        rows = x.reshape((*x.shape[: -len(normalized_shape)], -1))
        weight, bias = (v if v is None else v.reshape((-1,)) for v in (weight, bias))
        return self.framework.fast.layer_norm(rows, weight, bias, eps).reshape(x.shape)

    def rms_norm(self, x: Any, normalized_shape: Sequence[int], eps: float, weight: Any = None) -> Any:
        rows = x.reshape((*x.shape[: -len(normalized_shape)], -1))
        weight = weight if weight is None else weight.reshape((-1,))
        return self.framework.fast.rms_norm(rows, weight, eps).reshape(x.shape)

    def group_norm(self, x: Any, num_groups: int, eps: float, weight: Any = None, bias: Any = None) -> Any:
        # Otherwise a group has every num_groups-th channel.
        layer = self.nn.GroupNorm(num_groups, x.shape[1], eps, weight is not None, pytorch_compatible=True)
        return self.affine(layer, x, weight, bias)

    def instance_norm(self, x: Any, eps: float, weight: Any = None, bias: Any = None) -> Any:
        return self.affine(self.nn.InstanceNorm(x.shape[1], eps, weight is not None), x, weight, bias)

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
        layer = self.nn.BatchNorm(x.shape[1], eps, momentum, weight is not None).train(training)
        self.filled(layer, running_mean=running_mean, running_var=running_var)
        y = self.affine(layer, x, weight, bias)
        return {"y": y, "running_mean": layer.running_mean, "running_var": layer.running_var}

    def dropout(self, x: Any, p: float, training: bool) -> Any:
        return self.nn.Dropout(p).train(training)(x)

    def linear(self, x: Any, weight: Any, bias: Any = None) -> Any:
        return self.filled(self.nn.Linear(*weight.shape[::-1], bias is not None), weight=weight, bias=bias)(x)

    def bilinear(self, x: Any, other: Any, weight: Any, bias: Any = None) -> Any:
        # The weight is [out, in2, in1].
        n, in1, in2 = weight.shape
        layer = self.nn.Bilinear(in1, in2, n, bias is not None)
        return self.filled(layer, weight=weight.swapaxes(1, 2), bias=bias)(x, other)

    def bmm(self, x: Any, other: Any) -> Any:
        return self.framework.matmul(x, other)

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
        require(n < 3 or groups == 1, "mlx.nn.Conv3d has no groups")
        around = conv_pads(padding, weight.shape[2:], dilation)
        # MLX pads both sides alike.
        more = [(0, behind - before) for before, behind in around]
        options = (weight.shape[2:], stride, [before for before, _ in around], dilation)
        layer = getattr(self.nn, f"Conv{n}d")(
            x.shape[1],
            weight.shape[0],
            *(self.of_axes(value, n) for value in options),
            **({"groups": groups} if n < 3 else {}),
            bias=bias is not None,
        )
        last = self.framework.pad(channels_last(self.framework, x), [(0, 0), *more, (0, 0)])
        y = self.filled(layer, weight=channels_last(self.framework, weight), bias=bias)(last)
        return channels_first(self.framework, y)

    @staticmethod
    def of_axes(value: Any, n: int) -> Any:
        """A param of `n` axes; one axis takes a number."""
        return each(value, n)[0] if n == 1 else each(value, n)

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
        require(groups == 1, "mlx.nn.ConvTranspose2d has no groups")
        n = x.ndim - 2
        options = (weight.shape[2:], stride, padding, dilation, output_padding)
        layer = getattr(self.nn, f"ConvTranspose{n}d")(
            *weight.shape[:2], *(self.of_axes(value, n) for value in options), bias=bias is not None
        )
        kernel = channels_last(self.framework, weight.swapaxes(0, 1))
        return channels_first(
            self.framework, self.filled(layer, weight=kernel, bias=bias)(channels_last(self.framework, x))
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
        n = x.ndim - 2
        require(not ceil_mode and set(each(dilation, n)) == {1}, "mlx.nn pools without dilation and ceil_mode")
        layer = getattr(self.nn, f"MaxPool{n}d")(kernel_size, stride, padding)
        return channels_first(self.framework, layer(channels_last(self.framework, x)))

    def avg_pool(
        self,
        x: Any,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> Any:
        n = x.ndim - 2
        padded = any(before for before, _ in pads(padding, n))
        require(not ceil_mode and (count_include_pad or not padded), "mlx.nn counts every element that is padded")
        layer = getattr(self.nn, f"AvgPool{n}d")(kernel_size, stride, padding)
        return channels_first(self.framework, layer(channels_last(self.framework, x)))

    def interpolate(
        self, x: Any, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: Any = None
    ) -> Any:
        n = x.ndim - 2
        require(mode in RESIZES, f"mlx.nn.Upsample has no mode {mode}")
        # MLX takes factors, multiplies them by the sizes, and truncates.
        factors = each(scale_factor, n) if size is None else [a / b for a, b in zip(each(size, n), x.shape[2:])]
        exact = size is None or tuple(int(f * b) for f, b in zip(factors, x.shape[2:])) == each(size, n)
        require(exact, "mlx.nn.Upsample takes scale factors, and none gives this size")
        layer = self.nn.Upsample(tuple(factors), RESIZES[mode], bool(align_corners))
        return channels_first(self.framework, layer(channels_last(self.framework, x)))

    def flatten(self, x: Any) -> Any:
        return self.framework.flatten(x, 1)

    def pad(self, x: Any, pad: Sequence[int], mode: str = "constant", value: float = 0.0) -> Any:
        require(mode in PADS, f"mx.pad has no mode {mode}")
        require(not any(n < 0 for n in pad), "mx.pad has no negative padding")
        widths = list(zip(pad[::2], pad[1::2]))[::-1]
        return self.framework.pad(x, pads(0, x.ndim - len(widths)) + widths, PADS[mode], value)

    def flip(self, x: Any, dims: Any) -> Any:
        return self.framework.flip(x, list(each(dims, 1)))

    def embedding(self, x: Any, weight: Any) -> Any:
        return self.filled(self.nn.Embedding(*weight.shape), weight=weight)(x)

    @composed
    def position_embedding(self, x: Any, weight: Any) -> Any:
        return x + self.embedding(x=self.framework.arange(x.shape[-2]), weight=weight)

    def gather(self, x: Any, index: Any, dim: int) -> Any:
        kept = tuple(slice(None if axis == dim % x.ndim else size) for axis, size in enumerate(index.shape))
        return self.framework.take_along_axis(x[kept], index, dim)

    def scatter_add(self, x: Any, index: Any, src: Any, dim: int) -> Any:
        indices = list(self.framework.meshgrid(*map(self.framework.arange, index.shape), indexing="ij"))
        indices[dim] = index
        return x.at[tuple(indices)].add(src[tuple(slice(size) for size in index.shape)])

    def sort(self, x: Any, dim: int = -1, descending: bool = False) -> Any:
        require(not descending, "mx.sort is ascending")
        return {"y": self.framework.sort(x, dim), "indices": self.framework.argsort(x, dim)}

    def celu(self, x: Any, alpha: float = 1.0) -> Any:
        return self.nn.celu(x, alpha)

    def gelu(self, x: Any, approximate: str = "none") -> Any:
        return self.nn.gelu(x) if approximate == "none" else self.nn.gelu_approx(x)

    def mish(self, x: Any) -> Any:
        return self.nn.mish(x)

    def softplus(self, x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:  # noqa: ARG002 - it has none
        require(beta == 1, "mlx.nn.softplus has no beta")
        return self.nn.softplus(x)

    def hardswish(self, x: Any) -> Any:
        return self.nn.hardswish(x)

    def hardtanh(self, x: Any, min_val: float = -1.0, max_val: float = 1.0) -> Any:
        return self.nn.hard_tanh(x, min_val, max_val)

    def logsigmoid(self, x: Any) -> Any:
        return self.nn.log_sigmoid(x)

    def var(self, x: Any, dim: Any = None, correction: int = 1, keepdim: bool = False) -> Any:
        return self.framework.var(x, dim, keepdim, correction)

    def std(self, x: Any, dim: Any = None, correction: int = 1, keepdim: bool = False) -> Any:
        return self.framework.std(x, dim, keepdim, correction)

    def vector_norm(self, x: Any, ord: float = 2.0, dim: Any = None, keepdim: bool = False) -> Any:  # noqa: A002
        require(dim is None or isinstance(dim, int), "mx.linalg.norm over two axes is a matrix norm")
        if dim is not None:
            return self.framework.linalg.norm(x, ord, dim, keepdim)
        # Over all axes of a matrix it would be the matrix norm, so the matrix is flattened.
        y = self.framework.linalg.norm(x.reshape((-1,)), ord, -1)
        return y.reshape((1,) * x.ndim) if keepdim else y

    def softmax(self, x: Any, dim: int = -1) -> Any:
        return self.framework.softmax(x, dim)

    def scaled_dot_product_attention(
        self,
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        keep_mask: Any = None,
        is_causal: bool = False,
        scale: Any = None,
        enable_gqa: bool = False,  # noqa: ARG002 - MLX groups the heads whenever there are fewer keys
    ) -> Any:
        mask = "causal" if is_causal else attn_mask if keep_mask is None else keep_mask != 0
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        return self.framework.fast.scaled_dot_product_attention(query, key, value, scale=scale, mask=mask)

    def heads_first(self, x: Any) -> Any:
        """[N, L, heads, d] to [N, heads, L, d], or back."""
        return x.swapaxes(1, 2)

    def rotary_embedding(self, x: Any, base: float, interleaved: bool) -> Any:
        return self.framework.fast.rope(x, x.shape[-1], traditional=interleaved, base=base, scale=1.0, offset=0)

    # MLX's recurrent layers have the batch axis before the steps, and one bias instead of two.
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
        layer = self.nn.LSTM(x.shape[-1], weight_hh.shape[1], bias_ih is not None)
        bias = None if bias_ih is None else bias_ih + bias_hh
        hidden, cell = self.filled(layer, Wx=weight_ih, Wh=weight_hh, bias=bias)(x.swapaxes(0, 1), h0, c0)
        return {"y": hidden.swapaxes(0, 1), "h": hidden[:, -1], "c": cell[:, -1]}

    @composed_unless(bias_ih=None)
    def gru(
        self, x: Any, weight_ih: Any, weight_hh: Any, bias_ih: Any = None, bias_hh: Any = None, h0: Any = None
    ) -> Any:
        size = weight_hh.shape[1]
        layer = self.filled(self.nn.GRU(x.shape[-1], size, bias_ih is not None), Wx=weight_ih, Wh=weight_hh)
        if bias_ih is not None:
            both = bias_ih[:-size] + bias_hh[:-size]
            self.filled(layer, b=self.framework.concatenate([both, bias_ih[-size:]]), bhn=bias_hh[-size:])
        hidden = layer(x.swapaxes(0, 1), h0)
        return {"y": hidden.swapaxes(0, 1), "h": hidden[:, -1]}

    def masked(self, loss: Callable[..., Any], target: Any, ignore_index: int, reduction: str) -> Any:
        """The loss of each target; MLX has no ignored targets, so they are masked."""
        keep = target != ignore_index
        losses = loss(self.framework.where(keep, target, 0))
        losses = self.framework.where(keep, losses, 0)
        if reduction == "none":
            return losses
        return losses.sum() if reduction == "sum" else losses.sum() / keep.sum().astype(losses.dtype)

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
        require(weight is None, "MLX has weights for rows but not for classes")

        def loss(labels: Any) -> Any:
            return self.nn.losses.cross_entropy(x, labels, label_smoothing=label_smoothing)

        return self.masked(loss, target, ignore_index, reduction)

    def soft_cross_entropy(self, x: Any, target: Any, reduction: str = "mean", label_smoothing: float = 0.0) -> Any:
        return self.nn.losses.cross_entropy(x, target, label_smoothing=label_smoothing, reduction=reduction)

    @composed_unless(reduction="none")
    def nll_loss(
        self, x: Any, target: Any, weight: Any = None, ignore_index: int = -100, reduction: str = "mean"
    ) -> Any:
        require(weight is None, "mlx.nn.losses.nll_loss has no weights")
        return self.masked(lambda labels: self.nn.losses.nll_loss(x, labels), target, ignore_index, reduction)

    def l1_loss(self, x: Any, target: Any, reduction: str = "mean") -> Any:
        return self.nn.losses.l1_loss(x, target, reduction)

    def mse_loss(self, x: Any, target: Any, reduction: str = "mean") -> Any:
        return self.nn.losses.mse_loss(x, target, reduction)

    def smooth_l1_loss(self, x: Any, target: Any, reduction: str = "mean", beta: float = 1.0) -> Any:
        return self.nn.losses.smooth_l1_loss(x, target, beta, reduction)

    def huber_loss(self, x: Any, target: Any, reduction: str = "mean", delta: float = 1.0) -> Any:
        return self.nn.losses.huber_loss(x, target, delta, reduction)

    def binary_cross_entropy(self, x: Any, target: Any, reduction: str = "mean") -> Any:
        return self.nn.losses.binary_cross_entropy(x, target, None, False, reduction)

    def binary_cross_entropy_with_logits(
        self, x: Any, target: Any, pos_weight: Any = None, reduction: str = "mean"
    ) -> Any:
        require(pos_weight is None, "mlx.nn.losses.binary_cross_entropy has weights of elements only")
        return self.nn.losses.binary_cross_entropy(x, target, None, True, reduction)

    def kl_div(self, x: Any, target: Any, reduction: str = "mean", log_target: bool = False) -> Any:
        # MLX sums over an axis, so the mean is PyTorch's batchmean.
        reductions = {"batchmean": "mean", "sum": "sum"}
        require(log_target and reduction in reductions, "mlx.nn.losses.kl_div_loss takes logarithms, and sums rows")
        return self.nn.losses.kl_div_loss(x, target, -1, reductions[reduction])

    def cosine_similarity(self, x: Any, other: Any, dim: int = 1, eps: float = 1e-8) -> Any:
        return self.nn.losses.cosine_similarity_loss(x, other, dim, eps)

    def clip_grad_norm(self, grads: Sequence[Any], max_norm: float, norm_type: float, scope: str) -> Any:
        require(norm_type == 2, "MLX clips norms of order 2")
        if scope == "global":
            clipped, total = self.optimizers.clip_grad_norm(list(grads), max_norm)
            return {"grads": clipped, "total_norm": total}
        pairs = [self.optimizers.clip_grad_norm(grad, max_norm) for grad in grads]
        # MLX has no norm of all tensors without clipping them, so it is computed separately.
        whole = self.framework.concatenate([grad.reshape((-1,)) for grad in grads])
        return {"grads": [grad for grad, _ in pairs], "total_norm": self.framework.linalg.norm(whole)}

    # MLX has no function for it: this is how its users write it.
    def clip_grad_value(self, grads: Sequence[Any], clip_value: float) -> Any:
        return {"grads": [self.framework.clip(grad, -clip_value, clip_value) for grad in grads]}

    def stepped(self, optimizer: Any, param: Any, grad: Any, step: int, **states: Any) -> Any:
        """One step of an optimizer from these states; returns the new parameter and states."""
        optimizer.init({"param": param})
        optimizer.state["step"] = self.framework.array(step - 1, self.framework.uint64)
        kept = optimizer.state["param"]
        kept.update({STATES[name]: value for name, value in states.items()})
        after = optimizer.apply_gradients({"param": grad}, {"param": param})
        return {"param": after["param"], **{name: kept[STATES[name]] for name in states}}

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
        **states: Any,
    ) -> Any:
        optimizer = self.optimizers.SGD(lr, momentum, weight_decay, dampening, nesterov)
        if step == 1:
            states = {name: self.framework.zeros_like(value) for name, value in states.items()}
        return self.stepped(optimizer, param, grad, step, **states)

    def adam(
        self,
        param: Any,
        grad: Any,
        lr: float,
        betas: Any,
        eps: float,
        weight_decay: float,
        step: int,
        **states: Any,
    ) -> Any:
        require(not weight_decay, "mlx.optimizers.Adam has no weight_decay")
        return self.stepped(self.optimizers.Adam(lr, betas, eps, True), param, grad, step, **states)

    def adamw(
        self,
        param: Any,
        grad: Any,
        lr: float,
        betas: Any,
        eps: float,
        weight_decay: float,
        step: int,
        **states: Any,
    ) -> Any:
        optimizer = self.optimizers.AdamW(lr, betas, eps, weight_decay, True)
        return self.stepped(optimizer, param, grad, step, **states)

    def rmsprop(
        self,
        param: Any,
        grad: Any,
        lr: float,
        alpha: float,
        eps: float,
        weight_decay: float,
        momentum: float,
        centered: bool,
        **states: Any,
    ) -> Any:
        lacking = weight_decay or momentum or centered
        require(not lacking, "mlx.optimizers.RMSprop has no weight_decay, momentum or centering")
        return self.stepped(self.optimizers.RMSprop(lr, alpha, eps), param, grad, 2, **states)

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
        require(not (weight_decay or lr_decay), "mlx.optimizers.Adagrad has no decays")
        return self.stepped(self.optimizers.Adagrad(lr, eps), param, grad, step, **states)
