"""Functions with the same name in most frameworks; an adapter overrides those that differ in its framework."""

from __future__ import annotations

from typing import Any

from parity.adapters.base import Adapter


class FunctionsAdapter(Adapter):
    """Elementwise functions and softmax; `math` is the framework's module of functions, `nn` that of activations."""

    math: Any
    nn: Any

    def relu(self, x: Any) -> Any:
        return self.nn.relu(x)

    def leaky_relu(self, x: Any, negative_slope: float = 0.01) -> Any:
        return self.nn.leaky_relu(x, negative_slope)

    def elu(self, x: Any, alpha: float = 1.0) -> Any:
        return self.nn.elu(x, alpha)

    def selu(self, x: Any) -> Any:
        return self.nn.selu(x)

    def silu(self, x: Any) -> Any:
        return self.nn.silu(x)

    def softsign(self, x: Any) -> Any:
        return self.nn.softsign(x)

    def sigmoid(self, x: Any) -> Any:
        return self.nn.sigmoid(x)

    def softmax(self, x: Any, dim: int = -1) -> Any:
        return self.nn.softmax(x, dim)

    def log_softmax(self, x: Any, dim: int = -1) -> Any:
        return self.nn.log_softmax(x, dim)

    def tanh(self, x: Any) -> Any:
        return self.math.tanh(x)

    def exp(self, x: Any) -> Any:
        return self.math.exp(x)

    def expm1(self, x: Any) -> Any:
        return self.math.expm1(x)

    def log(self, x: Any) -> Any:
        return self.math.log(x)

    def log1p(self, x: Any) -> Any:
        return self.math.log1p(x)

    def sqrt(self, x: Any) -> Any:
        return self.math.sqrt(x)

    def rsqrt(self, x: Any) -> Any:
        return self.math.rsqrt(x)

    def erf(self, x: Any) -> Any:
        return self.math.erf(x)

    def abs(self, x: Any) -> Any:
        return self.math.abs(x)

    def sin(self, x: Any) -> Any:
        return self.math.sin(x)

    def cos(self, x: Any) -> Any:
        return self.math.cos(x)

    def round(self, x: Any) -> Any:
        return self.math.round(x)

    def maximum(self, x: Any, other: Any) -> Any:
        return self.math.maximum(x, other)

    def minimum(self, x: Any, other: Any) -> Any:
        return self.math.minimum(x, other)

    def where(self, condition: Any, x: Any, other: Any) -> Any:
        return self.math.where(condition != 0, x, other)

    def matmul(self, x: Any, other: Any) -> Any:
        return self.math.matmul(x, other)

    def cumsum(self, x: Any, dim: int = -1) -> Any:
        return self.math.cumsum(x, dim)


class NumpyStyleAdapter(FunctionsAdapter):
    """Functions under NumPy's names."""

    def outer(self, x: Any, other: Any) -> Any:
        return self.math.outer(x, other)

    def einsum(self, x: Any, other: Any, equation: str) -> Any:
        return self.math.einsum(equation, x, other)

    def roll(self, x: Any, shifts: Any, dims: Any = None) -> Any:
        return self.math.roll(x, shifts, dims)

    def index_select(self, x: Any, index: Any, dim: int) -> Any:
        return self.math.take(x, index, axis=dim)

    def pow(self, x: Any, exponent: float = 2.0) -> Any:
        return self.math.power(x, exponent)

    def clamp(self, x: Any, min: Any = None, max: Any = None) -> Any:  # noqa: A002 - PyTorch's names
        return self.math.clip(x, min, max)

    def remainder(self, x: Any, other: Any) -> Any:
        return self.math.remainder(x, other)

    def atan2(self, x: Any, other: Any) -> Any:
        return self.math.arctan2(x, other)

    def sum(self, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        return self.math.sum(x, dim, keepdims=keepdim)

    def mean(self, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        return self.math.mean(x, dim, keepdims=keepdim)

    def prod(self, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        return self.math.prod(x, dim, keepdims=keepdim)

    def amax(self, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        return self.math.max(x, dim, keepdims=keepdim)

    def amin(self, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        return self.math.min(x, dim, keepdims=keepdim)

    def logsumexp(self, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        return self.math.logsumexp(x, dim, keepdims=keepdim)

    def argmax(self, x: Any, dim: int = -1) -> Any:
        return self.math.argmax(x, dim)
