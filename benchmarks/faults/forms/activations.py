"""Activations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Tensors = Mapping[str, Array]


def erf(x: Array) -> Array:
    """The error function, element by element in double, rounded to the dtype of x."""
    return np.vectorize(math.erf, otypes=[np.float64])(x).astype(x.dtype)


def erfc(x: Array) -> Array:
    """Its complement, likewise."""
    return np.vectorize(math.erfc, otypes=[np.float64])(x).astype(x.dtype)


def relu_maximum(x: Array, grad_y: Array) -> Tensors:
    """jax.nn.relu: the maximum with 0, whose gradient at 0 is 0."""
    y = np.maximum(x, 0)
    grad_x = grad_y * (x > 0)
    return {"y": y, "grad.x": grad_x}


def relu_where(x: Array, grad_y: Array) -> Tensors:
    """torch's threshold_backward: asks the output."""
    y = np.where(x > 0, x, 0)
    grad_x = np.where(y > 0, grad_y, 0)
    return {"y": y, "grad.x": grad_x}


def relu_absolute(x: Array, grad_y: Array) -> Tensors:
    """Half of x + |x|."""
    y = 0.5 * (x + np.abs(x))
    grad_x = grad_y * np.heaviside(x, 0)
    return {"y": y, "grad.x": grad_x}


def gelu_textbook(x: Array, grad_y: Array, approximate: str) -> Tensors:
    """Hendrycks and Gimpel 2016: x times the distribution function, and its tanh approximation."""
    if approximate == "none":
        cdf = 0.5 * (1.0 + erf(x / math.sqrt(2.0)))
        pdf = np.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)
        y = x * cdf
        grad_x = grad_y * (cdf + x * pdf)
    else:
        inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)
        t = np.tanh(inner)
        y = 0.5 * x * (1.0 + t)
        grad_inner = math.sqrt(2.0 / math.pi) * (1.0 + 3.0 * 0.044715 * x**2)
        grad_x = grad_y * (0.5 * (1.0 + t) + 0.5 * x * (1.0 - t**2) * grad_inner)
    return {"y": y, "grad.x": grad_x}


def gelu_decomposition(x: Array, grad_y: Array, approximate: str) -> Tensors:
    """torch/_refs and torch/_decomp: gelu and gelu_backward, with their constants."""
    m_sqrt2 = 1.41421356237309504880
    m_sqrt1_2 = 0.70710678118654752440
    m_2_sqrtpi = 1.12837916709551257390
    if approximate == "tanh":
        k_beta = m_sqrt2 * m_2_sqrtpi * 0.5
        k_kappa = 0.044715
        x_sq = x * x
        x_cube = x_sq * x
        inner = k_beta * (x + k_kappa * x_cube)
        tanh_inner = np.tanh(inner)
        y = 0.5 * x * (1 + tanh_inner)
        left = 0.5 * x
        right = 1 + tanh_inner
        left_derivative = 0.5 * right
        tanh_derivative = 1 - tanh_inner * tanh_inner
        inner_derivative = k_beta * (1 + 3 * k_kappa * x_sq)
        right_derivative = left * tanh_derivative * inner_derivative
        grad_x = grad_y * (left_derivative + right_derivative)
    else:
        k_alpha = m_sqrt1_2
        k_beta = m_2_sqrtpi * m_sqrt1_2 * 0.5
        cdf = 0.5 * (1 + erf(x * k_alpha))
        y = x * cdf
        pdf = k_beta * np.exp(x * x * -0.5)
        grad_x = grad_y * (cdf + x * pdf)
    return {"y": y, "grad.x": grad_x}


def gelu_sigmoid(x: Array, grad_y: Array, approximate: str) -> Tensors:
    """x * sigmoid(2 u) in place of x / 2 * (1 + tanh(u)), and erfc in place of 1 + erf."""
    if approximate == "tanh":
        u = 0.7978845608028654 * (x + 0.044715 * (x * x * x))
        s = 1.0 / (1.0 + np.exp(-2.0 * u))
        y = x * s
        du = 0.7978845608028654 * (1.0 + 0.134145 * (x * x))
        grad_x = grad_y * (s + 2.0 * x * s * (1.0 - s) * du)
    else:
        half = 0.5 * erfc(-0.7071067811865476 * x)
        y = x * half
        density = 0.3989422804014327 * np.exp(-(x * x) / 2.0)
        grad_x = grad_y * half + grad_y * x * density
    return {"y": y, "grad.x": grad_x}


def tanh_library(x: Array, grad_y: Array) -> Tensors:
    """The library's function; the gradient from the output, as in torch's tanh_backward."""
    y = np.tanh(x)
    grad_x = grad_y * (1.0 - y * y)
    return {"y": y, "grad.x": grad_x}


def tanh_expm1(x: Array, grad_y: Array) -> Tensors:
    """By expm1 of -2|x|, as in Cephes and glibc; the gradient as the square of 1 / cosh."""
    z = -2.0 * np.abs(x)
    e = np.expm1(z)
    y = np.sign(x) * -e / (e + 2.0)
    q = np.exp(-np.abs(x))
    sech = 2.0 * q / (1.0 + q * q)
    grad_x = grad_y * sech * sech
    return {"y": y, "grad.x": grad_x}


def silu_sigmoid(x: Array, grad_y: Array) -> Tensors:
    """jax.nn.silu: x * sigmoid(x)."""
    s = 1.0 / (1.0 + np.exp(-x))
    y = x * s
    grad_x = grad_y * (s + x * s * (1.0 - s))
    return {"y": y, "grad.x": grad_x}


def silu_quotient(x: Array, grad_y: Array) -> Tensors:
    """Liger's and llama.cpp's x / (1 + exp(-x)), the gradient through the output."""
    e = np.exp(-x)
    y = x / (1.0 + e)
    s = 1.0 / (1.0 + e)
    grad_x = grad_y * (s + y * (1.0 - s))
    return {"y": y, "grad.x": grad_x}


def silu_decomposition(x: Array, grad_y: Array) -> Tensors:
    """torch/_decomp: silu_backward."""
    sigmoid = 1 / (1 + np.exp(-x))
    y = x * sigmoid
    grad_x = grad_y * sigmoid * (1 + x * (1 - sigmoid))
    return {"y": y, "grad.x": grad_x}


def sigmoid_textbook(x: Array, grad_y: Array) -> Tensors:
    """1 / (1 + exp(-x)); the gradient from the output."""
    y = 1.0 / (1.0 + np.exp(-x))
    grad_x = grad_y * y * (1.0 - y)
    return {"y": y, "grad.x": grad_x}


def sigmoid_piecewise(x: Array, grad_y: Array) -> Tensors:
    """Never the exponential of a positive number (scipy.special.expit)."""
    e = np.exp(-np.abs(x))
    y = np.where(x >= 0, 1.0 / (1.0 + e), e / (1.0 + e))
    grad_x = grad_y * e / np.square(1.0 + e)
    return {"y": y, "grad.x": grad_x}


def sigmoid_tanh(x: Array, grad_y: Array) -> Tensors:
    """XLA's logistic: half plus half the tanh of half."""
    t = np.tanh(0.5 * x)
    y = 0.5 + 0.5 * t
    grad_x = grad_y * (1.0 - y) * y
    return {"y": y, "grad.x": grad_x}
