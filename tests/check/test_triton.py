"""`parity check` of candidates with Triton kernels, where there is no GPU: they run in Triton's interpreter."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from parity.check.answer import lacks_device
from parity.check.pair import FilePair, Named
from parity.check.triton_code import cuts_gradients, has_triton, is_interpreted
from tests.check.test_check import answered
from tests.check.triton_pairs import NAIVE, NORM, ON_DEVICE, REFUSED, RIGHT, SOFTMAX, UNMASKED

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.frameworks, pytest.mark.process]
if torch.cuda.is_available():
    pytest.skip("kernels are compiled for the GPU here", allow_module_level=True)
NOTE = "new.py runs in Triton's interpreter (no GPU here): its speed, races and TF32 products are not judged"


@pytest.fixture
def triton() -> None:
    """Triton is installed."""
    pytest.importorskip("triton")


@pytest.mark.usefixtures("triton")
def test_a_right_softmax_with_its_gradient_is_right(tmp_path):
    row = answered(tmp_path, SOFTMAX, RIGHT)
    assert (row["verdict"], row["exit_code"]) == ("right", 0), row
    assert NOTE in row["not_judged"]
    assert {state for name, state, _ in row["checks"] if name != "same-formula"} == {"passed"}
    assert row["checks"][-1] == ["same-formula", "not run", "a kernel of Triton"]


@pytest.mark.usefixtures("triton")
def test_a_variance_that_loses_digits_in_a_kernel_is_named_at_its_launch(tmp_path):
    row = answered(tmp_path, NORM, NAIVE)
    assert (row["verdict"], row["exit_code"], row["cause"]) == ("unstable", 1, "variance-naive"), row
    lines = NAIVE.splitlines()
    assert "norm_kernel[" in lines[int(row["place"].removeprefix("new.py:")) - 1], row["place"]


@pytest.mark.usefixtures("triton")
def test_lanes_that_no_mask_leaves_out_are_seen(tmp_path):
    row = answered(tmp_path, SOFTMAX, UNMASKED)
    assert (row["verdict"], row["exit_code"]) == ("wrong", 1), row
    assert "filled up to a power of 2" in row["sentence"]


@pytest.mark.usefixtures("triton")
def test_what_the_interpreter_refuses_is_no_fault(tmp_path):
    row = answered(tmp_path, SOFTMAX, REFUSED, "--forward-only")
    assert (row["verdict"], row["exit_code"]) == ("not-judged", 3), row
    assert "Triton's interpreter refuses this, a GPU may not: it computes with the bits of bf16" in row["sentence"]
    assert row["place"] == f"new.py:{1 + REFUSED.splitlines().index('    x = x.to(tl.bfloat16).to(tl.float32)')}"


@pytest.mark.exhaustive
@pytest.mark.usefixtures("triton")
def test_a_device_that_is_not_here_is_told_with_its_line(tmp_path):
    row = answered(tmp_path, SOFTMAX, ON_DEVICE, "--forward-only")
    assert (row["verdict"], row["exit_code"]) == ("not-judged", 3), row
    assert row["sentence"].startswith("new needs a device that is not here: new.py:")
    assert 'device="cuda"' in ON_DEVICE.splitlines()[int(row["place"].removeprefix("new.py:")) - 1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("new.py:2: AssertionError: no message", True),
        ("new.py:1: AssertionError: no message", False),
        ("new.py:2: ValueError: no message", False),
        ("new.py:1: RuntimeError: Found no NVIDIA driver", True),
        ("triton.py:1: NameError: name 'x' is not defined", False),
    ],
)
def test_a_device_is_asked_for_by_the_error_or_by_the_line_that_asserts_it(tmp_path, text, expected):
    (tmp_path / "new.py").write_text("assert x.ndim == 2\nassert x.device.type == 'cuda'\n")
    new = Named(tmp_path / "new.py", "f", False, 1)
    assert lacks_device(text, FilePair(new, new, (new.path, "get_inputs"))) == expected


def test_without_triton_the_remedy_is_said(tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "triton.py").write_text("raise ImportError(\"No module named 'triton'\")")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "empty"), prepend=os.pathsep)
    row = answered(tmp_path, SOFTMAX, RIGHT, "--forward-only")
    assert (row["verdict"], row["exit_code"]) == ("not-judged", 3), row
    assert row["sentence"] == (
        "Triton's interpreter needs triton, which is not here (No module named 'triton'): pip install triton"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import triton.language as tl", True),
        ("def f():\n    from triton import jit", True),
        ("import kernels", True),
        ("from . import kernels", True),
        ("import tritonclient", False),
        ("import unknown", False),
    ],
)
def test_triton_is_found_in_a_file_and_those_beside_it(tmp_path: Path, text: str, expected: bool):
    (tmp_path / "kernels.py").write_text("import new\nimport triton\n")
    (tmp_path / "new.py").write_text(text)
    assert has_triton(tmp_path / "new.py") == expected
    assert is_interpreted(Named(tmp_path / "new.py", "f", False, 1)) == expected


def test_kernels_without_a_backward_pass_cut_gradients(tmp_path):
    (tmp_path / "kernels.py").write_text("import triton\n")
    new = tmp_path / "new.py"
    new.write_text("import kernels\n\ndef f(x):\n    return kernels.f(x)\n")
    assert cuts_gradients(new)
    new.write_text("import torch\n\ndef f(x):\n    return x\n")
    assert not cuts_gradients(new)
    new.write_text(
        "import kernels\n\nclass F(Function):\n    @staticmethod\n    def backward(ctx, g):\n        return g\n"
    )
    assert not cuts_gradients(new)
