"""bfloat16 on the real wheels: tensors come through every worker unchanged, and a finding's script needs no parity."""

from __future__ import annotations

import sys

import pytest

from tests.conftest import call, user_config
from tests.repro.scripts import run_alone

pytestmark = pytest.mark.frameworks

ROUND_TRIP = """
version: 1
backends: [torch, paddle, oneflow, numpy]
dtypes: [bfloat16, float16]
cases:
  - op: flatten
    inputs: {x: {shape: [4, 5, 6], normal: {std: 3}, special: {values: [.nan, .inf, -.inf, -0.0], count: 8}}}
"""


def test_tensors_come_through_every_worker_bit_for_bit(parity_run):
    done = parity_run(ROUND_TRIP)
    rows = done.select(expected="oracle")
    assert {(row["actual"], row["dtype"], row["tensor"]) for row in rows} == {
        (backend, dtype, tensor)
        for backend in ("torch", "paddle", "oneflow", "numpy")
        for dtype in ("bfloat16", "float16")
        for tensor in ("y", "grad.x")
    }
    assert {row["verdict"] for row in rows} == {"equal"}
    assert (done.code, {row["max_ulp_diff"] for row in rows}) == (0, {0})


NARROW = """
def linear(x, weight, bias):
    total = x[:, :1] * weight[:, 0] * 0
    for k in range(x.shape[1]):
        total = total + x[:, k : k + 1] * weight[:, k]
    return total + bias
"""
CASE = "{id: one, op: linear, gradients: false, dtypes: [bfloat16, float32], inputs: {x: {shape: [6, 600]}, weight: {shape: [4, 600]}}}"


@pytest.mark.parametrize("adapter", ["torch", "numpy"])
def test_a_users_narrow_sum_is_shown_by_a_script_alone(parity_run, tmp_path, adapter):
    (tmp_path / "ops.py").write_text(NARROW)
    done = parity_run(user_config("ops.py", cases=[CASE], adapter=adapter))
    assert {(d["dtype"], d["id"]) for d in done.results["diagnoses"] if d["id"] != "rounding"} == {
        ("bfloat16", "narrow-accumulation")
    }
    assert call("repro", done.run_dir, "--all").returncode == 0
    [script] = (done.run_dir / "repro").glob("*mine.py")
    shown = run_alone(sys.executable, script)
    assert (shown.returncode, shown.stderr) == (1, "")
    assert "against exact" in shown.stdout
    (done.run_dir / "repro" / "mine.ops.py").write_text(
        "def linear(x, weight, bias):\n    y = x.astype('float32') @ weight.T.astype('float32') + bias\n    return y.astype(x.dtype)\n"
        if adapter == "numpy"
        else "def linear(x, weight, bias):\n    return (x.float() @ weight.float().T + bias).bfloat16()\n"
    )
    assert run_alone(sys.executable, script).returncode == 0


EIGHT_BITS = """
version: 1
backends: [torch, paddle, numpy, {name: mine, adapter: torch, ops: ops.py}]
dtypes: [float32, bfloat16, float16]
cases:
  - op: matmul
    sweep: {inputs.x.storage: [float8_e4m3fn, float8_e5m2]}
    inputs: {x: {shape: [5, 40]}, other: {shape: [40, 3], storage: float8_e4m3fn}}
  - id: linear
    op: linear
    inputs: {x: {shape: [2, 5, 40], storage: float8_e5m2}, weight: {shape: [6, 40], storage: float8_e4m3fn}}
"""
READS_ANOTHER_FORMAT = """
import torch

def matmul(x, other):
    assert {x.dtype, other.dtype} <= {torch.float8_e4m3fn, torch.float8_e5m2}
    return x.to(torch.float8_e5m2).float() @ other.float()
"""


def test_operands_of_8_bits_reach_kernels_as_they_are(parity_run, tmp_path):
    (tmp_path / "ops.py").write_text(READS_ANOTHER_FORMAT)
    done = parity_run(EIGHT_BITS)
    e4m3, e5m2, linear = [case["id"] for case in done.results["cases"]]
    rows = done.select(expected="oracle", actual="torch")
    assert {(row["case"], row["dtype"], row["tensor"]) for row in rows} == {
        (case, dtype, "y") for case in (e4m3, e5m2, linear) for dtype in ("float32", "bfloat16", "float16")
    }
    assert {row["verdict"] for row in rows} <= {"equal", "close", "rounding"}
    assert set(done.outcomes("paddle").values()) == {"unsupported"}
    outcomes = done.outcomes("mine")
    assert {outcomes[linear, "float32"], outcomes[e5m2, "float32"]} == {"unsupported", "ok"}
    mine = {row["case"]: row["verdict"] for row in done.select(expected="oracle", actual="mine", dtype="float32")}
    assert (mine[e4m3], mine[e5m2]) == ("semantic", "equal")
