"""Elementwise ops: torch's ATen kernels and decompositions, jax.nn, textbook forms, with their derivatives by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np  # noqa: F401 - the statements below use it

from benchmarks.faults.forms.activations import erf  # noqa: F401 - and this
from benchmarks.faults.forms.written import written

SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805
"""Klambauer et al. 2017, arXiv:1706.02515."""
INVERSE_ROOT_PI = 1 / math.sqrt(math.pi)

TABLE: Mapping[str, Sequence[str]] = {
    "leaky_relu": (
        "y = np.where(x > 0, x, negative_slope * x); grad_x = np.where(x > 0, grad_y, negative_slope * grad_y)",
        """
        y = np.maximum(x, 0) + negative_slope * np.minimum(x, 0)
        grad_x = grad_y * ((x > 0) + negative_slope * (x <= 0))
        """,
    ),
    "elu": (
        "y = np.where(x > 0, x, alpha * np.expm1(x)); grad_x = np.where(x > 0, grad_y, grad_y * alpha * np.exp(x))",
        """
        below = np.minimum(x, 0)
        y = np.maximum(x, 0) + alpha * np.expm1(below)
        slope = np.where(x > 0, 1.0, alpha).astype(x.dtype)
        grad_x = grad_y * slope * np.exp(below)
        """,
    ),
    "selu": (
        """
        y = SELU_SCALE * np.where(x > 0, x, SELU_ALPHA * np.expm1(x))
        grad_x = grad_y * SELU_SCALE * np.where(x > 0, 1, SELU_ALPHA * np.exp(x))
        """,
        """
        below = np.minimum(x, 0)
        y = SELU_SCALE * np.maximum(x, 0) + SELU_SCALE * SELU_ALPHA * np.expm1(below)
        grad_x = np.where(x > 0, grad_y * SELU_SCALE, grad_y * (SELU_SCALE * SELU_ALPHA) * np.exp(below))
        """,
    ),
    "celu": (
        """
        y = np.where(x > 0, x, alpha * np.expm1(x / alpha))
        grad_x = np.where(x > 0, grad_y, grad_y * np.exp(x / alpha))
        """,
        """
        below = np.minimum(x, 0)
        y = np.maximum(x, 0) + np.minimum(alpha * np.expm1(below / alpha), 0)
        grad_x = grad_y * np.exp(below / alpha)
        """,
    ),
    "mish": (
        """
        softplus = np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))
        t = np.tanh(softplus)
        y = x * t
        sigmoid = 1 / (1 + np.exp(-x))
        grad_x = grad_y * (t + x * sigmoid * (1 - t * t))
        """,
        """
        e = np.exp(x)
        n = e * (e + 2)
        y = x * n / (n + 2)
        sigmoid = e / (1 + e)
        grad_x = grad_y * (n / (n + 2) + x * sigmoid * 4 * (n + 1) / np.square(n + 2))
        """,
    ),
    "softplus": (
        """
        scaled = beta * x
        y = np.where(scaled > threshold, x, np.log1p(np.exp(scaled)) / beta)
        z = np.exp(scaled)
        grad_x = np.where(scaled > threshold, grad_y, grad_y * z / (z + 1))
        """,
        """
        scaled = beta * x
        smooth = (np.maximum(scaled, 0) + np.log1p(np.exp(-np.abs(scaled)))) / beta
        y = np.where(scaled <= threshold, smooth, x)
        grad_x = np.where(scaled <= threshold, grad_y / (1 + np.exp(-scaled)), grad_y)
        """,
    ),
    "softsign": (
        "y = x / (1 + np.abs(x)); grad_x = grad_y / np.square(1 + np.abs(x))",
        "d = np.abs(x) + 1; y = x / d; grad_x = grad_y / d / d",
    ),
    "hardswish": (
        """
        y = x * np.minimum(np.maximum(x + 3, 0), 6) / 6
        grad_x = np.where(x < -3, 0, np.where(x <= 3, grad_y * (x / 3 + 0.5), grad_y))
        """,
        """
        gate = np.clip(x / 6 + 0.5, 0, 1)
        y = x * gate
        grad_x = grad_y * (gate + x * (np.abs(x) < 3) / 6)
        """,
    ),
    "hardsigmoid": (
        "y = np.minimum(np.maximum(x + 3, 0), 6) / 6; grad_x = np.where(np.abs(x) < 3, grad_y / 6, 0)",
        "y = np.clip(x / 6 + 0.5, 0, 1); grad_x = grad_y * (x > -3) * (x < 3) / 6",
    ),
    "hardtanh": (
        "y = np.minimum(np.maximum(x, min_val), max_val); grad_x = grad_y * (x > min_val) * (x < max_val)",
        """
        low = x <= min_val
        high = x >= max_val
        y = np.where(low, min_val, np.where(high, max_val, x))
        grad_x = np.where(low | high, 0, grad_y)
        """,
    ),
    "logsigmoid": (
        "y = np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x))); grad_x = grad_y / (1 + np.exp(x))",
        """
        z = np.exp(-np.abs(x))
        y = np.where(x < 0, x, 0) - np.log1p(z)
        grad_x = grad_y * np.where(x < 0, 1, z) / (1 + z)
        """,
    ),
    "exp": ("y = np.exp(x); grad_x = grad_y * y", "half = np.exp(x / 2); y = half * half; grad_x = grad_y * np.exp(x)"),
    "expm1": (
        "y = np.expm1(x); grad_x = grad_y * np.exp(x)",
        """
        e = np.exp(x)
        y = np.where(e == 1, x, np.where(np.abs(x) < 0.5, (e - 1) * x / np.log(e), e - 1))
        grad_x = grad_y * e
        """,
    ),
    "log": ("y = np.log(x); grad_x = grad_y / x", "y = np.log2(x) * math.log(2.0); grad_x = grad_y * (1 / x)"),
    "log1p": (
        "y = np.log1p(x); grad_x = grad_y / (1 + x)",
        """
        u = 1 + x
        y = np.where(u == 1, x, np.log(u) * x / (u - 1))
        grad_x = grad_y * (1 / u)
        """,
    ),
    "sqrt": ("y = np.sqrt(x); grad_x = grad_y / (2 * y)", "y = x**0.5; grad_x = 0.5 * grad_y * x**-0.5"),
    "rsqrt": (
        "y = 1 / np.sqrt(x); grad_x = -0.5 * grad_y * y * y * y",
        "y = np.sqrt(1 / x); grad_x = -0.5 * grad_y * y / x",
    ),
    "erf": (
        "y = erf(x); grad_x = 2 * INVERSE_ROOT_PI * grad_y * np.exp(-x * x)",
        """
        y = np.sign(x) * erf(np.abs(x))
        grad_x = grad_y * INVERSE_ROOT_PI * 2 / np.exp(np.square(x))
        """,
    ),
    "abs": (
        "y = np.abs(x); grad_x = grad_y * np.sign(x)",
        "y = np.where(x < 0, -x, x); grad_x = np.where(x < 0, -grad_y, np.where(x > 0, grad_y, 0))",
    ),
    "sin": (
        "y = np.sin(x); grad_x = grad_y * np.cos(x)",
        "turned = np.exp(1j * x); y = turned.imag; grad_x = grad_y * turned.real",
    ),
    "cos": (
        "y = np.cos(x); grad_x = -grad_y * np.sin(x)",
        "turned = np.exp(1j * x); y = turned.real; grad_x = -grad_y * turned.imag",
    ),
    "pow": (
        "y = x**exponent; grad_x = grad_y * (exponent * x ** (exponent - 1))",
        "y = np.power(x, exponent); grad_x = exponent * grad_y * y / x",
    ),
    "clamp": (
        """
        low = -math.inf if min is None else min
        high = math.inf if max is None else max
        y = np.minimum(np.maximum(x, low), high)
        grad_x = grad_y * (x >= low) * (x <= high)
        """,
        """
        y = x
        inside = np.ones_like(x)
        if min is not None:
            y = np.where(y < min, min, y)
            inside = inside * (x >= min)
        if max is not None:
            y = np.where(y > max, max, y)
            inside = inside * (x <= max)
        grad_x = grad_y * inside
        """,
    ),
    "round": (
        "y = np.rint(x); grad_x = np.zeros_like(grad_y)",
        """
        below = np.floor(x)
        even = 2 * np.floor(below / 2 + 0.5)
        share = x - below
        y = np.where(share < 0.5, below, np.where(share > 0.5, below + 1, even))
        grad_x = 0 * grad_y
        """,
    ),
    "remainder": (
        "y = np.mod(x, other); grad_x = grad_y + 0; grad_other = -grad_y * np.floor(x / other)",
        """
        rest = np.fmod(x, other)
        y = np.where((rest != 0) & ((rest < 0) != (other < 0)), rest + other, rest)
        grad_x = grad_y.copy()
        grad_other = -np.floor_divide(x, other) * grad_y
        """,
    ),
    "fmod": (
        "y = np.fmod(x, other); grad_x = grad_y + 0; grad_other = -grad_y * np.trunc(x / other)",
        """
        size = np.abs(other)
        y = np.copysign(np.mod(np.abs(x), size), x)
        quotient = np.sign(x) * np.sign(other) * np.floor(np.abs(x) / size)
        grad_x = grad_y.copy()
        grad_other = -quotient * grad_y
        """,
    ),
    "atan2": (
        """
        y = np.arctan2(x, other)
        d = x * x + other * other
        grad_x = grad_y * other / d
        grad_other = -grad_y * x / d
        """,
        """
        y = np.angle(other + 1j * x)
        r = np.hypot(x, other)
        grad_x = grad_y * (other / r) / r
        grad_other = grad_y * -(x / r) / r
        """,
    ),
    "maximum": (
        """
        y = np.maximum(x, other)
        grad_x = np.where(x == other, grad_y / 2, grad_y) * (x >= other)
        grad_other = np.where(x == other, grad_y / 2, grad_y) * (x <= other)
        """,
        """
        share = (x > other) + 0.5 * (x == other)
        y = np.where(x > other, x, other)
        grad_x = (grad_y * share).astype(x.dtype)
        grad_other = (grad_y * (1 - share)).astype(x.dtype)
        """,
    ),
    "minimum": (
        """
        y = np.minimum(x, other)
        grad_x = np.where(x == other, grad_y / 2, grad_y) * (x <= other)
        grad_other = np.where(x == other, grad_y / 2, grad_y) * (x >= other)
        """,
        """
        share = (x < other) + 0.5 * (x == other)
        y = np.where(x < other, x, other)
        grad_x = (grad_y * share).astype(x.dtype)
        grad_other = (grad_y * (1 - share)).astype(x.dtype)
        """,
    ),
    "where": (
        """
        y = np.where(condition, x, other)
        grad_x = np.where(condition, grad_y, 0)
        grad_other = np.where(condition, 0, grad_y)
        """,
        """
        chosen = condition != 0
        y = other.copy()
        y[chosen] = x[chosen]
        grad_x = grad_y * chosen
        grad_other = grad_y * ~chosen
        """,
    ),
    "dropout": (
        "y = x.copy(); grad_x = grad_y.copy()",
        """
        scale = 1.0 / (1.0 - p) if training and p < 1 else 1.0
        y = x * scale
        grad_x = grad_y * scale
        """,
    ),
}
FORMS = written(TABLE, globals())
