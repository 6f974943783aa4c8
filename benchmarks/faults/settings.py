"""Shapes, params and draws of the ops whose forms come from tables; what stands here is a range, not an op's own choice."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from parity.cases.draw import Draw, Integers, Normal, Probabilities, Shape, Uniform

Rng = np.random.Generator


@dataclass(frozen=True)
class Setting:
    """What a case of an op is made of; `draws` are those that differ from the op's own."""

    params: Mapping[str, Any]
    shapes: Mapping[str, Shape]
    draws: Mapping[str, Draw] = field(default_factory=dict)
    ignored: int = 0


Draws = Callable[[Rng, int], Setting]
"""A random case of about so many elements."""


def one_of(rng: Rng, *values: Any) -> Any:
    return values[int(rng.integers(len(values)))]


def split(rng: Rng, size: int, least: int = 1) -> tuple[int, int]:
    """Two factors whose product is about `size`, the second at least `least`."""
    inner = max(least, min(size, round(math.exp(rng.uniform(0.0, math.log(max(size, 2)))))))
    return max(1, size // inner), inner


def image(rng: Rng, size: int, least: int = 2) -> tuple[int, int, int, int]:
    """N, C, H, W with about `size` elements, height and width at least `least`."""
    side = max(least, min(32, round(size ** float(rng.uniform(0.2, 0.35)))))
    channels = one_of(rng, 2, 3, 4, 6, 8)
    return max(1, size // (channels * side * side)), channels, side, side + one_of(rng, 0, 1, 3)


def eps_of(rng: Rng) -> float:
    return float(one_of(rng, 1e-5, 1e-5, 1e-3, 1e-6, 0.1))


def drawn_from(rng: Rng, choices: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    """One value of each param."""
    return {name: one_of(rng, *values) for name, values in choices.items()}


def matrix(rng: Rng, size: int, *, draw: Draw | None = None, other: bool = False, **choices: Any) -> Setting:
    """x of two axes, `other` alike."""
    shape = split(rng, size)
    shapes: dict[str, Shape] = {"x": shape} | ({"other": shape} if other else {})
    return Setting(drawn_from(rng, choices), shapes, {"x": draw} if draw else {})


def curve(rng: Rng, size: int, **choices: Any) -> Setting:
    """x of a function that saturates on both sides, or bends at 0."""
    return matrix(rng, size, draw=one_of(rng, Normal(), Normal(0.3, 2.0), Uniform(-6.0, 6.0)), **choices)


def reduced(rng: Rng, size: int, *, least: int = 1, **choices: Any) -> Setting:
    """x of two or three axes, and which of them are reduced."""
    rows, n = split(rng, size, least)
    shape: Shape = (rows, n) if rng.random() < 0.5 or n % 2 or n // 2 < least else (rows, n // 2, 2)
    dims: tuple[Any, ...] = (1, -1, None, 0) if len(shape) == 2 else (1, (1, 2), (0, 2), None)
    dim = one_of(rng, *(d for d in dims if least == 1 or elements(shape, d) >= least))
    return Setting({"dim": dim, "keepdim": bool(rng.random() < 0.3)} | drawn_from(rng, choices), {"x": shape})


def elements(shape: Shape, dim: Any) -> int:
    """How many elements are reduced."""
    return math.prod(shape) if dim is None else math.prod(shape[a] for a in np.atleast_1d(dim))


def along(rng: Rng, size: int, *, least: int = 2, **choices: Any) -> Setting:
    """x of two or three axes, and one of them."""
    rows, n = split(rng, size, least)
    shape: Shape = one_of(rng, (rows, n), (max(1, rows // 2), n, 2))
    dim = one_of(rng, 1, -1, 0) if len(shape) == 2 else 1
    return Setting({"dim": dim} | drawn_from(rng, choices), {"x": shape})


def topk(rng: Rng, size: int) -> Setting:
    rows, n = split(rng, size, 3)
    return Setting({"k": max(1, n // 3), "largest": bool(rng.random() < 0.5)}, {"x": (rows, n)})


def prod(rng: Rng, size: int) -> Setting:
    """Few factors: a product of many leaves the range of a dtype."""
    n = min(size, one_of(rng, 3, 8, 20))
    return Setting({"dim": 1}, {"x": (max(1, size // n), n)})


def matmul(rng: Rng, size: int, *, stacked: bool = False) -> Setting:
    side = max(1, min(256, round(math.sqrt(size))))
    m, k, n = (max(1, round(side * float(rng.uniform(0.4, 1.5)))) for _ in range(3))
    lead: Shape = (one_of(rng, 1, 2, 3),) if stacked or rng.random() < 0.3 else ()
    return Setting({}, {"x": (*lead, m, k), "other": (*lead, k, n)})


def outer(rng: Rng, size: int) -> Setting:
    rows, n = split(rng, size)
    return Setting({}, {"x": (rows,), "other": (n,)})


def einsum(rng: Rng, size: int) -> Setting:
    sizes = {label: max(1, round(size ** (1 / 3) * float(rng.uniform(0.5, 1.5)))) for label in "bhijkd"}
    equation = one_of(rng, "ij,jk->ik", "bij,bjk->bik", "ij,kj->ik", "bihd,bjhd->bhij", "bi,bj->bij")
    one, other = equation.split("->")[0].split(",")
    shapes = {"x": tuple(sizes[a] for a in one), "other": tuple(sizes[a] for a in other)}
    return Setting({"equation": equation}, shapes)


def bilinear(rng: Rng, size: int) -> Setting:
    i, j, o = one_of(rng, 2, 5, 8), one_of(rng, 3, 4, 9), one_of(rng, 1, 3, 6)
    rows = max(1, min(2000, size // i))
    lead: Shape = (2, max(1, rows // 2)) if rng.random() < 0.3 else (rows,)
    return Setting({}, {"x": (*lead, i), "other": (*lead, j), "weight": (o, i, j)})


def spatial(rng: Rng, size: int, axes: int, least: int) -> tuple[int, ...]:
    """Lengths of axes."""
    side = max(least, min(24, round(min(size, 4000) ** (0.6 / axes))))
    return tuple(side + one_of(rng, 0, 1, 2) for _ in range(axes))


def images(rng: Rng, size: int, axes: int, least: int, channels: int) -> Shape:
    """(N, C, *axes) of about `size` elements."""
    lengths = spatial(rng, size, axes, least)
    return (max(1, min(16, size // (channels * math.prod(lengths)))), channels, *lengths)


def conv(rng: Rng, size: int, axes: int) -> Setting:
    groups, c, o = one_of(rng, (1, 3, 4), (1, 2, 5), (2, 4, 6), (3, 3, 3))
    k, stride, padding, dilation = one_of(rng, (3, 1, 1, 1), (3, 2, 1, 1), (2, 1, 0, 2), (1, 1, 0, 1), (2, 2, 0, 1))
    params = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    return Setting(params, {"x": images(rng, size, axes, 4, c), "weight": (o, c // groups, *(k,) * axes)})


def conv_transpose(rng: Rng, size: int, axes: int) -> Setting:
    groups, c, o = one_of(rng, (1, 3, 4), (1, 2, 3), (2, 4, 6))
    k, stride, padding, more, dilation = one_of(
        rng, (3, 2, 1, 1, 1), (2, 2, 0, 0, 1), (3, 1, 1, 0, 1), (2, 1, 0, 0, 2), (3, 2, 0, 0, 1)
    )
    params = {"stride": stride, "padding": padding, "output_padding": more, "dilation": dilation, "groups": groups}
    return Setting(params, {"x": images(rng, size, axes, 2, c), "weight": (c, o // groups, *(k,) * axes)})


def pool(rng: Rng, size: int, axes: int, *, largest: bool) -> Setting:
    k, stride, padding = one_of(rng, (2, None, 0), (3, 2, 1), (2, 1, 1), (3, None, 0), (3, 1, 0))
    own = (
        {"dilation": one_of(rng, 1, 1, 2 if padding == 0 else 1)}
        if largest
        else {"count_include_pad": bool(rng.random() < 0.5)}
    )
    params = {"kernel_size": k, "stride": stride, "padding": padding, "ceil_mode": bool(rng.random() < 0.3)} | own
    return Setting(params, {"x": images(rng, size, axes, 6, one_of(rng, 1, 2, 3))})


def adaptive(rng: Rng, size: int, axes: int) -> Setting:
    x = images(rng, size, axes, 4, one_of(rng, 1, 2, 3))
    return Setting({"output_size": tuple(one_of(rng, 1, 2, 3) for _ in range(axes))}, {"x": x})


def rms_norm(rng: Rng, size: int) -> Setting:
    rows, n = split(rng, size, 2)
    return Setting({"normalized_shape": (n,), "eps": eps_of(rng)}, {"x": (rows, n)})


def normalize(rng: Rng, size: int) -> Setting:
    rows, n = split(rng, size, 2)
    shape: Shape = one_of(rng, (rows, n), (max(1, rows // 2), n, 2))
    return Setting({"p": one_of(rng, 2.0, 2.0, 1.0, math.inf), "eps": one_of(rng, 1e-12, 1e-3)}, {"x": shape})


def response(rng: Rng, size: int) -> Setting:
    params = {
        "size": one_of(rng, 2, 3, 5),
        "alpha": one_of(rng, 0.1, 0.5, 1.0),
        "beta": one_of(rng, 0.75, 0.5),
        "k": one_of(rng, 1.0, 2.0),
    }
    return Setting(params, {"x": images(rng, size, 2, 2, one_of(rng, 4, 6, 7))})


def evonorm(rng: Rng, size: int) -> Setting:
    groups, per_group = one_of(rng, (2, 2), (2, 3), (1, 4), (3, 2))
    return Setting({"num_groups": groups, "eps": eps_of(rng)}, {"x": images(rng, size, 2, 3, groups * per_group)})


def gather(rng: Rng, size: int, *, source: bool = False) -> Setting:
    rows, n = split(rng, size, 2)
    n, rows = min(n, 200), min(rows, 200)
    index = (rows, one_of(rng, n, max(1, n // 2), n + 3)) if rng.random() < 0.5 else (max(1, rows - 1), n)
    shapes: dict[str, Shape] = {"x": (rows, n), "index": index} | ({"src": index} if source else {})
    return Setting({"dim": 1}, shapes)


def index_select(rng: Rng, size: int) -> Setting:
    rows, n = split(rng, size, 2)
    n = min(n, 500)
    dim = one_of(rng, 0, 1)
    return Setting(
        {"dim": dim}, {"x": (rows, n, 2) if rows * n < 1e5 else (rows, n), "index": (min((rows, n)[dim], 500) + 2,)}
    )


def sort(rng: Rng, size: int) -> Setting:
    rows, n = split(rng, min(size, 20000), 3)
    return Setting({"dim": -1, "descending": bool(rng.random() < 0.5)}, {"x": (max(rows, 1), min(n, 300))})


def flipped(rng: Rng, size: int) -> Setting:
    rows, n = split(rng, size)
    return Setting({"dims": one_of(rng, (0,), (1,), (0, 2))}, {"x": (max(2, rows // 2), n + 1, 2)})


def rolled(rng: Rng, size: int) -> Setting:
    rows, n = split(rng, size)
    shifts, dims = one_of(rng, ((1,), (0,)), ((-2,), (1,)), ((1, -2), (0, 1)))
    return Setting({"shifts": shifts, "dims": dims}, {"x": (max(2, rows // 2) + 1, n + 3, 2)})


def shuffled(rng: Rng, size: int) -> Setting:
    r, c = one_of(rng, 2, 3), one_of(rng, 1, 2, 3)
    return Setting({"upscale_factor": r}, {"x": images(rng, size, 2, 2, c * r * r)})


def padded(rng: Rng, size: int) -> Setting:
    mode = one_of(rng, "constant", "reflect", "replicate", "circular")
    params: dict[str, Any] = {"pad": one_of(rng, (1, 2, 0, 3), (2, 0, 1, 1)), "mode": mode}
    return Setting(params | ({"value": 0.7} if mode == "constant" else {}), {"x": images(rng, size, 2, 4, 2)})


def rotary(rng: Rng, size: int) -> Setting:
    heads, d = one_of(rng, 1, 2, 3), one_of(rng, 4, 8, 16)
    length = max(2, min(200, size // (heads * d)))
    shape = (max(1, min(8, size // (heads * d * length))), heads, length, d)
    return Setting({"interleaved": bool(rng.random() < 0.5), "base": one_of(rng, 10000.0, 500.0)}, {"x": shape})


def resized(rng: Rng, size: int) -> Setting:
    mode = one_of(rng, "nearest", "nearest-exact", "bilinear", "bicubic", "area", "linear", "trilinear")
    axes = {"linear": 1, "trilinear": 3}.get(mode, 2)
    x = images(rng, size, axes, 3, 2)
    params: dict[str, Any] = {"mode": mode}
    if mode in ("bilinear", "bicubic", "linear", "trilinear"):
        params["align_corners"] = bool(rng.random() < 0.4)
    if rng.random() < 0.3 and mode != "area":
        params["scale_factor"] = one_of(rng, 2.0, 1.7, 0.6)
    else:
        params["size"] = tuple(max(2, round(n * float(rng.uniform(0.5, 2.2)))) for n in x[2:])
    return Setting(params, {"x": x})


def grid_sample(rng: Rng, size: int) -> Setting:
    size = min(size, 2000)
    axes = one_of(rng, 2, 2, 3)
    x = images(rng, size, axes, 3, 2)
    params = {
        "mode": one_of(rng, "bilinear", "bilinear", "nearest"),
        "padding_mode": one_of(rng, "zeros", "border", "reflection"),
        "align_corners": bool(rng.random() < 0.4),
    }
    return Setting(params, {"x": x, "grid": (x[0], *spatial(rng, size // 2, axes, 2), axes)})


def recurrent(rng: Rng, size: int) -> Setting:
    n, h, features = one_of(rng, 1, 2, 3), one_of(rng, 2, 3, 5), one_of(rng, 2, 4)
    length = max(1, min(12, size // (n * features * 4)))
    draws = {f"weight_{name}": Normal(0.0, 0.6) for name in ("ih", "hh")}
    return Setting({"hidden_size": h}, {"x": (length, n, features)}, draws)


def ctc_loss(rng: Rng, size: int) -> Setting:
    n, classes = one_of(rng, 1, 2, 4), one_of(rng, 3, 5, 8)
    length = max(2, min(20, size // (n * classes)))
    return Setting({"reduction": one_of(rng, "mean", "sum")}, {"x": (length, n, classes)})


def valued(rng: Rng, size: int, **choices: Any) -> Setting:
    """A loss of x and a target alike."""
    return matrix(rng, size, **{"reduction": ("mean", "mean", "sum"), **choices})


def kl_div(rng: Rng, size: int) -> Setting:
    plain = valued(rng, size, reduction=("mean", "sum", "batchmean"), log_target=(False, False, True))
    draws = {"target": Uniform(-5.0, -0.05)} if plain.params["log_target"] else {}
    return Setting(plain.params, plain.shapes, draws)


def with_logits(rng: Rng, size: int) -> Setting:
    plain = valued(rng, size)
    shapes = {"x": plain.shapes["x"], "pos_weight": plain.shapes["x"][-1:]}
    return Setting(plain.params, shapes, {"x": Normal(0.0, 3.0), "pos_weight": Uniform(0.5, 2.0)})


def classes(rng: Rng, size: int) -> Setting:
    rows, n = split(rng, size, 2)
    params = drawn_from(rng, {"reduction": ("mean", "mean", "sum"), "label_smoothing": (0.0, 0.1)})
    return Setting(params, {"x": (rows, n)}, {"target": Probabilities()})


def nll_loss(rng: Rng, size: int) -> Setting:
    rows, n = split(rng, size, 2)
    ignored = rows // 3 if rng.random() < 0.4 else 0
    shapes: dict[str, Shape] = {"x": (rows, n), "weight": (n,)}
    return Setting({"reduction": one_of(rng, "mean", "sum")}, shapes, {"weight": Uniform(0.5, 1.5)}, ignored)


def cosine(rng: Rng, size: int) -> Setting:
    rows, n = split(rng, size, 2)
    return Setting({"dim": 1}, {"x": (rows, n), "other": (rows, n)})


def axes_of(make: Callable[..., Setting], **options: Any) -> dict[int, Draws]:
    """A setting for 1, 2 and 3 axes."""
    return {n: partial(make, axes=n, **options) for n in (1, 2, 3)}


CONV, TRANSPOSED, ADAPTIVE = axes_of(conv), axes_of(conv_transpose), axes_of(adaptive)
MAX_POOL, AVG_POOL = axes_of(pool, largest=True), axes_of(pool, largest=False)
PAIRS = ("remainder", "fmod", "atan2", "maximum", "minimum")

SETTINGS: Mapping[str, Draws] = {
    **dict.fromkeys(("selu", "mish", "softsign", "hardswish", "hardsigmoid", "logsigmoid"), curve),
    **dict.fromkeys(("exp", "expm1", "erf", "abs", "sin", "cos"), curve),
    **dict.fromkeys(("log", "log1p", "sqrt", "rsqrt", "round", "dropout"), matrix),
    **dict.fromkeys(PAIRS, partial(matrix, other=True)),
    "where": lambda rng, size: Setting(
        {}, dict.fromkeys(("condition", "x", "other"), split(rng, size)), {"condition": Integers(0, 2)}
    ),
    "leaky_relu": partial(curve, negative_slope=(0.01, 0.2)),
    **dict.fromkeys(("elu", "celu"), partial(curve, alpha=(1.0, 0.7, 1.5))),
    "softplus": partial(curve, beta=(1.0, 2.0, 0.5), threshold=(20.0, 20.0, 4.0)),
    "hardtanh": partial(curve, min_val=(-1.0, -0.55), max_val=(1.0, 0.85)),
    "clamp": partial(curve, min=(-0.55, None), max=(0.85, 0.35)),
    "pow": partial(matrix, exponent=(2.0, 3.0, 0.5, 1.5, -1.0)),
    **dict.fromkeys(("sum", "mean", "amax", "amin", "logsumexp"), reduced),
    **dict.fromkeys(("var", "std"), partial(reduced, least=2, correction=(1, 0))),
    "vector_norm": partial(reduced, ord=(2.0, 2.0, 1.0, 3.0, math.inf)),
    "prod": prod,
    **dict.fromkeys(("cumsum", "argmax", "softmax", "log_softmax"), along),
    "matmul": matmul,
    "bmm": partial(matmul, stacked=True),
    "outer": outer,
    "einsum": einsum,
    "bilinear": bilinear,
    "gather": gather,
    "scatter_add": partial(gather, source=True),
    "index_select": index_select,
    "sort": sort,
    "topk": topk,
    "flip": flipped,
    "roll": rolled,
    "pixel_shuffle": shuffled,
    "pad": padded,
    "rotary_embedding": rotary,
    "conv1d": CONV[1],
    "conv3d": CONV[3],
    **{f"conv_transpose{n}d": TRANSPOSED[n] for n in (1, 2, 3)},
    **{f"max_pool{n}d": MAX_POOL[n] for n in (1, 2, 3)},
    **{f"avg_pool{n}d": AVG_POOL[n] for n in (1, 3)},
    **{f"adaptive_{kind}_pool{n}d": ADAPTIVE[n] for kind in ("avg", "max") for n in (1, 2)},
    "rms_norm": rms_norm,
    "normalize": normalize,
    "local_response_norm": response,
    "evonorm_s0": evonorm,
    "interpolate": resized,
    "grid_sample": grid_sample,
    **dict.fromkeys(("lstm", "gru"), recurrent),
    "ctc_loss": ctc_loss,
    "l1_loss": valued,
    "smooth_l1_loss": partial(valued, beta=(1.0, 0.5)),
    "huber_loss": partial(valued, delta=(1.0, 0.5)),
    "binary_cross_entropy": valued,
    "binary_cross_entropy_with_logits": with_logits,
    "kl_div": kl_div,
    "soft_cross_entropy": classes,
    "nll_loss": nll_loss,
    "cosine_similarity": cosine,
}
