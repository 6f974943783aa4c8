"""Published cases with few numbers: what somebody reported, the formula to blame, and what was concluded.

`numbers` says whose they are: the thread's own, or ours where a thread gives a formula and no tensor. A kernel takes what
it uses by name, as a form does, and is right in all but the point of the thread. Where the conclusion is that nobody is
wrong, `wrong` is False, and the judge must blame nobody.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.faults.cases import planned
from benchmarks.faults.forms.activations import erf
from parity.cases import OPS
from parity.cases.draw import Values
from parity.config.plan import CasePlan

Array = NDArray[Any]
Kernel = Callable[..., Mapping[str, Any]]
GITHUB = "https://github.com/"
THREAD, OURS = "thread", "ours"


@dataclass(frozen=True)
class Published:
    """`values` are tensors as nested lists; what they lack of optional inputs is absent. Forward only, unless `gradients`."""

    name: str
    thread: str
    op: str
    params: Mapping[str, Any]
    values: Mapping[str, Any]
    kernel: Kernel
    conclusion: str
    numbers: str = THREAD
    wrong: bool = True
    gradients: bool = False
    dtypes: tuple[str, ...] = ("float32", "float64")

    @property
    def case(self) -> CasePlan:
        """The case; optional inputs that the thread does not have are absent."""
        shapes = {name: np.shape(values) for name, values in self.values.items() if not name.startswith("grad.")}
        draws = {name: Values(values) for name, values in self.values.items()}
        case = planned(self.op, f"published-{self.name}", self.params, shapes, draws, dtypes=self.dtypes, gradients=self.gradients)  # fmt: skip
        given = tuple(
            t for t in case.tensors if t.name in draws or not (i := OPS[self.op].input(t.name)) or not i.optional
        )
        return replace(case, tensors=given)


# Normalisations


def layer_norm_naive(x: Array, weight: Array, bias: Array, eps: float) -> Mapping[str, Array]:
    mean = np.cumsum(x, axis=-1)[..., -1:] / x.shape[-1]
    var = np.cumsum(x * x, axis=-1)[..., -1:] / x.shape[-1] - mean * mean
    return {"y": (x - mean) / np.sqrt(var + eps) * weight + bias}


def layer_norm_squared(x: Array, weight: Array, bias: Array, eps: float) -> Mapping[str, Array]:
    variance = np.var(x, axis=-1, keepdims=True)
    return {"y": (x - np.mean(x, axis=-1, keepdims=True)) / (variance + eps) ** 2 * weight + bias}


def layer_norm_unbiased(x: Array, weight: Array, bias: Array, eps: float) -> Mapping[str, Array]:
    var = np.var(x, axis=-1, keepdims=True, ddof=1)
    return {"y": (x - np.mean(x, axis=-1, keepdims=True)) / np.sqrt(var + eps) * weight + bias}


def layer_norm_eps_in_half(x: Array, weight: Array, bias: Array, eps: float) -> Mapping[str, Array]:
    var = np.var(x, axis=-1, keepdims=True)
    rstd = 1.0 / np.sqrt(var + np.float16(eps).astype(x.dtype))
    return {"y": (x - np.mean(x, axis=-1, keepdims=True)) * rstd * weight + bias}


def group_norm_unbiased(x: Array, weight: Array, bias: Array, num_groups: int, eps: float) -> Mapping[str, Array]:
    grouped = x.reshape(x.shape[0], num_groups, -1)
    mean = np.mean(grouped, axis=2, keepdims=True)
    var = np.var(grouped, axis=2, keepdims=True, ddof=1)
    normalized = ((grouped - mean) / np.sqrt(var + eps)).reshape(x.shape)
    channels = (1, -1) + (1,) * (x.ndim - 2)
    return {"y": normalized * weight.reshape(channels) + bias.reshape(channels)}


def batch_statistics(x: Array) -> tuple[Array, Array, Array, int]:
    """Mean, biased variance and centered data of each channel, and how many elements it has."""
    axes = (0, *range(2, x.ndim))
    mean = np.mean(x, axis=axes)
    centered = x - mean.reshape(1, -1, *(1,) * (x.ndim - 2))
    return mean, np.mean(centered * centered, axis=axes), centered, x.size // x.shape[1]


def batch_norm_of(x: Array, weight: Array, bias: Array, centered: Array, var: Array, eps: float) -> Array:
    channels = (1, -1) + (1,) * (x.ndim - 2)
    return centered / np.sqrt(var + eps).reshape(channels) * weight.reshape(channels) + bias.reshape(channels)  # type: ignore[no-any-return]


def batch_norm_biased_running(
    x: Array, weight: Array, bias: Array, running_mean: Array, running_var: Array, momentum: float, eps: float
) -> Mapping[str, Array]:
    mean, var, centered, _ = batch_statistics(x)
    return {
        "y": batch_norm_of(x, weight, bias, centered, var, eps),
        "running_mean": (1 - momentum) * running_mean + momentum * mean,
        "running_var": (1 - momentum) * running_var + momentum * var,
    }


def batch_norm_unbiased_output(
    x: Array, weight: Array, bias: Array, running_mean: Array, running_var: Array, momentum: float, eps: float
) -> Mapping[str, Array]:
    mean, var, centered, n = batch_statistics(x)
    unbiased = var * n / (n - 1)
    return {
        "y": batch_norm_of(x, weight, bias, centered, unbiased, eps),
        "running_mean": (1 - momentum) * running_mean + momentum * mean,
        "running_var": (1 - momentum) * running_var + momentum * unbiased,
    }


def batch_norm_keeps_momentum(
    x: Array, weight: Array, bias: Array, running_mean: Array, running_var: Array, momentum: float, eps: float
) -> Mapping[str, Array]:
    mean, var, centered, n = batch_statistics(x)
    return {
        "y": batch_norm_of(x, weight, bias, centered, var, eps),
        "running_mean": momentum * running_mean + (1 - momentum) * mean,
        "running_var": momentum * running_var + (1 - momentum) * var * n / (n - 1),
    }


def batch_norm_naive(
    x: Array, weight: Array, bias: Array, running_mean: Array, running_var: Array, momentum: float, eps: float
) -> Mapping[str, Array]:
    mean, _, centered, n = batch_statistics(x)
    var = np.mean(x * x, axis=(0, *range(2, x.ndim))) - mean * mean
    return {
        "y": batch_norm_of(x, weight, bias, centered, var, eps),
        "running_mean": (1 - momentum) * running_mean + momentum * mean,
        "running_var": (1 - momentum) * running_var + momentum * var * n / (n - 1),
    }


# Attention, activations, losses


def attention_by_whole_width(
    x: Array, q_proj_weight: Array, k_proj_weight: Array, v_proj_weight: Array, out_proj_weight: Array, num_heads: int
) -> Mapping[str, Array]:
    n, length, dim = x.shape
    q, k, v = (
        (x @ w.T).reshape(n, length, num_heads, dim // num_heads).transpose(0, 2, 1, 3)
        for w in (q_proj_weight, k_proj_weight, v_proj_weight)
    )
    scores = q @ k.swapaxes(2, 3) * dim**-0.5
    p = np.exp(scores - np.max(scores, axis=-1, keepdims=True))
    p = p / np.sum(p, axis=-1, keepdims=True)
    return {"y": (p @ v).transpose(0, 2, 1, 3).reshape(n, length, dim) @ out_proj_weight.T}


def attention_divided_by_scale(query: Array, key: Array, value: Array) -> Mapping[str, Array]:
    scores = query @ key.swapaxes(2, 3) / query.shape[-1] ** -0.5
    p = np.exp(scores - np.max(scores, axis=-1, keepdims=True))
    return {"y": p / np.sum(p, axis=-1, keepdims=True) @ value}


def gelu_by_tanh(x: Array) -> Mapping[str, Array]:
    return {"y": 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))}


def gelu_by_erf(x: Array) -> Mapping[str, Array]:
    return {"y": 0.5 * x * (1.0 + erf(x / math.sqrt(2.0)))}


def label_losses(log_probs: Array, target: Array) -> Array:
    return -np.take_along_axis(log_probs, target[:, None], axis=1)[:, 0]


def cross_entropy_unshifted(x: Array, target: Array) -> Mapping[str, Array]:
    softmax = np.exp(x) / np.sum(np.exp(x), axis=1, keepdims=True)
    return {"y": np.mean(label_losses(np.log(softmax), target))}


def cross_entropy_shifted_by_positive(x: Array, target: Array) -> Mapping[str, Array]:
    exponentials = np.exp(x - np.maximum(0, np.max(x, axis=1, keepdims=True)))
    return {"y": np.mean(label_losses(np.log(exponentials / np.sum(exponentials, axis=1, keepdims=True)), target))}


def cross_entropy_unshifted_label(x: Array, target: Array) -> Mapping[str, Array]:
    highest = np.max(x, axis=1, keepdims=True)
    logsumexp = highest + np.log(np.sum(np.exp(x - highest), axis=1, keepdims=True))
    return {"y": np.mean(label_losses(x - logsumexp, target))}


def cross_entropy_right(x: Array, target: Array) -> Mapping[str, Array]:
    shifted = x - np.max(x, axis=1, keepdims=True)
    return {"y": np.mean(label_losses(shifted - np.log(np.sum(np.exp(shifted), axis=1, keepdims=True)), target))}


def cross_entropy_over_all(x: Array, target: Array, grad_y: Array, ignore_index: int) -> Mapping[str, Array]:
    kept = target != ignore_index
    shifted = x - np.max(x, axis=1, keepdims=True)
    log_probs = shifted - np.log(np.sum(np.exp(shifted), axis=1, keepdims=True))
    labels = np.where(kept, target, 0)
    one_hot = (labels[:, None] == np.arange(x.shape[1])).astype(x.dtype)
    grad_x = (np.exp(log_probs) - one_hot) * kept[:, None] * grad_y / len(target)
    return {"y": np.sum(label_losses(log_probs, labels) * kept) / len(target), "grad.x": grad_x}


def mse_over_rows(x: Array, target: Array, grad_y: Array) -> Mapping[str, Array]:
    return {"y": np.sum((x - target) ** 2) / len(x), "grad.x": 2 * (x - target) / len(x) * grad_y}


def mse_gradient_without_two(x: Array, target: Array, grad_y: Array) -> Mapping[str, Array]:
    return {"y": np.mean((x - target) ** 2), "grad.x": (x - target) / x.size * grad_y}


def embedding_overwrites(x: Array, weight: Array, grad_y: Array) -> Mapping[str, Array]:
    grad_weight = np.zeros_like(weight)
    grad_weight[x] = grad_y
    return {"y": weight[x], "grad.weight": grad_weight}


def linear_row_by_row(x: Array, weight: Array, bias: Array) -> Mapping[str, Array]:
    return {"y": np.stack([weight @ row for row in x]) + bias}


# Clipping


def clip_without_eps(grads: Sequence[Array], max_norm: float) -> Mapping[str, Any]:
    norm = np.sqrt(sum(np.sum(g * g) for g in grads))
    return {"grads": [g * (max_norm / np.maximum(norm, max_norm)) for g in grads], "total_norm": norm}


def clip_squares_in_half(grads: Sequence[Array], max_norm: float) -> Mapping[str, Any]:
    halves = [g.astype(np.float16) for g in grads]
    norm = np.sqrt(sum(np.sum(h * h) for h in halves))
    return {"grads": [g * np.minimum(max_norm / (norm + 1e-6), 1.0) for g in grads], "total_norm": norm}


# Optimizers


def rmsprop_eps_inside(param: Array, grad: Array, square_avg: Array, lr: float, alpha: float, eps: float) -> Mapping[str, Array]:  # fmt: skip
    new = alpha * square_avg + (1 - alpha) * grad * grad
    return {"param": param - lr * grad / np.sqrt(new + eps), "square_avg": new}


def adagrad_eps_inside(param: Array, grad: Array, sum: Array, lr: float, eps: float) -> Mapping[str, Array]:  # noqa: A002
    new = sum + grad * grad
    return {"param": param - lr * grad / np.sqrt(new + eps), "sum": new}


def moments(grad: Array, exp_avg: Array, exp_avg_sq: Array, betas: tuple[float, float]) -> tuple[Array, Array]:
    return betas[0] * exp_avg + (1 - betas[0]) * grad, betas[1] * exp_avg_sq + (1 - betas[1]) * grad * grad


def adam_epsilon_hat(
    param: Array, grad: Array, exp_avg: Array, exp_avg_sq: Array, lr: float, betas: tuple[float, float], eps: float, step: int
) -> Mapping[str, Array]:  # fmt: skip
    m, v = moments(grad, exp_avg, exp_avg_sq, betas)
    rate = lr * math.sqrt(1 - betas[1] ** step) / (1 - betas[0] ** step)
    return {"param": param - rate * m / (np.sqrt(v) + eps), "exp_avg": m, "exp_avg_sq": v}


def adam_minus_eps(
    param: Array, grad: Array, exp_avg: Array, exp_avg_sq: Array, lr: float, betas: tuple[float, float], eps: float, step: int
) -> Mapping[str, Array]:  # fmt: skip
    m, v = moments(grad, exp_avg, exp_avg_sq, betas)
    denominator = np.sqrt(v / (1 - betas[1] ** step)) - eps
    return {"param": param - lr * m / (1 - betas[0] ** step) / denominator, "exp_avg": m, "exp_avg_sq": v}


def adam_complement_twice(
    param: Array, grad: Array, exp_avg: Array, exp_avg_sq: Array, lr: float, betas: tuple[float, float], eps: float, step: int
) -> Mapping[str, Array]:  # fmt: skip
    m, v = moments(grad, exp_avg, exp_avg_sq, betas)
    correction1, correction2 = 1 - betas[0] ** step, 1 - betas[1] ** step
    rate = lr * math.sqrt(1 - correction2) / correction1
    return {"param": param - rate * m / (np.sqrt(v) + eps * math.sqrt(correction2)), "exp_avg": m, "exp_avg_sq": v}


def adam_keeps_corrected(
    param: Array, grad: Array, exp_avg: Array, exp_avg_sq: Array, lr: float, betas: tuple[float, float], eps: float, step: int
) -> Mapping[str, Array]:  # fmt: skip
    m, v = moments(grad, exp_avg, exp_avg_sq, betas)
    m, v = m / (1 - betas[0] ** step), v / (1 - betas[1] ** step)
    return {"param": param - lr * m / (np.sqrt(v) + eps), "exp_avg": m, "exp_avg_sq": v}


def adamw_with_l2(
    param: Array, grad: Array, exp_avg: Array, exp_avg_sq: Array, lr: float, betas: tuple[float, float], eps: float,
    weight_decay: float, step: int,
) -> Mapping[str, Array]:  # fmt: skip
    m, v = moments(grad + weight_decay * param, exp_avg, exp_avg_sq, betas)
    denominator = np.sqrt(v / (1 - betas[1] ** step)) + eps
    return {"param": param - lr * m / (1 - betas[0] ** step) / denominator, "exp_avg": m, "exp_avg_sq": v}


def adamw_decay_without_rate(
    param: Array, grad: Array, exp_avg: Array, exp_avg_sq: Array, lr: float, betas: tuple[float, float], eps: float,
    weight_decay: float, step: int,
) -> Mapping[str, Array]:  # fmt: skip
    m, v = moments(grad, exp_avg, exp_avg_sq, betas)
    denominator = np.sqrt(v / (1 - betas[1] ** step)) + eps
    shrunk = param - weight_decay * param
    return {"param": shrunk - lr * m / (1 - betas[0] ** step) / denominator, "exp_avg": m, "exp_avg_sq": v}


def lamb_step(param: Array, update: Array, ratio: Array | float, lr: float) -> Array:
    return param - lr * ratio * update


def lamb_uncorrected(
    param: Array, grad: Array, exp_avg: Array, exp_avg_sq: Array, lr: float, betas: tuple[float, float], eps: float,
    weight_decay: float,
) -> Mapping[str, Array]:  # fmt: skip
    m, v = moments(grad, exp_avg, exp_avg_sq, betas)
    update = m / (np.sqrt(v) + eps) + weight_decay * param
    ratio = np.linalg.norm(param) / np.linalg.norm(update)
    return {"param": lamb_step(param, update, ratio, lr), "exp_avg": m, "exp_avg_sq": v}


def lamb_clamped_norm(
    param: Array, grad: Array, exp_avg: Array, exp_avg_sq: Array, lr: float, betas: tuple[float, float], eps: float,
    weight_decay: float, step: int,
) -> Mapping[str, Array]:  # fmt: skip
    m, v = moments(grad, exp_avg, exp_avg_sq, betas)
    update = m / (1 - betas[0] ** step) / (np.sqrt(v / (1 - betas[1] ** step)) + eps) + weight_decay * param
    ratio = np.clip(np.linalg.norm(param), 0, 10) / np.linalg.norm(update)
    return {"param": lamb_step(param, update, ratio, lr), "exp_avg": m, "exp_avg_sq": v}


def lamb_ratio_of_zero(
    param: Array, grad: Array, exp_avg: Array, exp_avg_sq: Array, lr: float, betas: tuple[float, float], eps: float,
    weight_decay: float, step: int,
) -> Mapping[str, Array]:  # fmt: skip
    m, v = moments(grad, exp_avg, exp_avg_sq, betas)
    update = m / (1 - betas[0] ** step) / (np.sqrt(v / (1 - betas[1] ** step)) + eps) + weight_decay * param
    return {
        "param": lamb_step(param, update, np.linalg.norm(param) / np.linalg.norm(update), lr),
        "exp_avg": m,
        "exp_avg_sq": v,
    }


def sgd_dampened_at_first(param: Array, grad: Array, lr: float, dampening: float) -> Mapping[str, Array]:
    velocity = (1 - dampening) * grad
    return {"param": param - lr * velocity, "momentum_buffer": velocity}


def sgd_decay_forgotten(param: Array, grad: Array, lr: float) -> Mapping[str, Array]:
    return {"param": param - lr * grad}


def sgd_nesterov_by_gradient(param: Array, grad: Array, momentum_buffer: Array, lr: float, momentum: float) -> Mapping[str, Array]:  # fmt: skip
    ahead = grad + momentum * momentum_buffer
    velocity = momentum * momentum_buffer + (1 - momentum) * ahead
    return {"param": param - lr * velocity, "momentum_buffer": velocity}


def sgd_nesterov_twice(param: Array, grad: Array, momentum_buffer: Array, lr: float, momentum: float) -> Mapping[str, Array]:  # fmt: skip
    velocity = momentum * momentum_buffer + grad
    return {"param": param - lr * (1 + momentum) * velocity, "momentum_buffer": velocity}


def sgd_weighed_gradient(param: Array, grad: Array, momentum_buffer: Array, lr: float, momentum: float) -> Mapping[str, Array]:  # fmt: skip
    velocity = momentum * momentum_buffer + (1.0 - momentum) * grad
    return {"param": param - lr * velocity, "momentum_buffer": velocity}


PAIR = {"param": [0.5, -1.25], "grad": [0.01, -0.002]}
MOMENTS = PAIR | {"exp_avg": [0.004, -0.001], "exp_avg_sq": [2e-5, 3e-6]}
ADAM = {"lr": 0.001, "betas": (0.9, 0.999), "eps": 1e-4, "step": 3}
LOGITS = [[
    0.1232, 0.0869, -0.0047, 0.1211, 0.0513, 0.0545, 0.0151, -0.0354, 0.0453, -0.0031, 0.0412, -0.0250, -0.0522, -0.0889,
    -0.0904, -0.0834, 0.0259, -0.0785, 0.0016, 0.0152, 0.1067, -0.0039, 0.0144, -0.0634, 0.0839, 0.0226, 0.0547,
]]  # fmt: skip
IMAGE = [[[4.9, 5.1], [-5.1, -4.9]], [[5.0, 5.2], [-4.8, -5.0]]]
ONES2 = {"running_mean": [0.0, 0.0], "running_var": [1.0, 1.0]}
HEADS = [[0.5, -1.0, 0.25, 0.75], [1.0, 0.5, -0.5, 0.25], [-0.75, 0.25, 1.0, -0.5], [0.25, 0.5, 0.75, 1.0]]

PUBLISHED: Sequence[Published] = (
    Published(
        "layer_norm-row-at-1000", GITHUB + "tracel-ai/burn/issues/5607", "layer_norm", {"normalized_shape": (16,)},
        {"x": [[1000 + i * 1e-3 for i in range(16)]]}, layer_norm_naive,
        "The variance as E[x^2] - E[x]^2 in float32 cancels where the mean is large; take two passes.",
    ),
    Published(
        "layer_norm-four-at-40000", GITHUB + "microsoft/onnxruntime/issues/28463", "layer_norm", {"normalized_shape": (4,)},
        {"x": [[40000.0, 40001.0, 40002.0, 40003.0]]}, layer_norm_naive,
        "Finite inputs give NaN because the computed variance is negative: it is numerically unstable.",
    ),
    Published(
        "layer_norm-constant-row", GITHUB + "microsoft/onnxruntime/issues/21935", "layer_norm", {"normalized_shape": (256,)},
        {"x": [[1234.0] * 256]}, layer_norm_naive,
        "A constant row gives NaN because rounding makes the variance negative under the root.",
    ),
    Published(
        "layer_norm-shifted-by-2000", GITHUB + "pytorch/pytorch/issues/51102", "layer_norm", {"normalized_shape": (4,)},
        {"x": [[1999.3, 2000.9, 1998.6, 2001.1]]}, layer_norm_naive,
        "Rows whose mean is much larger than their spread come out wrong: the kernel's variance is unstable.", OURS,
    ),
    Published(
        "layer_norm-square-for-root", GITHUB + "131250208/TPlinker-joint-extraction/issues/37", "layer_norm",
        {"normalized_shape": (4,)}, {"x": [[0.5, -1.0, 2.0, 0.25]]}, layer_norm_squared,
        "The deviation must be the variance to the power 0.5, not 2.", OURS,
    ),
    Published(
        "layer_norm-two-numbers-unbiased", GITHUB + "pytorch/pytorch/issues/1854", "layer_norm", {"normalized_shape": (2,)},
        {"x": [[2.0, 4.0]]}, layer_norm_unbiased,
        "torch.std of [2, 4] is 1.414 and NumPy's is 1: the difference is Bessel's correction.",
    ),
    Published(
        "layer_norm-half-eps", GITHUB + "pytorch/pytorch/issues/41527", "layer_norm", {"normalized_shape": (10,), "eps": 1e-12},
        {"x": [[0.0] * 10]}, layer_norm_eps_in_half,
        "An eps of 1e-12 is zero in half precision, so that a row of zeros becomes 0 / 0.", dtypes=("float16", "float32"),
    ),
    Published(
        "group_norm-manual-unbiased", GITHUB + "pytorch/pytorch/issues/22617", "group_norm", {"num_groups": 1},
        {"x": [[[-1.3768, -0.3985, -0.5176, 0.9900, 1.3028]]]}, group_norm_unbiased,
        "torch.var in the formula by hand is the unbiased one; the layer takes the biased one.",
    ),
    Published(
        "batch_norm-momentum-of-one", GITHUB + "pytorch/pytorch/issues/7028", "batch_norm", {"momentum": 1.0},
        {"x": [[2.0, 15.0, 2.0, 1.0], [2.0, 17.0, 2.0, 1.0], [-4.0, -2.0, -2.0, -1.0]],
         "running_mean": [0.0] * 4, "running_var": [1.0] * 4}, batch_norm_biased_running,
        "The running variance is the unbiased one, n - 1; NumPy's default divides by n.",
    ),
    Published(
        "batch_norm-which-variance", GITHUB + "pytorch/pytorch/issues/60528", "batch_norm", {},
        {"x": [[[float(i + j + 4 * k) for j in range(1, 5)] for k in range(3)] for i in range(4)],
         "running_mean": [0.0] * 3, "running_var": [1.0] * 3}, batch_norm_unbiased_output,
        "The output is normalised by the biased variance, while the running one is unbiased.",
    ),
    Published(
        "batch_norm-momentum-convention", GITHUB + "pytorch/examples/issues/289", "batch_norm", {"momentum": 0.1},
        {"x": [[1.0, -2.0], [3.0, 0.5]], **ONES2}, batch_norm_keeps_momentum,
        "TensorFlow's momentum weighs the old statistic, PyTorch's the new one: 0.9 there is 0.1 here.", OURS,
    ),
    Published(
        "batch_norm-mean-of-five", GITHUB + "tenstorrent/tt-metal/issues/45968", "batch_norm", {},
        {"x": IMAGE, **ONES2}, batch_norm_naive,
        "E[x^2] - E[x]^2 cancels where a channel's mean is large beside its spread; take two passes.", OURS,
    ),
    Published(
        "batch_norm-two-rows-naive", GITHUB + "tenstorrent/tt-metal/issues/45968", "batch_norm", {},
        {"x": [[5.1, -4.9], [4.9, -5.1]], **ONES2}, batch_norm_naive,
        "E[x^2] - E[x]^2 cancels where a channel's mean is large beside its spread; take two passes.", OURS,
    ),
    Published(
        "multi_head-scaled-by-width", GITHUB + "lucidrains/vit-pytorch/issues/65", "multi_head_attention", {"num_heads": 2},
        {"x": [[[0.5, -1.0, 2.0, 0.25], [1.5, 0.5, -0.5, 1.0]]], "q_proj.weight": HEADS, "k_proj.weight": HEADS[::-1],
         "v_proj.weight": HEADS, "out_proj.weight": HEADS[::-1]}, attention_by_whole_width,
        "The scale is the root of a head's dimension, not of the whole width.", OURS,
    ),
    Published(
        "attention-divided-by-scale", GITHUB + "esceptico/perceiver-io/issues/9", "scaled_dot_product_attention", {},
        {"query": [[[[0.5, -1.0], [0.25, 0.5]]]], "key": [[[[1.0, 0.5], [-0.5, 0.75]]]], "value": [[[[1.0, 2.0], [3.0, -4.0]]]]},
        attention_divided_by_scale, "The scale is already 1 / sqrt(d) and must multiply, not divide.", OURS,
    ),
    Published(
        "gelu-tanh-for-erf", GITHUB + "uxlfoundation/oneDNN/issues/1122", "gelu", {"approximate": "none"},
        {"x": [-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0]}, gelu_by_tanh,
        "The library's plain name means the tanh approximation; the form by erf has another one.",
    ),
    Published(
        "gelu-erf-for-tanh", GITHUB + "apache/tvm/issues/18750", "gelu", {"approximate": "tanh"}, {"x": [-1.0, 0.5]},
        gelu_by_erf, "The option approximate=tanh is ignored: -0.158655 where -0.158808 is expected.",
    ),
    Published(
        "cross_entropy-unshifted", GITHUB + "openai/baselines/issues/761", "cross_entropy", {},
        {"x": [[300.0, 301.0]], "target": [1]}, cross_entropy_unshifted,
        "The exponential of 300 overflows; the maximum is subtracted so that it does not.", dtypes=("float32",),
    ),
    Published(
        "cross_entropy-very-negative", GITHUB + "FluxML/NNlib.jl/pull/43", "cross_entropy", {},
        {"x": [[-10000.0, -10000.0]], "target": [0]}, cross_entropy_shifted_by_positive,
        "What is subtracted must be the maximum itself, not the larger of it and 0.",
    ),
    Published(
        "cross_entropy-equal-large-logits", GITHUB + "ml-explore/mlx/pull/4169", "cross_entropy", {},
        {"x": [[1e4, 1e4]], "target": [0]}, cross_entropy_unshifted_label,
        "Subtracting logsumexp(x) from x loses the normaliser where logits are large; shift by the maximum first.",
    ),
    Published(
        "cross_entropy-last-bit", GITHUB + "pytorch/pytorch/issues/1546", "cross_entropy", {},
        {"x": LOGITS, "target": [5]}, cross_entropy_right,
        "The difference of 2.4e-7 is the last bit of float32, so both forms are equally good.", wrong=False,
    ),
    Published(
        "cross_entropy-ignored-count", GITHUB + "open-mmlab/mmsegmentation/issues/546", "cross_entropy", {"ignore_index": 255},
        {"x": [[0.5, -1.0, 0.25], [2.0, 0.5, -0.5], [0.0, 1.0, 0.75]], "target": [0, 255, 2]}, cross_entropy_over_all,
        "The mean must be over the targets that are not ignored.", OURS, gradients=True,
    ),
    Published(
        "mse-over-rows", GITHUB + "pytorch/pytorch/issues/3924", "mse_loss", {},
        {"x": [[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]], "target": [[2.0, 4.0, 6.0], [3.0, 4.0, 7.0]]}, mse_over_rows,
        "The mean is over all elements (6.33), not over the samples (19).", gradients=True,
    ),
    Published(
        "mse-gradient-without-two", GITHUB + "davisking/dlib/issues/1169", "mse_loss", {},
        {"x": [[1.0, 2.0, 3.0]], "target": [[2.0, 4.0, 6.0]]}, mse_gradient_without_two,
        "The gradient is that of half the squared error: it lacks the factor 2 of the loss that is reported.", OURS,
        gradients=True,
    ),
    Published(
        "embedding-repeated-index", GITHUB + "pytorch/pytorch/issues/1631", "embedding", {},
        {"x": [0, 0], "weight": [[0.1]], "grad.y": [[0.2], [0.3]]}, embedding_overwrites,
        "An index that is repeated must add its gradients: 0.5, not the last one's 0.3.", gradients=True,
    ),
    Published(
        "linear-row-by-row", GITHUB + "pytorch/pytorch/issues/10660", "linear", {},
        {"x": [[1.541, -0.2934, -2.1788, 0.5684], [-1.0845, -1.3986, 0.4033, 0.838], [-0.7193, -0.4033, -0.5966, 0.182],
               [-0.8567, 1.1006, -1.0712, 0.1227], [-0.5663, 0.3731, -0.892, -1.5091]],
         "weight": HEADS}, linear_row_by_row,
        "Row by row or at once, a product may differ in its last bit.", OURS, wrong=False,
    ),
    Published(
        "clip-without-eps", GITHUB + "goodfire-ai/spd/issues/643", "clip_grad_norm", {"max_norm": 0.01},
        {"grads.0": [0.03, -0.04]}, clip_without_eps,
        "torch adds 1e-6 to the norm and Optax nothing: at a limit of 0.01 they differ by 1e-4.", OURS,
    ),
    Published(
        "clip-half-of-300", GITHUB + "tracel-ai/burn/issues/5699", "clip_grad_norm", {"max_norm": 1.0}, {"grads.0": [300.0]},
        clip_squares_in_half, "300 squared overflows float16, so that the norm is infinite and the gradient becomes 0.",
        dtypes=("float16", "float32"),
    ),
    Published(
        "clip-half-of-5000", GITHUB + "facebookresearch/fairscale/pull/263", "clip_grad_norm", {"max_norm": 1.0},
        {"grads.0": [3000.0], "grads.1": [4000.0]}, clip_squares_in_half,
        "A norm of 5000 squared overflows float16; square and add in float32.", dtypes=("float16", "float32"),
    ),
    Published(
        "rmsprop-eps-of-one", GITHUB + "pytorch/pytorch/issues/23796", "rmsprop", {"eps": 1.0},
        PAIR | {"square_avg": [0.5, 0.02]}, rmsprop_eps_inside,
        "TensorFlow adds epsilon under the root, PyTorch after it; with a large epsilon this matters.", OURS,
    ),
    Published(
        "rmsprop-small-gradients", GITHUB + "apache/mxnet/issues/4493", "rmsprop", {"eps": 1e-4},
        {"param": [0.5, -1.25], "grad": [1e-3, -2e-3], "square_avg": [1e-6, 2e-6]}, rmsprop_eps_inside,
        "With small gradients an epsilon under the root decides the step; it must be added after the root.", OURS,
    ),
    Published(
        "adagrad-eps-inside", GITHUB + "keras-team/keras/issues/17391", "adagrad", {"eps": 1e-2},
        PAIR | {"sum": [0.1, 0.003]}, adagrad_eps_inside,
        "Epsilon is added under the root, where the usual form adds it to the root.", OURS,
    ),
    Published(
        "adam-epsilon-hat", GITHUB + "tensorflow/tensorflow/issues/35102", "adam", ADAM, MOMENTS, adam_epsilon_hat,
        "The corrections are in the rate, so that the same epsilon is scaled by the second one: the paper's epsilon hat.", OURS,
    ),
    Published(
        "adam-minus-eps", GITHUB + "tensorflow/tensorflow/pull/61411", "adam", ADAM, MOMENTS, adam_minus_eps,
        "Epsilon is subtracted from the root where it must be added.", OURS,
    ),
    Published(
        "adam-complement-twice", GITHUB + "kozistr/AdaBound-tensorflow/issues/3", "adam", ADAM, MOMENTS, adam_complement_twice,
        "The rate takes the root of 1 - bias_correction2, which is the complement already.", OURS,
    ),
    Published(
        "adam-corrected-in-place", GITHUB + "frgfm/holocron/issues/1", "adam", ADAM, MOMENTS, adam_keeps_corrected,
        "The corrected moments are stored, so that corrections pile up step by step.", OURS,
    ),
    Published(
        "adamw-with-l2", GITHUB + "anhquan0412/basic_model_scratch/issues/2", "adamw", ADAM | {"weight_decay": 0.1}, MOMENTS,
        adamw_with_l2, "The decay must come after the moving averages, not into the gradient.", OURS,
    ),
    Published(
        "adamw-decay-without-rate", GITHUB + "pytorch/pytorch/pull/4429", "adamw", ADAM | {"weight_decay": 0.1}, MOMENTS,
        adamw_decay_without_rate, "The decay must be multiplied by the rate, as a reviewer remarked.", OURS,
    ),
    Published(
        "lamb-uncorrected", GITHUB + "jettify/pytorch-optimizer/issues/443", "lamb", {"lr": 0.01, "step": 3}, MOMENTS,
        lamb_uncorrected, "The moments are not corrected for their bias, as algorithm 2 asks.", OURS,
    ),
    Published(
        "lamb-clamped-norm", GITHUB + "cybertronai/pytorch-lamb/issues/5", "lamb", {"lr": 0.01, "step": 3},
        MOMENTS | {"param": [12.0, -9.0]}, lamb_clamped_norm,
        "The weights' norm is clamped to 10, where the authors use it as it is.", OURS,
    ),
    Published(
        "lamb-zero-weights", GITHUB + "cybertronai/pytorch-lamb/pull/6", "lamb", {"lr": 0.01, "step": 3},
        MOMENTS | {"param": [0.0, 0.0]}, lamb_ratio_of_zero,
        "Weights that start at zero never change; the ratio must be 1 where a norm is 0.", OURS,
    ),
    Published(
        "sgd-dampened-at-first", GITHUB + "ml-explore/mlx/pull/473", "sgd", {"lr": 0.1, "momentum": 0.9, "dampening": 0.5, "step": 1},
        PAIR, sgd_dampened_at_first, "The first step takes the gradient itself, not (1 - dampening) of it.", OURS,
    ),
    Published(
        "sgd-decay-without-momentum", GITHUB + "ml-explore/mlx/pull/473", "sgd", {"lr": 0.1, "weight_decay": 0.01}, PAIR,
        sgd_decay_forgotten, "Weight decay has no effect without momentum; it must be added to the gradient first.", OURS,
    ),
    Published(
        "sgd-nesterov-by-gradient", GITHUB + "ml-explore/mlx/pull/87", "sgd", {"lr": 0.1, "momentum": 0.9, "nesterov": True},
        PAIR | {"momentum_buffer": [0.02, 0.01]}, sgd_nesterov_by_gradient,
        "This is neither the paper's nor PyTorch's form of Nesterov's momentum; take PyTorch's.", OURS,
    ),
    Published(
        "sgd-nesterov-twice", GITHUB + "pytorch/pytorch/pull/5920", "sgd", {"lr": 0.1, "momentum": 0.9, "nesterov": True},
        PAIR | {"momentum_buffer": [0.02, 0.01]}, sgd_nesterov_twice,
        "The proposed change is no fix: the step is the gradient plus momentum times the buffer.", OURS,
    ),
    Published(
        "sgd-weighed-gradient", GITHUB + "HIPS/autograd/issues/289", "sgd", {"lr": 0.1, "momentum": 0.9},
        PAIR | {"momentum_buffer": [0.02, 0.01]}, sgd_weighed_gradient,
        "The gradient is weighed with 1 - momentum: another parametrisation.", OURS,
    ),
)  # fmt: skip
