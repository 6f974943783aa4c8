"""Frameworks that share no interface with PyTorch, each in a managed environment: every op that they have against the
oracle, in float32; in float64 their modes, users' ops, findings, and scripts of those."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest

from parity.adapters import adapter_class
from parity.config import load_plan
from parity.environments.pins import PINS
from tests.conftest import CONFIGS, Finished, call, run_in, without_causes
from tests.exhaustive import selected
from tests.repro.scripts import run_together

pytestmark = pytest.mark.frameworks

BACKENDS = ("jax", "tensorflow", "onnxruntime", "mindspore", "keras", "mlx")
MODES = {"jax:jit": "jax", "tensorflow:xla": "tensorflow", "mindspore:graph": "mindspore"}
USERS = {"my-jax": "jax", "my-tensorflow": "tensorflow", "my-mindspore": "mindspore"}


LACKING = {
    "tensorflow": {"conv1d", "elu", "fmod", "std"},
    "onnxruntime": {f"adaptive_{kind}_pool{n}d" for kind in ("avg", "max") for n in (1, 2)},
    "mindspore": {"adaptive_avg_pool1d", "adaptive_max_pool1d", "conv_transpose1d", "elu"},
    "keras": {"adagrad", "adam", "avg_pool1d", "avg_pool3d", "conv1d", "conv_transpose1d", "hardtanh"}
    | {"max_pool1d", "max_pool2d", "std"},
    "mlx": {"adagrad", "adam", "rmsprop"},
}
"""Ops of which a framework does not have the options that the cases use, or the gradient."""


FILES = {path.stem: path for path in sorted((CONFIGS / "ops").glob("*.yaml"))}
SLOW_TO_COMPILE = {"pooling", "recurrent", "resample"}
"""JAX compiles every primitive of every shape for itself, so it runs the first case of every op, and none of these files,
which take it a minute. The census has them all."""


def first_cases(paths: Sequence[Path]) -> str:
    """What `-k` takes for the first case of every op; no case of another op has its id within its own."""
    cases = load_plan(paths).cases
    firsts = {case.op: case.id for case in reversed(cases)}.values()
    return " or ".join(case.id for case in cases if case.id not in firsts).join(("not (", ")"))


@pytest.fixture(scope="module")
def runs(request, tmp_path_factory):
    """All cases of `configs/ops` that are for a framework; causes are looked for where exhaustive tests ask for them."""
    folder = tmp_path_factory.mktemp("frameworks")
    few = [path for name, path in FILES.items() if name not in SLOW_TO_COMPILE]
    made = {}
    for backends, configs, options in (
        (("jax",), few, ["-k", first_cases(few)]),
        (BACKENDS[1:], FILES.values(), []),
    ):
        chosen = [part for name in ("numpy", *backends) for part in ("-b", name)]
        run_dir = folder / backends[0]
        command = ("run", *configs, *chosen, *options, "--dtype", "float32", "--timeout", "900", "--out")
        with nullcontext() if selected(request) else without_causes():
            done = call(*command, run_dir)
            if done.returncode == 1 and "mindspore: nondeterministic" in done.stdout:
                # MindSpore's scatter_add seldom loses an update where threads write to one element: it is run again.
                run_dir = folder / f"{backends[0]}-again"
                done = call(*command, run_dir)
        made |= dict.fromkeys(backends, Finished(done.returncode, done.stdout, done.stderr, run_dir))
    return made


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_convention_and_gap_is_listed(runs, backend):
    assert runs[backend].code == 0, runs[backend].stdout
    of_float32 = [r for r in runs[backend].results["known"] if r["backend"] == backend and r["dtype"] is None]
    assert not [row["message"] for row in of_float32 if row["state"] not in ("matched", "not-checked")]


@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_convention_has_the_cause_that_its_entry_names(runs, backend):
    test_every_convention_and_gap_is_listed(runs, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_op_that_an_adapter_has_gives_results(runs, backend):
    finished = runs[backend]
    ops = {case["id"]: case["op"] for case in finished.results["cases"]}
    computed = {ops[case] for (case, _), outcome in finished.outcomes(backend).items() if outcome == "ok"}
    assert computed | LACKING.get(backend, set()) == {op for op in ops.values() if adapter_class(backend).offers(op)}
    row = next(row for row in finished.results["backends"] if row["name"] == backend)
    assert row["version"].partition("+")[0] == PINS[backend].version


OPS = {
    "my-jax": """
import jax, jax.numpy as jnp

@jax.custom_vjp
def relu(x):
    return jnp.maximum(x, jnp.zeros(1))

relu.defvjp(lambda x: (relu(x), x), lambda x, grad: (jnp.where(x > 0, grad, grad * 0.25),))
""",
    "my-tensorflow": """
import tensorflow as tf

@tf.custom_gradient
def relu(x):
    return tf.maximum(x, tf.zeros(1, x.dtype)), lambda grad: tf.where(x > 0, grad, grad * 0.25)
""",
    "my-mindspore": """
from mindspore import nn, ops

class Relu(nn.Cell):
    def construct(self, x):
        return ops.maximum(x, 0.0)

    def bprop(self, x, out, dout):
        return (ops.where(x > 0, dout, dout * 0.25),)

def relu(x):
    return Relu()(x)
""",
}
"""Kernels whose gradient is 0.25 where it should be 0."""

FINDINGS = """
version: 1
dtypes: [float64]
backends: [numpy, {backends}]
cases:
  - {{id: relu, op: relu, inputs: {{x: {{shape: [5, 9]}}}}}}
  - {{id: linear, op: linear, params: {{out_features: 8}}, inputs: {{x: {{shape: [4, 16]}}}}}}
  - {{id: near-constant, op: layer_norm, gradients: false, params: {{normalized_shape: [33]}}, inputs: {{x: {{shape: [16, 33], offset: 1000}}}}}}
  - {{id: batch, op: batch_norm, inputs: {{x: {{shape: [16, 4]}}}}}}
  - {{id: gelu, op: gelu, inputs: {{x: {{shape: [4, 9]}}}}}}
"""
FOUND = {
    "jax": ("variance-naive", "near-constant"),
    "jax:jit": ("variance-naive", "near-constant"),
    "tensorflow": ("attribute-precision", "gelu"),
    "tensorflow:xla": ("attribute-precision", "gelu"),
    "onnxruntime": ("running-var-ddof", "batch"),
    "mindspore": ("reduced-precision", "near-constant"),
    "mindspore:graph": ("reduced-precision", "near-constant"),
    "keras": ("running-var-ddof", "batch"),
    "mlx": ("reduced-precision", "gelu"),
    "my-jax": ("reference-edit", "relu"),
    "my-tensorflow": ("reference-edit", "relu"),
    "my-mindspore": ("reference-edit", "relu"),
}


@pytest.fixture(scope="module")
def findings(request, tmp_path_factory):
    """All frameworks, modes and kernels; where no exhaustive test asks for findings, modes and what they are compared with."""
    folder = tmp_path_factory.mktemp("findings")
    if not selected(request):
        backends = [f'"{name}"' for name in (*MODES.values(), *MODES)]
        with without_causes():
            return run_in(folder, FINDINGS.format(backends=", ".join(backends)))
    backends = [f'"{name}"' for name in (*BACKENDS, *MODES)]
    for name, adapter in USERS.items():
        (folder / f"{name}.py").write_text(OPS[name])
        backends.append(f"{{name: {name}, adapter: {adapter}, ops: {name}.py}}")
    return run_in(folder, FINDINGS.format(backends=", ".join(backends)))


def test_a_mode_computes_what_its_framework_computes_eagerly(findings):
    for mode, eager in MODES.items():
        outcomes = findings.outcomes(mode)
        assert outcomes == findings.outcomes(eager)
        assert outcomes["linear", "float64"] == "ok"
        assert {row["tensor"] for row in findings.select(actual=mode)} >= {"y", "grad.x", "grad.weight"}
        assert not findings.failing(actual=mode, case="linear")


@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", FOUND)
def test_what_is_off_is_named_and_gradients_are_those_of_the_transform(findings, backend):
    cause, case = FOUND[backend]
    rows = [row for row in findings.results["diagnoses"] if (row["backend"], row["case"]) == (backend, case)]
    assert cause in {row["id"] for row in rows}
    if backend in USERS:
        assert [row["tensors"] for row in rows] == [["grad.x"]]
        assert "computes 0.25, where the reference has 0" in findings.stdout


@pytest.mark.exhaustive
def test_a_script_shows_its_finding_without_parity(findings):
    folder = findings.run_dir / "repro"
    assert call("repro", findings.run_dir, "--all").returncode == 0
    executables = {row["name"]: row["executable"] for row in findings.results["backends"]}
    scripts = {}
    for name in FOUND:
        mine = sorted(folder.glob(f"*.{name.replace(':', '_')}.py"))
        assert mine
        scripts.setdefault(executables[name], []).extend(mine)
    for code, printed in run_together(scripts, folder).values():
        assert code == 1, printed
        assert "the difference is there" in printed
