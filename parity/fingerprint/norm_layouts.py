"""How each normalisation lays out its groups: from (groups, n) to the op's x and back.

A group is what one mean is taken over. `CHANNELS` is the number of groups of the sweep.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.cases.norm import BatchNormParams, GroupNormParams, InstanceNormParams, LayerNormParams

Array = NDArray[Any]


@dataclass(frozen=True)
class NormLayout:
    """One normalisation op.

    `arrange` makes x of (groups, n) values and `gather` undoes it; `params(n, eps)` are the op's params.
    `affine_size(groups, n)` is the shape of weight and bias. `sum_rows` takes (channels, terms) values to a dy whose
    sum over `terms`, for each channel, is the bias' gradient, in the order in which memory holds them.
    """

    arrange: Callable[[Array], Array]
    gather: Callable[[Array], Array]
    params: Callable[[int, float], Any]
    affine_shape: Callable[[int, int], tuple[int, ...]]
    sum_rows: Callable[[Array], Array]
    per_element: bool = False


def _square(values: Array) -> Array:
    """(..., n) to (..., h, w) with w = 16, or 8 where n is small; n is a power of two."""
    width = 16 if values.shape[-1] >= 64 else 2
    return values.reshape(*values.shape[:-1], -1, width)


def _batch_arrange(groups: Array) -> Array:
    """(C, n) to (4, C, h, w)."""
    split = groups.reshape(groups.shape[0], 4, -1)
    return np.ascontiguousarray(_square(split.swapaxes(0, 1)))


def _batch_gather(x: Array) -> Array:
    return x.swapaxes(0, 1).reshape(x.shape[1], -1)


def _grouped_arrange(groups: Array) -> Array:
    """(2 N, n) to (N, 4, h, w): two groups of two channels each."""
    return _square(groups.reshape(groups.shape[0] // 2, 4, groups.shape[1] // 2))


def _instance_arrange(groups: Array) -> Array:
    """(4 N, n) to (N, 4, h, w)."""
    return _square(groups.reshape(groups.shape[0] // 4, 4, groups.shape[1]))


def _plain(values: Array) -> Array:
    return values


LAYOUTS: Mapping[str, NormLayout] = {
    "layer_norm": NormLayout(
        _plain,
        _plain,
        lambda n, eps: LayerNormParams(n, eps),
        lambda _, n: (n,),
        lambda rows: np.ascontiguousarray(rows.T),
        per_element=True,
    ),
    "batch_norm": NormLayout(
        _batch_arrange,
        _batch_gather,
        lambda _, eps: BatchNormParams(momentum=1.0, eps=eps),
        lambda groups, _: (groups,),
        _batch_arrange,
    ),
    "group_norm": NormLayout(
        _grouped_arrange,
        lambda x: x.reshape(x.shape[0] * 2, -1),
        lambda _, eps: GroupNormParams(2, eps),
        lambda *_: (4,),
        _batch_arrange,
    ),
    "instance_norm": NormLayout(
        _instance_arrange,
        lambda x: x.reshape(x.shape[0] * 4, -1),
        lambda _, eps: InstanceNormParams(eps),
        lambda *_: (4,),
        _batch_arrange,
    ),
}
"""The normalisations that can be fingerprinted."""
