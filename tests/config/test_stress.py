"""`stress: true` adds the shapes and values on which kernels fail, for any op."""

from __future__ import annotations

import numpy as np
import pytest

from parity.cases import OPS
from parity.cases.layout import LAYOUTS
from parity.cases.oracle import evaluate
from parity.config.stress import LAST, SIZES, VALUES
from tests.configs.loading import HEAD, load

CASES = {
    "layer_norm": "params: {normalized_shape: [33]}, inputs: {x: {shape: [16, 33]}}",
    "gather": "params: {dim: 1}, inputs: {x: {shape: [4, 5]}}",
    "linear": "params: {out_features: 5}, inputs: {x: {shape: [4, 6]}}",
    "clip_grad_norm": "params: {max_norm: 1}, inputs: {grads: [{shape: [3, 4]}, {shape: [5]}]}",
}


@pytest.mark.parametrize("op", CASES)
def test_a_stressed_case_comes_with_valid_cases_that_say_what_each_is(op, tmp_path):
    plan = load(tmp_path, f"{HEAD}cases:\n  - {{id: c, op: {op}, stress: true, {CASES[op]}}}\n")
    first, *others = plan.cases
    assert first.id == "c"
    names = {case.id.removeprefix("c-") for case in others}
    nowhere = {"nan", "inf"} if op == "clip_grad_norm" else set()
    assert names >= {"axis=0-size=0", "axis=0-size=129", "axis=1-size=1", *VALUES} - nowhere
    assert names >= {"transposed", "strided", "unaligned"}
    assert len(others) <= 2 * len(SIZES) + len(LAST) + len(VALUES) + len(LAYOUTS)
    assert all(case.stress for case in plan.cases)
    for case in others:
        if "size=129" in case.id or "size=0" in case.id:
            inputs = {tensor.name: tensor.sample(0, case.id, "float32") for tensor in case.tensors}
            outputs = evaluate(OPS[op], case.params, inputs, dtype=np.float64, gradients=case.gradients)
            shapes = {tensor.name: tensor.shape for tensor in case.tensors if OPS[op].input(tensor.name)}
            expected = OPS[op].infer_shapes(case.params, shapes)
            assert {name: outputs[name].shape for name in expected.outputs} == dict(expected.outputs)


def test_a_case_whose_exact_result_is_nowhere_finite_is_left_out(tmp_path):
    plan = load(
        tmp_path, f"{HEAD}cases:\n  - {{id: c, op: mse_loss, stress: true, inputs: {{x: {{shape: [4, 8]}}}}}}\n"
    )
    names = {case.id.removeprefix("c-") for case in plan.cases}
    assert {"far", "zeros", "axis=0-size=1"} <= names
    assert not {"nan", "inf", "axis=0-size=0"} & names


def test_defaults_stress_every_case_and_literal_values_keep_their_shape(tmp_path):
    literal, plain = "{op: relu, inputs: {x: {values: [1, 2]}}}", "{op: relu, stress: false, inputs: {x: {shape: [2]}}}"
    text = f"defaults: {{stress: true}}\ncases:\n  - {literal}\n  - {plain}\n"
    plan = load(tmp_path, text)
    assert [case.id for case in plan.cases] == [
        "relu-2-values",
        "relu-2-values-strided",
        "relu-2-values-unaligned",
        "relu-2",
    ]


def test_two_inputs_share_memory_and_values_and_only_frameworks_with_strides_are_asked(tmp_path):
    case = "{id: c, op: outer, stress: true, inputs: {x: {shape: [3]}, other: {shape: [3]}}}"
    plan = load(tmp_path, f"version: 1\nbackends: [torch, jax]\ncases: [{case}]\n")
    cases = {case.id: case for case in plan.cases}
    shared = cases["c-other-is-x"]
    x, other = (plan.sample(0, shared.id, "float32") for plan in shared.tensors if plan.name != "grad.y")
    assert x.tobytes() == other.tobytes()
    assert shared.backends == cases["c-strided"].backends == ("torch",)
    assert cases["c"].backends == ()
