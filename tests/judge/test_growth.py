"""How far a question about the length of sums may lengthen a dimension."""

from __future__ import annotations

from pathlib import Path

import pytest

from parity.judge.diagnose import reduction
from parity.judge.diagnose.growth import LENGTHS, lengths_of
from parity.judge.diagnose.reduction import Dim, sizes_of
from tests.configs.loading import load_case


@pytest.mark.parametrize(
    ("case", "axes", "lengths"),
    [
        ("{op: lstm, params: {hidden_size: 3}, inputs: {x: {shape: [4, 2, 5]}}}", {"x": 0}, []),
        ("{op: layer_norm, params: {normalized_shape: [6]}, inputs: {x: {shape: [4, 6]}}}", {"x": 1}, list(LENGTHS)),
        (
            "{op: multi_head_attention, params: {num_heads: 2}, inputs: {x: {shape: [1, 6, 4]}}}",
            {"x": 1},
            [16, 128, 1024],
        ),
    ],
)
def test_no_value_of_the_reference_gets_too_large(
    tmp_path: Path, case: str, axes: dict[str, int], lengths: list[int]
) -> None:
    plan = load_case(tmp_path, case)
    inputs = {tensor.name: tensor.sample(0, plan.id, "float64") for tensor in plan.tensors}
    dims = {tuple(dim.axes): dim for dim in sizes_of(plan, inputs)}
    chosen = next(dim for dim in dims.values() if axes.items() <= dict(dim.axes).items())
    assert list(lengths_of(plan, inputs, chosen)) == lengths


def test_few_axes_are_tried_together_where_many_have_one_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = load_case(tmp_path, "{op: bmm, inputs: {x: {shape: [6, 6, 6]}, other: {shape: [6, 6, 6]}}}")
    inputs = {tensor.name: tensor.sample(0, plan.id, "float64") for tensor in plan.tensors}
    monkeypatch.setattr(reduction, "MOST_TOGETHER", 4)
    asked: list[int] = []
    shapes_with = Dim.shapes
    monkeypatch.setattr(Dim, "shapes", lambda self, *case: (asked.append(1), shapes_with(self, *case))[1])
    assert list(sizes_of(plan, inputs))
    assert len(asked) <= 3 * 2 * 4
