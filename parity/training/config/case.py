"""Turns a case of `kind: train` into CasePlans: checks model, data and recipe, and works out their sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from parity.cases.dtypes import COMPUTED_IN
from parity.config.cases import BuiltCase, CaseKind, Scope, expanded, id_of, tolerance_of
from parity.config.grammar import read, read_partly
from parity.config.nodes import Node, Problems
from parity.config.plan import ORACLE, BackendSpec, CasePlan, WrittenAt
from parity.config.references import substitute
from parity.config.sweep import Combination, suffixes
from parity.config.tolerance_grammar import check_tensor_names
from parity.config.tree import without
from parity.training.config.data import MAX_ELEMENTS, DataSet, data_set, plain_node, with_implied
from parity.training.config.memory import memory_of_training
from parity.training.config.model import SizedModel, build_model
from parity.training.config.models import LOSSES, NAMED, ROOTS, ModelOnly, TrainingCase
from parity.training.config.recipe import check_decay, check_patterns, groups_of, with_groups, with_length
from parity.training.data import GENERATORS
from parity.training.layers import Signal
from parity.training.presets import PRESETS
from parity.training.spec import CURVES, TRAIN, Clip, DataSpec, Loss, Schedule, Training, walk

LOST = {"float16": "gradients underflow", "bfloat16": "small updates of a weight are lost"}
"""Why a training in a narrow dtype needs weights in float32."""


def build(node: Node, scope: Scope) -> Iterator[BuiltCase]:
    """The trainings of one entry of `cases`; wrong ones are reported and left out."""
    return expanded(_spelled_out(node), TrainingCase, scope, _build, roots=ROOTS, example="optimizer.lr or steps")


def shortened(built: BuiltCase, steps: int) -> BuiltCase:
    """The training cut to its first steps; the schedule stays that of the whole training."""
    return built.with_plan(params=replace(built.plan.params, steps=min(steps, built.plan.params.steps)))


def check(built: BuiltCase, baseline: str, backends: tuple[BackendSpec, ...], report: Problems) -> None:
    """Report an ensemble of a baseline that cannot run, and micro-batches that ranks cannot share evenly."""
    training: Training = built.plan.params
    if training.ensemble == "baseline" and baseline == ORACLE:
        message = "the baseline of this run is the oracle, not a backend; use an ensemble of auto or oracle"
        report.add(built.node.get("ensemble") or built.node, message)
    rows = training.batch_size // training.accumulation
    for spec in backends:
        if rows % spec.ranks:
            node = built.node.get("batch_size") or built.node
            message = f"a micro-batch of {rows} rows cannot be split evenly over the {spec.ranks} ranks of {spec.name}"
            report.add(node, message, key=f"{built.node.key}.batch_size", value=False)


TRAININGS = CaseKind(TrainingCase, build, shortened, check)


def _spelled_out(case: Node) -> Node:
    """The case with bare names as mappings, so that a sweep can set keys in them."""
    entries = dict(case.mapping)
    for key in NAMED:
        if key in entries and isinstance(entries[key].value, str):
            entries[key] = entries[key].with_value({"name": entries[key]})
    model = entries.get("model")
    if model is not None and isinstance(model.value, str):
        entries["model"] = model.with_value({model.value: model.with_value({})})
    return case.with_value(entries)


def _build(combination: Combination, scope: Scope) -> BuiltCase | None:
    report, n_before = scope.report, len(scope.report)
    written = _spelled_out(without(combination.case, "sweep"))
    case = substitute(without(scope.defaults.under(TRAIN, written), "gradients"), report)
    if case is None:
        return None
    case = _completed(case, report)
    values = read_partly(TrainingCase, case, report)
    training, n_computed = (None if values is None else _training(values, case, report)) or (None, 0)
    dtypes = scope.dtypes if values is None else values.dtypes or scope.dtypes
    if narrow := [dtype for dtype in dtypes if dtype in COMPUTED_IN]:
        node = case.get("dtypes")
        message = f"trainings do not run in {narrow[0]}, where {LOST[narrow[0]]}; use float32 or float64"
        report.add(node or case, message, key=None if node is not None else f"{case.key}.dtypes")
    check_tensor_names(case.get("tolerance"), CURVES, report)
    if training is None or len(report) > n_before:
        return None
    case_id = id_of(combination, case, _automatic_id(combination, case), report)
    source, tolerance = WrittenAt(case.file, case.line), tolerance_of(TRAIN, values, scope)
    plan = CasePlan(case_id, TRAIN, training, dtypes, (), tolerance, source)
    return BuiltCase(plan, combination.case, "id" in case.mapping, CURVES, memory_of_training(training, n_computed))


def _automatic_id(combination: Combination, case: Node) -> str:
    """An id from model, optimizer and swept values."""
    model, optimizer = case.mapping["model"], case.mapping["optimizer"].mapping["name"].text
    swept = tuple((path, entry) for path, entry in combination.swept if path != "optimizer.name")
    return "-".join([TRAIN, next(iter(model.mapping), "layers"), optimizer, *suffixes(swept)])


def _completed(case: Node, report: Problems) -> Node:
    """The case with implied values: the model's data, the schedule's length in steps, the options of groups."""
    entries = dict(case.mapping)
    steps = entries["steps"].value if "steps" in entries else TrainingCase.model_fields["steps"].default
    if "schedule" in entries and isinstance(steps, int):
        entries["schedule"] = with_length(entries["schedule"], steps)
    if "optimizer" in entries:
        entries["optimizer"] = with_groups(entries["optimizer"])
    name = next(iter(entries["model"].mapping), "") if "model" in entries else ""
    if name in PRESETS:
        model = read(ModelOnly, case.with_value({"model": entries["model"]}), report)
        data = with_implied(entries.get("data"), PRESETS[name].data(model.model.entry[1]), case) if model else None
        entries |= {} if data is None else {"data": data}
    return case.with_value(entries)


def _training(values: Any, case: Node, report: Problems) -> tuple[Training, int] | None:
    """The training, and how many numbers its model computes for an example; None after reporting all errors.

    Every part is checked, even if others are wrong.
    """
    n_before = len(report)
    dataset = _data(values, case, report)
    model = _model(values, dataset, case, report)
    names = [p.name for layer in walk(model.layers) for p in layer.parameters if p.trained] if model else []
    if dataset is not None:
        _check_rows(case, dataset.data, values, report)
        _check_loss(case.get("loss"), dataset, report)
    if names and "optimizer" in case.mapping:
        check_patterns(case.mapping["optimizer"], names, report)
    if model is not None and not names:
        report.add(case.get("model") or case, "the model has no weights to train")
    if values.optimizer is not None:
        check_decay(values.optimizer, case.mapping["optimizer"], report)
    if len(report) > n_before or not (model and dataset and values.optimizer):
        return None
    schedule, clip = values.schedule, values.clip
    training = Training(
        layers=model.layers,
        data=dataset.data,
        optimizer=values.optimizer.name,
        groups=groups_of(values.optimizer, names),
        loss=Loss(dataset.loss),
        schedule=Schedule() if schedule is None else Schedule(schedule.name, dict(vars(schedule.options))),
        clip=None if clip is None else Clip(clip.name, **vars(clip.options)),
        members=values.ensemble.members,
        ensemble=values.ensemble.of,
        batch_size=values.batch_size,
        accumulation=values.accumulation,
        steps=values.steps,
    )
    return training, model.n_computed


def _data(values: Any, case: Node, report: Problems) -> DataSet | None:
    if values.data is not None:
        return data_set(values.data, case.mapping["data"], report)
    if "data" not in case.mapping and (case.get("model") or case).is_list:
        message = 'a list of layers needs "data", for example {name: classification, features: [16], classes: 10}'
        report.add(case, message, key=f"{case.key}.data", allowed=GENERATORS)
    return None


def _rows(values: Any, case: Node, report: Problems) -> int | None:
    """The number of examples in a micro-batch; None after reporting that the batch cannot be split evenly."""
    if values.batch_size % values.accumulation:
        message = f"a batch of {values.batch_size} cannot be split evenly into {values.accumulation} micro-batches"
        report.add(case.get("accumulation") or case, message)
        return None
    return int(values.batch_size // values.accumulation)


def _model(values: Any, dataset: DataSet | None, case: Node, report: Problems) -> SizedModel | None:
    """The layers with their sizes; the last one's output must be what the loss expects."""
    layers, rows = values.model, _rows(values, case, report)
    if layers is None:
        return None
    node = case.mapping["model"]
    signal = None if dataset is None or rows is None else Signal(dataset.data.x, rows, dataset.tokens)
    items: Sequence[Node] = node.items
    if not isinstance(layers, tuple):
        if dataset is None:
            return None
        name, options = layers.entry
        listed = PRESETS[name].layers(options, dataset.data.x, dataset.output[-1])
        expanded = plain_node(listed, node.mapping[name])
        whole: Any = read(ModelOnly, case.with_value({"model": expanded}), report)
        layers, items = whole.model, expanded.items
    model = build_model(layers, items, signal, report)
    if model is not None and dataset is not None and model.output != dataset.output:
        sizes = f"{list(model.output)} per example, but the data set {dataset.data.name} needs {list(dataset.output)}"
        report.add(node.items[-1] if node.items else node, f"the output of the model is {sizes}", value=False)
        return None
    return model


def _check_rows(case: Node, data: DataSpec, values: Any, report: Problems) -> None:
    """Report a batch larger than the data set, and more rows in all steps than allowed."""
    batch, steps = values.batch_size, values.steps
    if batch > data.rows:
        node = case.get("batch_size") or case.get("data") or case
        report.add(node, f"a batch of {batch} is larger than the data, {data.rows} rows")
    if batch * steps > MAX_ELEMENTS:
        message = f"{steps} steps of {batch} rows; at most {MAX_ELEMENTS} rows in total are allowed"
        report.add(case.get("steps") or case, message, value=False)


def _check_loss(node: Node | None, dataset: DataSet, report: Problems) -> None:
    """Report a loss that does not fit the data set's targets."""
    if node is not None and node.value != dataset.loss and node.value in LOSSES:
        report.add(node, f"the targets of {dataset.data.name} are for {dataset.loss}", allowed=(dataset.loss,))
