"""The lines that the normalisations share: statistics, normalising, affine, with their knobs.

A knob is a keyword argument whose default is what PyTorch documents; another value is a hypothesis about a kernel.
All of it is plain NumPy through HIPS autograd, so forward and gradients come from the same lines in float32, float64
and longdouble.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd.tracer import getval
from numpy.typing import NDArray

from parity.cases.draw import Shape, Uniform
from parity.cases.exact.summation import total
from parity.cases.op import CaseError, Fit, Input, Knob, require_shape

Axes = tuple[int, ...]

WEIGHT = Input("weight", default=Uniform(0.5, 1.5), differentiable=True, optional=True)
BIAS = Input("bias", default=Uniform(-1.0, 1.0), differentiable=True, optional=True)
X = Input("x", differentiable=True)


def statistics(
    x: Any,
    axes: Axes,
    *,
    variance: str = "two-pass",
    ddof: int = 0,
    variance_sum: bool = False,
    errors: tuple[Any, Any] = (0, 0),
) -> tuple[Any, Any]:
    """Mean and variance over `axes`, kept as axes of length 1.

    `variance`: `two-pass` is mean((x - m)^2), `naive` is mean(x^2) - m^2 (Chan, Golub, LeVeque 1983), `naive-clamped`
    the same and at least 0, `welford` has the errors of both moments that updating them one by one makes. `ddof`: what
    is subtracted from n in the variance's divisor. `variance_sum`: the variance is not divided by n at all. `errors`
    are added to mean and variance.
    """
    n, dtype = count(getval(x).shape, axes), getval(x).dtype
    mean = total(x, axes) / n
    if variance in ("two-pass", "welford"):
        var = total((x - mean) ** 2, axes) / n
        if variance == "welford":
            updated = welford(getval(x), axes)
            mean, var = mean + (updated[0] - getval(mean)), var + (updated[1] - getval(var))
    elif variance in ("naive", "naive-clamped"):
        var = total(x * x, axes) / n - mean * mean
        var = anp.maximum(var, 0) if variance == "naive-clamped" else var
    else:
        raise ValueError(f"unknown variance algorithm {variance!r}")
    var = var * (n if variance_sum else unbiasing(n, ddof, dtype))
    return mean + errors[0], var + errors[1]


@dataclass(frozen=True)
class Implied:
    """Exact mean and variance of each group of `n` elements, and the errors of both that an output implies."""

    n: int
    mean: NDArray[Any]
    variance: NDArray[Any]
    mean_error: NDArray[Any]
    variance_error: NDArray[Any]


def implied_statistics(x: Any, y: Any, axes: Axes, eps: float, weight: Any | None, bias: Any | None) -> Implied | None:
    """What mean and variance a kernel must have had to return `y` for `x`, by least squares in each group.

    y - bias = weight * ((x - mean) * scale + shift): scale is 1 / sqrt(variance + eps) as the kernel had it, and
    -shift / scale the error of its mean. All arrays broadcast over `x`. None where a group has no spread.
    """
    mean, variance = statistics(x, axes)
    gain = np.broadcast_to(np.asarray(1 if weight is None else weight, x.dtype), x.shape)
    deviation, rest = (x - mean) * gain, y - (0 if bias is None else bias)
    a, b, c = (np.sum(v, axes, keepdims=True) for v in (deviation * deviation, deviation * gain, gain * gain))
    d, e = (np.sum(v, axes, keepdims=True) for v in (deviation * rest, gain * rest))
    determinant = a * c - b * b
    if not np.all(determinant > 0):
        return None
    scale, shift = (c * d - b * e) / determinant, (a * e - b * d) / determinant
    if not np.all(scale > 0):
        return None
    return Implied(count(x.shape, axes), mean, variance, -shift / scale, 1 / (scale * scale) - (variance + eps))


def welford(x: NDArray[Any], axes: Axes) -> tuple[NDArray[Any], NDArray[Any]]:
    """Mean and variance by Welford's updates (1962), in the dtype of `x`.

    Of more than MAX_UPDATES elements the updates are made for so many, evenly spaced. The errors that they make, as a
    random walk does, grow with the root of n, and so they are added to the moments of all elements.
    """
    n = count(x.shape, axes)
    rows = np.moveaxis(x, axes, range(len(axes))).reshape(n, -1)
    some = rows[:: -(-n // MAX_UPDATES)]
    mean, squares = some[0].copy(), np.zeros_like(some[0])
    for k, row in enumerate(some[1:], start=2):
        delta = row - mean
        mean += delta / x.dtype.type(k)
        squares += delta * (row - mean)
    var = squares / x.dtype.type(len(some))
    if len(some) < n:
        wide = some.astype(np.longdouble)
        grown = (n / len(some)) ** 0.5
        mean_error, var_error = mean - wide.mean(axis=0), var - wide.var(axis=0)
        mean, var = rows.mean(axis=0) + mean_error * grown, rows.var(axis=0) + var_error * grown
    kept = [1 if axis in axes else length for axis, length in enumerate(x.shape)]
    return mean.astype(x.dtype).reshape(kept), var.astype(x.dtype).reshape(kept)


MAX_UPDATES = 2048


def unbiasing(n: int, ddof: int, dtype: Any) -> Any:
    """n / (n - ddof) in `dtype`; nan for n == ddof, where the unbiased variance does not exist."""
    divisor = n - ddof
    return dtype.type(n) / dtype.type(divisor) if divisor else dtype.type("nan")


def count(shape: Shape, axes: Axes) -> int:
    """How many elements one mean over `axes` takes."""
    n = 1
    for axis in axes:
        n *= shape[axis]
    return n


def normalize(
    x: Any, axes: Axes, eps: float, weight: Any | None, bias: Any | None, *, detached: str = "", **knobs: Any
) -> Any:
    """`x` normalised over `axes`, then weight and bias; the other knobs are those of `statistics` and `apply`.

    `detached`: `mean`, `variance` or `both` get no gradient.
    """
    own = {name: knobs.pop(name) for name in STATISTICS_KNOBS & knobs.keys()}
    return apply(x, detach(statistics(x, axes, **own), detached), eps, weight, bias, **knobs)


STATISTICS_KNOBS = frozenset(("variance", "ddof", "variance_sum", "errors"))


def apply(
    x: Any,
    moments: tuple[Any, Any],
    eps: float,
    weight: Any | None,
    bias: Any | None,
    *,
    eps_placement: str = "inside",
    centered: bool = True,
    root_mean_square: bool = False,
    folded: bool = False,
    affine_order: str = "weight-first",
) -> Any:
    """(x - mean) / sqrt(var + eps) * weight + bias.

    `eps_placement="outside"` divides by sqrt(var) + eps; `centered=False` does not subtract the mean, with
    `root_mean_square` the variance does not know of it either (Zhang, Sennrich 2019); `folded` is
    x * scale + (bias - mean * scale); `affine_order="bias-first"` is (xhat + bias) * weight.
    """
    mean, var = moments
    if root_mean_square:
        mean, var = 0 * getval(mean), var + mean * mean
    deviation = deviation_of(var, getval(x).dtype.type(eps), eps_placement)
    if folded and not centered:
        raise ValueError("what is folded subtracts the mean")
    if folded:
        scale = 1 / deviation if weight is None else weight / deviation
        return x * scale + (-mean * scale if bias is None else bias - mean * scale)
    return affine((x - mean if centered else x) / deviation, weight, bias, affine_order=affine_order)


def deviation_of(var: Any, eps: Any, eps_placement: str) -> Any:
    """The standard deviation with `eps` in it, `inside` or `outside` the root."""
    if eps_placement == "inside":
        return anp.sqrt(var + eps)
    if eps_placement == "outside":
        return anp.sqrt(var) + eps
    raise ValueError(f"unknown eps placement {eps_placement!r}")


def detach(pair: tuple[Any, Any], which: str) -> tuple[Any, Any]:
    """Mean and variance, of which `mean`, `variance` or `both` are taken for constants by the gradient."""
    if which not in ("", "mean", "variance", "both"):
        raise ValueError(f"cannot detach {which!r}")
    mean, var = pair
    return getval(mean) if which in ("mean", "both") else mean, getval(var) if which in ("variance", "both") else var


def affine(xhat: Any, weight: Any | None, bias: Any | None, *, affine_order: str = "weight-first") -> Any:
    """xhat * weight + bias; `affine_order="bias-first"` is (xhat + bias) * weight. Either may be absent."""
    if affine_order not in ("weight-first", "bias-first"):
        raise ValueError(f"unknown affine order {affine_order!r}")
    if affine_order == "bias-first" and bias is not None:
        xhat, bias = xhat + bias, None
    scaled = xhat if weight is None else xhat * weight
    return scaled if bias is None else scaled + bias


EPSILONS = (0.0, 1e-12, 1e-8, 1e-7, 1e-6, 1e-5, 1e-3, 1e-2)
"""What frameworks and models use: BERT 1e-12, Flax 1e-6, PyTorch 1e-5, Keras 1e-3."""


def norm_knobs(params: Any, shapes: Mapping[str, Shape], other_axes: Sequence[Axes]) -> tuple[Knob, ...]:
    """The hypotheses that all normalisations share; `other_axes` may be taken for the right ones."""
    spread = "several rows of different variance, some of it not far above eps"
    epsilons = [value for value in (*EPSILONS, 2 * params.eps) if value != params.eps]
    affine_inputs = [name for name in ("weight", "bias") if name in shapes]
    return (
        Knob("variance-ddof", {"ddof": 1}, told_by="few elements in a mean: n - 1 is then far from n"),
        Knob("mean-vs-sum", {"variance_sum": True}, told_by="more than one element in a mean"),
        Knob("eps-placement", {"eps_placement": "outside"}, told_by=spread),
        *(Knob("eps-value", params={"eps": value}, told_by=spread) for value in dict.fromkeys(epsilons)),
        Knob("affine-order", {"affine_order": "bias-first"}, told_by="a weight that is not 1 and a bias that is not 0"),
        *(Knob("affine-missing", absent=(name,), told_by="a weight not 1, a bias not 0") for name in affine_inputs),
        *(Knob("detached-statistics", {"detached": which}, told_by=UPSTREAM) for which in ("both", "mean", "variance")),
        Knob("mean-not-subtracted", {"centered": False}, told_by="a mean that is not 0"),
        Knob("mean-not-subtracted", {"root_mean_square": True}, told_by="a mean that is not 0"),
        *(Knob("wrong-axis", {"axes": axes}, told_by="axes of different lengths") for axes in other_axes),
        Knob("variance-naive", {"variance": "naive"}, unstable=True, told_by=OFFSET),
        Knob("variance-naive", {"variance": "naive-clamped"}, unstable=True, told_by=OFFSET),
        Knob("affine-folding", {"folded": True}, unstable=True, told_by=OFFSET),
    )


def channel_axes(rank: int, right: Axes) -> list[Axes]:
    """What a kernel for (N, C, *spatial) may normalise over instead of `right`."""
    spatial = tuple(range(2, rank))
    candidates = [(0, *spatial), (1, *spatial), spatial, (0,), (1,), (rank - 1,), tuple(range(rank))]
    return [axes for axes in dict.fromkeys(candidates) if axes and axes != right]


UPSTREAM = "an upstream gradient that is not constant"
OFFSET = (
    "an offset of x that is large beside its spread, up to where its square times the unit roundoff is its variance"
)
EPS = Fit("eps-value", "eps", lambda params: params.eps, told_by="rows of different variance")
CAREFUL = ({"variance": "welford"},)
TERMS = {"detached": "both", "centered": False}


def per_channel(values: Any | None, rank: int) -> Any | None:
    """A (C,) tensor shaped (1, C, 1, ...) so that it broadcasts over an input of `rank` axes."""
    return None if values is None else anp.reshape(values, (1, -1) + (1,) * (rank - 2))


def channel_shapes(x: Shape, given: Mapping[str, Shape], *names: str) -> dict[str, Shape]:
    """The shapes of the per-channel tensors `names`: (C,) each, checked against what the config states."""
    why = f"x with {x[1]} channels"
    return {name: require_shape(given, name, (x[1],), why) for name in names}


def require_positive(eps: float) -> None:
    """Refuses an eps that is negative or not finite."""
    if not (0.0 <= eps < float("inf")):
        raise CaseError("params.eps", f"eps must be a finite number >= 0, not {eps}")
