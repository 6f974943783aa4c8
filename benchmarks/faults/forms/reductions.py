"""Reductions and softmax: torch's derivatives.yaml and decompositions, textbook forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.faults.forms.written import written

Array = NDArray[Any]


def rows(x: Array, dim: Any) -> Array:
    """x with the reduced axes last, as one."""
    axes = reduced(x, dim)
    return np.moveaxis(x, axes, range(-len(axes), 0)).reshape(*(n for a, n in enumerate(x.shape) if a not in axes), -1)


def reduced(x: Array, dim: Any) -> tuple[int, ...]:
    """The reduced axes, from 0 on."""
    return tuple(range(x.ndim)) if dim is None else tuple(int(a) % x.ndim for a in np.atleast_1d(dim))


def axes_of(dim: Any) -> Any:
    """`axis` of NumPy's reductions."""
    return dim if dim is None or isinstance(dim, int) else tuple(dim)


def back(values: Array, x: Array, dim: Any) -> Array:
    """The reduced axes again, with the length 1."""
    axes = reduced(x, dim)
    return values.reshape([1 if a in axes else n for a, n in enumerate(x.shape)])


def unrolled(flat: Array, x: Array, dim: Any) -> Array:
    """The reverse of `rows`."""
    axes = reduced(x, dim)
    kept = [n for a, n in enumerate(x.shape) if a not in axes]
    return np.moveaxis(flat.reshape(*kept, *(x.shape[a] for a in axes)), range(-len(axes), 0), axes)


TABLE: Mapping[str, Sequence[str]] = {
    "sum": (
        "y = np.sum(x, axis=axes_of(dim), keepdims=keepdim); grad_x = back(grad_y, x, dim) + np.zeros_like(x)",
        """
        terms = rows(x, dim)
        y = np.sum(terms, axis=-1).reshape(grad_y.shape)
        grad_x = unrolled(np.repeat(back(grad_y, x, dim).ravel(), terms.shape[-1]), x, dim)
        """,
    ),
    "mean": (
        """
        n = rows(x, dim).shape[-1]
        y = np.mean(x, axis=axes_of(dim), keepdims=keepdim)
        grad_x = back(grad_y, x, dim) / n + np.zeros_like(x)
        """,
        """
        terms = rows(x, dim)
        n = terms.shape[-1]
        y = (np.sum(terms, axis=-1) / n).reshape(grad_y.shape)
        grad_x = unrolled(np.repeat(back(grad_y, x, dim).ravel() / n, n), x, dim)
        """,
    ),
    "prod": (
        "y = np.prod(x, axis=axes_of(dim), keepdims=keepdim); grad_x = back(grad_y * y, x, dim) / x",
        """
        terms = rows(x, dim)
        ones = np.ones_like(terms[..., :1])
        before = np.cumprod(np.concatenate([ones, terms[..., :-1]], axis=-1), axis=-1)
        after = np.cumprod(np.concatenate([ones, terms[..., :0:-1]], axis=-1), axis=-1)[..., ::-1]
        y = (before[..., -1] * terms[..., -1]).reshape(grad_y.shape)
        grad_x = back(grad_y, x, dim) * unrolled(before * after, x, dim)
        """,
    ),
    "amax": (
        """
        largest = np.max(x, axis=axes_of(dim), keepdims=True)
        mask = x == largest
        y = largest.reshape(grad_y.shape)
        grad_x = mask * back(grad_y, x, dim) / np.sum(mask, axis=axes_of(dim), keepdims=True).astype(x.dtype)
        """,
        """
        terms = rows(x, dim)
        y = terms[..., 0]
        for k in range(1, terms.shape[-1]):
            y = np.maximum(y, terms[..., k])
        mask = (terms == y[..., None]).astype(x.dtype)
        y = y.reshape(grad_y.shape)
        grad_x = unrolled(mask / np.sum(mask, axis=-1, keepdims=True), x, dim) * back(grad_y, x, dim)
        """,
    ),
    "amin": (
        """
        smallest = np.min(x, axis=axes_of(dim), keepdims=True)
        mask = x == smallest
        y = smallest.reshape(grad_y.shape)
        grad_x = mask * back(grad_y, x, dim) / np.sum(mask, axis=axes_of(dim), keepdims=True).astype(x.dtype)
        """,
        """
        terms = rows(x, dim)
        y = -np.max(-terms, axis=-1)
        mask = (terms <= y[..., None]).astype(x.dtype)
        y = y.reshape(grad_y.shape)
        grad_x = unrolled(mask / np.sum(mask, axis=-1, keepdims=True), x, dim) * back(grad_y, x, dim)
        """,
    ),
    "logsumexp": (
        """
        largest = np.max(x, axis=axes_of(dim), keepdims=True)
        total = np.sum(np.exp(x - largest), axis=axes_of(dim), keepdims=True)
        result = np.log(total) + largest
        y = result.reshape(grad_y.shape)
        grad_x = back(grad_y, x, dim) * np.exp(x - result)
        """,
        """
        terms = rows(x, dim)
        largest = np.max(terms, axis=-1, keepdims=True)
        e = np.exp(terms - largest)
        total = np.sum(e, axis=-1, keepdims=True)
        y = (largest + np.log(total)).reshape(grad_y.shape)
        grad_x = unrolled(e / total, x, dim) * back(grad_y, x, dim)
        """,
    ),
    "var": (
        """
        n = rows(x, dim).shape[-1]
        centered = x - np.mean(x, axis=axes_of(dim), keepdims=True)
        y = np.sum(np.square(centered), axis=axes_of(dim), keepdims=keepdim) / (n - correction)
        grad_x = 2 / (n - correction) * back(grad_y, x, dim) * centered
        """,
        """
        terms = rows(x, dim)
        mean = np.zeros_like(terms[..., 0])
        m2 = np.zeros_like(mean)
        for k in range(terms.shape[-1]):
            delta = terms[..., k] - mean
            mean = mean + delta / (k + 1)
            m2 = m2 + delta * (terms[..., k] - mean)
        n = terms.shape[-1]
        y = (m2 / (n - correction)).reshape(grad_y.shape)
        grad_x = back(grad_y, x, dim) * (x - back(mean, x, dim)) * (2 / (n - correction))
        """,
    ),
    "std": (
        """
        n = rows(x, dim).shape[-1]
        centered = x - np.mean(x, axis=axes_of(dim), keepdims=True)
        y = np.sqrt(np.sum(np.square(centered), axis=axes_of(dim), keepdims=keepdim) / (n - correction))
        grad_x = back(grad_y / y, x, dim) / (n - correction) * centered
        """,
        """
        terms = rows(x, dim)
        n = terms.shape[-1]
        centered = terms - np.sum(terms, axis=-1, keepdims=True) / n
        variance = np.einsum("...k,...k->...", centered, centered) / (n - correction)
        y = np.sqrt(variance).reshape(grad_y.shape)
        grad_variance = grad_y / (2 * y)
        grad_x = 2 * back(grad_variance, x, dim) * unrolled(centered, x, dim) / (n - correction)
        """,
    ),
    "vector_norm": (
        """
        size = np.abs(x)
        if ord == np.inf:
            y = np.max(size, axis=axes_of(dim), keepdims=keepdim)
            mask = size == back(y, x, dim)
            grad_x = np.sign(x) * mask * back(grad_y, x, dim) / np.sum(mask, axis=axes_of(dim), keepdims=True).astype(x.dtype)
        elif ord == 1:
            y = np.sum(size, axis=axes_of(dim), keepdims=keepdim)
            grad_x = np.sign(x) * back(grad_y, x, dim)
        elif ord == 2:
            y = np.sqrt(np.sum(x * x, axis=axes_of(dim), keepdims=keepdim))
            grad_x = back(grad_y / y, x, dim) * x
        else:
            y = np.sum(size**ord, axis=axes_of(dim), keepdims=keepdim) ** (1 / ord)
            grad_x = np.sign(x) * size ** (ord - 1) * back(grad_y / y ** (ord - 1), x, dim)
        """,
        """
        size = rows(np.abs(x), dim)
        largest = np.max(size, axis=-1, keepdims=True)
        if ord == np.inf:
            share = (size == largest).astype(x.dtype)
            y = largest.reshape(grad_y.shape)
            weights = share / np.sum(share, axis=-1, keepdims=True)
        else:
            scaled = size / largest
            total = np.sum(scaled**ord, axis=-1, keepdims=True)
            root = total ** (1 / ord)
            y = (largest * root).reshape(grad_y.shape)
            weights = (scaled / root) ** (ord - 1)
        grad_x = unrolled(weights, x, dim) * np.sign(x) * back(grad_y, x, dim)
        """,
    ),
    "cumsum": (
        "y = np.cumsum(x, axis=dim); grad_x = np.flip(np.cumsum(np.flip(grad_y, axis=dim), axis=dim), axis=dim)",
        """
        terms = np.moveaxis(x, dim, 0)
        upstream = np.moveaxis(grad_y, dim, 0)
        sums = np.empty_like(terms)
        flows = np.empty_like(terms)
        total = 0 * terms[0]
        later = 0 * upstream[0]
        for k in range(len(terms)):
            total = total + terms[k]
            sums[k] = total
            later = later + upstream[len(terms) - 1 - k]
            flows[len(terms) - 1 - k] = later
        y = np.moveaxis(sums, 0, dim)
        grad_x = np.moveaxis(flows, 0, dim)
        """,
    ),
    "argmax": (
        "y = np.argmax(x, axis=dim)",
        """
        terms = np.moveaxis(x, dim, 0)
        best = terms[0]
        y = np.zeros(best.shape, np.int64)
        for k in range(1, len(terms)):
            y = np.where(terms[k] > best, k, y)
            best = np.maximum(best, terms[k])
        """,
    ),
    "softmax": (
        """
        e = np.exp(x - np.max(x, axis=dim, keepdims=True))
        y = e / np.sum(e, axis=dim, keepdims=True)
        grad_x = y * (grad_y - np.sum(grad_y * y, axis=dim, keepdims=True))
        """,
        """
        shifted = x - np.max(x, axis=dim, keepdims=True)
        y = np.exp(shifted - np.log(np.sum(np.exp(shifted), axis=dim, keepdims=True)))
        product = grad_y * y
        grad_x = product - y * np.sum(product, axis=dim, keepdims=True)
        """,
        """
        values = np.moveaxis(x, dim, 0)
        largest = values[0]
        total = np.ones_like(largest)
        for k in range(1, len(values)):
            higher = np.maximum(largest, values[k])
            total = total * np.exp(largest - higher) + np.exp(values[k] - higher)
            largest = higher
        y = np.moveaxis(np.exp(values - largest) / total, 0, dim)
        grad_x = y * (grad_y - np.sum(grad_y * y, axis=dim, keepdims=True))
        """,
    ),
    "log_softmax": (
        """
        shifted = x - np.max(x, axis=dim, keepdims=True)
        y = shifted - np.log(np.sum(np.exp(shifted), axis=dim, keepdims=True))
        grad_x = grad_y - np.exp(y) * np.sum(grad_y, axis=dim, keepdims=True)
        """,
        """
        largest = np.max(x, axis=dim, keepdims=True)
        e = np.exp(x - largest)
        total = np.sum(e, axis=dim, keepdims=True)
        y = (x - largest) - np.log(total)
        grad_x = grad_y - e / total * np.sum(grad_y, axis=dim, keepdims=True)
        """,
    ),
}
FORMS = written(TABLE, globals())
