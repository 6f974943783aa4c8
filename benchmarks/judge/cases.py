"""The cases of the benchmark: sizes x conditioning per op, drawn from a seed; the same seed gives the same cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

Case = dict[str, Any]

CONDITIONS = tuple(product((0.0, 30.0, 1e3, 1e4), (1.0, 0.1, 10.0), (1e-5, 1e-3, 1e-12)))
"""Offset and standard deviation of x, and eps."""

PLAIN = ((0.0, 1.0, 1e-5), (30.0, 1.0, 1e-5), (1e3, 1.0, 1e-5))
"""The conditions that every seed has, before others are drawn."""

SHAPES: Mapping[str, Sequence[tuple[tuple[int, ...], Mapping[str, Any]]]] = {
    "layer_norm": (
        ((17, 48), {"normalized_shape": [48]}),
        ((5, 9, 33), {"normalized_shape": [33]}),
        ((1, 257), {"normalized_shape": [257]}),
        ((32, 1024), {"normalized_shape": [1024]}),
        ((16, 16), {"normalized_shape": [16]}),
        ((6, 7, 11), {"normalized_shape": [7, 11]}),
        ((400, 12), {"normalized_shape": [12]}),
        ((3, 4, 8, 8), {"normalized_shape": [8, 8]}),
        ((4, 3), {"normalized_shape": [3]}),
        ((2, 5, 6, 130), {"normalized_shape": [130]}),
    ),
    "group_norm": (
        ((4, 6, 8, 5), {"num_groups": 3}),
        ((2, 8, 9, 9), {"num_groups": 2}),
        ((1, 4, 33), {"num_groups": 2}),
        ((6, 12, 7), {"num_groups": 4}),
        ((3, 4, 16, 16), {"num_groups": 1}),
        ((16, 32, 13), {"num_groups": 8}),
        ((2, 6, 3, 4, 5), {"num_groups": 3}),
        ((40, 8, 6), {"num_groups": 2}),
    ),
    "instance_norm": (
        ((4, 6, 40), {}),
        ((2, 5, 9, 9), {}),
        ((1, 3, 257), {}),
        ((12, 8, 7, 11), {}),
        ((3, 4, 16, 16), {}),
        ((30, 4, 21), {}),
        ((2, 3, 4, 5, 6), {}),
        ((2, 16, 64), {}),
    ),
    "batch_norm": (
        ((32, 12), {}),
        ((8, 5, 9, 9), {}),
        ((16, 4, 21), {}),
        ((257, 3), {}),
        ((4, 8, 7, 11), {}),
        ((64, 64), {}),
        ((5, 6, 16, 16), {}),
        ((6, 7), {}),
    ),
}
MOMENTA = (0.1, 0.3, 0.01)

LINEAR_SHAPES = (
    ((16, 16), 16),
    ((7, 33), 20),
    ((1, 64), 64),
    ((200, 12), 9),
    ((32, 32), 32),
    ((8, 257), 65),
    ((3, 5, 48), 48),
    ((20, 300), 20),
    ((64, 130), 31),
)
LINEAR_CONDITIONS = ((0.0, 1.0, 1.0), (0.0, 10.0, 1.0), (30.0, 1.0, 1.0), (0.0, 1.0, 0.02), (1e3, 1.0, 1.0))
"""Offset and standard deviation of x, standard deviation of the weight."""

GRADS = (
    ((10, 7), (13,), (3, 4, 5)),
    ((33,),),
    ((40, 30), (30,), (17, 3), (5,)),
    ((15,), (6,)),
    ((130, 70), (9, 9, 3)),
)
CLIPS = (
    (0.1, 2.0, "global", 1.0),
    (1.0, 2.0, "global", 1.0),
    (1.0, 2.0, "global", 1e-2),
    (0.3, 2.0, "global", 100.0),
    (1e3, 2.0, "global", 1.0),
    (0.7, 1.0, "global", 1.0),
    (0.2, float("inf"), "global", 1.0),
    (0.1, 2.0, "per_tensor", 1.0),
    (1e-3, 2.0, "global", 1e-2),
    (0.1, 2.0, "global", 0.1),
)
"""max_norm, norm_type, scope, standard deviation of the gradients."""

CLAMPS = ((0.1, 1.0), (0.7, 1.0), (3e-3, 1e-2), (30.0, 100.0), (10.0, 1.0))
"""clip_value and the standard deviation of the gradients."""


def cases_of(op: str, n_cases: int, seed: int) -> list[Case]:
    """`n_cases` cases of an op. The first ones are the same for any number of them."""
    rng = np.random.default_rng([seed, *op.encode()])
    make = {"linear": linear_case, "clip_grad_norm": clip_case, "clip_grad_value": clamp_case}.get(op)
    if make is not None:
        return [make(i, rng) for i in range(n_cases)]
    return [norm_case(op, i, rng) for i in range(n_cases)]


def norm_case(op: str, number: int, rng: np.random.Generator) -> Case:
    """A case of a normalisation: the shapes in turn, under plain conditions first and drawn ones then."""
    shape, params = SHAPES[op][number % len(SHAPES[op])]
    drawn = CONDITIONS[int(rng.integers(len(CONDITIONS)))]
    offset, std, eps = PLAIN[number] if number < len(PLAIN) else drawn
    params = {**params, "eps": eps}
    if op == "batch_norm":
        params |= {"training": number % 5 != 4, "momentum": MOMENTA[number % len(MOMENTA)]}
    name = f"{op}-{number}-{size_text(shape)}-o{offset:g}-s{std:g}-e{eps:g}"
    return {"id": name, "op": op, "params": params, "inputs": {"x": drawn_tensor(shape, offset, std)}}


def linear_case(number: int, rng: np.random.Generator) -> Case:
    """A case of linear."""
    shape, out = LINEAR_SHAPES[number % len(LINEAR_SHAPES)]
    drawn = LINEAR_CONDITIONS[int(rng.integers(len(LINEAR_CONDITIONS)))]
    offset, std, weight_std = LINEAR_CONDITIONS[number] if number < 2 else drawn
    inputs = {"x": drawn_tensor(shape, offset, std), "weight": {"normal": {"mean": 0.0, "std": weight_std}}}
    name = f"linear-{number}-{size_text(shape)}-{out}-o{offset:g}-s{std:g}-w{weight_std:g}"
    return {"id": name, "op": "linear", "params": {"out_features": out}, "inputs": inputs}


def clip_case(number: int, rng: np.random.Generator) -> Case:
    """A case of clip_grad_norm."""
    max_norm, norm_type, scope, std = CLIPS[number % len(CLIPS)]
    shapes = GRADS[int(rng.integers(len(GRADS)))] if number else GRADS[0]
    params = {"max_norm": max_norm, "norm_type": norm_type, "scope": scope}
    name = f"clip_grad_norm-{number}-{len(shapes)}-m{max_norm:g}-p{norm_type:g}-{scope}-s{std:g}"
    return {"id": name, "op": "clip_grad_norm", "params": params, "inputs": {"grads": gradients(shapes, std)}}


def clamp_case(number: int, rng: np.random.Generator) -> Case:
    """A case of clip_grad_value."""
    value, std = CLAMPS[number % len(CLAMPS)]
    shapes = GRADS[int(rng.integers(len(GRADS)))] if number else GRADS[0]
    name = f"clip_grad_value-{number}-{len(shapes)}-v{value:g}-s{std:g}"
    return {"id": name, "op": "clip_grad_value", "params": {"clip_value": value}, "inputs": {"grads": gradients(shapes, std)}}  # fmt: skip


def gradients(shapes: Sequence[tuple[int, ...]], std: float) -> list[Case]:
    """A list of gradients, each a little larger than the one before."""
    return [drawn_tensor(shape, 0.0, std * (1 + i)) for i, shape in enumerate(shapes)]


def drawn_tensor(shape: Sequence[int], offset: float, std: float) -> Case:
    """A normal tensor as a config has it."""
    return {"shape": list(shape), "normal": {"mean": 0.0, "std": std}, "offset": offset}


def size_text(shape: Sequence[int]) -> str:
    """`17x48`."""
    return "x".join(map(str, shape))
