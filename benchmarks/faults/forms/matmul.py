"""Linear layers and embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Tensors = Mapping[str, Array]


def linear_matmul(x: Array, weight: Array, bias: Array, grad_y: Array) -> Tensors:
    """torch.nn.functional.linear; backward by matrix products of the flattened batch."""
    rows = x.reshape(-1, x.shape[-1])
    upstream = grad_y.reshape(-1, grad_y.shape[-1])
    y = rows @ weight.T + bias
    grad_x = upstream @ weight
    grad_weight = upstream.T @ rows
    grad_bias = np.sum(upstream, axis=0)
    return {
        "y": y.reshape(grad_y.shape),
        "grad.x": grad_x.reshape(x.shape),
        "grad.weight": grad_weight,
        "grad.bias": grad_bias,
    }


def linear_einsum(x: Array, weight: Array, bias: Array, grad_y: Array) -> Tensors:
    """Flax's Dense with einsum, summed over whatever leads."""
    y = np.einsum("...i,oi->...o", x, weight) + bias
    grad_x = np.einsum("...o,oi->...i", grad_y, weight)
    grad_weight = np.einsum("no,ni->oi", grad_y.reshape(-1, weight.shape[0]), x.reshape(-1, weight.shape[1]))
    grad_bias = np.einsum("no->o", grad_y.reshape(-1, weight.shape[0]))
    return {"y": y, "grad.x": grad_x, "grad.weight": grad_weight, "grad.bias": grad_bias}


def linear_from_bias(x: Array, weight: Array, bias: Array, grad_y: Array) -> Tensors:
    """A product by blocks of the inner axis that starts from the bias (BLAS's beta * C)."""
    rows = x.reshape(-1, x.shape[-1])
    upstream = grad_y.reshape(-1, grad_y.shape[-1])
    y = np.tile(bias, (rows.shape[0], 1))
    for k in range(0, rows.shape[1], 32):
        y = y + rows[:, k : k + 32] @ weight[:, k : k + 32].T
    grad_x = np.zeros_like(rows)
    for k in range(0, upstream.shape[1], 32):
        grad_x = grad_x + upstream[:, k : k + 32] @ weight[k : k + 32]
    grad_weight = np.zeros_like(weight)
    grad_bias = np.zeros_like(bias)
    for k in range(0, rows.shape[0], 32):
        grad_weight = grad_weight + upstream[k : k + 32].T @ rows[k : k + 32]
        grad_bias = grad_bias + np.sum(upstream[k : k + 32], axis=0)
    return {
        "y": y.reshape(grad_y.shape),
        "grad.x": grad_x.reshape(x.shape),
        "grad.weight": grad_weight,
        "grad.bias": grad_bias,
    }


def embedding_gather(x: Array, weight: Array, grad_y: Array) -> Tensors:
    """torch.nn.functional.embedding; embedding_dense_backward by index_add."""
    y = weight[x]
    grad_weight = np.zeros_like(weight)
    np.add.at(grad_weight, x.reshape(-1), grad_y.reshape(-1, weight.shape[1]))
    return {"y": y, "grad.weight": grad_weight}


def embedding_one_hot(x: Array, weight: Array, grad_y: Array) -> Tensors:
    """The product with one-hot rows (flax.linen.Embed.attend's transpose)."""
    tokens = x.reshape(-1, 1)
    one_hot = (tokens == np.arange(weight.shape[0])).astype(weight.dtype)
    y = one_hot @ weight
    grad_weight = one_hot.T @ grad_y.reshape(-1, weight.shape[1])
    return {"y": y.reshape(grad_y.shape), "grad.weight": grad_weight}


def embedding_rows(x: Array, weight: Array, grad_y: Array) -> Tensors:
    """Row by row of the weight, gradients summed over the sorted tokens (a segment sum)."""
    tokens = x.reshape(-1)
    upstream = grad_y.reshape(-1, weight.shape[1])
    y = np.take(weight, tokens, axis=0)
    grad_weight = np.zeros_like(weight)
    for row in np.unique(tokens):
        grad_weight[row] = np.sum(upstream[tokens == row], axis=0)
    return {"y": y.reshape(grad_y.shape), "grad.weight": grad_weight}


def position_embedding_slice(x: Array, weight: Array, grad_y: Array) -> Tensors:
    """BERT's learned positions: the first rows of the table, broadcast over the batch."""
    length = x.shape[1]
    y = x + weight[:length]
    grad_weight = np.zeros_like(weight)
    grad_weight[:length] = np.sum(grad_y, axis=0)
    return {"y": y, "grad.x": grad_y, "grad.weight": grad_weight}


def position_embedding_gather(x: Array, weight: Array, grad_y: Array) -> Tensors:
    """GPT-2's form: an embedding of the positions 0, 1, ..., added to x."""
    positions = np.broadcast_to(np.arange(x.shape[1]), x.shape[:2])
    y = x + weight[positions]
    grad_x = grad_y.copy()
    grad_weight = np.zeros_like(weight)
    np.add.at(grad_weight, positions, grad_y)
    return {"y": y, "grad.x": grad_x, "grad.weight": grad_weight}


def position_embedding_loop(x: Array, weight: Array, grad_y: Array) -> Tensors:
    """Position by position, sample by sample."""
    y = np.empty_like(x)
    grad_weight = np.zeros_like(weight)
    for position in range(x.shape[1]):
        y[:, position] = x[:, position] + weight[position]
        for sample in grad_y:
            grad_weight[position] = grad_weight[position] + sample[position]
    return {"y": y, "grad.x": grad_y, "grad.weight": grad_weight}
