"""Cases of every op drawn from a seed: shapes of a given size, options, offsets and scales."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.faults.settings import SETTINGS as TABLED
from benchmarks.faults.settings import Setting, eps_of, image, one_of, split
from parity.cases import OPS
from parity.cases.draw import Draw, Integers, Normal, Shape, Special, TensorPlan, Uniform
from parity.config.plan import CasePlan, WrittenAt
from parity.config.tolerances import DEFAULT_TOLERANCES

Tensors = dict[str, NDArray[Any]]
Rng = np.random.Generator
DTYPES = ("float32", "float64")
OFFSETS = (0.0, 0.0, 0.0, 1.0, 10.0, 100.0, 1000.0)
SCALES = (1.0, 1.0, 1.0, 1e-3, 1e-2, 10.0, 100.0)


def case_of(
    op: str,
    rng: Rng,
    size: int,
    name: str,
    *,
    offset: float = 0.0,
    scale: float = 1.0,
    dtypes: Sequence[str] = DTYPES,
) -> CasePlan:
    """A case of about `size` elements; `x` (or what stands for it) is `scale * draw + offset`."""
    setting = SETTINGS[op](rng, size)
    return planned(
        op, name, setting.params, setting.shapes, setting.draws, setting.ignored, offset, scale, tuple(dtypes)
    )


def planned(
    op: str,
    name: str,
    params: Mapping[str, Any],
    shapes: Mapping[str, Shape],
    draws: Mapping[str, Draw] | None = None,
    ignored: int = 0,
    offset: float = 0.0,
    scale: float = 1.0,
    dtypes: tuple[str, ...] = DTYPES,
    gradients: bool = True,
) -> CasePlan:
    """The case that a config with these params and shapes comes to."""
    made = OPS[op].params(**params)
    inferred = OPS[op].infer_shapes(made, shapes)
    tensors = []
    for tensor, shape in inferred.inputs.items():
        item = OPS[op].input(tensor)
        assert item is not None
        if item.opt_in and tensor not in shapes:
            continue
        integers = tensor in inferred.integers
        draw = (draws or {}).get(tensor) or (Integers(*inferred.integers[tensor]) if integers else item.default) or Normal()  # fmt: skip
        special = Special((made.ignore_index,), ignored) if integers and ignored else None
        moved = tensor in MOVED.get(op, ())
        tensors.append(
            TensorPlan(tensor, shape, draw, scale if moved else 1.0, offset if moved else 0.0, special, integers)
        )
    grad_outputs = [f"grad.{output}" for output in OPS[op].grad_outputs if gradients]
    tensors += [TensorPlan(g, inferred.outputs[g.removeprefix("grad.")], (draws or {}).get(g) or Normal()) for g in grad_outputs]  # fmt: skip
    return CasePlan(name, op, made, dtypes, tuple(tensors), DEFAULT_TOLERANCES, WrittenAt("", 0), gradients)


def drawn(case: CasePlan, seed: int) -> Tensors:
    """The tensors of a case, rounded to its dtypes."""
    return {plan.name: plan.sample(seed, case.id, *case.dtypes) for plan in case.tensors}


NORMALISED = ("layer_norm", "group_norm", "instance_norm", "batch_norm")
MOVED: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(
        (
            *NORMALISED,
            "evonorm_s0",
            "var",
            "std",
            "softmax",
            "log_softmax",
            "logsumexp",
            "linear",
            "conv2d",
            "avg_pool2d",
            "flatten",
            "position_embedding",
        ),
        ("x",),
    ),
    "mse_loss": ("x", "target"),
    "cross_entropy": ("x",),
    "embedding": ("weight",),
}
"""The tensors that an offset and a scale apply to."""


def layer_norm(rng: Rng, size: int) -> Setting:
    rows, n = split(rng, size)
    if n % 4 == 0 and rng.random() < 0.3:
        return Setting({"normalized_shape": (n // 4, 4), "eps": eps_of(rng)}, {"x": (rows, n // 4, 4)})
    return Setting({"normalized_shape": (n,), "eps": eps_of(rng)}, {"x": (rows, n)})


def group_norm(rng: Rng, size: int) -> Setting:
    n, _, h, w = image(rng, size)
    groups, per_group = one_of(rng, (2, 2), (2, 3), (3, 2), (4, 2), (1, 4), (5, 1))
    return Setting({"num_groups": groups, "eps": eps_of(rng)}, {"x": (n, groups * per_group, h, w)})


def instance_norm(rng: Rng, size: int) -> Setting:
    n, c, h, w = image(rng, size)
    return Setting({"eps": eps_of(rng)}, {"x": one_of(rng, (n, c, h, w), (n, c, h * w))})


def batch_norm(rng: Rng, size: int) -> Setting:
    params = {"training": bool(rng.random() < 0.8), "momentum": one_of(rng, 0.1, 0.01, 0.3), "eps": eps_of(rng)}
    if rng.random() < 0.4:
        rows, c = split(rng, size)
        return Setting(params, {"x": (max(rows, 2), c)})
    n, c, h, w = image(rng, size)
    return Setting(params, {"x": (n, c, h, w)})


def linear(rng: Rng, size: int) -> Setting:
    rows, inner = split(rng, size)
    inner = min(inner, 512)
    rows = min(rows, max(1, size // inner))
    out = max(1, min(256, round(math.exp(rng.uniform(0, math.log(max(2, inner)))))))
    x = (2, rows, inner) if rng.random() < 0.3 else (rows, inner)
    return Setting({}, {"x": x, "weight": (out, inner)})


def conv2d(rng: Rng, size: int) -> Setting:
    n, _, h, w = image(rng, size, 5)
    groups, c, o = one_of(rng, (1, 3, 4), (1, 2, 5), (2, 4, 6), (3, 3, 3), (2, 2, 4))
    k, stride, padding, dilation = one_of(rng, (3, 1, 1, 1), (3, 2, 1, 1), (2, 1, 0, 2), (1, 1, 0, 1), (3, 2, 2, 2), (2, 2, 0, 1))  # fmt: skip
    params = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    return Setting(params, {"x": (n, c, h, w), "weight": (o, c // groups, k, k)})


def embedding(rng: Rng, size: int) -> Setting:
    tokens, dim = split(rng, size)
    return Setting({}, {"x": one_of(rng, (tokens,), (2, tokens)), "weight": (one_of(rng, 5, 11, 64), dim)})


def position_embedding(rng: Rng, size: int) -> Setting:
    rest, dim = split(rng, size)
    length = max(1, min(64, rest // 2))
    return Setting({}, {"x": (max(1, rest // length), length, dim), "weight": (length + one_of(rng, 0, 3), dim)})


def attention(rng: Rng, size: int) -> Setting:
    heads, d = one_of(rng, 1, 2, 3), one_of(rng, 2, 5, 8, 16)
    length = max(1, min(128, size // (2 * heads * d)))
    keys, n = one_of(rng, length, max(1, length - 2), length + 5), max(1, min(8, size // (heads * d * length)))
    shapes = {
        "query": (n, heads, length, d),
        "key": (n, heads, keys, d),
        "value": (n, heads, keys, one_of(rng, d, d, 3)),
    }
    return Setting({}, shapes)


def multi_head(rng: Rng, size: int) -> Setting:
    heads, head = one_of(rng, (1, 4), (2, 2), (2, 3), (3, 4), (4, 8))
    dim = heads * head
    length = max(1, min(48, size // (2 * dim)))
    return Setting({"num_heads": heads}, {"x": (max(1, min(64, size // (length * dim))), length, dim)})


def elementwise(rng: Rng, size: int) -> Setting:
    return Setting({}, {"x": split(rng, size)}, {"x": one_of(rng, Normal(), Normal(0.3, 2.0), Uniform(-6.0, 6.0))})


def gelu(rng: Rng, size: int) -> Setting:
    plain = elementwise(rng, size)
    return Setting({"approximate": one_of(rng, "none", "tanh")}, plain.shapes, plain.draws)


def avg_pool2d(rng: Rng, size: int) -> Setting:
    k = one_of(rng, 1, 2, 2, 3)
    n, c, h, w = image(rng, size, k + 1)
    return Setting({"kernel_size": k}, {"x": (n, c, h, w)})


def flatten(rng: Rng, size: int) -> Setting:
    return Setting({}, {"x": image(rng, size)})


def cross_entropy(rng: Rng, size: int) -> Setting:
    rows, classes = split(rng, size, 2)
    params = {"reduction": one_of(rng, "mean", "mean", "sum")}
    ignored = int(one_of(rng, 0, rows // 3)) if rows > 1 else 0
    return Setting(params, {"x": (rows, classes)}, {"x": one_of(rng, Normal(), Normal(0.0, 5.0))}, ignored)


def mse_loss(rng: Rng, size: int) -> Setting:
    return Setting({"reduction": one_of(rng, "mean", "mean", "sum")}, {"x": split(rng, size)})


def gradients(rng: Rng, size: int) -> dict[str, Shape]:
    n = max(1, size // 3)
    return {"grads.0": split(rng, n), "grads.1": (max(1, n // 2),), "grads.2": split(rng, n)}


def clip_grad_norm(rng: Rng, size: int) -> Setting:
    shapes = gradients(rng, size)
    params = {
        "max_norm": one_of(rng, 0.5, 1.0, 2.0, 0.5 * math.sqrt(size)),
        "norm_type": one_of(rng, 2.0, 2.0, 2.0, 1.0, 3.0, math.inf),
        "scope": one_of(rng, "global", "global", "per_tensor"),
    }
    draws = {name: Normal(0.0, one_of(rng, 0.1, 1.0, 3.0)) for name in shapes}
    return Setting(params, shapes, draws)


def clip_grad_value(rng: Rng, size: int) -> Setting:
    return Setting({"clip_value": one_of(rng, 0.1, 0.5, 1.0)}, gradients(rng, size))


def sgd(rng: Rng, size: int) -> Setting:
    nesterov = bool(rng.random() < 0.3)
    params = {
        "lr": one_of(rng, 1e-3, 0.01, 0.1),
        "momentum": one_of(rng, 0.9, 0.5) if nesterov or rng.random() < 0.8 else 0.0,
        "dampening": 0.0 if nesterov else one_of(rng, 0.0, 0.1, 0.5),
        "weight_decay": one_of(rng, 0.0, 0.01, 0.1),
        "nesterov": nesterov,
        "step": one_of(rng, 1, 2, 10),
    }
    if params["momentum"] == 0.0:
        params["dampening"] = 0.0
    return Setting(params, {"param": split(rng, size)})


def adam(rng: Rng, size: int) -> Setting:
    params = {
        "lr": one_of(rng, 1e-3, 0.01, 0.1),
        "betas": one_of(rng, (0.9, 0.999), (0.8, 0.95), (0.5, 0.9)),
        "eps": one_of(rng, 1e-8, 1e-6, 1e-3),
        "weight_decay": one_of(rng, 0.0, 0.01, 0.1),
        "step": one_of(rng, 1, 2, 5, 100),
    }
    return Setting(params, {"param": split(rng, size)}, {"exp_avg": Normal(0.0, 0.3), "exp_avg_sq": Uniform(0.1, 1.0)})


def rmsprop(rng: Rng, size: int) -> Setting:
    params = {
        "lr": one_of(rng, 1e-3, 0.01, 0.1),
        "alpha": one_of(rng, 0.99, 0.9),
        "eps": one_of(rng, 1e-8, 1e-6, 1e-2),
        "weight_decay": one_of(rng, 0.0, 0.01, 0.1),
        "momentum": one_of(rng, 0.0, 0.9),
        "centered": bool(rng.random() < 0.4),
    }
    return Setting(params, {"param": split(rng, size)}, {"square_avg": Uniform(0.5, 1.5)})


def adagrad(rng: Rng, size: int) -> Setting:
    params = {
        "lr": one_of(rng, 0.01, 0.1),
        "eps": one_of(rng, 1e-10, 1e-6, 1e-2),
        "weight_decay": one_of(rng, 0.0, 0.01, 0.1),
        "lr_decay": one_of(rng, 0.0, 0.01, 0.1),
        "step": one_of(rng, 1, 2, 10),
    }
    return Setting(params, {"param": split(rng, size)}, {"sum": Uniform(0.1, 1.0)})


SETTINGS: Mapping[str, Callable[[Rng, int], Setting]] = {
    "layer_norm": layer_norm,
    "group_norm": group_norm,
    "instance_norm": instance_norm,
    "batch_norm": batch_norm,
    "linear": linear,
    "conv2d": conv2d,
    "embedding": embedding,
    "position_embedding": position_embedding,
    "scaled_dot_product_attention": attention,
    "multi_head_attention": multi_head,
    **dict.fromkeys(("relu", "tanh", "silu", "sigmoid"), elementwise),
    "gelu": gelu,
    "avg_pool2d": avg_pool2d,
    "flatten": flatten,
    "cross_entropy": cross_entropy,
    "mse_loss": mse_loss,
    "clip_grad_norm": clip_grad_norm,
    "clip_grad_value": clip_grad_value,
    "sgd": sgd,
    **dict.fromkeys(("adam", "adamw", "lamb"), adam),
    "rmsprop": rmsprop,
    "adagrad": adagrad,
    **TABLED,
}
