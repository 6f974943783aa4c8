"""The grammar of a case of `kind: train`: its model, data and recipe, whose options are dataclasses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt, Le, MinLen
from pydantic import AfterValidator, AllowInfNan, BeforeValidator, ConfigDict, Discriminator, Field, Tag, WithJsonSchema

from parity.cases import OPS
from parity.cases.op import Op
from parity.cases.optimizer import check as check_optimizer
from parity.config.case_models import Dtypes
from parity.config.grammar import (
    ByName,
    CaseModel,
    OrWritten,
    Text,
    Word,
    instance,
    list_of,
    literal_of,
    model_of,
    option_keys,
    options,
    refusal,
    union_of,
)
from parity.config.sweep import sweep_of
from parity.config.tolerance_grammar import Tolerances
from parity.training.data import GENERATORS
from parity.training.data import check as check_data
from parity.training.groups import DECAY
from parity.training.layers import INSTEAD, KINDS, Kind
from parity.training.presets import PRESETS
from parity.training.schedules import SCHEDULES
from parity.training.schedules import check as check_schedule
from parity.training.spec import TRAIN

EXCLUDES = f"{DECAY}_excludes"
STEP = "step"
"""The field of an optimizer's params for the step's number, which the training sets."""

NAMED = ("data", "optimizer", "schedule", "clip")
"""Keys whose value may be a bare name: `optimizer: adamw` is `optimizer: {name: adamw}`."""

ROOTS = ("model", *NAMED, "loss", "batch_size", "accumulation", "steps", "ensemble", "dtypes")
"""The keys of a training that a sweep may set."""

MAX_STEPS = 100_000
MAX_MEMBERS = 32


Bound = Annotated[float, Gt(0), AllowInfNan(False)]


@dataclass(frozen=True)
class ClipNorm:
    """Gradients are scaled so that the norm of all, of each group or of each tensor is at most `max_norm`."""

    max_norm: Bound = 1.0
    norm_type: Annotated[float, Ge(1), Field(description="1, 2, ... or .inf")] = 2.0
    scope: Literal["global", "group", "tensor"] = "global"


@dataclass(frozen=True)
class ClipValue:
    """Every element of a gradient is clamped to [-clip_value, clip_value]."""

    clip_value: Bound = 1.0


CLIPS: Mapping[str, type[Any]] = {"norm": ClipNorm, "value": ClipValue}


OPTIMIZERS: Mapping[str, Op] = {name: op for name, op in OPS.items() if op.input("param") and op.input("grad")}
"""The ops that are a step of an optimizer: they take a parameter and its gradient."""


@dataclass(frozen=True)
class ChosenOptions:
    """A mapping with a `name`: the options of that name, and the other keys (`beside`)."""

    name: str
    options: Any
    beside: Any


def _choice(name: str, what: str, cls: type[Any], check: Callable[[Any], None] | None = None, **beside: Any) -> Any:
    """The mapping of one name: the fields of a dataclass (except an optimizer's step), and other keys."""
    keys = {"name": (Literal[name], ...), **option_keys(cls), **beside}
    model = model_of(
        what.removeprefix("the ").replace(" ", "-"), what, {key: kind for key, kind in keys.items() if key != STEP}
    )
    return Annotated[model, AfterValidator(lambda values: ChosenOptions(name, instance(cls, values, check), values))]


def _by_name(what: str, choices: Mapping[str, Any], nothing: Any = ()) -> Any:
    """A name, or a mapping with a name and its options; `nothing` are the values that mean none of them."""
    mapping: Any = Annotated[union_of(choices.values()), Discriminator("name")]
    return Annotated[union_of((mapping, *nothing)), ByName((literal_of(choices),), what)]


PATTERNS = "a list of names or patterns"
Patterns = Annotated[tuple[str, ...], Field(description=PATTERNS)]


def _optimizer(name: str, op: Op) -> Any:
    keys = {key: kind for key, kind in option_keys(op.params).items() if key != STEP}
    own = {"parameters": (Annotated[Patterns, MinLen(1)], ...), **keys}
    group: Any = model_of(f"{name}-group", "a group", own)
    checked = Annotated[
        group, AfterValidator(lambda v: ChosenOptions(name, instance(op.params, v, check_optimizer), v))
    ]
    beside = {"groups": (list_of(checked), ()), EXCLUDES: (Patterns, ())}
    return _choice(name, name, op.params, check_optimizer, **beside)


Count = Annotated[int, Ge(1)]
ROWS = {"rows": (Count, 1024), "order": (Literal["shuffled", "sequential"], "shuffled")}
"""The keys of every data set besides its generator's options."""

DataChoice: Any = _by_name(
    "data set",
    {
        name: _choice(name, f"the data set {name}", kind.options, check_data, **ROWS)
        for name, kind in GENERATORS.items()
    },
)
OptimizerChoice: Any = _by_name("optimizer", {name: _optimizer(name, op) for name, op in OPTIMIZERS.items()})
ScheduleChoice: Any = _by_name(
    "schedule",
    {name: _choice(name, f"the schedule {name}", kind.options, check_schedule) for name, kind in SCHEDULES.items()},
)
ClipChoice: Any = _by_name(
    "clip", {name: _choice(name, f"the clip {name}", cls) for name, cls in CLIPS.items()}, (None,)
)


def _spelled_out(value: Any) -> Any:
    """A layer as a mapping from its kind to its options."""
    value = {value: {}} if isinstance(value, str) else value
    if not isinstance(value, dict) or len(value) != 1:
        raise refusal("a layer is its kind, or a mapping from its kind to its options", allowed=KINDS)
    name, written = next(iter(value.items()))
    if name in INSTEAD:
        raise refusal(INSTEAD[name])
    if name not in KINDS:
        raise refusal(f'no layer is called "{name}"', allowed=KINDS, near=name)
    if written is None:
        written = {}
    elif KINDS[name].short and not isinstance(written, dict):
        written = {KINDS[name].short: written}
    if not isinstance(written, dict):
        message = f"the options of a layer are a mapping: {{{name}: {{option: value}}}}"
        raise refusal(message, at=(name,))
    return {name: written}


class LayerMapping(CaseModel):
    """One layer: its kind and its options."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1})

    @property
    def entry(self) -> tuple[str, Any]:
        """The kind and its options."""
        (kind,) = self.model_fields_set
        return kind, getattr(self, kind)


Layers: Any = Annotated[list_of("LayerKey"), Field(description="a list of layers: [linear: {out_features: 64}, ...]")]


def _layer(name: str, kind: Kind) -> Any:
    """The options of a layer, all of which may be left out, or its short form."""
    inner = {"layers": (Layers, ())} if kind.adds else {}
    own = options(kind.options, f"layer-{name}", name, keys=inner, module=__name__)
    short = {**option_keys(kind.options), **inner}.get(kind.short)
    return Annotated[own, OrWritten((None, short[0]) if short else (None,))]


_KEYS = {name: (_layer(name, kind), None) for name, kind in KINDS.items()}
LayerKey: Any = Annotated[
    model_of("layer", "a layer", _KEYS, LayerMapping, __name__),
    BeforeValidator(_spelled_out),
    OrWritten((literal_of(KINDS),)),
]

WORDS = "a model is one name with its options ({bert: {layers: 2}}), or a list of layers"


def _model_form(value: Any) -> Any:
    if isinstance(value, dict) and len(value) == 1:
        name, options_of = next(iter(value.items()))
        if name in PRESETS:
            return {name: {} if options_of is None else options_of}
        raise refusal(f'no model is called "{name}"', allowed=PRESETS, near=name)
    if isinstance(value, tuple) and value:
        return value
    raise refusal(WORDS, allowed=PRESETS)


_PRESETS = {
    name: (Annotated[options(preset.options, f"model-{name}", name), OrWritten((None,))], None)
    for name, preset in PRESETS.items()
}
ModelKey: Any = Annotated[
    Annotated[model_of("model", "a model", _PRESETS, LayerMapping), Tag("preset")]
    | Annotated[Layers, MinLen(1), Tag("layers")],
    Discriminator(lambda value: "layers" if isinstance(value, tuple) else "preset"),
    BeforeValidator(_model_form),
    OrWritten((literal_of(PRESETS),)),
    Field(description=f"a list of layers, or one of {', '.join(PRESETS)}"),
]


class EnsembleKeys(CaseModel):
    """How many perturbed runs give the envelope, and of what."""

    what: ClassVar[str] = "an ensemble"
    members: Annotated[int, Ge(1), Le(MAX_MEMBERS)] = 4
    of: Literal["auto", "oracle", "baseline"] = "auto"


ModelOnly = model_of("model_only", "a training", {"model": (ModelKey, ...)}, module=__name__)
"""The part of a training that implies other parts."""

LOSSES = tuple(dict.fromkeys(kind.loss for kind in GENERATORS.values()))
KIND_SCHEMA = {"const": TRAIN, "description": "a training: all steps of it in every backend, side by side"}
TRAINING_KEYS: Mapping[str, Any] = {
    "id": (Text, ""),
    "kind": (Annotated[Any, WithJsonSchema(KIND_SCHEMA)], TRAIN),
    "model": (ModelKey, ...),
    "data": (DataChoice, None),
    "optimizer": (Annotated[OptimizerChoice, Field(description=", ".join(OPTIMIZERS))], ...),
    "schedule": (ScheduleChoice, None),
    "clip": (ClipChoice, None),
    "loss": (Annotated[str, Word("no such loss", LOSSES)], ""),
    "batch_size": (Count, 32),
    "accumulation": (Count, 1),
    "steps": (Annotated[int, Ge(1), Le(MAX_STEPS)], 100),
    "ensemble": (EnsembleKeys, EnsembleKeys()),
    "dtypes": (Dtypes, ()),
    "tolerance": (Tolerances, None),
}
TrainingCase = model_of("training", "a training", {**TRAINING_KEYS, "sweep": (sweep_of(ROOTS), None)}, module=__name__)
