"""Which dimensions a question about the length of sums may lengthen."""

from __future__ import annotations

from pathlib import Path

import pytest

from parity.judge.diagnose.growth import is_unrolled
from parity.judge.diagnose.reduction import sizes_of
from tests.configs.loading import load_case


@pytest.mark.parametrize(
    ("case", "unrolled"),
    [
        ("{op: lstm, params: {hidden_size: 3}, inputs: {x: {shape: [4, 2, 5]}}}", [{"x": 0}]),
        ("{op: layer_norm, params: {normalized_shape: [6]}, inputs: {x: {shape: [4, 6]}}}", []),
    ],
)
def test_only_the_time_of_a_recurrence_is_unrolled(tmp_path: Path, case: str, unrolled: list[dict[str, int]]) -> None:
    plan = load_case(tmp_path, case)
    inputs = {tensor.name: tensor.sample(0, plan.id, "float64") for tensor in plan.tensors}
    assert [dict(dim.axes) for dim in sizes_of(plan, inputs) if is_unrolled(plan, inputs, dim)] == unrolled
