"""Matrix products: exact in longdouble up to the last addition, in sequence, or of operands in a lower precision.

Ozaki, Ogita, Oishi, Rump, "Error-free transformations of matrix multiplication by using fast routines of matrix
multiplication and its applications" (Numerical Algorithms 59, 2012): operands are cut into slices so narrow that the
product of two slices has no rounding error in float64, and only the sum of these products is rounded. NumPy's own
longdouble product takes no BLAS, is about ten times as slow, and rounds at every step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
from autograd.extend import defvjp
from numpy.typing import NDArray

from parity.cases.exact.formats import FORMATS, rounded
from parity.cases.program import Program, Ref, Step, primitive

MANTISSA = 53
MAX_CHAINED, MAX_LOOPED = 1 << 28, 1 << 22
"""Products of more multiplications are summed in blocks: each takes einsum 0.1 to 2 ns, and a loop, which can begin
with a matrix, 20 ns."""
HUGE = 2.0**900
"""Slices of larger numbers overflow in float64."""
GEMM_BLOCK = 256
"""Terms in a block; OpenBLAS and MKL sum 192 to 512 before they add to the result."""

Array = NDArray[Any]


@primitive
def matmul(a: Array, b: Array) -> Array:
    """`a @ b` for `a` [..., k] and `b` [k, n], or for two stacks of matrices; sliced in longdouble."""
    if b.ndim == 2 and a.size and b.size and a.dtype == np.longdouble and fits(a) and fits(b):
        return sliced(a, b)
    return np.asarray(np.matmul(a, b))


def fits(matrix: Array) -> bool:
    """Whether slices of a matrix are finite in float64."""
    return bool(np.abs(matrix).max() < HUGE)


def product_shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a product of these shapes."""
    stack = np.broadcast_shapes(a[:-2], b[:-2]) if len(b) > 2 else a[:-2]
    return (*stack, *a[-2:-1], b[-1])


def sliced(a: Array, b: Array) -> Array:
    """The product in longdouble; only the last sum is rounded."""
    left, right = slices(a.reshape(-1, a.shape[-1]), axis=1), slices(b, axis=0)
    total = np.zeros((left[0].shape[0], b.shape[1]), np.longdouble)
    for x, y in product(reversed(left), reversed(right)):
        total += np.matmul(x, y)
    return total.reshape((*a.shape[:-1], b.shape[1]))


def matmul_in_sequence(a: Array, b: Array, start: Any = None, most: int = MAX_CHAINED) -> Array:
    """`a @ b`, each sum one term after the other if that takes at most `most` multiplications; else in blocks.

    With `start` [broadcast to the product's shape] the sums begin with it, as BLAS's gemm does with beta = 1.
    """
    terms = a.size * b.shape[-1]
    if terms <= most and np.ndim(start) < 2:
        return chained(a, b) if start is None else chained(*begun(a, b, start))
    block = 1 if terms <= min(most, MAX_LOOPED) else GEMM_BLOCK
    total = np.zeros((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), *a.shape[-2:-1], b.shape[-1]), a.dtype)
    if start is not None:
        total += start
    for k in range(0, a.shape[-1], block):
        left, right = a[..., k : k + block], b[..., k : k + block, :]
        total += left * right if block == 1 else np.matmul(left, right)
    return total


def begun(a: Array, b: Array, start: Any) -> tuple[Array, Array]:
    """The operands of a product whose sums begin with a row `start`."""
    first = np.broadcast_to(np.asarray(start, b.dtype), (*b.shape[:-2], 1, b.shape[-1]))
    ones = np.ones((*a.shape[:-1], 1), a.dtype)
    return np.concatenate([ones, a], axis=-1), np.concatenate([first, b], axis=-2)


def chained(a: Array, b: Array) -> Array:
    """`a @ b`, each sum one term after the other: einsum does so if the terms are its outermost axis."""
    if b.ndim == 2:
        a, rest = a.reshape(math.prod(a.shape[:-1]), a.shape[-1]), a.shape[:-1]
    if a.shape[-2] == b.shape[-1] == 1 <= a.shape[-1]:
        # A single sum would be einsum's innermost axis, which has several lanes.
        values = np.cumsum(a[..., 0, :] * b[..., 0], axis=-1)[..., -1:, None]
    else:
        values = np.einsum("...km,...kn->...mn", np.ascontiguousarray(np.swapaxes(a, -1, -2)), np.ascontiguousarray(b))
    return values.reshape((*rest, b.shape[-1])) if b.ndim == 2 else values


def from_bias(program: Program) -> Program:
    """The program in which a product with an addend starts from the addend and sums in sequence."""
    products = {step.index: step for step in program.steps if step.function is MATMUL}

    def started(step: Step) -> Step:
        product = next((products[ref] for ref in step.refs if ref in products), None)
        if step.function is not np.add or product is None:
            return step
        [start] = [item for item in step.operands if item != Ref(product.index)] or [Ref(product.index)]
        return replace(step, function=matmul_in_sequence, operands=(*product.operands, start))

    return replace(program, steps=tuple(map(started, program.steps))).needed()


def reduced(operands: str, result: str = "") -> Callable[[Array, Array], Array]:
    """A product whose operands are rounded to a format (of FORMATS) first, and its result to another one."""

    def matmul(a: Array, b: Array) -> Array:
        values: Array = MATMUL(rounded(a, FORMATS[operands]), rounded(b, FORMATS[operands]))
        return rounded(values, FORMATS[result]) if result else values

    return matmul


matmul.raw.result_shape = product_shape  # type: ignore[attr-defined]
MATMUL: Callable[[Array, Array], Array] = matmul.raw  # type: ignore[attr-defined]
"""The function of the steps that are matrix products."""


def slices(matrix: Array, axis: int) -> list[NDArray[np.float64]]:
    """Float64 matrices that sum to `matrix`, from the most significant; products along `axis` are exact."""
    high = matrix.astype(np.float64)
    low = (matrix - high).astype(np.float64)
    return [*cut(high, axis), *(cut(low, axis) if low.any() else [])]


def cut(rest: NDArray[np.float64], axis: int) -> list[NDArray[np.float64]]:
    """`slices` of a float64 matrix."""
    width = math.ceil((MANTISSA + math.log2(max(2, rest.shape[axis]))) / 2)
    parts: list[NDArray[np.float64]] = []
    while not parts or rest.any():
        _, exponent = np.frexp(np.abs(rest).max(axis=axis, keepdims=True, initial=0))
        shift = np.ldexp(1.0, exponent + width)
        parts.append((rest + shift) - shift)
        rest = rest - parts[-1]
    return parts


def _vjp_a(_ans: Any, _a: Any, b: Any) -> Any:
    return lambda g: matmul(g, np.swapaxes(b, -1, -2))


def _vjp_b(_ans: Any, a: Any, b: Any) -> Any:
    def vjp(g: Any) -> Any:
        if b.ndim > 2:
            return matmul(np.swapaxes(a, -1, -2), g)
        rows = np.reshape(a, (-1, a.shape[-1]))
        return matmul(np.transpose(rows), np.reshape(g, (-1, g.shape[-1])))

    return vjp


defvjp(matmul, _vjp_a, _vjp_b)
