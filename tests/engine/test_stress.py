"""Under `stress: true`: faults that show in a later call, in other memory or in another batch, and healthy kernels."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import user_config

OPS = Path(__file__).parent.parent / "user_ops" / "behaving.py"
VALUES = "[[0.5, -1.5, 2.0, 0.25, -0.75], [1.5, -0.25, 3.0, -2.0, 0.125]]"
ALONE = ("relu", "tanh", "sigmoid", "mish", "silu", "exp", "softplus")
EXPECTED = {
    "relu": {"nondeterministic"},
    "tanh": {"stateful"},
    "sigmoid": {"stateful"},
    "mish": {"stateful", "missing-output"},
    "silu": {"input-mutated"},
    "exp": {"layout-dependent"},
    "softplus": {"layout-dependent"},
    "atan2": {"layout-dependent"},
    "linear": {"batch-variant"},
}
CASES = [
    *(f"{{id: {op}, op: {op}, stress: true, inputs: {{x: {{values: {VALUES}}}}}}}" for op in ALONE),
    "{id: atan2, op: atan2, stress: true, inputs: {x: {shape: [4, 5]}, other: {shape: [4, 5]}}}",
    "{id: linear, op: linear, params: {out_features: 2}, stress: true, inputs: {x: {shape: [3, 4]}}}",
]
CHOSEN = "not (atan2 or linear) or other-is-x or (linear and axis=0)"


def test_every_fault_fails_under_its_name_and_healthy_kernels_do_not(parity_run):
    config = user_config(OPS, cases=CASES)
    finished = parity_run(config, "-k", CHOSEN, "--baseline", "oracle", "--dtype", "float32")
    assert {row["outcome"] for row in finished.results["outcomes"]} == {"ok"}
    found: dict[str, set[str]] = {op: set() for op in EXPECTED}
    for row in finished.results["diagnoses"]:
        assert row["backend"] == "mine"
        found[row["case"].partition("-")[0]].add(row["id"])
    assert found == EXPECTED
    assert finished.code == 1


SEEN = """
def relu(x):
    strides = x.stride() if callable(getattr(x, "stride", None)) else x.strides
    raise RuntimeError(f"strides {tuple(strides)}")

def atan2(x, other):
    x.fill_(3)
    raise RuntimeError(f"shared {bool((other == 3).all())}")
"""


@pytest.mark.frameworks
@pytest.mark.parametrize("adapter", ["torch", "paddle", "oneflow"])
def test_tensors_have_the_strides_and_share_the_memory_in_the_framework(parity_run, tmp_path, adapter):
    (tmp_path / "ops.py").write_text(SEEN)
    cases = [
        "{id: c, op: relu, stress: true, inputs: {x: {shape: [2, 3, 4, 5]}}}",
        "{id: d, op: atan2, gradients: false, stress: true, inputs: {x: {shape: [4]}, other: {shape: [4]}}}",
    ]
    config = user_config(tmp_path / "ops.py", adapter=adapter, backends=[], cases=cases)
    chosen = "c-transposed or c-channels_last or c-strided or other-is-x"
    finished = parity_run(config, "-k", chosen, "--dtype", "float32", "--baseline", "oracle")
    assert {row["case"]: row["message"].partition("RuntimeError: ")[2] for row in finished.results["outcomes"]} == {
        "c-transposed": "strides (1, 2, 6, 24)",
        "c-channels_last": "strides (60, 1, 15, 3)",
        "c-strided": "strides (120, 40, 10, 2)",
        "d-other-is-x": "shared True",
    }
