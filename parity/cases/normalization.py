"""The lines that the normalisations share: statistics, normalising, affine, with their knobs.

A knob is a keyword argument whose default is what PyTorch documents; another value is a hypothesis about a kernel.
All of it is plain NumPy through HIPS autograd, so forward and gradients come from the same lines in float32, float64
and longdouble.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import autograd.numpy as anp
from autograd.tracer import getval

from parity.cases.draw import Shape, Uniform
from parity.cases.op import CaseError, Input, require_shape
from parity.cases.summation import total

Axes = tuple[int, ...]

WEIGHT = Input("weight", default=Uniform(0.5, 1.5), differentiable=True, optional=True)
BIAS = Input("bias", default=Uniform(-1.0, 1.0), differentiable=True, optional=True)
X = Input("x", differentiable=True)


def statistics(x: Any, axes: Axes, *, variance: str = "two-pass", ddof: int = 0) -> tuple[Any, Any]:
    """Mean and variance over `axes`, kept as axes of length 1.

    `variance`: `two-pass` is mean((x - m)^2), `naive` is mean(x^2) - m^2 (Chan, Golub, LeVeque 1983).
    `ddof`: what is subtracted from n in the variance's divisor.
    """
    n = count(getval(x).shape, axes)
    mean = total(x, axes) / n
    if variance == "two-pass":
        var = total((x - mean) ** 2, axes) / n
    elif variance == "naive":
        var = total(x * x, axes) / n - mean * mean
    else:
        raise ValueError(f"unknown variance algorithm {variance!r}")
    return mean, var * unbiasing(n, ddof, getval(x).dtype)


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


def standardize(x: Any, mean: Any, var: Any, eps: float, *, eps_placement: str = "inside") -> Any:
    """(x - mean) / sqrt(var + eps); `eps_placement="outside"` is (x - mean) / (sqrt(var) + eps)."""
    epsilon = getval(x).dtype.type(eps)
    if eps_placement == "inside":
        return (x - mean) / anp.sqrt(var + epsilon)
    if eps_placement == "outside":
        return (x - mean) / (anp.sqrt(var) + epsilon)
    raise ValueError(f"unknown eps placement {eps_placement!r}")


def normalize(
    x: Any,
    axes: Axes,
    eps: float,
    *,
    variance: str = "two-pass",
    ddof: int = 0,
    eps_placement: str = "inside",
    detached_statistics: bool = False,
) -> Any:
    """`x` normalised over `axes`; `detached_statistics` lets no gradient flow through mean and variance."""
    source = getval(x) if detached_statistics else x
    mean, var = statistics(source, axes, variance=variance, ddof=ddof)
    return standardize(x, mean, var, eps, eps_placement=eps_placement)


def affine(xhat: Any, weight: Any | None, bias: Any | None, *, affine_order: str = "weight-first") -> Any:
    """xhat * weight + bias; `affine_order="bias-first"` is (xhat + bias) * weight. Either may be absent."""
    if affine_order not in ("weight-first", "bias-first"):
        raise ValueError(f"unknown affine order {affine_order!r}")
    if affine_order == "bias-first" and bias is not None:
        xhat, bias = xhat + bias, None
    scaled = xhat if weight is None else xhat * weight
    return scaled if bias is None else scaled + bias


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
