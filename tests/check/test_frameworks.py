"""`parity check` of candidates in other frameworks than PyTorch, and of references in NumPy."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

from parity.check import CheckError
from parity.check.adapted import check_installed
from parity.check.formats import resolved
from parity.check.limit import as_far
from parity.check.numpy_draws import DrawnArray, noting_draws
from parity.check.numpy_problem import problem_of
from parity.check.pair import pair_of
from parity.check.sizes import small
from parity.config.backends import ADAPTERS
from parity.environments.resolution import create_environment
from parity.program.worker.user_function import UserFunction
from parity.program.worker.user_module import UserModuleError
from tests.check.pairs import FUNCTION, REFERENCE
from tests.check.test_check import answered

pytestmark = [pytest.mark.frameworks, pytest.mark.process]
MODEL = """
def model(x, fc_weight, fc_bias, ln_weight, ln_bias):
    h = nn.relu(x @ fc_weight.T + fc_bias)
    centred = h - h.mean(-1, keepdims=True)
    var = (centred * centred).mean(-1, keepdims=True)
    return centred / (var + EPS) ** 0.5 * ln_weight + ln_bias + x
"""
JAX = f"from jax import nn\n{MODEL}"
PADDLE = f"from paddle.nn import functional as nn\n{MODEL.replace('keepdims', 'keepdim')}"
NUMPY = """
import numpy as np


def soft(values, factor):
    e = np.exp(values * factor - (values * factor).max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


batch, dim = 64, 512


def get_inputs():
    rng = np.random.default_rng(0)
    return [rng.normal(size=(batch, dim)), 0.5]
"""


@pytest.mark.parametrize("new", [JAX, PADDLE], ids=["jax", "paddle"])
def test_a_model_as_a_function_of_its_weights(tmp_path, new):
    create_environment("jax")
    row = answered(tmp_path, REFERENCE, new.replace("EPS", "1e-5"), "--seconds", "30")
    assert row["verdict"] == "right", row
    n_tensors, n_cases = map(int, re.findall(r"(\d+) (?:tensors|cases)", row["sentence"])[:2])
    assert n_tensors >= 6 * (n_cases - 1) > 0  # y, and the gradients of x and of four weights; `inference` has y only
    assert dict(map(tuple, (check[:2] for check in row["checks"])))["given"] == "passed"
    assert ("transposed" in [name for name, *_ in row["checks"]]) == ADAPTERS[adapter_in(tmp_path)].strided


def test_another_epsilon_in_jax_and_in_paddle(tmp_path):
    row = answered(tmp_path, REFERENCE, JAX.replace("EPS", "1e-3"), "--diagnose-seconds", "60", "--forward-only")
    assert (row["verdict"], row["cause"], row["exit_code"]) == ("wrong", "eps-value", 1), row
    assert row["place"] == "new.py:3"
    row = answered(tmp_path, REFERENCE, PADDLE.replace("EPS", "1e-3"), "--diagnose-seconds", "0", "--forward-only")
    assert (row["exit_code"], row["counterexample"]["tensor"]) == (1, "y"), row


def adapter_in(folder: Path) -> str:
    return pair_of(str(folder / "reference.py"), str(folder / "new.py")).candidate.adapter


def test_numpy_has_no_gradients_and_an_overflow_of_its_outputs_counts(tmp_path):
    row = answered(
        tmp_path, FUNCTION, NUMPY.replace(" - (values * factor).max(-1, keepdims=True)", ""), "--diagnose-seconds", "5"
    )
    assert (row["verdict"], row["cause"]) == ("wrong", "softmax-unshifted"), row
    assert "soft is NumPy, which has no gradients: only outputs are judged" in row["not_judged"]


def test_a_reference_in_numpy(tmp_path):
    row = answered(tmp_path, NUMPY, FUNCTION, "--seconds", "30")
    assert row["verdict"] == "right", row
    assert any(note.startswith("at its size, outputs were compared") for note in row["not_judged"]), row
    wrong = answered(tmp_path, NUMPY, FUNCTION.replace("dim=-1", "dim=0"), "--diagnose-seconds", "0", "--forward-only")
    assert (wrong["verdict"], wrong["exit_code"]) == ("wrong", 1), wrong
    assert wrong["place"] == "new.py:5"


def files(folder: Path, reference: str, new: str) -> tuple[str, str]:
    paths = folder / "reference.py", folder / "new.py"
    for path, text in zip(paths, (reference, new), strict=True):
        path.write_text(text)
    return str(paths[0]), str(paths[1])


@pytest.mark.parametrize(
    ("reference", "new", "told"),
    [
        (
            FUNCTION.replace("import torch", "import jax"),
            NUMPY,
            "has JAX, but a reference is recorded from PyTorch, or",
        ),
        (FUNCTION, NUMPY.replace("import numpy", "import jax, tensorflow"), "imports jax and tensorflow; name the one"),
        (REFERENCE, "import jax\n\nclass Model: ...\n", "Model is a class, which is called only in PyTorch"),
        (REFERENCE, NUMPY, "defines no function model or model_new or Model, only soft, get_inputs"),
    ],
)
def test_pairs_that_are_refused(tmp_path, reference, new, told):
    with pytest.raises(CheckError, match=told):
        resolved(*files(tmp_path, reference, new), tmp_path / "out")


def test_an_adapter_may_be_named(tmp_path):
    pair = files(tmp_path, FUNCTION, "import jax, tensorflow\n\ndef soft(x, scale): ...\n")
    assert resolved(*pair, tmp_path / "out", adapter="jax").pair.candidate.adapter == "jax"
    with pytest.raises(CheckError, match="is one of PyTorch"):
        resolved(*pair, tmp_path / "out", adapter="jax", format_name="robust-kbench")


@pytest.mark.skipif(importlib.util.find_spec("jax") is not None, reason="JAX is installed here")
def test_an_environment_that_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("PARITY_HOME", str(tmp_path))
    pair = pair_of(*files(tmp_path, FUNCTION, "import jax\n\ndef soft(x, scale): ...\n"))
    with pytest.raises(CheckError, match=r"needs jax, which is not installed here .* `parity env create jax`"):
        check_installed(pair)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (NUMPY.replace("return e /", "return e, e /"), "returns tuple; return an array, or a mapping"),
        (NUMPY.replace("return [", "return np.ones(3); return ["), "returns ndarray; return the list"),
        (NUMPY.replace("rng.normal(size=(batch, dim))", "rng.normal(size=3) > 0").replace("values * factor -", "np.where(~values, factor, 1.0) -"),
         "values is recorded as 0 and 1"),
    ],
)  # fmt: skip
def test_references_in_numpy_that_cannot_be_used(tmp_path, text, told):
    with pytest.raises(CheckError, match=told):
        problem_of(pair_of(*files(tmp_path, text, FUNCTION)), {}).at({})


def test_how_numpy_inputs_are_drawn(tmp_path):
    drawn = (
        "return [rng.random(3) * 2 + 1, np.random.randn(3), np.tril(rng.normal(size=(3, 3))), rng.integers(0, 9, 3), 2]"
    )
    text = NUMPY.replace("return [rng.normal(size=(batch, dim)), 0.5]", drawn)
    text = text.replace("soft(values, factor)", "soft(values, b, c, d, factor)")
    problem = problem_of(pair_of(*files(tmp_path, text, FUNCTION)), {})
    sized = problem.at(small(problem))
    assert [a.kind for a in sized.arguments] == ["uniform", "normal", "given", "integers", "number"]
    assert not any(isinstance(a.value, DrawnArray) for a in sized.arguments)
    assert sized.params == {"factor": 2, "arguments": "values, b, c, d, factor"}


def test_numpy_draws_as_before_afterwards():
    before, own = np.random.get_state()[1].copy(), np.random.randn  # type: ignore[index]
    with noting_draws():
        assert isinstance(np.random.randn(3), DrawnArray)
    assert np.random.randn is own
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # type: ignore[index]


def test_how_a_function_is_called():
    def model(x, k, *, fc_weight, eps, bn_running_mean=None):
        return x * k, fc_weight + eps

    given = {
        "x": np.ones(2),
        "mask": np.ones(2),
        "arguments": "x: float64, k",
        "init_eps": 2,
        "init_dim": 3,
        "k": "[2]",
    }
    weights = {"fc_weight": np.ones(3), "bn_running_var": np.ones(1)}
    del given["mask"]
    outputs = UserFunction(model)(**given, **weights, training=True)
    np.testing.assert_array_equal(outputs["y1"], np.full(3, 3.0))
    with pytest.raises(UserModuleError, match=r"model\(x, k, fc_bias=, eps=\) does not fit"):
        UserFunction(model)(**given, fc_bias=np.ones(3))


def test_a_nan_is_no_small_difference():
    class Row:
        def __init__(self, verdict: str, value: object) -> None:
            self.verdict, self.actual_value, self.max_abs_diff, self.envelope = (
                type("V", (), {"value": verdict}),
                value,
                0.0,
                None,
            )

    own, reference = Row("nonfinite", "nan"), Row("close", 1.0)
    assert not as_far(own, reference)  # type: ignore[arg-type]
