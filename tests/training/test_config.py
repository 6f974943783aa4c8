"""Trainings in a config: defaults, sizes, names, groups, sweeps, the command line, and whatever else may stand there."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from parity.cases.draw import TensorPlan, Uniform
from parity.config import load_plan
from parity.config.grammar import option_keys
from parity.config.plan import CasePlan
from parity.training.data import GENERATORS, generate, order
from parity.training.groups import PatternGroup, grouped
from parity.training.layers import KINDS, Options
from parity.training.model import gradients
from parity.training.presets import PRESETS
from parity.training.schedules import SCHEDULES
from parity.training.spec import Parameter, Training, message, walk
from tests.config.test_fuzz import anything, changed, fuzz, leaves, maybe, places, plain, to_yaml
from tests.config.test_fuzz import load as load_bytes
from tests.config.test_schema import parsed
from tests.configs.loading import CASE, CONFIGS, load, load_case, refused, schema
from tests.conftest import call

DTYPE = "dtypes: [float32]\n"
DATA = "{name: classification, features: [16], classes: 10}"
WHOLE = CONFIGS / "valid" / "training.yaml"

Case = Callable[[str], CasePlan]


@pytest.fixture
def case(tmp_path: Path) -> Case:
    """The only training of a config whose case has these entries."""
    return lambda text: load_case(tmp_path, f"{{kind: train, {text}}}", DTYPE)


def trained(plan: CasePlan) -> Training:
    assert isinstance(plan.params, Training)
    return plan.params


def shapes(training: Training) -> dict[str, tuple[int, ...]]:
    return {parameter.name: parameter.shape for parameter in training.tensors}


@pytest.mark.parametrize("model", PRESETS)
def test_a_model_and_an_optimizer_are_enough(case: Case, model: str) -> None:
    plan = case(f"model: {model}, optimizer: adamw")
    training = trained(plan)
    assert (plan.id, plan.op, plan.is_op, plan.tensors) == (f"train-{model}-adamw", "train", False, ())
    assert training.data.name == ("masked_lm" if model == "bert" else "classification")
    assert (training.steps, training.batch_size, training.accumulation) == (100, 32, 1)
    assert (training.schedule.name, training.clip, training.members, training.ensemble) == ("constant", None, 4, "auto")
    assert [group.parameters for group in training.groups] == [tuple(p.name for p in training.parameters)]
    assert training.groups[0].options == {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}


def computed_loss(plan: CasePlan) -> float:
    """The loss of the first step by the oracle's lines, from the weights as they are drawn."""
    training = replace(trained(plan), steps=1)
    x, target = generate(training.data, 0, plan.id, "float32")
    rows = order(training, 0, plan.id)[0]
    tensors = {p.name: TensorPlan(p.name, p.shape, p.draw).sample(0, plan.id, "float32") for p in training.tensors}
    n = training.batch_size // training.accumulation
    batches = [(x[rows[i : i + n]], target[rows[i : i + n]]) for i in range(0, len(rows), n)]
    return float(gradients(training, tensors, batches, dtype=np.float64).loss)


@pytest.mark.parametrize(
    ("text", "loss"),
    [
        ("model: mlp, optimizer: sgd", np.log(10)),
        ("model: cnn, optimizer: sgd, batch_size: 4, accumulation: 2", np.log(10)),
        ("model: {bert: {hidden: 16, heads: 2, vocab: 50, sequence: 8}}, optimizer: sgd, batch_size: 4", np.log(50)),
    ],
)
def test_what_is_planned_can_be_computed_and_starts_by_guessing(case: Case, text: str, loss: float) -> None:
    assert computed_loss(case(text)) == pytest.approx(loss, rel=0.25)


def test_all_of_it() -> None:
    plan = load_plan([WHOLE])
    by_id = {case.id: trained(case) for case in plan.cases if not case.is_op}
    bert = by_id["bert-adamw"]
    assert bert.data.options == {"vocab": 1024, "sequence": 64, "masked": 0.15}
    assert (bert.data.rows, bert.data.x, bert.data.target) == (2048, (64,), (64,))
    assert bert.schedule.options["warmup_steps"] == 100
    assert vars(bert.clip) | {"max_norm": 1.0, "scope": "global", "name": "norm"} == vars(bert.clip)
    rates = [(g.options["lr"], g.options["weight_decay"], len(g.parameters)) for g in bert.groups]
    assert rates == [(1e-3, 0.01, 15), (1e-3, 0.0, 25), (2e-3, 0.01, 1), (2e-3, 0.0, 1)]
    assert by_id["layers"].loss.name == "mse_loss"
    assert [layer.name for layer in walk(by_id["layers"].layers)] == [
        "fc1", "activation0", "residual0", "residual0.layer_norm0", "residual0.out", "linear0",
    ]  # fmt: skip


def test_sizes_follow_from_the_data(case: Case) -> None:
    image = "[conv2d: {out_channels: 4, kernel_size: 3, stride: 2}, batch_norm, flatten, linear: {out_features: 3}]"
    data = "{name: classification, features: [2, 9, 7], classes: 3}"
    found = shapes(trained(case(f"model: {image}, optimizer: sgd, data: {data}")))
    assert found["conv2d0.weight"] == (4, 2, 3, 3)
    assert found["batch_norm0.running_var"] == (4,)
    assert found["linear0.weight"] == (3, 4 * 4 * 3)


def test_every_kind_of_layer_names_its_sizes_and_weights(case: Case) -> None:
    tokens = "[embedding: {embedding_dim: 6}, position_embedding, multi_head_attention: {num_heads: 2}, layer_norm, linear: {out_features: 9}]"
    training = trained(case(f"model: {tokens}, optimizer: sgd, data: {{name: masked_lm, vocab: 9, sequence: 5}}"))
    options = {layer.op: layer.options for layer in training.layers}
    assert options["embedding"] == {"num_embeddings": 9, "embedding_dim": 6}
    assert shapes(training)["position_embedding0.weight"] == (5, 6)
    assert options["multi_head_attention"]["num_heads"] == 2
    assert shapes(training)["multi_head_attention0.q_proj.weight"] == (6, 6)
    assert options["layer_norm"] == {"normalized_shape": (6,), "eps": 1e-5, "bias": True}
    assert options["linear"] == {"in_features": 6, "out_features": 9, "bias": True}
    own = {n for n in shapes(training) if n.startswith("multi_head_attention0")}
    parts = [f"{p}_proj.{w}" for p in ("q", "k", "v", "out") for w in ("weight", "bias")]
    assert own == {f"multi_head_attention0.{part}" for part in parts}


def first_weights(training: Training) -> dict[str, Parameter]:
    return {p.name: p for p in training.tensors}


def test_weights_start_as_pytorch_starts_them(case: Case) -> None:
    image = "[conv2d: {out_channels: 64, kernel_size: 3}, flatten, linear: {out_features: 10, name: head}]"
    data = "{name: classification, features: [4, 8, 8], classes: 10}"
    found = first_weights(trained(case(f"model: {image}, optimizer: sgd, data: {data}")))
    for name, module in (("conv2d0", torch.nn.Conv2d(4, 64, 3)), ("head", torch.nn.Linear(64 * 36, 10))):
        bound = found[f"{name}.weight"].draw
        assert isinstance(bound, Uniform)
        assert bound == found[f"{name}.bias"].draw
        assert float(module.weight.detach().abs().max()) == pytest.approx(bound.high, rel=0.02)
        assert bound.low == -bound.high


def test_weights_of_bert(case: Case) -> None:
    found = first_weights(trained(case("model: bert, optimizer: sgd")))
    std = {name: getattr(p.draw, "std", None) for name, p in found.items() if len(p.shape) == 2}
    assert set(std.values()) == {0.02}
    value = {name: p.draw for name, p in found.items() if len(p.shape) == 1}
    assert {draw.value for name, draw in value.items() if name.endswith("norm.weight")} == {1.0}
    assert {draw.value for name, draw in value.items() if name.endswith(".bias")} == {0.0}


def test_names_give_way_to_those_that_are_written(case: Case) -> None:
    model = "[linear: {out_features: 8}, linear: {out_features: 8, name: linear0}, linear: {out_features: 10}]"
    training = trained(case(f"model: {model}, optimizer: sgd, data: {DATA}"))
    assert [layer.name for layer in training.layers] == ["linear1", "linear0", "linear2"]


def test_trainings_can_be_written_down() -> None:
    for plan in load_plan([WHOLE]).cases:
        if not plan.is_op:
            json.dumps(asdict(trained(plan)), allow_nan=False)
            json.dumps(message(trained(plan)), allow_nan=False)


def test_the_data_of_a_model_are_taken_over_as_far_as_they_are_written(case: Case) -> None:
    bert = "model: {bert: {vocab: 50, sequence: 8}}, optimizer: sgd"
    assert trained(case(f"{bert}, data: {{masked: 0.5}}")).data.options == {"vocab": 50, "sequence": 8, "masked": 0.5}
    assert trained(case(f"{bert}, data: {{name: masked_lm, vocab: 20}}")).data.options["vocab"] == 20
    other = trained(case("model: mlp, optimizer: sgd, data: {name: regression, features: [3, 2], targets: 4}"))
    assert (other.loss.name, other.layers[0].op, shapes(other)["head.weight"][0]) == ("mse_loss", "flatten", 4)


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_are_as_long_as_the_training_by_default(case: Case, name: str) -> None:
    own = {"linear": "total_iters: 7", "step": "step_size: 3", "warmup_polynomial": "warmup_steps: 5"}.get(name, "")
    schedule = trained(case(f"model: mlp, optimizer: sgd, steps: 50, schedule: {{name: {name}, {own}}}")).schedule
    lengths = {"polynomial": "total_iters", "cosine": "T_max", "warmup_polynomial": "total_iters"}
    assert schedule.options.get(lengths.get(name, "")) == (50 if name in lengths else None)


def test_no_clip(case: Case) -> None:
    assert trained(case("model: mlp, optimizer: sgd, clip: null")).clip is None
    clip = trained(case("model: mlp, optimizer: sgd, clip: {name: value, clip_value: 0.5}")).clip
    assert clip is not None
    assert (clip.name, clip.clip_value) == ("value", 0.5)


# Groups

NAMES = ("a.weight", "a.bias", "norm.weight", "norm.bias", "head.weight", "head.bias")


def test_groups_and_what_is_not_decayed_combine() -> None:
    base = {"lr": 0.1, "weight_decay": 0.5}
    own = PatternGroup(("head.*",), {"lr": 0.2, "weight_decay": 0.3})
    found = grouped(NAMES, base, [own], ["*.bias", "norm*", "*norm*"])
    assert [(g.parameters, g.options["lr"], g.options["weight_decay"]) for g in found] == [
        (("a.weight",), 0.1, 0.5),
        (("a.bias", "norm.weight", "norm.bias"), 0.1, 0.0),
        (("head.weight",), 0.2, 0.3),
        (("head.bias",), 0.2, 0.0),
    ]


patterns = st.lists(st.sampled_from([*NAMES, "*", "*.bias", "*norm*", "head.*", "x"]), max_size=3)


@given(st.lists(patterns, max_size=1), patterns)
@fuzz(200)
def test_every_parameter_is_in_one_group(groups: list[list[str]], excludes: list[str]) -> None:
    own = [PatternGroup(tuple(group), {"weight_decay": 0.1}) for group in groups]
    found = grouped(NAMES, {"weight_decay": 0.2}, own, excludes)
    assert sorted(name for group in found for name in group.parameters) == sorted(NAMES)
    assert all(group.parameters for group in found)


# Sweeps, defaults and the command line


def test_sweeps_of_a_training(tmp_path: Path) -> None:
    sweep = "{optimizer.name: [sgd, adam], optimizer.lr: [0.1, 0.01], model.mlp.hidden: [[8], [4, 4]], accumulation: [1, 4]}"
    plan = load(tmp_path, f"{DTYPE}cases:\n  - {{kind: train, model: mlp, optimizer: sgd, sweep: {sweep}}}\n")
    assert len({case.id for case in plan.cases}) == 16
    assert plan.cases[0].id == "train-mlp-sgd-lr=0.1-hidden=8-accumulation=1"
    assert {trained(case).optimizer for case in plan.cases} == {"sgd", "adam"}
    assert {trained(case).groups[0].options["lr"] for case in plan.cases} == {0.1, 0.01}


def test_whole_parts_are_swept_and_a_sweep_may_bring_what_is_missing(tmp_path: Path) -> None:
    sweep = "{model: [mlp, cnn], optimizer: [sgd, {name: adam, lr: 0.5}], clip: [null, norm]}"
    plan = load(tmp_path, f"{DTYPE}cases:\n  - {{id: all, kind: train, sweep: {sweep}}}\n")
    assert len(plan.cases) == 8
    assert {trained(case).clip is None for case in plan.cases} == {True, False}


def test_references_and_defaults(tmp_path: Path) -> None:
    text = (
        "dtypes: [float16]\ndefaults: {dtypes: [float64], tolerance: {float64: {rtol: 0.5, atol: 0.25}}}\ncases:\n"
        '  - {id: "b${batch_size}", kind: train, model: mlp, optimizer: sgd, batch_size: 8, data: {rows: "${batch_size}"}}\n'
    )
    (plan,) = load(tmp_path, text).cases
    assert (plan.id, plan.dtypes, trained(plan).data.rows) == ("b8", ("float64",), 8)
    assert plan.tolerance.lookup("float64", "loss").rtol == 0.5


def test_tolerances_of_curves(tmp_path: Path, case: Case) -> None:
    plan = case("model: mlp, optimizer: sgd, tolerance: {tensors: {loss: {float32: {rtol: 0.125, atol: 0}}}}")
    assert plan.tolerance.lookup("float32", "loss").rtol == 0.125
    text = f"{DTYPE}cases:\n  - {{kind: train, model: mlp, optimizer: sgd}}\n"
    (plan,) = load(tmp_path, text, rtol=("grad_norm:0.5",)).cases
    assert plan.tolerance.lookup("float32", "grad_norm").rtol == 0.5


LONG = f"{DTYPE}cases:\n  - {{kind: train, model: mlp, optimizer: sgd, schedule: cosine, steps: 80}}\n"


def test_the_first_steps_only(tmp_path: Path) -> None:
    plan = load(tmp_path, LONG + CASE, steps=5)
    training = trained(plan.cases[0])
    assert (training.steps, training.schedule.options["T_max"]) == (5, 80)
    assert plan.asked is not None
    assert plan.asked.altered
    assert trained(load(tmp_path, LONG, steps=500).cases[0]).steps == 80


def test_steps_need_a_training(tmp_path: Path) -> None:
    assert "--steps 5\n  there is no training among the cases" in refused(tmp_path, f"cases:\n{CASE}", steps=5)
    assert "--steps 0\n  --steps must be a whole number" in refused(tmp_path, LONG, steps=0)


def test_the_command_line_selects_trainings(tmp_path: Path) -> None:
    text = LONG.replace("[float32]", "[float32, float64]") + CASE
    (plan,) = load(tmp_path, text, keyword="train", dtypes=("float64",), backends=("paddle",)).cases
    assert (plan.is_op, plan.dtypes) == (False, ("float64",))


def test_an_ensemble_of_the_baseline_needs_the_baseline(tmp_path: Path) -> None:
    text = LONG.replace("steps: 80", "ensemble: {of: baseline}")
    assert trained(load(tmp_path, text).cases[0]).ensemble == "baseline"
    told = refused(tmp_path, f"version: 1\nbackends: [torch, paddle]\nbaseline: torch\n{text}", backends=("paddle",))
    assert "cases[0].ensemble = {of: baseline}\n  the baseline of this run is the oracle" in told


def test_ranks_share_micro_batches_evenly(tmp_path: Path) -> None:
    head = "version: 1\nbackends: [torch, {name: two, adapter: torch, ranks: 2}]\n"
    text = LONG.replace("steps: 80", "batch_size: 6, accumulation: 2")
    told = refused(tmp_path, head + text)
    assert "cases[0].batch_size\n  a micro-batch of 3 rows cannot be split evenly over the 2 ranks of two" in told
    assert load(tmp_path, head + text, backends=("torch",)).cases
    assert load(tmp_path, head + text.replace("batch_size: 6", "batch_size: 8")).cases


def test_validate_counts_and_audits_trainings_too() -> None:
    assert (
        "ok: 4 cases (of which 3 models), 4 cells on each of torch, paddle; baseline torch"
        in call("validate", WHOLE).stdout
    )
    done = call("validate", WHOLE, "--audit", "-k", "layers or layer_norm")
    assert done.returncode == 0, done.stderr
    assert "train: 1 case audited" in done.stdout
    assert "layer_norm: 1 case audited" in done.stdout


# The documentation

DOCS = (CONFIGS.parent.parent / "docs" / "training.md").read_text()
CONFIGS_SHOWN, [OPS_SHOWN] = (re.findall(rf"```{word}\n(.*?)```", DOCS, re.DOTALL) for word in ("yaml", "python"))


@pytest.mark.parametrize("text", CONFIGS_SHOWN)
def test_configs_of_the_documentation(tmp_path: Path, text: str) -> None:
    (tmp_path / "mine.py").write_text(OPS_SHOWN)
    assert load(tmp_path, text).cases
    assert Draft202012Validator(schema()).is_valid(parsed(tmp_path / "config.yaml"))


def test_tables_of_the_documentation() -> None:
    for table in (KINDS, PRESETS, GENERATORS, SCHEDULES):
        for name, kind in table.items():
            rows = [line for line in DOCS.splitlines() if line.startswith(f"| `{name}` |")]
            wanted = [f"`{option}" for option in option_keys(kind.options) if option not in ("name", "init_std")]
            assert any(all(option in row for option in wanted) for row in rows), name


def test_functions_of_the_documentation(parity_run: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OPS_SHOWN)
    (tmp_path / "ahead.py").write_text(OPS_SHOWN.replace("t = step - 1", "t = step"))
    both = "ops: ./mine.py}, {name: ahead, adapter: torch, ops: ./ahead.py}]"
    done = parity_run(CONFIGS_SHOWN[-1].replace("ops: ./mine.py}]", both))
    assert done.code == 1, done.stderr
    assert {(row["backend"], row["id"]) for row in done.results["diagnoses"]} == {("ahead", "schedule-off-by-one")}
    assert {row["actual"] for row in done.failing()} == {"ahead"}
    assert {row["actual"] for row in done.results["comparisons"]} >= {"mine", "torch"}


# The schema

BROKEN = [
    "key-unknown", "with-op", "model-unknown", "model-two", "model-option", "layers", "data-unknown",
    "data-option", "loss-unknown", "optimizer-unknown", "optimizer-option", "groups", "excludes-text",
    "schedule-unknown", "schedule-option", "clip-scope", "counts", "ensemble", "sweep", "words", "kind",
]  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_the_schema_refuses_what_loading_refuses(name: str) -> None:
    assert not Draft202012Validator(schema()).is_valid(parsed(CONFIGS / "broken" / f"train-{name}.yaml"))


@pytest.mark.parametrize("kind", KINDS)
def test_the_schema_has_every_layer(kind: str) -> None:
    options = schema()["$defs"][f"layer-{kind}"]
    assert set(options["properties"]) == set(option_keys(KINDS[kind].options))
    assert issubclass(KINDS[kind].options, Options)


# Whatever a file holds

words = st.sampled_from([*KINDS, *PRESETS, *GENERATORS, *SCHEDULES, "sgd", "adamw", "norm", "value", "gelu", "dropout"])
numbers = st.one_of(st.integers(-1, 40), st.floats(0, 1), leaves)
FIELDS = sorted(
    {
        name
        for table in (KINDS, PRESETS, GENERATORS, SCHEDULES)
        for kind in table.values()
        for name in option_keys(kind.options)
    }
)
value = st.one_of(numbers, words, st.lists(numbers, max_size=3))
options = st.dictionaries(st.sampled_from(FIELDS), value, max_size=4)
layers = st.recursive(
    st.one_of(
        words, st.dictionaries(st.sampled_from(sorted(KINDS)), st.one_of(options, words), min_size=1, max_size=1)
    ),
    lambda inner: st.builds(lambda items: {"residual": items}, st.lists(inner, max_size=3)),
    max_leaves=4,
)
names = st.lists(st.one_of(words, st.sampled_from(["*", "*.bias", "head.*", "linear0.weight"])), max_size=2)
parts = maybe(
    {
        "id": leaves,
        "model": st.one_of(words, st.lists(layers, max_size=4), st.dictionaries(words, options, max_size=1)),
        "data": st.one_of(
            words, st.builds(lambda o, n: {**o, "name": n} if isinstance(o, dict) else o, options, words)
        ),
        "optimizer": st.one_of(
            words,
            maybe(
                {
                    "name": words,
                    "lr": numbers,
                    "betas": st.lists(numbers, max_size=3),
                    "groups": st.lists(maybe({"parameters": names, "lr": numbers}), max_size=2),
                    "weight_decay_excludes": names,
                }
            ),
        ),
        "schedule": st.one_of(
            words, st.builds(lambda o, n: {**o, "name": n} if isinstance(o, dict) else o, options, words)
        ),
        "clip": st.one_of(words, maybe({"name": words, "max_norm": numbers, "scope": words})),
        "batch_size": numbers,
        "accumulation": numbers,
        "steps": numbers,
        "ensemble": maybe({"members": numbers, "of": st.sampled_from(["auto", "baseline", "x"])}),
        "sweep": st.dictionaries(
            st.sampled_from(["optimizer.lr", "model", "steps", "data.rows", "model.0.linear.bias", "x", "clip..a"]),
            st.lists(st.one_of(numbers, words), max_size=2),
            max_size=2,
        ),
    }
)


@given(parts)
@fuzz(400)
def test_any_training(entries: Any) -> None:
    entries = {"kind": "train", **entries} if isinstance(entries, dict) else {"kind": entries}
    load_bytes(f"version: 1\nbackends: [torch]\ncases: {to_yaml([entries])}\n".encode())


WRITTEN = plain(WHOLE)


@given(st.data())
@fuzz(400)
def test_good_trainings_with_one_value_changed(drawn: st.DataObject) -> None:
    path = drawn.draw(st.sampled_from(places(WRITTEN)))
    load_bytes(to_yaml(changed(WRITTEN, path, drawn.draw(st.one_of(anything, words, numbers)))).encode())


good = st.fixed_dictionaries(
    {
        "kind": st.just("train"),
        "optimizer": st.sampled_from(["sgd", "adam", "lamb", {"name": "rmsprop", "momentum": 0.5}]),
    },
    optional={
        "batch_size": st.sampled_from([1, 2, 12]),
        "accumulation": st.sampled_from([1, 2, 3]),
        "steps": st.integers(1, 20),
        "schedule": st.sampled_from(["constant", "polynomial", {"name": "step", "step_size": 3}]),
        "clip": st.sampled_from(["norm", "value", None]),
    },
)
blocks = st.lists(
    st.sampled_from(
        [
            {"linear": {"out_features": 5}},
            {"activation": "silu"},
            "layer_norm",
            "batch_norm",
            "flatten",
            {"conv2d": {"out_channels": 2, "kernel_size": 3, "padding": 1}},
            {"avg_pool2d": {"kernel_size": 2}},
            {"residual": [{"activation": "tanh"}]},
            {"embedding": {"embedding_dim": 4}},
            {"multi_head_attention": {"num_heads": 2}},
            "position_embedding",
        ]
    ),
    max_size=4,
)
data = st.sampled_from(
    [
        {"name": "classification", "features": 6, "classes": 3},
        {"name": "regression", "features": [2, 4, 4], "targets": 3},
        {"name": "masked_lm", "vocab": 7, "sequence": 6},
    ]
)


@given(good, blocks, data)
@fuzz(300)
def test_what_fits_together_can_be_computed(
    entries: dict[str, Any], model: list[Any], examples: dict[str, Any]
) -> None:
    outputs = examples.get("classes") or examples.get("targets") or examples["vocab"]
    whole = {**entries, "model": [*model, {"linear": {"out_features": outputs}}], "data": {**examples, "rows": 12}}
    whole = {"batch_size": 12, **whole}
    plan = load_bytes(f"version: 1\nbackends: [torch]\ncases: {to_yaml([whole])}\n".encode())
    if plan is not None:
        assert np.isfinite(computed_loss(plan.cases[0]))
