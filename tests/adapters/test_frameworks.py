"""The real wheels: every op on every backend, on well-conditioned inputs, against the oracle."""

from __future__ import annotations

import pytest

from tests.conftest import run_in

pytestmark = pytest.mark.frameworks

CONFIG = """
version: 1
backends: [torch, paddle, oneflow, numpy]
cases:
  - {id: layer_norm, op: layer_norm, params: {normalized_shape: [5, 9]}, inputs: {x: {shape: [7, 5, 9]}}}
  - {id: layer_norm-plain, op: layer_norm, params: {normalized_shape: [9]}, inputs: {x: {shape: [7, 9]}, weight: null, bias: null}}
  - {id: group_norm, op: group_norm, params: {num_groups: 2}, inputs: {x: {shape: [3, 4, 5, 6]}}}
  - {id: group_norm-3d, op: group_norm, params: {num_groups: 2}, inputs: {x: {shape: [3, 4, 15]}}}
  - {id: instance_norm, op: instance_norm, inputs: {x: {shape: [3, 4, 5, 6]}}}
  - {id: instance_norm-1d, op: instance_norm, inputs: {x: {shape: [3, 4, 15]}}}
  - {id: batch_norm-1d, op: batch_norm, inputs: {x: {shape: [16, 4]}}}
  - {id: batch_norm-2d, op: batch_norm, inputs: {x: {shape: [3, 4, 5, 6]}}}
  - {id: batch_norm-eval, op: batch_norm, params: {training: false}, inputs: {x: {shape: [3, 4, 5]}}}
  - {id: linear, op: linear, params: {in_features: 6, out_features: 5}, inputs: {x: {shape: [2, 3, 6]}}}
  - {id: linear-plain, op: linear, params: {in_features: 6, out_features: 5}, inputs: {x: {shape: [4, 6]}, bias: null}}
  - {id: conv2d, op: conv2d, params: {out_channels: 4, kernel_size: 3, stride: 2, padding: 1}, inputs: {x: {shape: [2, 3, 7, 6]}}}
  - {id: embedding, op: embedding, params: {num_embeddings: 7, embedding_dim: 4}, inputs: {x: {shape: [3, 5]}}}
  - {id: position_embedding, op: position_embedding, inputs: {x: {shape: [3, 5, 4]}}}
  - {id: attention, op: scaled_dot_product_attention, inputs: {query: {shape: [2, 2, 5, 4]}}}
  - {id: multi_head_attention, op: multi_head_attention, params: {num_heads: 2}, inputs: {x: {shape: [2, 5, 4]}}}
  - {id: relu, op: relu, inputs: {x: {shape: [4, 9]}}}
  - {id: gelu, op: gelu, inputs: {x: {shape: [4, 9]}}}
  - {id: gelu-tanh, op: gelu, params: {approximate: tanh}, inputs: {x: {shape: [4, 9]}}}
  - {id: tanh, op: tanh, inputs: {x: {shape: [4, 9]}}}
  - {id: silu, op: silu, inputs: {x: {shape: [4, 9]}}}
  - {id: sigmoid, op: sigmoid, inputs: {x: {shape: [4, 9]}}}
  - {id: avg_pool2d, op: avg_pool2d, params: {kernel_size: 2}, inputs: {x: {shape: [2, 3, 6, 4]}}}
  - {id: flatten, op: flatten, inputs: {x: {shape: [2, 3, 4]}}}
  - {id: cross_entropy, op: cross_entropy, inputs: {x: {shape: [6, 5]}}}
  - {id: mse_loss, op: mse_loss, inputs: {x: {shape: [6, 5]}}}
  - {id: clip-2, op: clip_grad_norm, params: {max_norm: 0.7}, inputs: {grads: [{shape: [3, 4]}, {shape: [5]}]}}
  - {id: clip-1, op: clip_grad_norm, params: {max_norm: 0.7, norm_type: 1}, inputs: {grads: [{shape: [3, 4]}, {shape: [5]}]}}
  - {id: clip-inf, op: clip_grad_norm, params: {max_norm: 0.7, norm_type: .inf}, inputs: {grads: [{shape: [3, 4]}, {shape: [5]}]}}
  - {id: clip-each, op: clip_grad_norm, params: {max_norm: 0.7, scope: per_tensor}, inputs: {grads: [{shape: [3, 4]}, {shape: [5]}]}}
  - {id: clip-value, op: clip_grad_value, params: {clip_value: 0.4}, inputs: {grads: [{shape: [3, 4]}, {shape: [5]}]}}
  - {id: sgd, op: sgd, params: {lr: 0.1, weight_decay: 0.1}, inputs: {param: {shape: [5, 6]}}}
  - {id: sgd-momentum, op: sgd, params: {lr: 0.1, momentum: 0.9, weight_decay: 0.1}, inputs: {param: {shape: [5, 6]}}}
  - {id: sgd-first, op: sgd, params: {lr: 0.1, momentum: 0.9, step: 1}, inputs: {param: {shape: [5, 6]}}}
  - {id: sgd-nesterov, op: sgd, params: {lr: 0.1, momentum: 0.9, nesterov: true}, inputs: {param: {shape: [5, 6]}}}
  - {id: sgd-dampening, op: sgd, params: {lr: 0.1, momentum: 0.9, dampening: 0.4}, inputs: {param: {shape: [5, 6]}}}
  - {id: adam, op: adam, params: {lr: 0.1, weight_decay: 0.1, step: 5}, inputs: {param: {shape: [5, 6]}}}
  - {id: adamw, op: adamw, params: {lr: 0.1, betas: [0.8, 0.97], step: 1}, inputs: {param: {shape: [5, 6]}}}
  - {id: lamb, op: lamb, params: {lr: 0.1, weight_decay: 0.1, step: 5}, inputs: {param: {shape: [5, 6]}}}
  - {id: rmsprop, op: rmsprop, params: {lr: 0.1, weight_decay: 0.1}, inputs: {param: {shape: [5, 6]}, square_avg: {uniform: {low: 1, high: 2}}}}
  - {id: rmsprop-momentum, op: rmsprop, params: {lr: 0.1, momentum: 0.9, centered: true}, inputs: {param: {shape: [5, 6]}, square_avg: {uniform: {low: 1, high: 2}}}}
  - {id: adagrad, op: adagrad, params: {lr: 0.1, weight_decay: 0.1}, inputs: {param: {shape: [5, 6]}}}
"""


BOTH = ("float32", "float64")
LACKING = {
    "torch": {("lamb", dtype) for dtype in BOTH},
    "paddle": {("clip-each", "float64"), *(("sgd-dampening", dtype) for dtype in BOTH)},
    "oneflow": {("rmsprop-momentum", dtype) for dtype in BOTH},
}
"""Cells for which a backend has no kernel."""

CONVENTIONS = {
    "paddle": {
        ("batch_norm-1d", "running_var"),
        ("batch_norm-2d", "running_var"),
        *(("rmsprop-momentum", t) for t in ("param", "momentum_buffer")),
    },
    "oneflow": {("lamb", "param")},
}
"""Tensors in which a backend follows another convention than PyTorch."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    found = run_in(tmp_path_factory.mktemp("frameworks"), CONFIG, "--rtol", "1e-4", "--atol", "3e-6")
    assert found.results["format"] == 1, found.stderr
    return found


@pytest.mark.parametrize("backend", ["torch", "paddle", "oneflow", "numpy"])
def test_every_op_runs_and_agrees_with_the_oracle(finished, backend):
    outcomes = finished.outcomes(backend)
    assert {cell for cell, outcome in outcomes.items() if outcome != "ok"} == LACKING.get(backend, set())
    assert set(outcomes.values()) <= {"ok", "unsupported"}
    off = {(row["case"], row["tensor"]) for row in finished.failing(actual=backend, expected="oracle")}
    assert off == CONVENTIONS.get(backend, set()), finished.stdout


def test_what_paddle_lacks_is_unsupported_with_its_reason(finished):
    [row] = [
        o
        for o in finished.results["outcomes"]
        if o["backend"] == "paddle" and (o["case"], o["dtype"]) == ("clip-each", "float64")
    ]
    assert row["outcome"] == "unsupported"
    assert "clip_by_norm" in row["message"]


def test_the_versions_are_the_pinned_ones(finished):
    versions = {row["name"]: row["version"].partition("+")[0] for row in finished.results["backends"]}
    assert versions["torch"] == "2.13.0"
    assert versions["paddle"] == "3.3.1"
    assert versions["oneflow"] == "0.9.0"


def test_every_tensor_was_compared_with_baseline_and_oracle(finished):
    for case in finished.results["cases"]:
        tensors = {
            row["tensor"]
            for row in finished.select(case=case["id"], expected="oracle", actual="torch", dtype="float32")
        }
        for backend in ("paddle", "oneflow", "numpy"):
            assert {
                row["tensor"]
                for row in finished.select(case=case["id"], expected="torch", actual=backend, dtype="float32")
            } == tensors


@pytest.mark.slow
def test_two_releases_of_one_framework_side_by_side(parity_run):
    case = "{op: layer_norm, params: {normalized_shape: [9]}, inputs: {x: {shape: [7, 9]}}}"
    finished = parity_run(f"version: 1\nbackends: [paddle==2.6.2, paddle==3.3.1]\ncases: [{case}]\n")
    assert finished.code == 0, finished.stdout + finished.stderr
    rows = {row["name"]: row for row in finished.results["backends"]}
    assert rows["paddle==2.6.2"]["version"] == "2.6.2"
    assert rows["paddle==3.3.1"]["version"] == "3.3.1"
    assert rows["paddle==2.6.2"]["numpy"].startswith("1.")
    assert finished.select(actual="paddle==3.3.1", expected="paddle==2.6.2", tensor="grad.x")


@pytest.mark.parametrize(
    ("message", "lacking"),
    [
        ("module 'paddle.nn.functional' has no attribute 'group_norm'", True),
        ("module 'torch' has no attribute 'compile'", True),
        ("'Tensor' object has no attribute 'contiguous'", False),
        ("'NoneType' object has no attribute 'shape'", False),
    ],
)
def test_a_function_that_a_release_lacks_is_unsupported_and_no_other_attribute(message, lacking):
    from parity.adapters.base import Adapter

    assert Adapter("cpu", 1).lacks_kernel(AttributeError(message)) is lacking
