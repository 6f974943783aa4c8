"""PaddlePaddle."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from parity.adapters.base import Unsupported, composed
from parity.adapters.strides import storage_of
from parity.adapters.torch_style import FunctionalAdapter

CHANNELS_FIRST = {2: "NC", 3: "NCL", 4: "NCHW", 5: "NCDHW"}

CLASSES = {"adam": "Adam", "adamw": "AdamW", "lamb": "Lamb", "rmsprop": "RMSProp", "adagrad": "Adagrad"}
"""Optimizer to its class in paddle.optimizer; sgd is Momentum if a group has a momentum, else SGD."""

RENAMED = {"alpha": "rho", "eps": "epsilon", "nesterov": "use_nesterov"}
"""Option of an optimizer to Paddle's name."""

MOMENTS = {"exp_avg": "moment1", "exp_avg_sq": "moment2"}
STATES = {
    "SGD": {},
    "Momentum": {"momentum_buffer": "velocity"},
    "Adam": MOMENTS,
    "AdamW": MOMENTS,
    "Lamb": MOMENTS,
    "RMSProp": {"square_avg": "mean_square", "grad_avg": "mean_grad", "momentum_buffer": "momentum"},
    "Adagrad": {"sum": "moment"},
}
"""State of an optimizer to Paddle's name, by class."""

ALWAYS = {"Lamb": {"always_adapt": True}}
"""Options that are always set: without this one, Lamb omits the trust ratio if there is no decay."""


class PaddleAdapter(FunctionalAdapter):
    """paddle.nn.functional and paddle.nn.ClipGradBy* in dynamic mode on the CPU.

    Translated here: Linear's weight is [in, out] in Paddle, LayerNorm's weight and bias are flat, BatchNorm's momentum
    weighs the old statistic, and attention takes [N, L, heads, d].
    """

    no_kernel = (
        r"'epsilon' in Op\(\w+\) should be",
        r"The kernel \S+ is not registered",
        r"[Tt]he kernel (\(|`|with key).*(not registered|not found)",
    )
    trainers: ClassVar[Mapping[str, str]] = {
        "eager": "parity.training.worker.paddle_trainer:PaddleTrainer",
        "static": "parity.training.worker.paddle_trainer:StaticTrainer",
    }

    def __init__(self, device: str, threads: int, mode: str = "eager", ranks: int = 1) -> None:
        import paddle

        super().__init__(device, threads, mode, ranks)
        paddle.set_device(device)
        self.framework = paddle
        self.math = paddle
        self.nn = paddle.nn.functional
        self.functional = paddle.nn.functional

    def describe(self, error: BaseException) -> str:
        """The message without the C++ traces before it, and the hints and operator's name after it."""
        summary = str(error).rpartition("Error Message Summary:")[2].strip("-\n ")
        return re.split(r"\n\s*\[Hint:|\s*\(at /", summary)[0]

    def leaf(self, array: Any, requires_grad: bool) -> Any:
        return self.framework.to_tensor(array, stop_gradient=not requires_grad)

    def strided_leaf(self, array: Any, requires_grad: bool) -> Any:
        storage = storage_of(array)
        whole = self.framework.to_tensor(storage.flat)
        # Paddle 2.6.2 and 3.3.1 count the offset in bytes.
        offset = storage.offset * array.itemsize
        view = self.framework.as_strided(whole, list(array.shape), list(storage.strides), offset)
        return self.shared(view, requires_grad)

    def shared(self, tensor: Any, requires_grad: bool) -> Any:
        leaf = tensor.detach()
        leaf.stop_gradient = not requires_grad
        return leaf

    def to_numpy(self, tensor: Any) -> Any:
        return tensor.numpy()

    def has_history(self, tensor: Any) -> Any:
        return not tensor.stop_gradient

    def layer_norm(
        self, x: Any, normalized_shape: Sequence[int], eps: float, weight: Any = None, bias: Any = None
    ) -> Any:
        return self.functional.layer_norm(x, list(normalized_shape), self.flat(weight), self.flat(bias), eps)

    def group_norm(self, x: Any, num_groups: int, eps: float, weight: Any = None, bias: Any = None) -> Any:
        if len(x.shape) < 3:
            raise Unsupported("paddle.nn.functional.group_norm takes inputs with 3 to 5 axes")
        return self.functional.group_norm(x, num_groups, eps, weight, bias, self.layout(x))

    def instance_norm(self, x: Any, eps: float, weight: Any = None, bias: Any = None) -> Any:
        return self.functional.instance_norm(x, weight=weight, bias=bias, eps=eps, data_format=self.layout(x))

    def batch_norm(
        self, x: Any, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None, **options: Any
    ) -> Any:
        training, momentum, eps = options["training"], 1.0 - options["momentum"], options["eps"]
        y = self.functional.batch_norm(
            x, running_mean, running_var, weight, bias, training, momentum, eps, self.layout(x)
        )
        return {"y": y, "running_mean": running_mean, "running_var": running_var}

    def linear(self, x: Any, weight: Any, bias: Any = None) -> Any:
        return self.functional.linear(x, weight.t(), bias)

    def bilinear(self, x: Any, other: Any, weight: Any, bias: Any = None) -> Any:
        rows, others = (tensor.reshape([-1, tensor.shape[-1]]) for tensor in (x, other))
        y = self.functional.bilinear(rows, others, weight, None if bias is None else bias.reshape([1, -1]))
        return y.reshape([*x.shape[:-1], -1])

    def rms_norm(self, x: Any, normalized_shape: Sequence[int], eps: float, weight: Any = None) -> Any:
        return self.functional.rms_norm(x, list(normalized_shape), weight, eps)[0]

    def local_response_norm(self, x: Any, **options: Any) -> Any:
        return self.functional.local_response_norm(x, data_format=self.layout(x), **options)

    def conv_transpose1d(self, x: Any, weight: Any, bias: Any = None, **options: Any) -> Any:
        return self.functional.conv1d_transpose(x, weight, bias, **options)

    def conv_transpose2d(self, x: Any, weight: Any, bias: Any = None, **options: Any) -> Any:
        return self.functional.conv2d_transpose(x, weight, bias, **options)

    def conv_transpose3d(self, x: Any, weight: Any, bias: Any = None, **options: Any) -> Any:
        return self.functional.conv3d_transpose(x, weight, bias, **options)

    def max_pool1d(self, x: Any, dilation: Any = 1, **options: Any) -> Any:
        self.require(dilation == 1, "paddle.nn.functional.max_pool1d has no dilation")
        return self.functional.max_pool1d(x, **options)

    def max_pool2d(self, x: Any, dilation: Any = 1, **options: Any) -> Any:
        self.require(dilation == 1, "paddle.nn.functional.max_pool2d has no dilation")
        return self.functional.max_pool2d(x, **options)

    def max_pool3d(self, x: Any, dilation: Any = 1, **options: Any) -> Any:
        self.require(dilation == 1, "paddle.nn.functional.max_pool3d has no dilation")
        return self.functional.max_pool3d(x, **options)

    def avg_pool1d(self, x: Any, count_include_pad: bool = True, **options: Any) -> Any:
        return self.functional.avg_pool1d(x, exclusive=not count_include_pad, **options)

    def avg_pool2d(self, x: Any, count_include_pad: bool = True, **options: Any) -> Any:
        return self.functional.avg_pool2d(x, exclusive=not count_include_pad, **options)

    def avg_pool3d(self, x: Any, count_include_pad: bool = True, **options: Any) -> Any:
        return self.functional.avg_pool3d(x, exclusive=not count_include_pad, **options)

    def interpolate(self, x: Any, mode: str = "nearest", align_corners: Any = None, **options: Any) -> Any:
        self.require(mode != "nearest-exact", "paddle.nn.functional.interpolate has no mode nearest-exact")
        # Paddle takes a single number only for images.
        stated = {n: v if isinstance(v, tuple) else (v,) * (len(x.shape) - 2) for n, v in options.items() if v}
        return self.functional.interpolate(x, mode=mode, align_corners=bool(align_corners), **stated)

    def grid_sample(self, x: Any, grid: Any, mode: str = "bilinear", **options: Any) -> Any:
        self.require(mode != "bicubic", "paddle.nn.functional.grid_sample has no mode bicubic")
        return self.functional.grid_sample(x, grid, mode, **options)

    @staticmethod
    def require(condition: bool, message: str) -> None:
        if not condition:
            raise Unsupported(message)

    @composed
    def position_embedding(self, x: Any, weight: Any) -> Any:
        return x + self.functional.embedding(self.framework.arange(x.shape[-2]), weight)

    def gather(self, x: Any, index: Any, dim: int) -> Any:
        return self.framework.take_along_axis(x, index, dim, broadcast=False)

    def scatter_add(self, x: Any, index: Any, src: Any, dim: int) -> Any:
        return self.framework.put_along_axis(x, index, src, dim, reduce="add", broadcast=False)

    def sort(self, x: Any, dim: int, descending: bool) -> Any:
        y, indices = self.framework.sort(x, dim, descending), self.framework.argsort(x, dim, descending)
        return {"y": y, "indices": indices}

    def topk(self, x: Any, k: int, dim: int, largest: bool) -> Any:
        y, indices = self.framework.topk(x, k, dim, largest)
        return {"y": y, "indices": indices}

    def pad(self, x: Any, pad: Sequence[int], mode: str, value: float) -> Any:
        return self.functional.pad(x, list(pad), mode, value, pad_from_left_axis=False)

    def lstm(self, x: Any, h0: Any = None, c0: Any = None, **weights: Any) -> Any:
        states = None if h0 is None and c0 is None else tuple(self.state(s, x, weights) for s in (h0, c0))
        y, (h, c) = self.recurrent(self.framework.nn.LSTM, x, weights)(x, states)
        return {"y": y, "h": h[0], "c": c[0]}

    def gru(self, x: Any, h0: Any = None, **weights: Any) -> Any:
        states = None if h0 is None else self.state(h0, x, weights)
        y, h = self.recurrent(self.framework.nn.GRU, x, weights)(x, states)
        return {"y": y, "h": h[0]}

    def state(self, state: Any, x: Any, weights: Mapping[str, Any]) -> Any:
        """The initial state of a single layer; zeros if none is given."""
        zeros = self.framework.zeros([x.shape[1], weights["weight_hh"].shape[1]], x.dtype)
        return (zeros if state is None else state).unsqueeze(0)

    @staticmethod
    def recurrent(kind: Any, x: Any, weights: Mapping[str, Any]) -> Any:
        """A layer that takes steps first, with these leaves as parameters."""
        if not {"bias_ih", "bias_hh"} <= weights.keys():
            # Paddle 3.3.1 ends with SIGSEGV in the backward pass of a layer with bias_ih_attr=False on a CPU.
            raise Unsupported(f"paddle.nn.{kind.__name__} has no backward pass without biases")
        layer = kind(x.shape[2], weights["weight_hh"].shape[1], time_major=True)
        layer._all_weights = [weights[name] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        return layer

    def gelu(self, x: Any, approximate: str = "none") -> Any:
        return self.functional.gelu(x, approximate == "tanh")

    def fmod(self, x: Any, other: Any) -> Any:  # noqa: ARG002 - as in every adapter
        raise Unsupported("paddle has no fmod")

    def sum(self, x: Any, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Any:
        return self.framework.sum(x, axis=dim, keepdim=keepdim)

    def mean(self, x: Any, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Any:
        return self.framework.mean(x, axis=dim, keepdim=keepdim)

    def amax(self, x: Any, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Any:
        return self.framework.amax(x, axis=dim, keepdim=keepdim)

    def amin(self, x: Any, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Any:
        return self.framework.amin(x, axis=dim, keepdim=keepdim)

    def logsumexp(self, x: Any, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Any:
        return self.framework.logsumexp(x, axis=dim, keepdim=keepdim)

    def prod(self, x: Any, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Any:
        return self.framework.prod(x, axis=dim, keepdim=keepdim)

    def var(self, x: Any, dim: int | Sequence[int] | None = None, correction: int = 1, keepdim: bool = False) -> Any:
        return self.framework.var(x, dim, correction=correction, keepdim=keepdim)

    def std(self, x: Any, dim: int | Sequence[int] | None = None, correction: int = 1, keepdim: bool = False) -> Any:
        if correction not in (0, 1):
            raise Unsupported(f"paddle.std has no correction of {correction}")
        return self.framework.std(x, dim, correction == 1, keepdim)

    def scaled_dot_product_attention(
        self, query: Any, key: Any, value: Any, attn_mask: Any = None, keep_mask: Any = None, **options: Any
    ) -> Any:
        # Grouped heads follow from the shapes; releases before 3.3 have no scale.
        given = {name: item for name, item in options.items() if name != "enable_gqa" and item is not None}
        query, key, value = (self.heads_first(tensor) for tensor in (query, key, value))
        mask = attn_mask if keep_mask is None else keep_mask.astype("bool")
        return self.heads_first(self.functional.scaled_dot_product_attention(query, key, value, mask, **given))

    def number_range(self, start: int, stop: int, step: int, like: Any) -> Any:
        return self.framework.arange(start, stop, step, dtype=like.dtype)

    def heads_first(self, x: Any) -> Any:
        return x.transpose([0, 2, 1, 3])

    def cross_entropy(self, x: Any, target: Any, weight: Any = None, **options: Any) -> Any:
        # Paddle turns smoothed targets into rows, and then ignores none.
        if options.get("label_smoothing"):
            if bool((target == options.pop("ignore_index")).any()):
                raise Unsupported("paddle.nn.functional.cross_entropy ignores no targets with label_smoothing")
            return self.of_rows(self.functional.cross_entropy, x, target, weight=weight, **options)
        return self.ignoring(self.functional.cross_entropy, x, target, weight=weight, **options)

    def soft_cross_entropy(self, x: Any, target: Any, **options: Any) -> Any:
        losses = self.functional.cross_entropy(x, target, soft_label=True, **options)
        return losses.reshape(x.shape[:-1]) if losses.shape else losses

    def nll_loss(self, x: Any, target: Any, weight: Any = None, **options: Any) -> Any:
        # Paddle 3.3.1 writes out of bounds here: SIGSEGV, SIGABRT, or a hang.
        if x.dtype == self.framework.float64 and bool((target == options["ignore_index"]).any()):
            raise Unsupported("paddle.nn.functional.nll_loss in float64 crashes where targets are ignored")
        return self.of_rows(self.functional.nll_loss, x, target, weight=weight, **options)

    def ignoring(self, function: Any, x: Any, target: Any, ignore_index: int, **options: Any) -> Any:
        # In Paddle a negative ignore_index ignores nothing, and the mean includes ignored targets.
        ignored = x.shape[-1]
        target = self.framework.where(target == ignore_index, self.framework.full_like(target, ignored), target)
        return self.of_rows(function, x, target, ignore_index=ignored, **options)

    def ctc_loss(self, x: Any, target: Any, input_lengths: Any, target_lengths: Any, **options: Any) -> Any:
        # Paddle applies log_softmax itself.
        return self.functional.ctc_loss(x, target.astype("int32"), input_lengths, target_lengths, **options)

    def smooth_l1_loss(self, x: Any, target: Any, **options: Any) -> Any:
        return self.functional.smooth_l1_loss(x, target, options["reduction"], options["beta"], is_huber=False)

    def huber_loss(self, x: Any, target: Any, **options: Any) -> Any:
        return self.functional.smooth_l1_loss(x, target, options["reduction"], options["delta"])

    def cosine_similarity(self, x: Any, other: Any, dim: int = 1, eps: float = 1e-8) -> Any:
        return self.functional.cosine_similarity(x, other, dim, eps)

    def clip_grad_norm(self, grads: Sequence[Any], max_norm: float, norm_type: float, scope: str) -> Any:
        if norm_type == 2.0:
            return self.clip_two_norm(grads, max_norm, scope)
        before, parameters = [grad.clone() for grad in grads], self.parameters_with(grads)
        groups = [parameters] if scope == "global" else [[p] for p in parameters]
        try:
            norms = [self.framework.nn.utils.clip_grad_norm_(group, max_norm, norm_type) for group in groups]
        except ValueError as error:
            raise Unsupported(f"paddle.nn.utils.clip_grad_norm_: {error}") from error
        total = norms[0] if scope == "global" else self.norm(before, norm_type)
        return {"grads": [p.grad for p in parameters], "total_norm": total}

    def clip_two_norm(self, grads: Sequence[Any], max_norm: float, scope: str) -> Any:
        """Clips by the classes for Paddle's optimizers; these do not return the norm, so it is computed separately."""
        kind = self.framework.nn.ClipGradByGlobalNorm if scope == "global" else self.framework.nn.ClipGradByNorm
        total = self.norm(grads, 2.0)
        pairs = [(self.framework.zeros_like(grad), grad.clone()) for grad in grads]
        return {"grads": [clipped for _, clipped in kind(max_norm)(pairs)], "total_norm": total}

    def clip_grad_value(self, grads: Sequence[Any], clip_value: float) -> Any:
        pairs = [(self.framework.zeros_like(grad), grad) for grad in grads]
        return {"grads": [clipped for _, clipped in self.framework.nn.ClipGradByValue(clip_value)(pairs)]}

    def norm(self, tensors: Sequence[Any], norm_type: float) -> Any:
        flat = self.framework.concat([tensor.reshape([-1]) for tensor in tensors])
        return self.framework.linalg.norm(flat, norm_type)

    def updated(self, op: str, param: Any, grad: Any, step: int = 2, **given: Any) -> Any:
        kind = optimizer_class(op, "momentum_buffer" in given)
        kept = {name: own for name, own in STATES[kind].items() if name in given}
        state = {own: given.pop(name, self.framework.zeros_like(param)) for name, own in STATES[kind].items()}
        if step == 1:
            state.update({"velocity": self.framework.zeros_like(param)} if kind == "Momentum" else {})
            given.pop("lr_decay", None)
        for i, beta in enumerate(given.get("betas", ()), 1):
            state[f"beta{i}_pow_acc"] = self.framework.full([1], beta**step, dtype=param.dtype)
        if STATES[kind] is MOMENTS and param.element_size() < 4:
            # For float16 and bfloat16, Paddle keeps these states in float32.
            state = {own: value.astype("float32") for own, value in state.items()}
        after = self.stepped(kind, param, grad, state, **translated(kind, given), **ALWAYS.get(kind, {}))
        return {"param": after["param"], **{name: after[own] for name, own in kept.items()}}

    def stepped(self, kind: str, param: Any, grad: Any, state: Any, lr: float, **options: Any) -> Any:
        """One step of the optimizer `kind` from a state under Paddle's names; returns the new state."""
        leaf = self.leaf(self.to_numpy(param), True)
        leaf.grad = grad
        if kind == "SGD":
            options = {"weight_decay": options["weight_decay"]}
        with self.framework.utils.unique_name.guard():
            optimizer = getattr(self.framework.optimizer, kind)(lr, parameters=[leaf], **options)
            optimizer.set_state_dict({f"{leaf.name}_{name}_0": value for name, value in state.items()})
            optimizer.step()
        after = optimizer.state_dict()
        return {"param": leaf, **{name: after[f"{leaf.name}_{name}_0"] for name in state}}

    def lamb(self, **given: Any) -> Any:
        return self.updated("lamb", **given)

    @staticmethod
    def flat(values: Any) -> Any:
        return None if values is None else values.flatten()

    @staticmethod
    def layout(x: Any) -> str:
        return CHANNELS_FIRST[len(x.shape)]


def optimizer_class(op: str, has_momentum: bool) -> str:
    """The class in paddle.optimizer."""
    return CLASSES.get(op) or ("Momentum" if has_momentum else "SGD")


def translated(kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """A group's options under Paddle's names; raises Unsupported for those that Paddle lacks."""
    renamed = {RENAMED.get(name, name): value for name, value in options.items()}
    for name in ("dampening", "lr_decay"):
        if renamed.pop(name, 0):
            raise Unsupported(f"paddle.optimizer.{kind} has no {name}")
    if "betas" in renamed:
        renamed["beta1"], renamed["beta2"] = renamed.pop("betas")
    if kind == "Lamb":
        renamed["lamb_weight_decay"] = renamed.pop("weight_decay")
    return renamed
