"""Products of tensors, and what follows an index: NumPy's documented equivalents, torch's derivatives.yaml."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.faults.forms.written import written


def parts_of(equation: str) -> tuple[str, str, str]:
    """The labels of both operands and of the result."""
    operands, result = equation.replace(" ", "").split("->")
    one, other = operands.split(",")
    return one, other, result


def places(index: np.ndarray, dim: int) -> tuple[np.ndarray, ...]:
    """NumPy's indices of the elements that `index` names along an axis."""
    each = list(np.indices(index.shape))
    each[dim] = index
    return tuple(each)


MATMUL = (
    """
    y = np.matmul(x, other)
    grad_x = np.matmul(grad_y, other.swapaxes(-1, -2))
    grad_other = np.matmul(x.swapaxes(-1, -2), grad_y)
    """,
    """
    y = np.einsum("...ij,...jk->...ik", x, other)
    grad_x = np.einsum("...ik,...jk->...ij", grad_y, other)
    grad_other = np.einsum("...ij,...ik->...jk", x, grad_y)
    """,
    """
    y = np.zeros_like(grad_y)
    for k in range(x.shape[-1]):
        y = y + x[..., :, k : k + 1] * other[..., k : k + 1, :]
    grad_x = np.sum(grad_y[..., :, None, :] * other[..., None, :, :], axis=-1)
    grad_other = np.sum(x[..., :, :, None] * grad_y[..., :, None, :], axis=-3)
    """,
)
TABLE: Mapping[str, Sequence[str]] = {
    "matmul": MATMUL,
    "bmm": MATMUL,
    "outer": (
        "y = x[:, None] * other[None, :]; grad_x = grad_y @ other; grad_other = grad_y.T @ x",
        """
        y = np.einsum("i,j->ij", x, other)
        grad_x = np.sum(grad_y * other, axis=1)
        grad_other = np.sum(grad_y * x[:, None], axis=0)
        """,
    ),
    "einsum": (
        """
        one, two, result = parts_of(equation)
        y = np.einsum(f"{one},{two}->{result}", x, other)
        grad_x = np.einsum(f"{result},{two}->{one}", grad_y, other)
        grad_other = np.einsum(f"{one},{result}->{two}", x, grad_y)
        """,
        """
        one, two, result = parts_of(equation)
        y = np.einsum(f"{two},{one}->{result}", other, x, optimize=True)
        grad_x = np.einsum(f"{two},{result}->{one}", other, grad_y, optimize=True)
        grad_other = np.einsum(f"{result},{one}->{two}", grad_y, x, optimize=True)
        """,
    ),
    "bilinear": (
        """
        left = x.reshape(-1, x.shape[-1])
        right = other.reshape(-1, other.shape[-1])
        upstream = grad_y.reshape(-1, len(weight))
        y = (np.einsum("ni,oij,nj->no", left, weight, right) + bias).reshape(grad_y.shape)
        grad_x = np.einsum("no,oij,nj->ni", upstream, weight, right).reshape(x.shape)
        grad_other = np.einsum("no,oij,ni->nj", upstream, weight, left).reshape(other.shape)
        grad_weight = np.einsum("no,ni,nj->oij", upstream, left, right)
        grad_bias = np.sum(upstream, axis=0)
        """,
        """
        left = x.reshape(-1, x.shape[-1])
        right = other.reshape(-1, other.shape[-1])
        upstream = grad_y.reshape(-1, len(weight))
        y = np.empty_like(upstream)
        grad_weight = np.empty_like(weight)
        grad_left = np.zeros_like(left)
        grad_right = np.zeros_like(right)
        for o in range(len(weight)):
            y[:, o] = np.sum(left @ weight[o] * right, axis=1) + bias[o]
            scaled = upstream[:, o : o + 1]
            grad_weight[o] = (left * scaled).T @ right
            grad_left += right @ weight[o].T * scaled
            grad_right += left @ weight[o] * scaled
        y = y.reshape(grad_y.shape)
        grad_x = grad_left.reshape(x.shape)
        grad_other = grad_right.reshape(other.shape)
        grad_bias = upstream.sum(axis=0)
        """,
    ),
    "gather": (
        """
        y = x[places(index, dim)]
        grad_x = np.zeros_like(x)
        np.add.at(grad_x, places(index, dim), grad_y)
        """,
        """
        values = np.moveaxis(x, dim, 0)
        index = np.moveaxis(index, dim, 0)
        upstream = np.moveaxis(grad_y, dim, 0)
        region = values[(slice(None), *map(slice, index.shape[1:]))]
        y = np.zeros_like(upstream)
        sums = np.zeros_like(values)
        for k in range(len(values)):
            hit = index == k
            y = np.where(hit, region[k], y)
            sums[(k, *map(slice, index.shape[1:]))] = np.sum(hit * upstream, axis=0)
        y = np.moveaxis(y, 0, dim)
        grad_x = np.moveaxis(sums, 0, dim)
        """,
    ),
    "scatter_add": (
        """
        y = x.copy()
        np.add.at(y, places(index, dim), src)
        grad_x = grad_y.copy()
        grad_src = grad_y[places(index, dim)]
        """,
        """
        index = np.moveaxis(index, dim, 0)
        source = np.moveaxis(src, dim, 0)
        upstream = np.moveaxis(grad_y, dim, 0)
        region = tuple(map(slice, index.shape[1:]))
        sums = np.moveaxis(x, dim, 0).copy()
        flows = np.zeros_like(source)
        for k in range(len(sums)):
            hit = index == k
            sums[(k, *region)] = sums[(k, *region)] + np.sum(hit * source, axis=0)
            flows = np.where(hit, upstream[(k, *region)], flows)
        y = np.moveaxis(sums, 0, dim)
        grad_x = grad_y + 0
        grad_src = np.moveaxis(flows, 0, dim)
        """,
    ),
    "index_select": (
        """
        y = np.take(x, index, axis=dim)
        grad_x = np.zeros_like(x)
        np.add.at(np.moveaxis(grad_x, dim, 0), index, np.moveaxis(grad_y, dim, 0))
        """,
        """
        one_hot = (index[:, None] == np.arange(x.shape[dim])).astype(x.dtype)
        y = np.moveaxis(np.tensordot(one_hot, x, axes=(1, dim)), 0, dim)
        grad_x = np.moveaxis(np.tensordot(one_hot, grad_y, axes=(0, dim)), 0, dim)
        """,
    ),
    "sort": (
        """
        indices = np.argsort(-x if descending else x, axis=dim, kind="stable")
        y = np.take_along_axis(x, indices, axis=dim)
        grad_x = np.zeros_like(x)
        np.put_along_axis(grad_x, indices, grad_y, axis=dim)
        """,
        """
        values = np.moveaxis(x, dim, -1)
        keys = -values if descending else values
        earlier = np.arange(values.shape[-1])[:, None] > np.arange(values.shape[-1])
        less = keys[..., None, :] < keys[..., :, None]
        tied = (keys[..., None, :] == keys[..., :, None]) & earlier
        rank = np.sum(less | tied, axis=-1)
        indices = np.argsort(rank, axis=-1)
        y = np.moveaxis(np.take_along_axis(values, indices, axis=-1), -1, dim)
        grad_x = np.moveaxis(np.take_along_axis(np.moveaxis(grad_y, dim, -1), rank, axis=-1), -1, dim)
        indices = np.moveaxis(indices, -1, dim)
        """,
    ),
    "topk": (
        """
        order = np.argsort(-x if largest else x, axis=dim, kind="stable")
        indices = np.take(order, np.arange(k), axis=dim)
        y = np.take_along_axis(x, indices, axis=dim)
        grad_x = np.zeros_like(x)
        np.put_along_axis(grad_x, indices, grad_y, axis=dim)
        """,
        """
        rest = np.moveaxis(-x if largest else x, dim, -1).copy()
        indices = np.empty((*rest.shape[:-1], k), np.int64)
        for i in range(k):
            place = np.argmin(rest, axis=-1)
            indices[..., i] = place
            np.put_along_axis(rest, place[..., None], np.inf, axis=-1)
        indices = np.moveaxis(indices, -1, dim)
        y = np.take_along_axis(x, indices, axis=dim)
        grad_x = np.zeros_like(x)
        np.put_along_axis(grad_x, indices, grad_y, axis=dim)
        """,
    ),
    "flip": (
        "y = np.flip(x, axis=dims); grad_x = np.flip(grad_y, axis=dims)",
        """
        y = x
        grad_x = grad_y
        for dim in dims:
            backwards = np.arange(x.shape[dim] - 1, -1, -1)
            y = np.take(y, backwards, axis=dim)
            grad_x = np.take(grad_x, backwards, axis=dim)
        """,
    ),
    "roll": (
        "y = np.roll(x, shifts, axis=dims); grad_x = np.roll(grad_y, tuple(-s for s in shifts), axis=dims)",
        """
        y = x
        grad_x = grad_y
        for shift, dim in zip(shifts, dims):
            n = x.shape[dim]
            y = np.take(y, (np.arange(n) - shift) % n, axis=dim)
            grad_x = np.take(grad_x, (np.arange(n) + shift) % n, axis=dim)
        """,
    ),
    "pixel_shuffle": (
        """
        r = upscale_factor
        n, c, h, w = x.shape
        blocks = x.reshape(n, c // r**2, r, r, h, w)
        y = blocks.transpose(0, 1, 4, 2, 5, 3).reshape(n, c // r**2, h * r, w * r)
        pixels = grad_y.reshape(n, c // r**2, h, r, w, r)
        grad_x = pixels.transpose(0, 1, 3, 5, 2, 4).reshape(x.shape)
        """,
        """
        r = upscale_factor
        y = np.empty_like(grad_y)
        grad_x = np.empty_like(x)
        for i in range(r):
            for j in range(r):
                y[:, :, i::r, j::r] = x[:, i * r + j :: r * r]
                grad_x[:, i * r + j :: r * r] = grad_y[:, :, i::r, j::r]
        """,
    ),
    "pad": (
        """
        modes = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}
        pairs = [(0, 0)] * (x.ndim - len(pad) // 2) + [(pad[i], pad[i + 1]) for i in range(len(pad) - 2, -1, -2)]
        number = np.arange(x.size).reshape(x.shape)
        if mode == "constant":
            source = np.pad(number, pairs, constant_values=-1)
        else:
            source = np.pad(number, pairs, mode=modes[mode])
        y = np.where(source >= 0, x.ravel()[source], value)
        sums = np.zeros(x.size + 1, x.dtype)
        np.add.at(sums, source, grad_y)
        grad_x = sums[: x.size].reshape(x.shape)
        """,
        """
        y = x
        grad_x = grad_y
        for i in range(len(pad) // 2):
            axis = x.ndim - 1 - i
            n = x.shape[axis]
            place = np.arange(-pad[2 * i], n + pad[2 * i + 1])
            inside = (place >= 0) & (place < n)
            if mode == "reflect":
                place = np.abs(place)
                place = np.where(place >= n, 2 * (n - 1) - place, place)
            if mode == "circular":
                place = place % n
            place = np.clip(place, 0, n - 1)
            y = np.take(y, place, axis=axis)
            weight = np.eye(n, dtype=x.dtype)[place]
            if mode == "constant":
                shape = [-1 if a == axis else 1 for a in range(x.ndim)]
                y = np.where(inside.reshape(shape), y, value)
                weight = weight * inside[:, None]
            grad_x = np.moveaxis(np.tensordot(grad_x, weight, axes=(axis, 0)), -1, axis)
        """,
    ),
    "rotary_embedding": (
        """
        n, d = x.shape[-2:]
        angle = np.outer(np.arange(n), base ** -(np.arange(0, d, 2) / d))
        cos = np.cos(angle).astype(x.dtype)
        sin = np.sin(angle).astype(x.dtype)
        y = np.empty_like(x)
        grad_x = np.empty_like(x)
        if interleaved:
            one, two = x[..., 0::2], x[..., 1::2]
            up, down = grad_y[..., 0::2], grad_y[..., 1::2]
            y[..., 0::2] = one * cos - two * sin
            y[..., 1::2] = one * sin + two * cos
            grad_x[..., 0::2] = up * cos + down * sin
            grad_x[..., 1::2] = down * cos - up * sin
        else:
            half = d // 2
            one, two = x[..., :half], x[..., half:]
            up, down = grad_y[..., :half], grad_y[..., half:]
            y[..., :half] = one * cos - two * sin
            y[..., half:] = one * sin + two * cos
            grad_x[..., :half] = up * cos + down * sin
            grad_x[..., half:] = down * cos - up * sin
        """,
        """
        half = x.shape[-1] // 2
        frequency = base ** (-np.arange(half) / half)
        turn = np.exp(1j * np.arange(x.shape[-2])[:, None] * frequency)
        turn = turn.astype(np.result_type(x.dtype, np.complex64))
        if interleaved:
            pairs = x.reshape(*x.shape[:-1], half, 2)
            flows = grad_y.reshape(*x.shape[:-1], half, 2)
        else:
            pairs = x.reshape(*x.shape[:-1], 2, half).swapaxes(-1, -2)
            flows = grad_y.reshape(*x.shape[:-1], 2, half).swapaxes(-1, -2)
        turned = (pairs[..., 0] + 1j * pairs[..., 1]) * turn
        back = (flows[..., 0] + 1j * flows[..., 1]) * np.conj(turn)
        axis = -1 if interleaved else -2
        y = np.stack([turned.real, turned.imag], axis=axis).reshape(x.shape)
        grad_x = np.stack([back.real, back.imag], axis=axis).reshape(x.shape)
        """,
    ),
}
FORMS = written(TABLE, globals())
