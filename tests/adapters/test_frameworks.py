"""The real wheels: every op on every backend, on well-conditioned inputs (`configs/ops`), against the oracle."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from parity.cases import OPS
from parity.config import load_plan
from tests.conftest import CONFIGS, Finished, call, without_causes
from tests.exhaustive import selected

pytestmark = pytest.mark.frameworks

BACKENDS = ("torch", "paddle", "oneflow", "numpy")
"""Others are in `test_managed_frameworks.py`."""


FEW = 8
"""So many ops are worth a run of their own cases alone."""


@pytest.fixture(scope="module")
def finished(request, tmp_path_factory):
    """A run of all cases; if only the tests of a few ops are selected (`-k hardshrink`), of theirs. Causes are looked for
    where exhaustive tests ask for them."""
    configs = sorted((CONFIGS / "ops").glob("*.yaml"))
    tests = [item for item in request.session.items if item.path == request.path]
    ops = {item.callspec.params.get("op") if hasattr(item, "callspec") else None for item in tests}
    ids = [] if None in ops or len(ops) > FEW else [case.id for case in load_plan(configs).cases if case.op in ops]
    run_dir = tmp_path_factory.mktemp("frameworks") / "run"
    backends = [part for name in BACKENDS for part in ("-b", name)]
    with nullcontext() if selected(request) else without_causes():
        done = call("run", *configs, *backends, *(["-k", " or ".join(ids)] if ids else []), "--out", run_dir)
    return Finished(done.returncode, done.stdout, done.stderr, run_dir)


@pytest.mark.parametrize("op", OPS)
def test_an_op_runs_and_agrees_with_the_oracle(finished, op):
    cases = {case["id"] for case in finished.results["cases"] if case["op"] == op}
    assert cases, f"configs/ops has no case of {op}"
    ended = {row["outcome"] for row in finished.results["outcomes"] if row["case"] in cases}
    assert ended <= {"ok", "unsupported"}
    rows = [row for row in finished.failing(expected="oracle") if row["case"] in cases and not row["known"]]
    assert not [(row["case"], row["dtype"], row["tensor"], row["actual"]) for row in rows], finished.stdout


def test_every_convention_and_gap_is_listed(finished):
    assert finished.code == 0, finished.stdout
    assert {row["state"] for row in finished.results["known"] if row["backend"] in BACKENDS} == {"matched"}


@pytest.mark.exhaustive
def test_every_convention_has_the_cause_that_its_entry_names(finished):
    test_every_convention_and_gap_is_listed(finished)


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


@pytest.mark.exhaustive
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
