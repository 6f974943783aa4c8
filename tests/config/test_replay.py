"""What a NumPy reference does in place is recorded, and a recording that computes something else is refused."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import indent
from typing import Any

import numpy as np
import pytest

from parity.cases import replay, writable
from parity.cases.oracle import evaluate
from parity.config import Overrides, load_plan
from parity.config.errors import ConfigError
from parity.config.plan import CasePlan

HEAD = "import numpy as np\nLEFT = []\n\ndef my_op(x, index):\n"


def case(folder: Path, body: str, more: str = "") -> CasePlan:
    """A case whose reference has this body, from line 5."""
    (folder / "ref.py").write_text(HEAD + indent(body, "    ") + "\n")
    inputs = "{x: {shape: [4, 6]}, index: {shape: [5], integers: {low: 0, high: 4}}}"
    config = folder / "config.yaml"
    config.write_text(
        f"version: 1\nbackends: [torch]\ncases:\n  - {{op: my_op, reference: ./ref.py, inputs: {inputs}{more}}}\n"
    )
    return load_plan([config], Overrides()).cases[0]


def own_result(body: str, x: Any, index: Any) -> Any:
    """What NumPy returns for the body."""
    names: dict[str, Any] = {}
    exec(HEAD + indent(body, "    "), names)
    return np.asarray(names["my_op"](x.copy(), index.copy()))


RECORDED = {
    "out": "y = np.empty_like(x)\nnp.exp(x, out=y)\nreturn y * 2",
    "a positional out": "y = np.zeros(x.shape)\nnp.tanh(x, y)\nreturn y * 2",
    "out of a reduction": "y = np.empty(4)\nnp.sum(x * x, axis=1, out=y)\nreturn y",
    "out with a mask": "y = np.ones_like(x)\nnp.multiply(x, 3.0, out=y, where=x > 0)\nreturn y",
    "an alias": "y = x\ny *= 2\nreturn x + y",
    "a copy": "y = x.copy()\ny *= 2\nreturn x + y",
    "a scalar is no view": "s = x[0, 0]\nt = s\ns += 1\nreturn x * s + t",
    "a row": "v = x[0]\nv += 1\nreturn x * x",
    "a view of a view": "y = x.copy()\ny.T[1:][:, 0] *= 3\nreturn y",
    "a reshaped view": "y = x.copy()\ny.reshape(-1)[::5] = 0\nreturn y * x",
    "parts": "y = x.copy()\na, b = np.split(y, 2, axis=1)\na += b\nb *= 2\nreturn y",
    "rows in a loop": "y = x.copy()\nfor row in y:\n    row -= row.mean()\nreturn y * y",
    "elements": "y = np.empty(4)\nfor i in range(4):\n    y[i] = x[i].sum() * x[i, 0]\nreturn y",
    "a scan": "h = np.zeros(4)\nfor t in range(6):\n    h *= 0.5\n    h += x[:, t]\n    x[:, t] = h\nreturn x * x",
    "a mask": "y = x * 2\ny[x < 0] *= 0.1\nreturn y",
    "written twice": "y = np.zeros((4, 6))\ny[[0, 1, 0]] = x[:3] * x[1:]\nreturn y",
    "rows by index": "y = np.zeros((4, 6))\ny[index] = x[index] * np.arange(1, 6)[:, None]\nreturn y",
    "add.at": "y = x.copy()\nnp.add.at(y, index, x[index] * x[index])\nreturn y",
    "subtract.at": "y = x * x\nnp.subtract.at(y, index, 1.0)\nreturn y",
    "copyto": "y = np.zeros_like(x)\nnp.copyto(y, x * x, where=x > 0)\nreturn y",
    "softmax in place": "z = x - x.max(-1, keepdims=True)\nnp.exp(z, out=z)\nz /= z.sum(-1, keepdims=True)\nreturn z",
    "a number spread": "y = np.full(x.shape, x.mean())\nreturn x * y",
    "ufuncs' methods": "return np.add.reduce(x * x) + np.multiply.outer(x[0], x[1]).sum(0)",
    "a cut": "return (x * 3).astype(np.int32).astype(x.dtype) * x",
    "an array of integers": "y = np.zeros((4, 6), int)\ny[:] = x * 3\nreturn y * x",
    "booleans": "return (x > 0).astype(float) * x",
    "a norm": "x /= np.linalg.norm(x, axis=1, keepdims=True)\nreturn x * x",
    "a row of a transposed array": "v = x[1:, ::2].T\nw = v.reshape(-1)\nw[:3] = 7\nv[0] = 5\nreturn x * x + w.sum()",
    "a copy that reshape makes": "w = x[:, :3].reshape(12)\nw[0] = 1\nv = x.T.ravel()\nv[1] = 2\nreturn x * w[0] + v[0]",
    "an overlapping view": "a, b = x[:3], x[1:]\na += b\nb *= a.mean()\nreturn x",
    "parts of other lengths": "a, b = np.split(x, [1])\na *= 2\nb -= a\nc, d = np.array_split(x, 2, 1)\nreturn c * d",
    "views without an index": "v = x.view()\nv[0] = 1\nz = x.real\nz *= 2\nreturn x * v",
    "einsum": "y = np.zeros((4, 4))\nnp.einsum('ij,kj->ik', x, x, out=y)\nreturn y + np.einsum('ij,kl,k->', x, x, x[:, 0])",
    "a tensor by keyword": "return np.clip(x, a_min=0.5 * index[:4, None] - 1, a_max=None) * x",
    "rows of a mask": "y = np.zeros((4, 6))\nn = np.nonzero(x[:, 0] > 0)[0]\ny[n] += np.tanh(x[n])\nreturn y * y",
    "what cancels": "z = np.stack([x, x])\nz[0] += 1\nreturn (z - x)[0] + x - x",
    "an iteration": "y = np.zeros(6)\nfor j, i in enumerate(index):\n    y += x[i] * j\nfor row in x:\n    row *= 2\nreturn y * x",
    "two rows swapped": "y = x.copy()\nt = y[0]\ny[0] = y[1]\ny[1] = t\nreturn y * x",
}


@pytest.mark.parametrize("body", RECORDED.values(), ids=RECORDED)
def test_what_is_done_in_place_is_recorded_with_its_gradient(body: str, tmp_path: Path):
    plan = case(tmp_path, body)
    inputs = {tensor.name: tensor.sample(0, "one", "float64") for tensor in plan.tensors}
    found = evaluate(plan.definition, plan.params, inputs, dtype=np.float64)
    assert found["y"] == pytest.approx(own_result(body, inputs["x"], inputs["index"]))
    rng = np.random.default_rng(0)
    along, step = rng.uniform(0.5, 1, (4, 6)), 1e-6
    one, other = (own_result(body, inputs["x"] + sign * step * along, inputs["index"]) for sign in (1, -1))
    slope = np.sum((one - other) * inputs["grad.y"]) / (2 * step)
    assert np.sum(found["grad.x"] * along) == pytest.approx(slope, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize(
    ("body", "right"),
    [
        ("return x.astype(np.float16).astype(x.dtype) * 2", lambda x: x.astype("float16").astype(x.dtype) * 2),
        ("y = np.zeros((4, 6), np.float32)\ny[:] = x\nreturn y", lambda x: x.astype("float32").astype(x.dtype)),
        ("return x.astype(np.float64) / 3", lambda x: x / 3),
    ],
)
@pytest.mark.parametrize("given", ["float32", "float64"])
def test_a_cast_rounds_in_any_dtype(body: str, right: Any, given: str, tmp_path: Path):
    plan = case(tmp_path, body)
    x = np.random.default_rng(0).normal(size=(4, 6)).astype(given)
    found = evaluate(plan.definition, plan.params, {"x": x, "index": np.zeros(5, int)}, gradients=False)
    np.testing.assert_array_equal(found["y"], right(x.astype(np.longdouble)))


def test_integers_made_floats_have_the_dtype_of_the_evaluation(tmp_path: Path):
    plan = case(tmp_path, "return x.astype(int).astype(float)")
    inputs = {"x": np.full((4, 6), 2.5, np.float32), "index": np.zeros(5, int)}
    for dtype in (np.float32, np.longdouble):
        assert evaluate(plan.definition, plan.params, inputs, dtype=dtype, gradients=False)["y"].dtype == dtype


REFUSED = {
    "y = x * 2 if x.max() > 0 else x * 3\nreturn y": "ref.py:5: TraceError: a reference must not branch on the values",
    "try:\n    k = 2.0 if x.max() > 0 else 3.0\nexcept TypeError:\n    k = 3.0\ny = x * k\nreturn y": r"ref.py:9: y is \S+ at \[0, 0\], and \S+ in",
    "y = x * 2 if isinstance(x, np.ndarray) else x * 3\nreturn y": r"ref.py:5: y is \S+ at \[0, 0\], and \S+ in the recording",
    "h = x * (2 if hasattr(x, 'flags') else 3)\ny = h + 1\nreturn y": "ref.py:5: h is",
    "return x + np.random.rand(4, 6)": "ref.py:4: my_op returns another y when it is called again",
    "LEFT.append(1)\nreturn x * len(LEFT)": "ref.py:4: my_op returns another y when it is called again",
    "LEFT.append(x)\nreturn np.exp(LEFT[0])": "ref.py:4: my_op returns another y|a value that an earlier call has left",
    "return x * float(x[0, 0])": "ref.py:5: TraceError: a reference must not need the values",
    "return x / x.max().item()": "ref.py:5: TraceError: a reference must not need the values",
    "import math\nreturn x * math.exp(x[0, 0])": "ref.py:6: TraceError: a reference must not need the values",
    "y = np.arange(6.0)\nnp.exp(x[0], out=y)\nreturn y": "ref.py:6: TraceError: a reference must not write tensors to an",
    "return np.add(x, 1, where=x > 0)": "ref.py:5: TraceError: np.add with where= but without out= leaves elements undefined",
    "y = np.zeros(4)\nnp.maximum.at(y, index, x[0, 0])\nreturn y": "ref.py:6: TraceError: np.maximum.at cannot be a step",
    "y = x.copy()\ny.T.reshape(-1)[:] = 0\nz = y.T * 2\nr = z.reshape(-1)\nr[0] = 9\nreturn z": r"ref.py:7: z is \S+ at",
    "k = x[x > 0]\nm = k.mean()\nreturn m * x": r"ref.py:6: m is \S+, and \S+ in the recording; .* no count of elements",
    "return x * len(np.nonzero(x > 0)[0])": r"ref.py:5: y is \S+ at \[0, 0\], and \S+ in the recording",
    "return x[x > 0].sum() * x": "ref.py:4: my_op: its recording fails for other inputs .ValueError: .* no count of elements",
    "return np.sum(x, axis=1, where=x > 0)": "ref.py:5: TraceError: np.sum is given the tensor where=, which cannot be a step",
    "return np.einsum('...j,kj->...k', x, x)": "np.einsum has a gradient only with a letter for each axis",
    "return np.sum([x, x], axis=0)": "ref.py:5: TraceError: .* in a list .use np.stack.",
    "return np.sum(x, axis=0, dtype=np.float32)": "ref.py:5: TraceError: np.sum is given a dtype",
    "return x.view(np.int64)": "ref.py:5: TraceError: a reference must not view the bits",
}


@pytest.mark.parametrize("body", REFUSED)
def test_what_cannot_be_recorded_is_refused_at_its_line(body: str, tmp_path: Path):
    with pytest.raises(ConfigError) as caught:
        case(tmp_path, body)
    assert re.search(REFUSED[body], str(caught.value)), caught.value


def test_a_wrong_gradient_of_a_function_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(writable.differentiable("numpy"), np.linalg.norm)  # type: ignore[attr-defined]
    monkeypatch.setitem(writable.differentiable("numpy"), np.linalg.norm, np_norm())  # type: ignore[index]
    with pytest.raises(
        ConfigError, match=r"ref\.py:4: my_op has the slope \S+ along a direction, and \S+ by its recorded"
    ):
        case(tmp_path, "return x / np.linalg.norm(x, axis=1, keepdims=True)")


def np_norm() -> Any:
    """A norm whose gradient is not divided by it."""
    from autograd.extend import defvjp, primitive

    def norm(x: Any, axis: int, keepdims: bool) -> Any:
        return np.linalg.norm(x, axis=axis, keepdims=keepdims)

    wrong = primitive(norm)
    defvjp(wrong, lambda ans, x, axis, keepdims: lambda g: g * x)
    return wrong


@pytest.mark.parametrize(
    ("one", "other", "kind", "equal"),
    [
        ([1.0, np.nan, np.inf], [1.0 + 1e-9, np.nan, np.inf], "float64", True),
        ([1.0, np.nan], [1.0, 2.0], "float64", False),
        ([np.inf], [-np.inf], "float64", False),
        ([1.0], [1.0001], "float64", False),
        ([1.0], [1.0001], "float32", True),
        ([1e-20], [0.0], "float64", True),
        ([-1e9, 1.0, 1.0], [-1e9, 1.1, 1.0], "float64", False),
        ([1], [2], "float64", False),
        ([1.0], [[1.0]], "float64", False),
    ],
)
def test_results_agree_up_to_rounding_in_the_narrowest_dtype(one: Any, other: Any, kind: str, equal: bool):
    assert replay.agree(np.asarray(one), np.asarray(other), kind, 1.0) is equal
