"""Sweeps, references and case ids."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.configs.loading import load, refused, tensor


def ids(tmp_path: Path, *cases: str) -> list[str]:
    return [case.id for case in load(tmp_path, "cases:\n" + "".join(f"  - {case}\n" for case in cases)).cases]


def batch_norm(more: str, x: str = "shape: [2, 4]") -> str:
    return f"{{op: batch_norm, inputs: {{x: {{{x}}}}}, {more}}}"


# Sweeps


def test_every_combination_in_the_order_written(tmp_path: Path) -> None:
    case = batch_norm("id: bn, sweep: {params.momentum: [0.1, 0.2], inputs.x.normal.mean: [0, 10000]}")
    plan = load(tmp_path, f"cases:\n  - {case}\n")
    assert [case.id for case in plan.cases] == [
        "bn-momentum=0.1-mean=0",
        "bn-momentum=0.1-mean=10000",
        "bn-momentum=0.2-mean=0",
        "bn-momentum=0.2-mean=10000",
    ]
    assert [case.params.momentum for case in plan.cases] == [0.1, 0.1, 0.2, 0.2]
    assert [tensor(case, "x").draw.mean for case in plan.cases] == [0.0, 10000.0] * 2
    assert {case.source.line for case in plan.cases} == {4}


@pytest.mark.parametrize(
    ("sweep", "suffixes"),
    [
        ("params.eps: [1.0e-5, 1e-12, 0.001, 1]", ["eps=1e-5", "eps=1e-12", "eps=0.001", "eps=1"]),
        ("inputs.x.offset: [1.0e+4, -2.5, 1e20]", ["offset=10000", "offset=-2.5", "offset=1e20"]),
        ("inputs.x.shape: [[2, 4], [3, 5]]", ["shape=2x4", "shape=3x5"]),
        ("params.training: [true, false]", ["training=true", "training=false"]),
        ("dtypes: [[float32], [float64]]", ["dtypes=float32", "dtypes=float64"]),
        ("gradients: [false]", ["gradients=false"]),
        ("inputs.weight: [null, {constant: 1}]", ["weight=null", "constant=1"]),
        ("inputs.grad.y.constant: [1, 2]", ["constant=1", "constant=2"]),
        ("inputs.x.scale: [1], inputs.weight.scale: [2]", ["x.scale=1-weight.scale=2"]),
        ("inputs.x.normal.std: [1], inputs.weight.normal.std: [2]", ["x.normal.std=1-weight.normal.std=2"]),
    ],
)
def test_what_a_sweep_appends_to_an_id(tmp_path: Path, sweep: str, suffixes: list[str]) -> None:
    assert ids(tmp_path, batch_norm(f"id: bn, sweep: {{{sweep}}}")) == [f"bn-{suffix}" for suffix in suffixes]


def test_a_sweep_over_ops(tmp_path: Path) -> None:
    case = "{sweep: {op: [batch_norm, instance_norm]}, inputs: {x: {shape: [2, 4, 5]}}}"
    plan = load(tmp_path, f"cases:\n  - {case}\n")
    assert [(case.id, case.op) for case in plan.cases] == [
        ("batch_norm-2x4x5", "batch_norm"),
        ("instance_norm-2x4x5", "instance_norm"),
    ]


def test_a_sweep_over_mappings_moves_values_together(tmp_path: Path) -> None:
    sweep = "{params: [{eps: 1, momentum: 0.5}, {eps: 2}]}"
    plan = load(tmp_path, f"cases:\n  - {batch_norm(f'sweep: {sweep}, params: {{momentum: 0.75}}')}\n")
    assert [(case.params.eps, case.params.momentum) for case in plan.cases] == [(1.0, 0.5), (2.0, 0.75)]


def test_a_sweep_into_a_listed_input(tmp_path: Path) -> None:
    grads = "[{shape: [3]}, {shape: [4], normal: {std: 2}}]"
    case = f"{{op: clip_grad_value, params: {{clip_value: 1}}, inputs: {{grads: {grads}}}, sweep: {{%s}}}}"
    plan = load(tmp_path, f"cases:\n  - {case % 'inputs.grads.1.normal.mean: [5, 6]'}\n")
    assert [tensor(case, "grads.1").draw.mean for case in plan.cases] == [5.0, 6.0]
    assert [tensor(case, "grads.0").draw.mean for case in plan.cases] == [0.0, 0.0]


def test_a_sweep_lies_over_defaults(tmp_path: Path) -> None:
    before = "defaults: {ops: {batch_norm: {inputs: {x: {normal: {mean: 1, std: 3}}}}}}\n"
    plan = load(tmp_path, f"{before}cases:\n  - {batch_norm('sweep: {inputs.x.normal.mean: [7]}')}\n")
    draw = tensor(plan.cases[0], "x").draw
    assert (draw.mean, draw.std) == (7.0, 3.0)


def test_all_bad_values_of_a_sweep_are_reported(tmp_path: Path) -> None:
    message = refused(tmp_path, f"cases:\n  - {batch_norm('sweep: {params.eps: [1, tiny, 2, small]}')}\n")
    assert "sweep.params.eps[1] = tiny" in message
    assert "sweep.params.eps[3] = small" in message


# References


def test_a_list_is_spliced_into_a_list(tmp_path: Path) -> None:
    x = '{shape: [2, "${params.normalized_shape}", 1]}'
    case = f"{{op: layer_norm, params: {{normalized_shape: [3, 4]}}, inputs: {{x: {x}}}}}"
    message = refused(tmp_path, f"cases:\n  - {case}\n")
    assert "whose shape is [2, 3, 4, 1]" in message


def test_one_reference_alone_keeps_the_type(tmp_path: Path) -> None:
    case = (
        '{op: layer_norm, params: {normalized_shape: "${ inputs.x.shape }", eps: "${inputs.x.offset}"},'
        " inputs: {x: {shape: [2, 4], offset: 0.5}}}"
    )
    (plan,) = load(tmp_path, f"cases:\n  - {case}\n").cases
    assert (plan.params.normalized_shape, plan.params.eps) == ((2, 4), 0.5)


def test_references_follow_references_items_and_sweeps(tmp_path: Path) -> None:
    case = (
        '{op: linear, sweep: {inputs.x.shape: [[5, 3], [7, 2]]}, params: {out_features: "${inputs.x.shape.1}"},'
        ' inputs: {weight: {constant: "${params.out_features}"}}}'
    )
    plan = load(tmp_path, f"cases:\n  - {case}\n")
    assert [tensor(case, "weight").shape for case in plan.cases] == [(3, 3), (2, 2)]
    assert [tensor(case, "weight").draw.value for case in plan.cases] == [3.0, 2.0]


def test_references_in_defaults_speak_of_the_case(tmp_path: Path) -> None:
    before = 'defaults:\n  ops:\n    layer_norm:\n      inputs: {x: {shape: [2, "${params.normalized_shape}"]}}\n'
    (plan,) = load(tmp_path, before + "cases:\n  - {op: layer_norm, params: {normalized_shape: [9]}}\n").cases
    assert tensor(plan, "x").shape == (2, 9)


def test_an_id_with_a_reference_has_no_suffix_for_it(tmp_path: Path) -> None:
    sweep = "sweep: {inputs.x.offset: [1.0e+4], params.eps: [1e-5, 1e-3]}"
    assert ids(tmp_path, batch_norm(f'id: "bn at ${{inputs.x.offset}}, ${{inputs.x.shape}}", {sweep}')) == [
        "bn at 10000, 2x4-eps=1e-5",
        "bn at 10000, 2x4-eps=0.001",
    ]


def test_doubling_references_end(tmp_path: Path) -> None:
    chain = ", ".join(f'k{i}: "${{params.k{i + 1}}}${{params.k{i + 1}}}"' for i in range(60))
    message = refused(tmp_path, f'cases:\n  - {{op: batch_norm, params: {{{chain}, k60: "xx"}}}}\n')
    assert 'batch_norm has no "k0"' in message
    chain = ", ".join(f'k{i}: ["${{params.k{i + 1}}}", "${{params.k{i + 1}}}"]' for i in range(60))
    message = refused(tmp_path, f"cases:\n  - {{op: batch_norm, params: {{{chain}, k60: [1, 2]}}}}\n")
    assert "expands to more than 10000 items" in message


# Ids


@pytest.mark.parametrize(
    ("case", "case_id"),
    [
        (batch_norm("params: {}"), "batch_norm-2x4"),
        (batch_norm("params: {eps: 1.0e-5, momentum: 0.1}"), "batch_norm-2x4"),
        (batch_norm("params: {eps: 1.0e-12, training: false}"), "batch_norm-2x4-training=false-eps=1e-12"),
        (batch_norm("params: {}", "shape: [2, 4], uniform: {high: 2}"), "batch_norm-2x4-uniform-high=2"),
        (
            batch_norm("params: {}", "shape: [2, 4], normal: {mean: 3}, offset: 1e4"),
            "batch_norm-2x4-mean=3-offset=10000",
        ),
        (batch_norm("params: {}", "shape: [2, 4], constant: 3"), "batch_norm-2x4-constant-value=3"),
        (batch_norm("params: {}", "values: [[1, 2]]"), "batch_norm-1x2-values"),
        (batch_norm("params: {}", "shape: [2, 4], special: {values: [.nan]}"), "batch_norm-2x4-special"),
        ("{op: linear, params: {out_features: 3}, inputs: {x: {shape: [2, 4]}}}", "linear-2x4"),
        (
            "{op: clip_grad_norm, params: {max_norm: 1, norm_type: .inf}, inputs: {grads: [{shape: [2]}]}}",
            "clip_grad_norm-2-norm_type=inf",
        ),
        (batch_norm("id: \"any [text], <even> & 'quotes' é\""), "any [text], <even> & 'quotes' é"),
        (batch_norm("id: 7"), "7"),
    ],
)
def test_ids(tmp_path: Path, case: str, case_id: str) -> None:
    assert ids(tmp_path, case) == [case_id]


def test_automatic_ids_give_way_only_where_they_clash(tmp_path: Path) -> None:
    same, other = batch_norm("params: {}"), batch_norm("params: {}", "shape: [3, 4]")
    assert ids(tmp_path, same, other, same, batch_norm("id: batch_norm-2x4"), same) == [
        "batch_norm-2x4-2",
        "batch_norm-3x4",
        "batch_norm-2x4-3",
        "batch_norm-2x4",
        "batch_norm-2x4-4",
    ]


def test_what_is_swept_stands_once_in_an_automatic_id(tmp_path: Path) -> None:
    sweep = "sweep: {inputs.x.shape: [[2, 4]], inputs.x.normal.mean: [0, 3], params.eps: [0.5]}"
    assert ids(tmp_path, batch_norm(sweep)) == ["batch_norm-2x4-mean=0-eps=0.5", "batch_norm-2x4-mean=3-eps=0.5"]
