"""A case of `kind: train` to the CasePlans it stands for: model, data and recipe with their sizes, checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from parity.cases.op import Op
from parity.config.cases import BuiltCase, Scope, parse_dtypes
from parity.config.fields import check_keys, fill
from parity.config.ids import check_id, swept_id
from parity.config.memory import memory_of_training
from parity.config.nodes import Node, Report
from parity.config.plan import DEFAULT_TOLERANCES, CasePlan, Source
from parity.config.references import substitute
from parity.config.sweep import Combination, expand, suffixes
from parity.config.tolerances import check_tensor_names, parse_tolerance
from parity.training.config.data import MAX_ELEMENTS, DataSet, parse_data, plain_node
from parity.training.config.model import Model, build_model
from parity.training.config.recipe import (
    check_patterns,
    optimizers,
    parse_clip,
    parse_optimizer,
    parse_schedule,
    without,
)
from parity.training.data import GENERATORS
from parity.training.layers import Signal
from parity.training.presets import PRESETS, Preset
from parity.training.spec import CURVES, TRAIN, Data, Loss, Training, walk

KIND = "kind"
NAMED = ("data", "optimizer", "schedule", "clip")
"""What may be a name alone: `optimizer: adamw` is `optimizer: {name: adamw}`."""

COUNTS: Mapping[str, int] = {"batch_size": 32, "accumulation": 1, "steps": 100}
"""The numbers of a training and what they are by default."""

ROOTS = ("model", *NAMED, "loss", *COUNTS, "ensemble", "dtypes")
"""The parts of a training that a sweep may set."""

KEYS = ("id", KIND, *ROOTS, "tolerance", "sweep")

MAX_STEPS = 100_000
MAX_MEMBERS = 32


@dataclass(frozen=True)
class EnsembleOptions:
    """How many runs give the envelope, and whose they are."""

    members: int = 4
    of: Literal["auto", "oracle", "baseline"] = "auto"


@dataclass(frozen=True)
class ChosenPreset:
    """A model by name, with its options."""

    preset: Preset
    options: Any

    @property
    def data(self) -> Mapping[str, Any]:
        """The data set that it implies, as a config would write it."""
        return self.preset.data(self.options)


def is_training(node: Node) -> bool:
    """Whether an entry of `cases` says which kind it is; an op's case says nothing."""
    return KIND in node.mapping


def build_trainings(node: Node, scope: Scope) -> Iterator[BuiltCase]:
    """The trainings that one entry of `cases` stands for; what is wrong is reported and left out."""
    kind = node.mapping[KIND]
    if kind.value != TRAIN:
        message = "no such kind of case; a case of an op has none"
        scope.report.add(kind, message, allowed=(TRAIN,), near=kind.text)
        return
    check_keys(node, KEYS, scope.report, "a training", _required(node, scope.ops))
    bare = node.with_value({key: entry for key, entry in node.mapping.items() if key in KEYS})
    for combination in expand(_spelled_out(bare), scope.report, ROOTS, "optimizer.lr or steps"):
        built = _build(combination, scope)
        if built is not None:
            yield built


def _required(node: Node, ops: Mapping[str, Op]) -> dict[str, str]:
    """What a training must say itself, unless its sweep does."""
    swept = (node.get("sweep") or node).mapping if node.get("sweep") else {}
    said = {path.partition(".")[0] for path in swept}
    wanted = {"model": f"a list of layers, or one of {', '.join(PRESETS)}", "optimizer": ", ".join(optimizers(ops))}
    return {key: phrase for key, phrase in wanted.items() if key not in said}


def _spelled_out(case: Node) -> Node:
    """The case with names alone as mappings, so that a sweep can set what is in them."""
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
    case = substitute(scope.defaults.under(TRAIN, written), report)
    if case is None:
        return None
    training, n_computed = _training(case, scope) or (None, 0)
    dtypes = _dtypes(case, scope)
    rules = parse_tolerance(case.get("tolerance"), report)
    check_tensor_names(case.get("tolerance"), CURVES, report)
    if training is not None and not training.parameters:
        report.add(case.get("model") or case, "the model has no weights to train")
    if training is None or len(report) > n_before:
        return None
    table = DEFAULT_TOLERANCES.extended(scope.rules + scope.defaults.tolerance(TRAIN) + rules)
    source, memory = Source(case.file, case.line), memory_of_training(training, n_computed)
    plan = CasePlan(_id(combination, case, report), TRAIN, training, dtypes, (), table, source)
    return BuiltCase(plan, combination.case, "id" in case.mapping, CURVES, memory)


def _dtypes(case: Node, scope: Scope) -> tuple[str, ...]:
    """The dtypes of a case; float16 is none for a training."""
    node = case.get("dtypes")
    dtypes = parse_dtypes(node, scope.dtypes, scope.report)
    if "float16" in dtypes:
        message = "no training runs in float16, whose gradients underflow; use float32 or float64"
        scope.report.add(node or case, message, key=None if node is not None else f"{case.key}.dtypes")
    return dtypes


def _id(combination: Combination, case: Node, report: Report) -> str:
    """The id as written, with what is swept behind it; or one made from model and optimizer."""
    node = case.get("id")
    if node is None:
        model, optimizer = case.mapping["model"], case.mapping["optimizer"].mapping["name"].text
        swept = tuple((path, entry) for path, entry in combination.swept if path != "optimizer.name")
        case_id = "-".join([TRAIN, next(iter(model.mapping), "layers"), optimizer, *suffixes(swept)])
        check_id(case, case_id, report)
        return case_id
    if node.is_list or node.is_mapping or node.value is None:
        report.add(node, "an id must be text")
        return ""
    case_id = swept_id(node.text, combination.case.mapping["id"].text, combination.swept)
    check_id(node, case_id, report)
    return case_id


def _training(case: Node, scope: Scope) -> tuple[Training, int] | None:
    """The training and how many numbers its model computes for an example, or None after reporting all that is wrong.

    Every part is looked at, however wrong the others are.
    """
    report, n_before = scope.report, len(scope.report)
    counts = {key: _count(case, key, report) for key in COUNTS}
    chosen = _preset(case, report)
    known = chosen is not None or (case.get("model") or case).is_list
    dataset = parse_data(case.get("data"), chosen.data if chosen else {}, case, report) if known else None
    model = _model(case, chosen, dataset, _rows(case, counts, report), report)
    optimizer = parse_optimizer(case.get("optimizer"), scope.ops, report)
    schedule = parse_schedule(case.get("schedule"), counts["steps"], report)
    clip = parse_clip(case.get("clip"), report)
    ensemble = _ensemble(case.get("ensemble"), report)
    if dataset is not None:
        _check_rows(case, dataset.data, counts, report)
        _check_loss(case.get("loss"), dataset, report)
    names = [p.name for layer in walk(model.layers) for p in layer.parameters if p.trained] if model else []
    if names and case.get("optimizer") is not None:
        check_patterns(case.mapping["optimizer"], names, report)
    if len(report) > n_before or not (model and dataset and optimizer and schedule and ensemble):
        return None
    training = Training(
        layers=model.layers,
        data=dataset.data,
        optimizer=optimizer.name,
        groups=optimizer.over(names),
        loss=Loss(dataset.loss),
        schedule=schedule,
        clip=clip,
        members=ensemble.members,
        ensemble=ensemble.of,
        **{key: value or 0 for key, value in counts.items()},
    )
    return training, model.n_computed


def _count(case: Node, key: str, report: Report) -> int | None:
    """A number from 1 on, or None after reporting that it is none."""
    node = case.get(key)
    if node is None:
        return COUNTS[key]
    if isinstance(node.value, bool) or not isinstance(node.value, int) or node.value < 1:
        report.add(node, f"{key} must be a whole number, 1 or more")
        return None
    if key == "steps" and node.value > MAX_STEPS:
        report.add(node, f"a training has at most {MAX_STEPS} steps")
        return None
    return node.value


def _rows(case: Node, counts: Mapping[str, int | None], report: Report) -> int | None:
    """How many examples a micro-batch has; None after reporting that they do not come out even."""
    batch, parts = counts["batch_size"], counts["accumulation"]
    if batch is None or parts is None:
        return None
    if batch % parts:
        message = f"{parts} micro-batches of equal size do not make a batch of {batch}"
        report.add(case.get("accumulation") or case, message)
        return None
    return batch // parts


def _preset(case: Node, report: Report) -> ChosenPreset | None:
    """The model by its name; None for a list of layers, or after reporting what is wrong."""
    node = case.get("model")
    if node is None or node.items:
        return None
    if len(node.mapping) != 1:
        report.add(
            node, "a model is one name with its options ({bert: {layers: 2}}), or a list of layers", allowed=PRESETS
        )
        return None
    name, options = next(iter(node.mapping.items()))
    if name not in PRESETS:
        report.add(node, f'no model is called "{name}"', allowed=PRESETS, near=name)
        return None
    preset = PRESETS[name]
    filled = fill(preset.options, options.with_value({}) if options.value is None else options, report, name)
    return None if filled is None else ChosenPreset(preset, filled)


def _model(
    case: Node, chosen: ChosenPreset | None, dataset: DataSet | None, rows: int | None, report: Report
) -> Model | None:
    """The layers with their sizes, whose last one gives what the loss compares with the target."""
    node = case.get("model")
    signal = None if dataset is None or rows is None else Signal(dataset.data.x, rows, dataset.tokens)
    if node is None or (chosen is None and not node.items):
        return None
    items: Sequence[Node] = node.items
    if chosen is not None:
        if dataset is None:
            return None
        written = chosen.preset.layers(chosen.options, dataset.data.x, dataset.output[-1])
        place = next(iter(node.mapping.values()))
        items = [plain_node(layer, place) for layer in written]
    model = build_model(items, signal, report)
    if model is not None and dataset is not None and model.output != dataset.output:
        sizes = f"{list(model.output)} per example, and the data set {dataset.data.name} wants {list(dataset.output)}"
        report.add(node.items[-1] if node.items else node, f"the model answers with {sizes}", value=False)
        return None
    return model


def _check_rows(case: Node, data: Data, counts: Mapping[str, int | None], report: Report) -> None:
    """Reports a batch that the data set does not fill, and more rows in all steps than can be listed."""
    batch, steps = counts["batch_size"], counts["steps"]
    if batch is None or steps is None:
        return
    if batch > data.rows:
        node = case.get("batch_size") or case.get("data") or case
        report.add(node, f"a batch of {batch} is more than the {data.rows} rows of the data")
    if batch * steps > MAX_ELEMENTS:
        message = f"{steps} steps of {batch} rows; at most {MAX_ELEMENTS} rows in all are possible"
        report.add(case.get("steps") or case, message, value=False)


def _check_loss(node: Node | None, dataset: DataSet, report: Report) -> None:
    """Reports a loss that cannot be taken of the data set's targets."""
    if node is None or node.value == dataset.loss:
        return
    losses = tuple(dict.fromkeys(kind.loss for kind in GENERATORS.values()))
    if node.value not in losses:
        report.add(node, "no such loss", allowed=losses, near=node.text)
    else:
        report.add(node, f"the targets of {dataset.data.name} are for {dataset.loss}", allowed=(dataset.loss,))


def _ensemble(node: Node | None, report: Report) -> EnsembleOptions | None:
    """Whose runs give the envelope, or None after reporting what is wrong."""
    if node is None:
        return EnsembleOptions()
    options: EnsembleOptions | None = fill(EnsembleOptions, node, report, "an ensemble")
    if options is not None and not 1 <= options.members <= MAX_MEMBERS:
        report.add(node.mapping["members"], f"members must be from 1 to {MAX_MEMBERS}")
        return None
    return options
