"""The inputs that probe a normalisation, and how each op lays out its groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.cases.draw import generator
from parity.cases.norm import BatchNormParams, GroupNormParams, InstanceNormParams, LayerNormParams
from parity.fingerprint.claims import KernelProbe
from parity.fingerprint.precision import PRECISIONS, Precision
from parity.fingerprint.summation import patterns

Array = NDArray[Any]
Float64 = NDArray[np.float64]

GROUPS = 16
"""Of the sweep."""
CHANNELS = 4
DEVIATION = 0.3
N = 1024
TERMS = 256
"""The number of terms in the sums whose order is probed."""
SWEEP_EPS = 2.0**-17
"""Exact in every dtype, so that only the variance can be wrong."""
EPS = 1e-5
MOMENTUM = 0.1
BATCH_MEAN = 0.25
OLD_MEAN = 3.0
COARSE = 2.0**-8
"""Sums of N multiples of it are exact in every dtype and order."""
CONTROL = 3
"""The control scales x by 2**CONTROL, and eps so that nothing else changes."""
CONTROL_OFFSET = 5


@dataclass(frozen=True)
class NormLayout:
    """How one op lays out (groups, n) values; `params(n, eps)` are the op's.

    `groups` is the number of groups in a sample of CHANNELS channels: None if a row is a group (layer_norm), 0 if a
    channel of the whole batch is one (batch_norm).
    """

    params: Callable[[int, float], Any]
    groups: int | None

    @property
    def per_element(self) -> bool:
        """Whether weight and bias belong to the elements of a group, and not to channels."""
        return self.groups is None

    def arrange(self, values: Array) -> Array:
        """(groups, n) as the op's x."""
        if self.groups is None:
            return values
        if self.groups == 0:
            return channels_of_batch(values)
        return as_images(values.reshape(len(values) // self.groups, CHANNELS, -1))

    def gather(self, x: Array) -> Array:
        """The reverse of `arrange`."""
        if self.groups is None:
            return x
        return x.swapaxes(0, 1).reshape(x.shape[1], -1) if self.groups == 0 else x.reshape(len(x) * self.groups, -1)

    def affine_shape(self, groups: int, n: int) -> tuple[int, ...]:
        """The shape of weight and bias."""
        return (n if self.groups is None else CHANNELS if self.groups else groups,)

    def sum_rows(self, rows: Array) -> Array:
        """(channels, terms) as a dy whose sum over `terms`, in memory's order, is the bias' gradient."""
        return np.ascontiguousarray(rows.T) if self.groups is None else channels_of_batch(rows)


def channels_of_batch(values: Array) -> Array:
    """(C, n) to (4, C, h, w)."""
    return np.ascontiguousarray(as_images(values.reshape(len(values), 4, -1).swapaxes(0, 1)))


def as_images(values: Array) -> Array:
    """(..., n) to (..., h, w) with w = 16, or 2 where n is small; n is a power of two."""
    width = 16 if values.shape[-1] >= 64 else 2
    return values.reshape(*values.shape[:-1], -1, width)


NORM_LAYOUTS: Mapping[str, NormLayout] = {
    "layer_norm": NormLayout(LayerNormParams, None),
    "group_norm": NormLayout(lambda _, eps: GroupNormParams(2, eps), 2),
    "instance_norm": NormLayout(lambda _, eps: InstanceNormParams(eps), CHANNELS),
    "batch_norm": NormLayout(lambda _, eps: BatchNormParams(momentum=1.0, eps=eps), 0),
}
"""The normalisations that can be fingerprinted."""


def deviations(precision: Precision, op: str) -> Float64:
    """(GROUPS, N): Gaussian; far from a standard deviation of 1, so that normalising is visible."""
    values = generator(0, "fingerprint", op, precision.name, "x").normal(0.0, DEVIATION, size=(GROUPS, N))
    return on_grid(np.clip(values, -6 * DEVIATION, 6 * DEVIATION), precision.grid(0))


def on_grid(values: Float64, spacing: float) -> Float64:
    """The nearest multiples of a power of two."""
    return np.rint(values / spacing) * spacing


def with_offset(precision: Precision, plain: Float64, exponent: int) -> Float64:
    """(GROUPS, N): `plain` around 2**exponent to 1.9 * 2**exponent, another for each group, exact."""
    fractions = 1.0 + 0.9 * (np.arange(GROUPS) + 0.37) / GROUPS
    spacing = precision.grid(exponent)
    return on_grid(plain, spacing) + on_grid(fractions * 2.0**exponent, spacing)[:, None]


def grad_output(op: str, shape: tuple[int, ...]) -> Float64:
    """`shape` is (groups, n): pairs of neighbours that sum to 0, so that no error of a mean passes through them."""
    values = generator(0, "fingerprint", op, "dy").uniform(0.5, 2.0, size=(shape[0], shape[1] // 2))
    half = PRECISIONS["float32"].rounded(values)
    return np.stack([half, -half], axis=2).reshape(shape)


def sweep_id(exponent: int | None) -> str:
    """The id of the probe whose offsets lie at 2**exponent (None: no offset)."""
    return "sweep-none" if exponent is None else f"sweep-{exponent:02d}"


def norm_probes(op: str, precision: Precision) -> Iterator[KernelProbe]:
    """All probes of a normalisation in one dtype."""
    plain = deviations(precision, op)
    for exponent in (None, *precision.offsets):
        groups = plain if exponent is None else with_offset(precision, plain, exponent)
        yield norm_probe(op, sweep_id(exponent), groups, SWEEP_EPS)
    scales = 2.0 ** -np.arange(GROUPS, dtype=np.float64)[:, None]
    yield norm_probe(op, "eps", plain * scales, EPS)
    yield from control_probes(op, with_offset(precision, plain, CONTROL_OFFSET))
    for size in ("huge", "immense"):
        rows = patterns(TERMS, getattr(precision, size))
        rows = np.concatenate([rows, rows[: -len(rows) % 4]])
        yield norm_probe(op, f"mean-{size}", rows, SWEEP_EPS)
        yield bias_probe(op, f"bias-{size}", rows)
    if op == "batch_norm":
        yield running_probe(op, plain)


def norm_probe(op: str, name: str, groups: Float64, eps: float) -> KernelProbe:
    """Weight 1 and bias 0, so that the affine step is exact; `groups` is (groups, n)."""
    layout = NORM_LAYOUTS[op]
    shape = layout.affine_shape(*groups.shape)
    tensors = {"x": layout.arrange(groups), "weight": np.ones(shape), "bias": np.zeros(shape)}
    tensors["grad.y"] = layout.arrange(grad_output(op, groups.shape))
    if op == "batch_norm":
        tensors |= {"running_mean": np.zeros(shape), "running_var": np.zeros(shape)}
    return KernelProbe(name, op, layout.params(groups.shape[1], eps), tensors)


def control_probes(op: str, groups: Float64) -> Iterator[KernelProbe]:
    """One input, and twice the same scaled by a power of two, with eps scaled as the variance or as its root."""
    scale = 2.0**CONTROL
    yield norm_probe(op, "control", groups, SWEEP_EPS)
    yield norm_probe(op, "control-variance", groups * scale, SWEEP_EPS * scale * scale)
    yield norm_probe(op, "control-deviation", groups * scale, SWEEP_EPS * scale)


def bias_probe(op: str, name: str, rows: Float64) -> KernelProbe:
    """`rows` (channels, terms) are the rows of grad_output that the bias' gradient sums."""
    layout = NORM_LAYOUTS[op]
    dy = layout.sum_rows(rows)
    channels = (dy.shape[1],)
    x = np.resize([0.0, 1.0, -1.0, 2.0, -2.0], dy.shape)
    tensors = {"x": x, "weight": np.ones(channels), "bias": np.zeros(channels)}
    if op == "batch_norm":
        tensors |= {"running_mean": np.zeros(channels), "running_var": np.ones(channels)}
    return KernelProbe(name, op, layout.params(channels[0], SWEEP_EPS), {**tensors, "grad.y": dy})


def running_probe(op: str, plain: Float64) -> KernelProbe:
    """Half of the channels have a batch mean and no running mean, half the reverse; all means are exact."""
    mirrored = np.concatenate([plain[:, : N // 2], -plain[:, : N // 2]], axis=1)
    first = np.arange(GROUPS) < GROUPS // 2
    mirrored = on_grid(mirrored, COARSE)
    probe = norm_probe(op, "running", mirrored + np.where(first, BATCH_MEAN, 0.0)[:, None], SWEEP_EPS)
    old = {"running_mean": np.where(first, 0.0, OLD_MEAN), "running_var": np.zeros(GROUPS)}
    return replace(probe, params=replace(probe.params, momentum=MOMENTUM), tensors={**probe.tensors, **old})
