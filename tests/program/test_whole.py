"""Code that is one step of a program."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from parity.program.whole import WholeCall, WholeCode, WholeOutput
from parity.program.worker.user_module import UserModule


class Counted:
    """A function that counts its calls, with two outputs."""

    def __init__(self) -> None:
        self.n = 0

    def __call__(self, x):
        self.n += 1
        if x.shape[0] > 3:
            raise RuntimeError("too many rows")
        return x[x > 0].sum(), x * x


def test_all_outputs_are_of_one_call():
    entry = Counted()
    code = WholeCode(UserModule(entry), ("x",), {}, ("y0", "y1"), "it indexes by values")
    x = np.array([[1.0, -2.0]])
    first = code({"x": x})
    assert entry.n == 1
    np.testing.assert_array_equal(first["y1"], [[1, 4]])
    first["y1"][:] = 0
    np.testing.assert_array_equal(code({"x": x})["y1"], [[1, 4]])
    np.testing.assert_array_equal(code({"x": 2 * x})["y0"], 2)
    assert entry.n == 2


def test_gradients_of_all_outputs_are_of_one_call():
    entry = Counted()
    x, arriving = np.array([[1.0, -2.0]]), np.ones((1, 2))
    call = WholeCall(UserModule(entry), ("x",), {})
    (summed,) = WholeOutput(call, "y0").gradients(np.array(1.0), (x,))
    (squared,) = WholeOutput(call, "y1").gradients(arriving, (x,))
    assert entry.n == 1
    torch.testing.assert_close(summed, torch.tensor([[1.0, 0.0]], dtype=summed.dtype))
    torch.testing.assert_close(squared, torch.tensor([[2.0, -4.0]], dtype=squared.dtype))


def test_what_the_code_refuses_is_a_value_error():
    code = WholeCode(UserModule(Counted()), ("x",), {}, ("y0", "y1"), "")
    with pytest.raises(ValueError, match="too many rows"):
        code({"x": np.ones((4, 2))})


def test_a_gradient_of_another_shape_is_refused():
    call = WholeCall(UserModule(lambda x: x.sum(-1)), ("x",), {})
    with pytest.raises(ValueError, match=r"\(2, 3\) arrives at an output of \(2,\)"):
        WholeOutput(call, "y").gradients(np.ones((2, 3)), (np.ones((2, 4)),))
