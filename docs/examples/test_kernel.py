"""A kernel against PyTorch, as a test of its own: `pytest docs/examples/test_kernel.py`."""

import numpy as np
import pytest
import torch

from parity import assert_parity

TOLERANCE = {"float32": {"rtol": 1.3e-6, "atol": 1e-5}, "float64": {"rtol": 1e-7, "atol": 1e-7}}


def my_layer_norm(x: np.ndarray, eps: float) -> np.ndarray:
    """The kernel under test."""
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + eps)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(4, 8), (2, 3, 64)])
def test_layer_norm_agrees_with_torch(shape: tuple[int, ...], dtype: str) -> None:
    """The same numbers as PyTorch, within the tolerance of the dtype."""
    x = np.random.default_rng(0).normal(size=shape).astype(dtype)
    expected = torch.nn.functional.layer_norm(torch.from_numpy(x), shape[-1:], eps=1e-5)
    assert_parity(my_layer_norm(x, 1e-5), expected, **TOLERANCE[dtype])
