"""What PyTorch's functions are in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from parity.program.torch_functions import divided


@pytest.mark.parametrize("mode", ["floor", "trunc", None])
@pytest.mark.parametrize("dtype", ["int64", "int32", "float64"])
def test_a_division_that_rounds_returns_integers_for_integers(mode, dtype):
    a, b = np.array([-7, 7, 6, -6]).astype(dtype), np.array([2, -2, 3, 4]).astype(dtype)
    expected = torch.div(torch.tensor(a), torch.tensor(b), rounding_mode=mode).numpy()
    own = divided(a, b, rounding_mode=mode)
    np.testing.assert_allclose(own, expected)
    assert own.dtype.kind == expected.dtype.kind
