"""User ops that are wrong in ways that must neither pass nor take the run with them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from parity.worker.cell import distance
from tests.conftest import parity_command, user_config

LINEAR = "{id: one, op: linear, params: {out_features: 3}, inputs: {x: {shape: [4, 7]}}}"
HONEST = """
def linear_backward(grad_y, x, weight):
    return {"x": grad_y @ weight, "weight": grad_y.T @ x, "bias": grad_y.sum(0)}
"""
SPARSE = """
class Sparse:
    dtype, shape, layout = "float32", (4, 3), "csr"


def linear(**_):
    return Sparse()
"""


def run_ops(parity_run, tmp_path: Path, text: str, *arguments: str, adapter: str = "numpy", case: str = LINEAR):
    path = tmp_path / "ops.py"
    path.write_text(text)
    return parity_run(user_config(path, cases=[case], adapter=adapter), *arguments)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "def linaer(x, weight, bias):\n    return x\n",
            "ops.py defines none of the ops of this run: linear; is linaer a typo?",
        ),
        ("", "ops.py defines none of the ops of this run: linear"),
        ("linear = 3\n", "ops.py: linear must be a function, not int"),
        (HONEST, "ops.py defines linear_backward but no linear"),
        ("def linear(x, weight, bias, /):\n    return x\n", "ops.py:1: linear must take x, weight, bias by keyword"),
        (
            "def linear(x, weight, bias, stride):\n    return x\n",
            "ops.py:1: linear takes stride, but only x, weight, bias are available",
        ),
        (SPARSE, "a result is a Sparse (csr), which has no array of its values"),
    ],
)
def test_what_cannot_be_used_is_an_error_and_never_a_pass(parity_run, tmp_path, text, said):
    finished = run_ops(parity_run, tmp_path, text)
    assert finished.code == 3
    assert said in finished.message("mine")
    assert "PASS" not in finished.stdout
    assert re.search(r"mine: \w+ in one \(float32, float64\): ", finished.stdout)


STRANGE = """
class Mute(BaseException):
    def __str__(self):
        raise RuntimeError("str")


def sin(x):
    raise Mute()


mish = 3


def tanh(x):
    return np.tanh(x), x


def exp(x):
    return np.exp(x)
"""


def test_what_is_wrong_with_one_op_costs_only_its_case(parity_run, tmp_path):
    path = tmp_path / "ops.py"
    path.write_text("import numpy as np\n" + STRANGE)
    cases = [
        f"{{id: {op}, op: {op}, gradients: false, inputs: {{x: {{shape: [3, 4]}}}}}}"
        for op in ("exp", "mish", "sin", "tanh")
    ]
    finished = parity_run(user_config(path, cases=cases, backends=()), "--dtype", "float32")
    messages = {row["case"]: row["message"] for row in finished.results["outcomes"] if row["message"]}
    assert messages["mish"] == "ops.py: mish must be a function, not int"
    assert messages["sin"] == "ops.py:9: Mute: no message"
    assert {row["message"] for row in finished.failing(case="tanh")} == {
        'mine returns several tensors for y; return {"y": ...}'
    }
    assert finished.outcomes("mine")["exp", "float32"] == "ok"


def test_a_table_does_not_say_that_a_crashed_op_agrees(parity_run, tmp_path):
    finished = run_ops(parity_run, tmp_path, "import os\ndef linear(**_):\n    os._exit(1)\n")
    assert "\n8 tensors: 8 lack a result\n" in finished.stdout
    assert "within rtol/atol" not in finished.stdout
    assert "PASS" not in finished.stdout


@pytest.mark.frameworks
def test_a_wrong_shape_is_structure_in_a_framework_too(parity_run, tmp_path):
    finished = run_ops(
        parity_run, tmp_path, "def linear(x, weight, bias):\n    return (x @ weight.T + bias)[:, :1]\n", adapter="torch"
    )
    assert finished.code == 1
    [row] = finished.failing(tensor="y", actual="mine", expected="oracle", dtype="float32")
    assert row["message"] == "mine has shape [4, 1], oracle [4, 3]"


@pytest.mark.frameworks
@pytest.mark.parametrize(
    ("returned", "said", "why"),
    [
        ("y[None]", "mine has shape [1, 4, 3], oracle [4, 3]", "y has another shape"),
        ("{'y': y}.values()", "mine returns a dict_values for y, not a tensor", "y is no tensor"),
        ("(y, x)", 'mine returns several tensors for y; return {"y": ...}', "y is missing"),
        ("y.to(torch.int32)", "returns int64 instead of float32 and float64", "y has dtype int64"),
    ],
)
def test_a_gradient_that_an_output_cannot_take_is_no_finding(parity_run, tmp_path, returned, said, why):
    text = f"import torch\ndef linear(x, weight, bias):\n    y = x @ weight.t() + bias\n    return {returned}\n"
    finished = run_ops(parity_run, tmp_path, text, adapter="torch")
    assert finished.code == 1
    assert "1 finding in 2 of 8 tensors: mine; 6 tensors lack" in finished.stdout
    assert f"1. mine: {said}" in finished.stdout
    assert f"gradients are not computed, since {why}" in finished.stdout


@pytest.mark.frameworks
def test_gradients_are_those_of_all_outputs_or_none(parity_run, tmp_path):
    text = "def two(x):\n    return {'a': 2 * x, 'b': (3 * x).sum()}\n"
    (tmp_path / "ref.py").write_text("def two(x):\n    return {'a': 2 * x, 'b': 3 * x}\n")
    case = "{id: one, op: two, reference: ./ref.py, inputs: {x: {shape: [2, 3]}}}"
    finished = run_ops(parity_run, tmp_path, text, adapter="torch", case=case)
    assert [row["tensor"] for row in finished.failing(dtype="float32", expected="oracle")] == ["b"]


@pytest.mark.parametrize("changed", ["y.astype(y.dtype.newbyteorder('>'))", "y.astype('g')", "np.ma.masked_array(y)"])
def test_one_wrong_dtype_is_one_finding(parity_run, tmp_path, changed):
    text = f"import numpy as np\ndef linear(x, weight, bias):\n    y = x @ weight.T + bias\n    return {changed}\n"
    finished = run_ops(parity_run, tmp_path, text + HONEST)
    assert finished.code == 1
    assert "1 finding in 2 of 8 tensors: mine" in finished.stdout
    assert re.search(r"1\. mine: returns .+ instead of float32 and (.+ instead of )?float64\n", finished.stdout)


def test_a_gradient_that_an_own_backward_pass_leaves_out_is_missing_whatever_the_output_is(parity_run, tmp_path):
    text = "def linear(x, weight, bias):\n    return x\n" + HONEST.replace(', "bias": grad_y.sum(0)', "")
    finished = run_ops(parity_run, tmp_path, text)
    rows = finished.failing(dtype="float32", expected="oracle")
    assert {row["tensor"]: row["message"] for row in rows} == {
        "y": "mine has shape [4, 7], oracle [4, 3]",
        "grad.bias": "mine has no grad.bias",
    }


def test_what_is_returned_too_much_is_named(parity_run, tmp_path):
    text = "def linear(x, weight, bias):\n    return x @ weight.T + bias\n"
    more = HONEST.replace('"bias":', '"y": x, "z": x, "bias":')
    finished = run_ops(parity_run, tmp_path, text + more)
    assert "1 finding in" in finished.stdout
    assert "1. mine: mine returns grad.y, grad.z, which linear does not have" in finished.stdout


@pytest.mark.frameworks
def test_a_scripted_function_can_be_used(parity_run, tmp_path):
    text = "import torch\n@torch.jit.script\ndef linear(x, weight, bias):\n    return x @ weight.t() + bias\n"
    text = "import warnings\nwarnings.simplefilter('ignore')\n" + text
    assert run_ops(parity_run, tmp_path, text, adapter="torch").code == 0


def test_a_lone_surrogate_keeps_the_results(parity_run, tmp_path):
    finished = run_ops(parity_run, tmp_path, "def linear(**_):\n    raise ValueError('\\ud800')\n")
    assert finished.code == 3
    assert finished.results["summary"]["outcomes"] == {"ok": 2, "error": 2}


def test_an_ops_file_that_hangs_is_a_timeout(parity_run, tmp_path):
    finished = run_ops(parity_run, tmp_path, "import time\ntime.sleep(100_000)\n", "--timeout", "1")
    assert finished.code == 3
    assert set(finished.outcomes("mine").values()) == {"timeout"}
    assert "ops.py: no result after 1 s" in finished.message("mine")


@pytest.mark.usefixtures("started_workers")  # whose parent is parity
def test_removing_the_scratch_folder_ends_in_an_error(parity_run, tmp_path):
    text = """
import glob, os, shutil
def linear(x, weight, bias):
    for folder in glob.glob(f"/dev/shm/parity-scratch-{os.getppid()}-*"):
        shutil.rmtree(folder, ignore_errors=True)
    return x @ weight.T + bias
"""
    finished = run_ops(parity_run, tmp_path, text + HONEST)
    assert finished.code in (1, 3)
    assert "PASS" not in finished.stdout


def test_a_huge_output_is_not_taken(parity_run, tmp_path):
    text = "import numpy as np\ndef linear(x, weight, bias):\n    return np.zeros((1 << 13, 1 << 13), x.dtype)\n"
    finished = run_ops(parity_run, tmp_path, text + HONEST)
    [row] = finished.failing(tensor="y", actual="mine", expected="oracle", dtype="float32")
    assert row["message"] == "mine has shape [8192, 8192], oracle [4, 3]"
    assert sum(path.stat().st_size for path in finished.run_dir.rglob("*.npy")) < 1 << 20


def test_a_runner_that_gives_up_leaves_the_cells_to_its_sibling(parity_run, tmp_path):
    path, marker = tmp_path / "ops.py", tmp_path / "first"
    once = f"import os\nos.close(os.open({str(marker)!r}, os.O_CREAT | os.O_EXCL))\n"
    path.write_text(once + "def linear(x, weight, bias):\n    return x @ weight.T + bias\n" + HONEST)
    sweep = "{op: linear, params: {out_features: 3}, sweep: {inputs.x.offset: [0, 1, 2, 3, 4]}, inputs: {x: {shape: [4, 7]}}}"
    finished = parity_run(user_config(path, cases=[sweep], backends=()), "--jobs", "2")
    assert set(finished.outcomes("mine").values()) == {"ok"}, finished.stdout


def test_changing_the_directory_harms_nothing(tmp_path):
    (tmp_path / "ops.py").write_text(
        "import os\ndef linear(x, weight, bias):\n    os.chdir('/')\n    return x @ weight.T + bias\n" + HONEST
    )
    (tmp_path / "config.yaml").write_text(user_config("ops.py", cases=[LINEAR]))
    done = subprocess.run(
        parity_command("run", "config.yaml", "--out", "run"), cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


def test_inputs_that_overflow_are_an_error(parity_run):
    case = "{op: linear, params: {out_features: 3}, inputs: {x: {shape: [4, 7], constant: 1.0e+300}}}"
    finished = parity_run(f"version: 1\nbackends: [numpy]\ncases: [{case}]\n")
    assert finished.code == 3
    assert "inputs.x: finite values overflow to infinity in float32" in finished.message("numpy")
    asked = case.replace("1.0e+300", ".inf")
    finished = parity_run(f"version: 1\nbackends: [numpy]\ncases: [{asked}]\n")
    assert set(finished.outcomes("numpy").values()) == {"ok"}
    # No element of y has a finite exact value: nothing is compared, and that is no pass.
    assert finished.code == 3


def test_a_timeout_must_be_a_number(parity_run):
    finished = parity_run(f"version: 1\nbackends: [numpy]\ncases: [{LINEAR}]\n", "--timeout", "nan")
    assert finished.code == 2
    assert "--timeout" in finished.stderr


def test_a_removed_run_directory_still_shows_the_results(parity_run, tmp_path):
    text = """
import contextlib, pathlib, shutil
RUN = pathlib.Path(__file__).with_name("run")
def linear(x, weight, bias):
    # The host may write while this removes; a file in the directory's place ends that for good.
    while not RUN.is_file():
        shutil.rmtree(RUN, ignore_errors=True)
        with contextlib.suppress(OSError):
            RUN.write_text("")
    return x @ weight.T + bias
"""
    finished = run_ops(parity_run, tmp_path, text + HONEST)
    assert finished.code == 2
    assert "INCOMPLETE" in finished.stdout
    assert "cannot write" in finished.stderr
    assert "Traceback" not in finished.stderr


def test_a_scalar_that_changes_from_call_to_call_is_measured():
    one, other = np.array(1.0), np.array(1.5)
    assert distance(one, other) == 0.5
    assert distance(one, np.array(np.nan)) == np.inf


@pytest.mark.frameworks
def test_a_list_of_numbers_is_no_tensor(parity_run, tmp_path):
    text = "def linear(x, weight, bias):\n    return (x @ weight.t() + bias).tolist()\n"
    finished = run_ops(parity_run, tmp_path, text, adapter="torch")
    assert "1 finding in 2 of 8 tensors" in finished.stdout
    assert "1. mine: mine returns a list of numbers for y, not a tensor\n" in finished.stdout


@pytest.mark.frameworks
def test_a_method_of_a_tensor_can_be_used(parity_run, tmp_path):
    case = "{id: one, op: softmax, params: {dim: 0}, inputs: {x: {shape: [4, 7]}}}"
    text = "import torch\nsoftmax = torch.Tensor.softmax\n"
    finished = run_ops(parity_run, tmp_path, text, adapter="torch", case=case)
    assert finished.code == 0, finished.stdout


UNSPEAKABLE = """
class Evil(Exception):
    def __str__(self): raise Evil()
    def __repr__(self): return 5
    def __getattr__(self, name): raise Evil()


"""


@pytest.mark.parametrize("text", ["raise Evil()\n", "def linear(**_):\n    raise Evil()\n"])
def test_an_exception_that_cannot_be_shown_is_named_with_its_line(parity_run, tmp_path, text):
    finished = run_ops(parity_run, tmp_path, UNSPEAKABLE + text)
    assert finished.code == 3
    line = len((UNSPEAKABLE + text).splitlines())
    assert f"ops.py:{line}: Evil: no message" in finished.message("mine")
