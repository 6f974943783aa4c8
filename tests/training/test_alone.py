"""An op that is wrong in a step is called alone with the step's tensors, and searched as any op is."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Finished, run_in
from tests.training.test_faults import CONVOLUTION, Fault, config

pytestmark = pytest.mark.frameworks

FAULTS = (
    Fault("relu_scaled", "scaled", 1, "forward"),
    Fault("variance_complement", "momentum-complement", 1, "forward"),
    Fault("relu_leaks", "unexplained", 1, "forward"),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    finished = run_in(tmp_path_factory.mktemp("alone"), config(CONVOLUTION, FAULTS, clean=("torch",)))
    assert finished.code == 1, finished.stderr
    return finished


def diagnoses(run: Finished, backend: str) -> list[dict[str, Any]]:
    return [row for row in run.results["diagnoses"] if row["backend"] == backend]


def test_a_factor_in_a_layer_is_found_in_its_op(run: Finished) -> None:
    found = diagnoses(run, "relu_scaled")
    assert {row["id"] for row in found} == {"scaled"}
    parameters = found[0]["evidence"]["parameters"]
    assert parameters["in"] == "relu (activation0)"
    assert found[0]["evidence"]["off"] == ["relu (activation0)"]
    assert parameters["factor"] == pytest.approx(1.25, rel=1e-6)
    assert found[0]["evidence"]["alone"] == "found in the op, called alone with the tensors of step 1"


def test_a_running_statistic_is_found_in_its_op(run: Finished) -> None:
    [found] = diagnoses(run, "variance_complement")
    assert found["id"] == "momentum-complement"
    assert found["evidence"]["off"] == ["batch_norm0.running_var"]
    assert "1 - momentum, where the reference has momentum" in found["evidence"]["expression"]


def test_an_op_that_is_wrong_without_a_cause_is_named(run: Finished) -> None:
    first = diagnoses(run, "relu_leaks")[0]
    assert first["id"] == "unexplained"
    assert "also wrong when called alone with the tensors of step 1: relu (activation0)" in first["evidence"]["alone"]


def test_a_right_backend_is_not_called(run: Finished) -> None:
    assert diagnoses(run, "torch") == []
