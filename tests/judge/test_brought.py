"""Kernels of ops that parity does not know are judged by the reference that their user brings."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from parity.cases.candidates import detachments
from parity.cases.formula import formulas
from parity.cases.oracle import program_of
from parity.cases.trial import Trial
from parity.config.plan import CasePlan
from parity.judge.diagnose.behaviour import batch_variant
from tests.config.test_brought import case as brought_case
from tests.conftest import ROOT, call

SECTION = (ROOT / "docs" / "own-kernel.md").read_text().split("## An op that parity does not know")[1]
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", SECTION, re.DOTALL | re.MULTILINE)
FILES = {body.split()[1]: body for language, body in BLOCKS if language in ("python", "yaml")}
"""The files that the documentation shows."""
SHOWN = next(body for language, body in BLOCKS if not language)
REFERENCE = FILES["my_reference.py"]
TORCH = """\
import torch


def my_swiglu(x, gate, alpha=1.0):
    return {formula}
"""
NUMPY = """\
import numpy as np


def my_swiglu(x, gate, alpha=1.0):
    return x * gate / (1 + np.exp(-alpha * gate))


def my_swiglu_backward(grad_y, x, gate, alpha=1.0):
    sigmoid = 1 / (1 + np.exp(-alpha * gate))
    return {"x": grad_y * gate * sigmoid, "gate": grad_y * x * sigmoid * (1 + alpha * gate * (1 - sigmoid))}
"""
CONFIG = """\
version: 1
backends:
  - {name: mine, adapter: torch, ops: ./mine.py}
  - {name: numpy-kernel, adapter: numpy, ops: ./other.py}
cases:
  - op: my_swiglu
    reference: ./my_reference.py
    inputs: {x: {shape: [4, 8]}, gate: {shape: [4, 8]}}
    params: {alpha: 1.5}
"""


def run_kernel(tmp_path: Path, parity_run: Callable, formula: str):
    (tmp_path / "my_reference.py").write_text(REFERENCE)
    (tmp_path / "mine.py").write_text(TORCH.format(formula=formula))
    (tmp_path / "other.py").write_text(NUMPY)
    return parity_run(CONFIG)


@pytest.mark.frameworks
def test_right_kernels_pass(tmp_path: Path, parity_run: Callable):
    done = run_kernel(tmp_path, parity_run, "x * torch.nn.functional.silu(alpha * gate) / alpha")
    assert done.code == 0
    assert {row["verdict"] for row in done.results["comparisons"]} <= {"equal", "close"}


@pytest.mark.frameworks
def test_the_documented_kernel_is_named_and_shown(tmp_path: Path, parity_run: Callable):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    done = parity_run(tmp_path / "my_swiglu.yaml")
    assert done.code == 1
    assert SHOWN in done.stdout
    found = done.results["diagnoses"]
    assert {(row["backend"], row["id"]) for row in found} == {("mine", "reference-edit")}
    assert "computes x, where the reference has x * gate" in f"computes {found[0]['evidence']['expression']}"
    explained = call("explain", done.run_dir, "my_swiglu", "-v").stdout
    assert "my_reference.py" in explained
    assert call("repro", done.run_dir, "my_swiglu", "-b", "mine").returncode == 0
    script = next(path for path in (done.run_dir / "repro").glob("*.py") if ".ops." not in path.name).read_text()
    assert "#     return x * gate * sigmoid" in script
    assert json.loads((done.run_dir / "results.json").read_text())["cases"][0]["brought"]["text"] == REFERENCE


@pytest.mark.frameworks
def test_a_param_that_a_kernel_ignores_is_named(tmp_path: Path, parity_run: Callable):
    done = run_kernel(tmp_path, parity_run, "x * gate * torch.sigmoid(gate)")
    assert {row["id"] for row in done.results["diagnoses"]} == {"param-value"}
    expression = done.results["diagnoses"][0]["evidence"]["expression"]
    assert expression == "-1, where the reference has -alpha (in sigmoid)"


FACTORIZED = """\
def {name}(x, b):
    s = x @ x.T + {eye}
    return {library}.linalg.inv(s) @ {library}.linalg.solve(s, b) + {library}.linalg.cholesky(s) @ b * {library}.linalg.det(s)
"""


@pytest.mark.frameworks
def test_factorizations_have_an_exact_answer_with_the_accuracy_of_float64(tmp_path: Path, parity_run: Callable):
    reference = "import numpy as np\n" + FACTORIZED.format(name="solved", library="np", eye="np.eye(4)")
    (tmp_path / "reference.py").write_text(reference)
    right = FACTORIZED.format(name="solved", library="torch", eye="torch.eye(4, dtype=x.dtype)")
    lossy = right.replace("def solved", "def float32_solved").replace(
        "solve(s, b)", "solve(s.float(), b.float()).to(x.dtype)"
    )
    (tmp_path / "mine.py").write_text("import torch\n" + right + lossy)
    (tmp_path / "reference2.py").write_text(reference.replace("solved", "float32_solved"))
    inputs = "inputs: {x: {shape: [4, 4]}, b: {shape: [4, 3]}}"
    done = parity_run(
        "version: 1\nbackends: [{name: mine, adapter: torch, ops: ./mine.py}]\ncases:\n"
        f"  - {{op: solved, reference: ./reference.py, {inputs}}}\n"
        f"  - {{op: float32_solved, reference: ./reference2.py, {inputs}, dtypes: [float64]}}\n"
    )
    assert "failed" not in done.stdout + done.stderr
    verdicts = {row["verdict"] for row in done.results["comparisons"] if row["case"].startswith("solved")}
    assert verdicts <= {"equal", "close", "rounding"}
    assert {row["case"].split("-")[0] for row in done.results["diagnoses"]} >= {"float32_solved"}


@pytest.mark.frameworks
def test_an_inverse_that_loses_digits_to_its_matrix_alone_is_rounding(tmp_path: Path, parity_run: Callable):
    """Points close by show noise of LAPACK, which is no jump of the gradient."""
    kernel = "def inv(x, c=1e-3):\n    return {0}.linalg.inv(x @ x.T + c * {0}.eye(x.shape[0]{1}))\n"
    (tmp_path / "reference.py").write_text("import numpy as np\n\n\n" + kernel.format("np", ""))
    (tmp_path / "mine.py").write_text("import torch\n\n\n" + kernel.format("torch", ", dtype=x.dtype"))
    cases = "".join(
        f"  - {{id: inv-{n}-{c}, op: inv, reference: ./reference.py, params: {{c: {c}}}, inputs: {{x: {{shape: [{n}, {n}]}}}}}}\n"
        for n in (4, 24)
        for c in ("0.001", "1.0e-7")
    )
    done = parity_run(f"version: 1\nbackends: [{{name: mine, adapter: torch, ops: ./mine.py}}]\ncases:\n{cases}")
    assert done.code == 0, done.stdout


UNDEFINED = """
import torch


def rooted(x):
    return x.norm(dim=1) if x.shape[0] < 3 else (x * x).sum(1).sqrt() * (1 + x.detach().sum() * 0)


def zero(x):
    return torch.zeros_like(x)


def spoiled(x):
    return (x * x).sum(1).sqrt() + (x * 0 / (x - 2)).sum(1)
"""


@pytest.mark.frameworks
def test_where_a_reference_has_no_gradient_nobody_is_wrong(tmp_path: Path, parity_run: Callable):
    (tmp_path / "reference.py").write_text(
        "import numpy as np\n\n\ndef rooted(x):\n    return np.sqrt((x * x).sum(axis=1))\n\n\nspoiled = rooted\n\n\n"
        "def zero(x):\n    return np.zeros_like(x)\n"
    )
    (tmp_path / "mine.py").write_text(UNDEFINED)
    values = "inputs: {x: {values: [[0.0, 0, 0], [2, 2, 1]]}}"
    done = parity_run(
        "version: 1\nbackends: [{name: mine, adapter: torch, ops: ./mine.py}]\ncases:\n"
        f"  - {{id: root, op: rooted, reference: ./reference.py, {values}}}\n"
        f"  - {{id: spoiled, op: spoiled, reference: ./reference.py, {values}}}\n"
        "  - {id: zero, op: zero, reference: ./reference.py, inputs: {x: {shape: [2, 3]}}}\n"
    )
    assert {row["case"] for row in done.failing()} == {"spoiled"}
    assert {row["tensor"] for row in done.failing()} == {"y", "grad.x"}
    assert {row["verdict"] for row in done.failing()} == {"nonfinite"}
    left_out = {
        row["tensor"] for row in done.results["comparisons"] if row["message"].startswith("not compared in 3 of 6")
    }
    assert left_out == {"grad.x"}
    assert "2 tensors are not compared in 3 of 6 elements: the reference is NaN (for example root " in done.stdout


RECURRENCE = """
def my_op(x, w, u):
    h, rows = np.zeros(w.shape[0]), []
    for row in x:
        h = np.tanh(w @ h) + u @ row
        rows.append(h)
    return np.stack(rows)
"""
MATRICES = "{x: {shape: [4, 3]}, w: {shape: [3, 3]}, u: {shape: [3, 3]}}"


def recurrence(tmp_path: Path) -> tuple[CasePlan, dict[str, np.ndarray]]:
    """The case, and its inputs."""
    case = brought_case(tmp_path, RECURRENCE, MATRICES)
    return case, {tensor.name: tensor.sample(0, case.id, "float64") for tensor in case.tensors}


def test_a_loop_may_start_from_an_array_of_constants(tmp_path: Path):
    case, inputs = recurrence(tmp_path)
    program = program_of(case.definition, case.params, inputs)
    shapes = Trial(program, inputs).shapes
    found = [edit for name in ("grad.x", "grad.w") for edit in detachments(program, shapes, name)]
    assert found


def test_rows_that_depend_on_one_another_by_the_formula_are_no_batch(tmp_path: Path):
    case, inputs = recurrence(tmp_path)

    def inside(asked: CasePlan, dtype: str, given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """np.tanh(w @ h + u @ row), and its gradient for x."""
        w, u, h, rows = given["w"], given["u"], np.zeros(3), []
        for row in given["x"]:
            h = np.tanh(w @ h + u @ row)
            rows.append(h)
        arriving, gradients = np.zeros(3), []
        for h, grad in zip(rows[::-1], given["grad.y"][::-1], strict=True):
            inner = (grad + arriving) * (1 - h * h)
            arriving = w.T @ inner
            gradients.append(u.T @ inner)
        return {"y": np.stack(rows), "grad.x": np.stack(gradients[::-1])}

    assert (
        batch_variant(inside, case, "float64", inputs, {}, dict.fromkeys(("y", "grad.x", "grad.w", "grad.u"), 1e-9))
        is None
    )


def test_an_index_that_is_computed_is_written_as_its_formula(tmp_path: Path):
    case = brought_case(
        tmp_path, "def my_op(x):\n    y = x.copy()\n    y[x > 1] = np.log(x[x > 1])\n    return y", "{x: {shape: [4]}}"
    )
    inputs = {tensor.name: tensor.sample(0, case.id, "float64") for tensor in case.tensors}
    text = "\n".join(formulas(program_of(case.definition, case.params, inputs)))
    assert "Ref" not in text
    assert "log(x[greater(x, 1)])" in text


@pytest.mark.frameworks
def test_a_limit_of_any_number_that_only_guards_a_gradient_is_no_cause(tmp_path: Path, parity_run: Callable):
    (tmp_path / "reference.py").write_text(
        "import numpy as np\n\n\ndef near(x):\n    d = ((x[:, None, :] - x[None, :, :]) ** 2).sum(-1)\n"
        "    return np.exp(-d)[np.tril_indices(len(x), -1)]\n"
    )
    (tmp_path / "mine.py").write_text(
        "import torch\n\n\ndef near(x):\n    i = torch.tril_indices(len(x), len(x), -1)\n"
        "    return torch.exp(-torch.cdist(x, x))[i[0], i[1]]\n"
    )
    done = parity_run(
        "version: 1\ndtypes: [float64]\nbackends: [{name: mine, adapter: torch, ops: ./mine.py}]\n"
        "cases: [{op: near, reference: ./reference.py, inputs: {x: {shape: [9, 3]}}}]"
    )
    assert [row["evidence"]["expression"] for row in done.results["diagnoses"]] == [
        "-sqrt(d), where the reference has -d (in y)"
    ]
