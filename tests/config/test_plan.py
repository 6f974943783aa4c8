"""What a good config comes to: backends, cases, tensors."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parity.cases.draw import Constant, File, LogUniform, NearConstant, Normal, Special, Uniform, Values
from parity.cases.dtypes import as_stored
from parity.cases.norm import BatchNormParams, LayerNormParams
from parity.config import ConfigError, Overrides, load_plan
from parity.config.plan import BackendSpec, KnownDeviation, Plan, WrittenAt
from parity.judge.known import means
from tests.configs.loading import CASE, HEAD, load, load_case, refused, tensor

VALID = sorted((Path(__file__).parents[1] / "configs" / "valid").glob("*.yaml"))
SHIPPED = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))


@pytest.mark.parametrize("path", VALID + SHIPPED, ids=lambda path: path.stem)
def test_it_loads(path: Path) -> None:
    plan = load_plan([path])
    ids = [case.id for case in plan.cases]
    assert ids
    assert len(set(ids)) == len(ids)
    assert hash(plan.configs) and plan.name == path.stem


def test_the_example_of_the_contract() -> None:
    plan = load_plan([Path(__file__).parents[1] / "configs/valid/contract.yaml"])
    assert [case.id for case in plan.cases] == [
        "near-constant-pair",
        "layer_norm-32x128x768-eps=1e-12",
        "layer_norm-32x64-normalized_shape=64-mean=0",
        "layer_norm-32x64-normalized_shape=64-mean=100",
        "layer_norm-32x64-normalized_shape=64-mean=10000",
        "layer_norm-32x1024-normalized_shape=1024-mean=0",
        "layer_norm-32x1024-normalized_shape=1024-mean=100",
        "layer_norm-32x1024-normalized_shape=1024-mean=10000",
    ]
    assert plan.baseline == "torch"
    assert plan.known[0].case == "bn-offset*"
    assert tensor(plan.cases[7], "x").shape == (32, 1024)
    assert tensor(plan.cases[7], "x").draw == Normal(10000.0, 1.0)


# Backends


def backends(tmp_path: Path, text: str) -> tuple[BackendSpec, ...]:
    return load(tmp_path, f"version: 1\nbackends: {text}\ncases:\n{CASE}").backends


def test_short_backends(tmp_path: Path) -> None:
    assert backends(tmp_path, '[torch, torch==2.4.1, "paddle:eager", "torch==2.4.1:eager"]') == (
        BackendSpec("torch", "torch"),
        BackendSpec("torch==2.4.1", "torch", version="2.4.1"),
        BackendSpec("paddle:eager", "paddle", mode="eager"),
        BackendSpec("torch==2.4.1:eager", "torch", version="2.4.1"),
    )


def test_backend_mappings(tmp_path: Path) -> None:
    assert backends(tmp_path, "[{name: torch, device: cuda}, {name: mine, adapter: torch, version: 2.10}]") == (
        BackendSpec("torch", "torch", device="cuda"),
        BackendSpec("mine", "torch", version="2.10"),
    )


def test_backend_paths_are_relative_to_the_config_and_keep_symlinks(tmp_path: Path) -> None:
    (tmp_path / "ops.py").write_text("")
    (tmp_path / "python").symlink_to(os.path.realpath("/bin/sh"))
    (spec,) = backends(tmp_path, "[{name: mine, adapter: numpy, ops: ./ops.py, python: ./python}]")
    assert spec.ops == tmp_path / "ops.py"
    assert spec.python == tmp_path / "python"


@pytest.mark.process
def test_a_python_may_be_a_command_on_path(tmp_path: Path) -> None:
    (spec,) = backends(tmp_path, "[{name: mine, adapter: numpy, python: sh}]")
    assert spec.python is not None
    assert spec.python.is_absolute()


# Settings


def test_settings_have_defaults(tmp_path: Path) -> None:
    plan = load(tmp_path, f"cases:\n{CASE}")
    assert (plan.baseline, plan.seed, plan.cases[0].dtypes) == ("torch", 0, ("float32", "float64"))
    assert plan.cases[0].source == WrittenAt(str(tmp_path / "config.yaml"), 4)
    assert len(plan.configs[0].sha256) == 64


def test_settings(tmp_path: Path) -> None:
    plan = load(tmp_path, f"baseline: oracle\nseed: 7\ndtypes: [float16]\ncases:\n{CASE}")
    assert (plan.baseline, plan.seed, plan.cases[0].dtypes) == ("oracle", 7, ("float16",))


def test_known(tmp_path: Path) -> None:
    text = f"cases:\n{CASE}known:\n  - {{case: bn*, reason: because, until: 2027-06-30, tensor: y}}\n"
    (known,) = load(tmp_path, text).known
    assert isinstance(known, KnownDeviation)
    assert (known.case, known.reason, known.tensor, str(known.until)) == ("bn*", "because", "y", "2027-06-30")
    assert known.source.line == 6


# Params


def test_params_are_the_ops_own_dataclass(tmp_path: Path) -> None:
    case = load_case(tmp_path, "{op: layer_norm, params: {normalized_shape: 4}, inputs: {x: {shape: [2, 4]}}}")
    assert case.params == LayerNormParams((4,))
    case = load_case(tmp_path, "{op: batch_norm, params: {momentum: 1}, inputs: {x: {shape: [2, 4]}}}")
    assert case.params == BatchNormParams(momentum=1.0)
    assert isinstance(case.params.momentum, float)


@pytest.mark.parametrize("eps", ["1e-5", "1.0e-5", "0.00001"])
def test_floats(tmp_path: Path, eps: str) -> None:
    params = f"{{normalized_shape: [4], eps: {eps}}}"
    assert (
        load_case(tmp_path, f"{{op: layer_norm, params: {params}, inputs: {{x: {{shape: [2, 4]}}}}}}").params.eps
        == 1e-5
    )


@pytest.mark.parametrize("value", ["true", "4.0", "'4'", "[true]", "null", "{}", "[[4]]"])
def test_params_are_strict(tmp_path: Path, value: str) -> None:
    case = f"{{op: layer_norm, params: {{normalized_shape: {value}}}, inputs: {{x: {{shape: [2, 4]}}}}}}"
    assert "normalized_shape must be a whole number" in refused(tmp_path, f"cases:\n  - {case}\n")


# Tensors


def layer_norm(tmp_path: Path, inputs: str, before: str = "", more: str = "") -> dict[str, object]:
    case = load_case(tmp_path, f"{{op: layer_norm, params: {{normalized_shape: [4]}}, inputs: {inputs}{more}}}", before)
    return {plan.name: plan for plan in case.tensors}


def test_inputs_come_in_the_ops_order_then_upstream_gradients(tmp_path: Path) -> None:
    tensors = layer_norm(tmp_path, "{grad.y: {constant: 1}, bias: {}, x: {shape: [2, 4]}}")
    assert list(tensors) == ["x", "weight", "bias", "grad.y"]


def test_defaults_of_tensors(tmp_path: Path) -> None:
    case = load_case(tmp_path, CASE.removeprefix("  - ").strip())
    draws = {plan.name: (plan.shape, plan.draw) for plan in case.tensors}
    assert draws == {
        "x": ((2, 4), Normal()),
        "weight": ((4,), Uniform(0.5, 1.5)),
        "bias": ((4,), Uniform(-1.0, 1.0)),
        "grad.y": ((2, 4), Normal()),
    }
    assert case.gradients


@pytest.mark.parametrize(
    ("written", "draw"),
    [
        ("normal: {mean: 3}", Normal(3.0, 1.0)),
        ("normal: {}", Normal()),
        ("uniform: {low: -1}", Uniform(-1.0, 1.0)),
        ("log_uniform: {low: 1e-2, high: 1e+2, signed: true}", LogUniform(0.01, 100.0, True)),
        ("constant: 3", Constant(3.0)),
        ("constant: .nan", Constant(math.nan)),
        ("constant: {value: -2.5}", Constant(-2.5)),
        ("near_constant: {value: 3}", NearConstant(3.0)),
    ],
)
def test_distributions(tmp_path: Path, written: str, draw: object) -> None:
    case = load_case(tmp_path, f"{{op: batch_norm, inputs: {{x: {{shape: [2, 4], {written}}}}}}}")
    assert repr(tensor(case, "x").draw) == repr(draw)


def test_modifiers(tmp_path: Path) -> None:
    spec = "{shape: [2, 4], scale: 2, offset: 1e4, special: {values: [.nan, -.inf, -0.0], count: 3}}"
    x = tensor(load_case(tmp_path, f"{{op: batch_norm, inputs: {{x: {spec}}}}}"), "x")
    assert (x.scale, x.offset) == (2.0, 1e4)
    assert repr(x.special) == repr(Special((math.nan, -math.inf, -0.0), 3))
    assert np.isnan(x.sample(0, "id", "float32")).sum() == 1


def test_a_storage_dtype_rounds_an_operand_and_leaves_no_gradients(tmp_path: Path) -> None:
    case = load_case(
        tmp_path, "{op: matmul, inputs: {x: {shape: [9, 50], storage: float8_e4m3fn}, other: {shape: [50, 3]}}}"
    )
    x = tensor(case, "x")
    assert (x.storage, tensor(case, "other").storage, case.gradients) == ("float8_e4m3fn", "", False)
    values = x.sample(0, "case", "float32", "bfloat16")
    assert np.array_equal(values, values.astype("float8_e4m3fn").astype(np.float32))
    assert np.abs(values - replace(x, storage="").sample(0, "case", "float32", "bfloat16")).max() > 0.01


def test_what_a_storage_dtype_cannot_hold_is_infinite() -> None:
    # The largest numbers are 448 and 57344; float8_e4m3fn has no infinity of its own.
    assert as_stored(np.array([460.0, 470.0, -1e6]), "float8_e4m3fn").tolist() == [448.0, np.inf, -np.inf]
    assert as_stored(np.array([57344.0, -1e6]), "float8_e5m2").tolist() == [57344.0, -np.inf]


def test_values(tmp_path: Path) -> None:
    case = load_case(tmp_path, "{op: batch_norm, inputs: {x: {values: [[1, 2.5], [.inf, .nan], [-.inf, 0]]}}}")
    x = tensor(case, "x")
    assert isinstance(x.draw, Values)
    assert x.shape == (3, 2)
    np.testing.assert_array_equal(x.sample(0, "", "float64"), [[1, 2.5], [np.inf, np.nan], [-np.inf, 0]])


def test_a_file(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(6, dtype=np.float32).reshape(3, 2))
    x = tensor(load_case(tmp_path, "{op: batch_norm, inputs: {x: {file: x.npy}}}"), "x")
    assert x.draw == File(tmp_path / "x.npy")
    assert x.shape == (3, 2)


def test_a_file_of_objects_is_not_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{}]), allow_pickle=True)
    assert "not a .npy file of numbers" in refused(
        tmp_path, "cases:\n  - {op: batch_norm, inputs: {x: {file: x.npy}}}\n"
    )


def test_null_switches_an_input_off(tmp_path: Path) -> None:
    assert list(layer_norm(tmp_path, "{x: {shape: [2, 4]}, bias: null}")) == ["x", "weight", "grad.y"]
    assert list(layer_norm(tmp_path, "{x: {shape: [2, 4]}, weight: null, bias: ~}")) == ["x", "grad.y"]


def test_gradients_off(tmp_path: Path) -> None:
    assert list(layer_norm(tmp_path, "{x: {shape: [2, 4]}}", more=", gradients: false")) == ["x", "weight", "bias"]


def test_listed_inputs(tmp_path: Path) -> None:
    grads = "[{shape: [3, 4]}, {values: [1, 2]}, {shape: [], constant: 2}]"
    case = load_case(tmp_path, f"{{op: clip_grad_norm, params: {{max_norm: 1}}, inputs: {{grads: {grads}}}}}")
    assert [(t.name, t.shape) for t in case.tensors] == [("grads.0", (3, 4)), ("grads.1", (2,)), ("grads.2", ())]
    assert not case.gradients
    assert case.id == "clip_grad_norm-3x4+2+scalar"


def test_listed_inputs_keep_their_order_beyond_ten(tmp_path: Path) -> None:
    grads = ", ".join(f"{{shape: [{n}]}}" for n in range(1, 13))
    case = load_case(tmp_path, f"{{op: clip_grad_value, params: {{clip_value: 1}}, inputs: {{grads: [{grads}]}}}}")
    assert [t.shape for t in case.tensors] == [(n,) for n in range(1, 13)]
    assert case.id == "clip_grad_value-12-tensors"


def test_memory_is_counted_for_what_is_selected(tmp_path: Path) -> None:
    big = "{id: big, op: batch_norm, inputs: {x: {shape: [2000000000, 1]}}}"
    text = f"cases:\n  - {big}\n  - {{id: small, op: batch_norm, inputs: {{x: {{shape: [2, 1]}}}}}}\n"
    assert "the case big needs" in refused(tmp_path, text)
    assert [case.id for case in load(tmp_path, text, keyword="small").cases] == ["small"]


# Defaults


def test_defaults_lie_under_cases(tmp_path: Path) -> None:
    before = (
        "defaults:\n  dtypes: [float64]\n  ops:\n    layer_norm:\n      params: {eps: 1e-3, normalized_shape: [4]}\n"
        "      inputs: {x: {shape: [2, 4], normal: {mean: 5, std: 3}, offset: 1}, bias: null}\n"
    )
    case = load_case(tmp_path, "{op: layer_norm, params: {eps: 0.5}, inputs: {x: {normal: {mean: 7}}}}", before)
    assert case.params == LayerNormParams((4,), 0.5)
    assert case.dtypes == ("float64",)
    x = tensor(case, "x")
    assert (x.draw, x.offset) == (Normal(7.0, 3.0), 1.0)
    assert [t.name for t in case.tensors] == ["x", "weight", "grad.y"]


def test_another_distribution_replaces_the_default_one(tmp_path: Path) -> None:
    before = "defaults: {ops: {batch_norm: {inputs: {x: {shape: [2, 4], normal: {mean: 5}, scale: 2}}}}}\n"
    x = tensor(load_case(tmp_path, "{op: batch_norm, inputs: {x: {uniform: {}}}}", before), "x")
    assert (x.shape, x.draw, x.scale) == ((2, 4), Uniform(), 2.0)
    x = tensor(load_case(tmp_path, "{op: batch_norm, inputs: {x: {values: [[1, 2], [3, 4], [5, 6]]}}}", before), "x")
    assert x.shape == (3, 2)


def test_defaults_of_an_op_win_over_general_ones(tmp_path: Path) -> None:
    before = (
        "dtypes: [float16]\ndefaults: {dtypes: [float32], gradients: false, ops: {batch_norm: {gradients: true}}}\n"
    )
    case = load_case(tmp_path, "{op: batch_norm, inputs: {x: {shape: [2, 4]}}}", before)
    assert (case.dtypes, case.gradients) == (("float32",), True)


# Several files, includes


def write(folder: Path, **files: str) -> list[Path]:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return [folder / f"{name}.yaml" for name in files]


def test_include(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    np.save(tmp_path / "shared" / "x.npy", np.ones((2, 4)))
    write(
        tmp_path / "shared",
        common="version: 1\nbackends: [paddle, torch]\nbaseline: torch\nseed: 3\ndtypes: [float64]\n"
        "tolerance: {float64: {rtol: 1e-3, atol: 1e-3}, gradients: {float64: {rtol: 0, atol: 0}}}\n"
        "defaults: {ops: {batch_norm: {params: {eps: 0.5}, inputs: {x: {normal: {mean: 2}}}}}}\n"
        "cases: [{id: first, op: batch_norm, inputs: {x: {file: x.npy}}}]\n"
        "known: [{case: a, reason: r}]\n",
    )
    (own,) = write(
        tmp_path,
        own="version: 1\ninclude: [shared/common.yaml]\nseed: 4\n"
        "tolerance: {float64: {rtol: 1e-2, atol: 0}}\n"
        "defaults: {ops: {batch_norm: {params: {momentum: 0.25}}}}\n"
        "cases: [{id: second, op: batch_norm, inputs: {x: {shape: [2, 4]}}}]\n"
        "known: [{case: b, reason: r}]\n",
    )
    plan = load_plan([own])
    assert [case.id for case in plan.cases] == ["first", "second"]
    assert [known.case for known in plan.known] == ["a", "b"]
    assert ([b.name for b in plan.backends], plan.baseline, plan.seed) == (["paddle", "torch"], "torch", 4)
    assert [config.path for config in plan.configs] == [str(tmp_path / "shared/common.yaml"), str(own)]
    second = plan.cases[1]
    assert second.params == BatchNormParams(eps=0.5, momentum=0.25)
    assert second.dtypes == ("float64",)
    assert second.tolerance.lookup("float64", "y").rtol == 1e-2
    assert second.tolerance.lookup("float64", "grad.x").rtol == 0
    assert plan.cases[0].source.file == str(tmp_path / "shared/common.yaml")


def test_a_file_included_twice_is_taken_once(tmp_path: Path) -> None:
    top, *_ = write(
        tmp_path,
        top="version: 1\ninclude: [left.yaml, right.yaml]\n",
        left="version: 1\ninclude: [base.yaml]\n",
        right="version: 1\ninclude: [base.yaml]\n",
        base=f"{HEAD}cases:\n{CASE}",
    )
    assert len(load_plan([top]).cases) == 1


def test_several_files(tmp_path: Path) -> None:
    paths = write(
        tmp_path,
        one="version: 1\nbackends: [torch, paddle]\ndtypes: [float32]\n"
        "cases: [{id: a, op: batch_norm, inputs: {x: {shape: [2, 4]}}}]\n",
        two="version: 1\nbackends: [torch, oneflow]\nbaseline: oneflow\ndtypes: [float64]\n"
        "cases: [{id: b, op: batch_norm, inputs: {x: {shape: [2, 4]}}}]\n",
    )
    plan = load_plan(paths)
    assert [(case.id, case.dtypes) for case in plan.cases] == [("a", ("float32",)), ("b", ("float64",))]
    assert [spec.name for spec in plan.backends] == ["torch", "paddle", "oneflow"]
    assert plan.name == "one-and-1-more"
    assert [[spec.name for spec in plan.of(case).backends] for case in plan.cases] == [
        ["torch", "paddle"],
        ["torch", "oneflow"],
    ]
    assert [plan.of(case).baseline for case in plan.cases] == ["torch", "oneflow"]


def several(folder: Path, **overrides: Any) -> Plan:
    """Case a on torch and paddle, b on oneflow and torch, c on paddle alone."""
    case = "cases: [{{id: {}, op: batch_norm, inputs: {{x: {{shape: [2, 4]}}}}}}]\n"
    backends = {"a": "torch, paddle", "b": "oneflow, torch", "c": "paddle"}
    text = {name: f"version: 1\nbackends: [{names}]\n{case.format(name)}" for name, names in backends.items()}
    return load_plan(write(folder, **text), Overrides(**overrides))


def asked_of(plan: Plan) -> dict[str, tuple[list[str], str]]:
    """The backends and the baseline of each case."""
    return {c.id: ([spec.name for spec in plan.of(c).backends], plan.of(c).baseline) for c in plan.cases}


@pytest.mark.parametrize(
    ("overrides", "asked"),
    [
        (
            {},
            {
                "a": (["torch", "paddle"], "torch"),
                "b": (["torch", "oneflow"], "oneflow"),
                "c": (["paddle"], "paddle"),
            },
        ),
        ({"backends": ("torch",)}, {"a": (["torch"], "torch"), "b": (["torch"], "torch")}),
        ({"keyword": "c"}, {"c": (["paddle"], "paddle")}),
        (
            {"baseline": "torch"},
            {"a": (["torch", "paddle"], "torch"), "b": (["torch", "oneflow"], "torch"), "c": (["paddle"], "oracle")},
        ),
    ],
)
def test_each_file_has_its_own_backends(tmp_path: Path, overrides: Any, asked: Any) -> None:
    plan = several(tmp_path, **overrides)
    assert asked_of(plan) == asked
    needed = {name for names, _ in asked.values() for name in names}
    assert [spec.name for spec in plan.backends] == [n for n in ("torch", "paddle", "oneflow") if n in needed]
    assert {case: set(plan.everything.backends_of(case)) for case in "abc"} == {
        "a": {"torch", "paddle"},
        "b": {"torch", "oneflow"},
        "c": {"paddle"},
    }
    assert plan.everything.altered == ("baseline" in overrides or "backends" in overrides)


def test_cases_none_of_which_is_for_the_backend(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--backend oneflow\n  no case runs on it"):
        several(tmp_path, backends=("oneflow",), keyword="a or c")


def test_shards_have_each_case_once(tmp_path: Path) -> None:
    shards = [several(tmp_path, shard=f"{i}/2") for i in (1, 2)]
    assert [list(asked_of(plan)) for plan in shards] == [["a", "c"], ["b"]]
    assert {plan.everything.cases for plan in shards} == {several(tmp_path).everything.cases}


@pytest.mark.parametrize(
    ("shard", "message"),
    [
        ("3/2", "write I/N, shard I of N"),
        ("0/2", "write I/N, shard I of N"),
        ("2", "write I/N, shard I of N"),
        ("½/2", "write I/N, shard I of N"),
        ("4/4", "only 3 cases are left, and this shard has none; make at most 3 shards"),
    ],
)
def test_a_shard_that_is_none(tmp_path: Path, shard: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"--shard {shard}\n  {message}"):
        several(tmp_path, shard=shard)


def test_a_case_of_two_files_runs_on_the_backends_of_both(tmp_path: Path) -> None:
    top = "version: 1\ninclude: [base.yaml]\nbackends: [oneflow, torch]\n"
    plan = load_plan(write(tmp_path, base=f"version: 1\nbackends: [torch, paddle]\ncases:\n{CASE}", top=top))
    assert list(asked_of(plan).values()) == [(["torch", "paddle", "oneflow"], "torch")]


def test_a_baseline_is_one_of_its_own_files(tmp_path: Path) -> None:
    other = f"version: 1\nbackends: [torch, oneflow]\nbaseline: paddle\ncases:\n{CASE}"
    with pytest.raises(ConfigError, match='there is no backend "paddle"'):
        load_plan(write(tmp_path, one=f"version: 1\nbackends: [torch, paddle]\ncases:\n{CASE}", two=other))


def test_one_file_given_twice(tmp_path: Path) -> None:
    (path,) = write(tmp_path, one=f"{HEAD}cases:\n{CASE}")
    assert len(load_plan([path, path]).cases) == 1


def test_a_file_given_and_included(tmp_path: Path) -> None:
    paths = write(tmp_path, base=f"{HEAD}cases:\n{CASE}", top="version: 1\ninclude: [base.yaml]\n")
    assert len(load_plan(paths).cases) == 1


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ("seed: 1\n", "seed: 2\n", "different seeds in one run: 2 here, 1 in one.yaml"),
        ("seed: 1\n", "", "different seeds in one run: 0 here, 1 in one.yaml"),
    ],
)
def test_files_must_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, second: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    case = "cases: [{{id: {}, op: batch_norm, inputs: {{x: {{shape: [2, 4]}}}}}}]\n"
    write(tmp_path, one=f"{HEAD}\n{first}{case.format('a')}", two=f"{HEAD}{second}{case.format('b')}")
    with pytest.raises(Exception, match=message.replace(".", r"\.")):
        load_plan([Path("one.yaml"), Path("two.yaml")])


def test_ids_must_differ_between_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, one=f"{HEAD}cases:\n{CASE}", two=f"{HEAD}\ncases:\n{CASE}")
    with pytest.raises(Exception, match=r'two\.yaml:5.*\n.*duplicate id "layer_norm-2x4": the case in one\.yaml:4'):
        load_plan([Path("one.yaml"), Path("two.yaml")])


def test_one_name_for_two_backends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    head = "version: 1\nbackends: [torch, {{name: mine, adapter: {}}}]\ncases:\n"
    write(tmp_path, one=head.format("torch") + CASE, two=head.format("numpy") + CASE)
    with pytest.raises(Exception, match=r'two\.yaml:2.*\n.*"mine" is a different backend in one\.yaml:2'):
        load_plan([Path("one.yaml"), Path("two.yaml")], Overrides())


def test_a_known_entry_is_for_the_cases_of_its_own_config(tmp_path):
    case = "cases:\n  - {id: %s, op: linear, params: {out_features: 2}, inputs: {x: {shape: [2, 4]}}}\n"
    entry = "known:\n  - {case: '*', backend: numpy, reason: r}\n"
    for name, more in (("a", entry), ("b", "")):
        (tmp_path / f"{name}.yaml").write_text(f"version: 1\nbackends: [numpy]\n{case % name}{more}")
    both = load_plan([tmp_path / "a.yaml", tmp_path / "b.yaml"])
    assert [known.config_cases for known in both.known] == [{"a"}]
    assert [means(known, case) for known in both.known for case in ("a", "b")] == [True, False]
    [alone] = load_plan([tmp_path / "a.yaml"]).known
    assert means(alone, "b")
