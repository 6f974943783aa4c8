"""NumPy's factorizations of matrices, which LAPACK computes in float32 and float64 only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

FACTORIZATIONS: frozenset[Callable[..., Any]] = frozenset(
    (
        np.linalg.inv, np.linalg.solve, np.linalg.cholesky, np.linalg.det, np.linalg.slogdet, np.linalg.eigh,
        np.linalg.eigvalsh, np.linalg.svd, np.linalg.qr, np.linalg.pinv, np.linalg.lstsq, np.linalg.norm,
        np.linalg.matrix_power, np.linalg.matrix_rank, np.linalg.cond,
    )
)  # fmt: skip
"""Functions that LAPACK may compute."""
REGULAR = 2.0
"""The diagonal of the matrix that stands for one without a factorization, for the shapes of results."""


def factorized(function: Callable[..., Any], operands: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    """The result of a factorization; of operands wider than float64 what LAPACK gives in float64, in their dtype.

    Where the matrix has none, as a singular one has no inverse, the result is NaN.
    """
    wide = [item.dtype for item in operands if is_wide(item)]
    narrowed = [item.astype(np.float64) if is_wide(item) else item for item in operands]
    try:
        result = function(*narrowed, **keywords)
    except np.linalg.LinAlgError:
        result = undefined(function(*map(regular, narrowed), **keywords))
    return widened(result, wide[0]) if wide else result


def is_wide(item: Any) -> bool:
    """Whether an operand has more digits than float64."""
    return isinstance(item, np.ndarray) and item.dtype.kind == "f" and item.dtype.itemsize > 8


def widened(result: Any, dtype: np.dtype[Any]) -> Any:
    """Floating-point results in a dtype."""
    if isinstance(result, tuple):
        return tuple(widened(item, dtype) for item in result)
    return result.astype(dtype) if getattr(result, "dtype", None) == np.float64 else result


def undefined(result: Any) -> Any:
    """NaN in place of all floating-point numbers."""
    if isinstance(result, tuple):
        return tuple(map(undefined, result))
    return result * np.nan if np.asarray(result).dtype.kind == "f" else result


def regular(item: Any) -> Any:
    """Square matrices of the shape of an operand that have every factorization."""
    shape = np.shape(item)
    if len(shape) < 2 or shape[-1] != shape[-2]:
        return item
    return np.broadcast_to(np.eye(shape[-1], dtype=item.dtype) * item.dtype.type(REGULAR), shape)


def perturbed_operand(values: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    """A matrix as LAPACK's error leaves it.

    A backward stable algorithm is exact for a matrix that differs from this one by about a unit roundoff of its largest
    element (N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2002).
    """
    if values.dtype.kind != "f" or not values.size:
        return values
    largest = np.abs(values).max(axis=(-2, -1)[-values.ndim :] if values.ndim else None, keepdims=True)
    shift = rng.uniform(-0.5, 0.5, values.shape) * np.finfo(values.dtype).eps
    return np.asarray(values + np.where(np.isfinite(largest), largest, 0) * shift, values.dtype)
