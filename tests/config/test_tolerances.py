"""Which tolerance a tensor gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from parity.config.plan import CasePlan
from tests.configs.loading import load, refused

ROW = "{{rtol: {0}, atol: {0}}}"


def row(value: float) -> str:
    return f"{{rtol: {value}, atol: {value}}}"


def case(tmp_path: Path, settings: str = "", tolerance: str = "", **overrides: tuple[str, ...]) -> CasePlan:
    own = f", tolerance: {tolerance}" if tolerance else ""
    text = f"{settings}cases:\n  - {{op: batch_norm, inputs: {{x: {{shape: [2, 4]}}}}{own}}}\n"
    return load(tmp_path, text, **overrides).cases[0]


def rtols(plan: CasePlan, *tensors: str, dtype: str = "float32") -> list[float]:
    return [plan.tolerance.lookup(dtype, name).rtol for name in tensors]


def test_defaults(tmp_path: Path) -> None:
    assert rtols(case(tmp_path), "y", "grad.x") == [1.3e-6, 1e-4]


def test_a_dtype_row_speaks_about_gradients_too(tmp_path: Path) -> None:
    plan = case(tmp_path, f"tolerance: {{float32: {row(0.5)}}}\n")
    assert rtols(plan, "y", "grad.x") == [0.5, 0.5]
    assert rtols(plan, "y", "grad.x", dtype="float64") == [1e-7, 1e-7]


def test_gradients_and_tensors_whatever_the_order_in_the_file(tmp_path: Path) -> None:
    tensors = f"tensors: {{grad.weight: {{float32: {row(0.3)}}}, running_*: {{float32: {row(0.4)}}}}}"
    settings = f"tolerance: {{{tensors}, gradients: {{float32: {row(0.2)}}}, float32: {row(0.1)}}}\n"
    plan = case(tmp_path, settings)
    assert rtols(plan, "y", "grad.x", "grad.weight", "running_var") == [0.1, 0.2, 0.3, 0.4]


def test_layers(tmp_path: Path) -> None:
    settings = (
        f"tolerance: {{float32: {row(0.1)}, tensors: {{y: {{float32: {row(0.2)}}}}}}}\n"
        f"defaults:\n  tolerance: {{tensors: {{grad.x: {{float32: {row(0.3)}}}}}}}\n"
        f"  ops: {{batch_norm: {{tolerance: {{tensors: {{grad.bias: {{float32: {row(0.4)}}}}}}}}}}}\n"
    )
    tensors = ("y", "running_mean", "grad.x", "grad.bias")
    assert rtols(case(tmp_path, settings), *tensors) == [0.2, 0.1, 0.3, 0.4]
    own = f"{{tensors: {{running_mean: {{float32: {row(0.5)}}}}}}}"
    assert rtols(case(tmp_path, settings, own), *tensors) == [0.2, 0.5, 0.3, 0.4]
    assert rtols(case(tmp_path, settings, f"{{float32: {row(0.6)}}}"), *tensors) == [0.6] * 4


def test_command_line(tmp_path: Path) -> None:
    plan = case(tmp_path, tolerance=f"{{float32: {row(0.5)}}}", rtol=("grad.*:1e-3", "1e-2"), atol=("y:7",))
    assert rtols(plan, "y", "grad.x") == [1e-2, 1e-3]
    assert plan.tolerance.lookup("float32", "y").atol == 7
    assert plan.tolerance.lookup("float64", "grad.x").rtol == 1e-3
    assert plan.tolerance.lookup("float64", "grad.x").atol == 1e-7


@pytest.mark.parametrize("text", ["", "much", "-1", "nan", "inf", ":1", "y:", "y:z", "1:y"])
def test_bad_options(tmp_path: Path, text: str) -> None:
    message = refused(tmp_path, "cases:\n  - {op: batch_norm, inputs: {x: {shape: [2, 4]}}}\n", rtol=(text,))
    assert message.startswith(f"command line: --rtol {text}")
    assert "must be V or TENSOR:V" in message


def test_an_option_for_no_tensor(tmp_path: Path) -> None:
    message = refused(tmp_path, "cases:\n  - {op: batch_norm, inputs: {x: {shape: [2, 4]}}}\n", atol=("grad.wieght:1",))
    assert 'there is no tensor "grad.wieght"; did you mean "grad.weight"?' in message


def test_names_are_those_of_any_op_of_the_file(tmp_path: Path) -> None:
    clip = "  - {op: clip_grad_norm, params: {max_norm: 1}, inputs: {grads: [{shape: [2]}, {shape: [3]}]}}\n"
    settings = f"tolerance: {{tensors: {{total_norm: {{float32: {row(0.5)}}}, grads.*: {{float32: {row(0.4)}}}}}}}\n"
    norm = "  - {op: batch_norm, inputs: {x: {shape: [2, 4]}}}\n"
    assert len(load(tmp_path, f"{settings}cases:\n{norm}{clip}").cases) == 2
    assert 'there is no tensor "total_norm"' in refused(tmp_path, f"{settings}cases:\n{norm}")


def test_tolerances_of_gradients_that_are_not_computed(tmp_path: Path) -> None:
    settings = f"tolerance: {{tensors: {{grad.x: {{float32: {row(0.5)}}}}}}}\ndefaults: {{gradients: false}}\n"
    text = "cases:\n  - {op: batch_norm, inputs: {x: {shape: [2, 4]}}}\n"
    assert 'there is no tensor "grad.x"' in refused(tmp_path, settings + text)
