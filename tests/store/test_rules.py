"""The rules of others, from what a row keeps, say what they say of the tensors."""

from __future__ import annotations

import json

import numpy as np
import pytest
from msgspec.structs import replace

from benchmarks.faults import measure
from benchmarks.judge.measure import dynamo_same
from parity.judge.compare.metrics import compare
from parity.judge.compare.verdict import ErrorRatios
from parity.reporting.results.store import store_of
from parity.reporting.rules import RULES, tensors
from tests.conftest import call, run_in, user_config
from tests.reporting import ci_runs

DOUBLED = "def linear(x, weight, bias):\n    return 2 * (x @ weight.T + bias)\n"
CASE = "{op: linear, params: {out_features: 3}, gradients: false, inputs: {x: {shape: [4, 60]}}}"


def results_with(dtype, values):
    """A run of one tensor, of which only the numbers count: `values` are those of torch, paddle and the oracle."""
    results = ci_runs.every_status()
    row, case = results.comparisons[0], results.cases[0]
    rows = []
    for actual, expected in (("paddle", "torch"), ("paddle", "oracle"), ("torch", "oracle")):
        m = compare(values[actual], values[expected], 1e-6, 1e-6)
        given = {"n_elements": m.n_elements, "max_abs_diff": m.max_abs_diff, "rmse": m.rmse, "cosine": m.cosine}
        verdict = "nonfinite" if m.n_nonfinite_mismatched else "close"
        rows.append(replace(row, case=case.id, dtype=dtype, actual=actual, expected=expected, verdict=verdict, culprit=[], known=None, error_ratio=ErrorRatios(None, None), frontier=list(m.frontier), **given))  # fmt: skip
    return replace(results, comparisons=rows, diagnoses=[], cases=[case])


def cosine(a, e):
    return float(a @ e / np.sqrt((a @ a) * (e @ e)))


def msprobe(own, base):
    a, e = own.astype(float), base.astype(float)
    distance = np.abs(a - e).max()
    return not ((cosine(a, e) < 0.99 and distance > 1e-3) or cosine(a, e) < 0.9 or distance > 1)


def test_a_rule_says_the_same_of_the_row_as_of_the_tensors():
    rng, said = np.random.default_rng(3), []
    for i in range(120):
        dtype = ("float32", "float64", "float16")[i % 3]
        exact = rng.normal(size=int(10 ** rng.uniform(0.5, 3.5))) * 10 ** rng.uniform(-3, 1)
        errors = 10.0 ** rng.uniform(-8, 0.5, 2)
        own, base = (exact * (1 + error * rng.normal(size=exact.size)) for error in errors)
        own, base = own.astype(dtype), base.astype(dtype)
        [tensor] = tensors(store_of(results_with(dtype, {"paddle": own, "torch": base, "oracle": exact})))
        rtol, atol = measure.ASSERT_CLOSE[dtype]
        wanted = {
            "assert_close": np.allclose(own.astype(float), base.astype(float), rtol, atol),
            "dynamo": dynamo_same(base, own, exact) if dtype != "float16" else None,
            "flash-attention": measure.largest(own, exact) <= 2 * measure.largest(base, exact),
            "msprobe": msprobe(own, base),
        }
        for name, passes in wanted.items():
            if passes is not None:
                assert RULES[name].passes(tensor) == passes, (i, name)
        said.append(wanted)
    assert all({True, False} <= {wanted[name] for wanted in said} for name in RULES)


@pytest.mark.parametrize("rule", RULES)
def test_a_doubled_result_is_rejected_and_an_equal_one_passes(rule, tmp_path):
    (tmp_path / "ops.py").write_text(DOUBLED)
    wrong = run_in(tmp_path, user_config("ops.py", cases=[CASE]))
    done = call("judge", wrong.run_dir, "--rule", rule)
    assert (done.returncode, done.stdout.splitlines()[0]) == (
        1,
        f"FAIL  {rule} rejects 2 of 2 tensors; the error bound 2",
    )
    (tmp_path / "ops.py").write_text(DOUBLED.replace("2 *", ""))
    right = run_in(tmp_path, user_config("ops.py", cases=[CASE]))
    done = call("judge", right.run_dir, "--rule", rule)
    assert (done.returncode, done.stdout.splitlines()[1]) == (0, "  2 passed by both")
    assert "cosine" in json.loads((right.run_dir / "results.json").read_text())["comparisons"][0]
