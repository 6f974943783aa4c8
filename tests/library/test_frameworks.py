"""Tensors of the real frameworks, and of whatever offers its values in another way, through `parity.compare`."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest

import parity
from parity.library.arrays import tensor_of

W = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)

CHILD = """
import warnings
import numpy as np, parity, {framework} as framework
w = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)
warnings.simplefilter("error")
"""


def in_process(framework: str, code: str) -> None:
    """Runs code in a process of its own: two frameworks in one process may bring libraries that clash."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD.format(framework=framework) + code], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.frameworks
def test_torch_tensors_of_every_kind():
    in_process("torch", TORCH)


TORCH = """
import re
t = framework.from_numpy(w)
agree = {
    "parameter": (framework.nn.Parameter(t), w),
    "graph": (t.clone().requires_grad_() * 1, w),
    "strided": (t.t(), np.ascontiguousarray(w.T)),
    "sparse": (t.to_sparse(), w),
    "conj": (framework.complex(t, t).conj(), w - 1j * w),
    "neg": (framework.complex(t, t).conj().imag, -w),
    "bfloat16": (t.bfloat16(), t.bfloat16().clone()),
    "float8": (t.to(framework.float8_e4m3fn), t.to(framework.float8_e4m3fn)),
    "half": (t.half(), w.astype(np.float16)),
    "bool": (t > 0, w > 0),
    "integers": (framework.arange(5), np.arange(5)),
    "zero-d": (framework.tensor(1.5), np.float32(1.5)),
    "number": (framework.tensor(0.1), 0.1),
    "empty": (framework.empty(0, 3), np.empty((0, 3), np.float32)),
    "state": (framework.nn.Linear(3, 2).state_dict(), None),
}
agree["state"] = (agree["state"][0], {k: v.numpy() for k, v in agree["state"][0].items()})
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch 2.13.0 warns that these are in beta, or deprecated
    agree["csr"] = (t.to_sparse_csr(), w)
    quantized = framework.quantize_per_tensor(t, 0.1, 0, framework.qint8)
    half = framework.complex(t.half(), t.half())
for name, (actual, expected) in agree.items():
    report = parity.compare(actual, expected)
    assert report.passes, f"{name}: {report}"
    assert all(row.verdict is parity.Agreement.EQUAL for row in report.rows), name
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    assert parity.compare(quantized, quantized).rows[0].dtype == "qint8"
    assert parity.compare(half, half).rows[0].dtype == "complex32"
assert not parity.compare(t.bfloat16(), t).passes
assert parity.compare(t.bfloat16(), t, check_dtype=False).passes
moved = t.bfloat16().clone()
moved[3, 2] *= 1.5
row = parity.compare(moved, t.bfloat16()).rows[0]
assert row.verdict is parity.Agreement.OUTSIDE and row.worst_elements[0].index == (3, 2)
assert row.metrics.max_ulp_diff < 256 and row.notes == ("bfloat16, widened to float32",)
module = framework.nn.Linear(3, 2)
for value, said in ((module, "compare its .state_dict()"), (framework.empty(3, device="meta"), "Cannot copy out of meta")):
    try:
        parity.compare(value, w)
        raise SystemExit("not refused")
    except TypeError as error:
        assert said in str(error), error
"""


@pytest.mark.frameworks
def test_paddle_tensors_of_every_kind():
    in_process("paddle", PADDLE)


PADDLE = """
t = framework.to_tensor(w)
t.stop_gradient = False
agree = {
    "leaf": (t, w),
    "graph": (t * 1, w),
    "sparse": (t.detach().to_sparse_coo(2), w),
    "bfloat16": (t.astype("bfloat16"), t.astype("bfloat16")),
    "float8": (t.detach().astype("float8_e4m3fn"), t.detach().astype("float8_e4m3fn")),
    "half": (t.astype("float16"), w.astype(np.float16)),
    "bool": (t > 0, w > 0),
    "complex": (t.astype("complex64"), w.astype(np.complex64)),
    "zero-d": (framework.to_tensor(1.5), np.float32(1.5)),
    "parameter": (framework.nn.Linear(3, 2).weight, None),
}
agree["parameter"] = (agree["parameter"][0], agree["parameter"][0].numpy())
for name, (actual, expected) in agree.items():
    report = parity.compare(actual, expected)
    assert report.passes and report.rows[0].verdict is parity.Agreement.EQUAL, f"{name}: {report}"
row = parity.compare(t.astype("bfloat16"), t).rows[0]
assert row.verdict is parity.Agreement.STRUCTURE and row.dtype == "actual bfloat16, expected float32"
assert row.metrics.max_rel_diff < 2**-8
row = parity.compare({"y": [t + 1]}, {"y": [w]}).rows[0]
assert (row.path, row.metrics.n_mismatched) == ("y[0]", 48)
"""


class Offers:
    """A tensor with one way to its values, and others that fail."""

    def __init__(self, **ways: Any) -> None:
        for name, way in ways.items():
            setattr(self, name, way)


class Array:
    """A tensor that offers `__array__` only, as jax has it."""

    dtype, shape = np.dtype(np.float32), W.shape

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return W


class DLPack:
    """A tensor that offers DLPack only."""

    def __dlpack__(self, **options: Any) -> Any:
        return W.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return W.__dlpack_device__()


def broken() -> Any:
    raise RuntimeError("no kernel\nand a long trace")


@pytest.mark.parametrize(
    "tensor",
    [
        Offers(numpy=lambda: W),
        Offers(asnumpy=lambda: W),
        Offers(numpy=broken, asnumpy=lambda: W),
        Offers(toarray=lambda: W),
        Offers(todense=lambda: np.matrix(W)),
        Array(),
        DLPack(),
    ],
    ids=["numpy", "asnumpy", "the second way", "toarray", "todense", "array", "dlpack"],
)
def test_whatever_offers_its_values_is_a_tensor(tensor):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)  # np.matrix, which SciPy still returns
        assert parity.compare({"a": [tensor]}, {"a": [W]}).passes
        assert not parity.compare({"a": [tensor]}, {"a": [W + 1]}).passes


def test_a_framework_s_own_error_is_told_with_the_place():
    with pytest.raises(
        TypeError, match=r"^actual\.a: the values of this \S*Offers cannot be read \(RuntimeError: no kernel\)$"
    ):
        parity.compare({"a": Offers(numpy=broken)}, {"a": W})


def test_a_class_is_no_tensor():
    assert tensor_of(np.ndarray, "actual") is None
    with pytest.raises(TypeError, match=r"actual: a type is not a tensor"):
        parity.compare(np.ndarray, W)
