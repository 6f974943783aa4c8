"""Frameworks that share no interface with PyTorch, each in a managed environment: every op that they have, against the
oracle; their modes; a user's op; and a script of a finding."""

from __future__ import annotations

import pytest

from parity.adapters import adapter_class
from parity.config.backends import ADAPTERS
from parity.environments.pins import PINS
from tests.conftest import CONFIGS, Finished, call, user_config
from tests.repro.scripts import run_together

pytestmark = pytest.mark.frameworks

BACKENDS = ("jax", "tensorflow", "onnxruntime")
MODES = [f"{name}:{mode}" for name in BACKENDS for mode in ADAPTERS[name].modes if mode != "eager"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("frameworks") / "run"
    backends = [part for name in ("numpy", *BACKENDS) for part in ("-b", name)]
    done = call("run", *sorted((CONFIGS / "ops").glob("*.yaml")), *backends, "--out", run_dir)
    return Finished(done.returncode, done.stdout, done.stderr, run_dir)


def test_every_convention_and_gap_is_listed(finished):
    assert finished.code == 0, finished.stdout
    assert {row["state"] for row in finished.results["known"] if row["backend"] in BACKENDS} == {"matched"}


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_op_that_an_adapter_has_gives_results(finished, backend):
    ops = {case["id"]: case["op"] for case in finished.results["cases"]}
    computed = {ops[case] for (case, _), outcome in finished.outcomes(backend).items() if outcome == "ok"}
    assert computed == {op for op in ops.values() if adapter_class(backend).offers(op)}
    row = next(row for row in finished.results["backends"] if row["name"] == backend)
    assert row["version"].partition("+")[0] == PINS[backend].version


CASES = (
    "{id: linear, op: linear, params: {out_features: 8}, inputs: {x: {shape: [4, 16]}}}",
    "{id: gelu, op: gelu, inputs: {x: {shape: [4, 9]}}}",
    "{id: layer-norm, op: layer_norm, params: {normalized_shape: [9]}, inputs: {x: {shape: [7, 9]}}}",
)


def test_a_mode_computes_what_its_framework_computes_eagerly(parity_run):
    cases = "".join(f"  - {case}\n" for case in CASES)
    backends = ", ".join(f'"{name}"' for name in (*(mode.partition(":")[0] for mode in MODES), *MODES))
    finished = parity_run(f"version: 1\nbackends: [{backends}]\ncases:\n{cases}")
    assert finished.code == 0, finished.stdout
    for mode in MODES:
        assert set(finished.outcomes(mode).values()) == {"ok"}
        assert {row["tensor"] for row in finished.select(actual=mode)} >= {"y", "grad.x", "grad.weight"}


USER_OPS = {
    "jax": """
import jax, jax.numpy as jnp

@jax.custom_vjp
def relu(x):
    return jnp.maximum(x, jnp.zeros(1))

relu.defvjp(lambda x: (relu(x), x), lambda x, grad: (jnp.where(x > 0, grad, grad * 0.25),))
""",
    "tensorflow": """
import tensorflow as tf

@tf.custom_gradient
def relu(x):
    return tf.maximum(x, tf.zeros(1, x.dtype)), lambda grad: tf.where(x > 0, grad, grad * 0.25)
""",
}
"""A kernel whose gradient is 0.25 where it should be 0; zeros are of the framework's default dtype."""


@pytest.mark.parametrize("backend", USER_OPS)
def test_a_user_s_gradient_is_that_of_the_framework_s_transform(parity_run, tmp_path, backend):
    path = tmp_path / "ops.py"
    path.write_text(USER_OPS[backend])
    case = "{id: relu, op: relu, inputs: {x: {shape: [5, 9]}}}"
    finished = parity_run(user_config(path, cases=[case], adapter=backend))
    assert finished.code == 1, finished.stdout
    assert {row["tensor"] for row in finished.failing(actual="mine")} == {"grad.x"}
    assert "computes 0.25, where the reference has 0" in finished.stdout


FINDINGS = """
version: 1
dtypes: [float64]
backends: [numpy, {backends}]
cases:
  - {{id: near-constant, op: layer_norm, params: {{normalized_shape: [33]}}, inputs: {{x: {{shape: [16, 33], offset: 1000}}}}}}
  - {{id: batch, op: batch_norm, inputs: {{x: {{shape: [16, 4]}}}}}}
  - {{id: gelu, op: gelu, inputs: {{x: {{shape: [4, 9]}}}}}}
"""
FOUND = {"jax": {"variance-naive"}, "tensorflow": {"reduced-precision"}, "onnxruntime": {"running-var-ddof"}}


def test_a_finding_is_named_and_its_script_shows_it_without_parity(parity_run):
    finished = parity_run(FINDINGS.format(backends=", ".join(BACKENDS)))
    for backend in BACKENDS:
        assert {row["id"] for row in finished.results["diagnoses"] if row["backend"] == backend} >= FOUND[backend]
    folder = finished.run_dir / "repro"
    assert call("repro", finished.run_dir, "--all").returncode == 0
    executables = {row["name"]: row["executable"] for row in finished.results["backends"]}
    scripts = {executables[name]: sorted(folder.glob(f"*.{name}.py")) for name in BACKENDS}
    assert all(scripts.values())
    for code, printed in run_together(scripts, folder).values():
        assert code == 1, printed
        assert "the difference is there" in printed
