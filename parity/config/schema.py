"""The JSON schema of a config file: for editors, and for programs that write configs.

It describes one file as it is written; what holds between files, and between shapes and params, only loading tells.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import Any

from pydantic import TypeAdapter

from parity.cases import OPS
from parity.cases.draw import COARSENESS, DISTRIBUTIONS, Special
from parity.cases.op import Input, Op
from parity.config.backends import ADAPTERS, MAX_RANKS
from parity.config.backends import KEYS as BACKEND_KEYS
from parity.config.documents import VERSION
from parity.config.known import MEASURED, UNSUPPORTED, KnownEntry
from parity.config.loader import MAX_SEED
from parity.config.plan import Tolerance
from parity.config.sweep import SCALARS
from parity.config.tensors import MAX_AXES
from parity.config.tree import DRAW_KEYS
from parity.diagnoses import DIAGNOSES
from parity.training.config.case import COUNTS, KIND, NAMED, ROOTS, EnsembleOptions
from parity.training.config.data import RowOptions
from parity.training.config.recipe import CLIPS, EXCLUDES, STEP, optimizers
from parity.training.data import GENERATORS
from parity.training.layers import KINDS, Kind
from parity.training.presets import PRESETS
from parity.training.schedules import SCHEDULES
from parity.training.spec import TRAIN

Schema = dict[str, Any]

SWEPT = r"^(params|inputs)(\..+)?$|^(op|dtypes|gradients)$"
SWEPT_OF_TRAINING = (
    rf"^({'|'.join(root for root in ROOTS if root not in SCALARS)})(\..+)?$"
    rf"|^({'|'.join(root for root in ROOTS if root in SCALARS)})$"
)
TEXT: Schema = {"type": "string"}
REFERENCE: Schema = {"type": "string", "pattern": r"\$\{[^{}]+\}"}


def json_schema() -> Schema:
    """The schema of a config file (JSON Schema draft 2020-12)."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "parity config",
        **mapping(
            {
                "version": {"const": VERSION},
                "backends": array(ref("backend")),
                "baseline": {**TEXT, "description": "a backend's name, or oracle; default: the first backend"},
                "dtypes": ref("dtypes"),
                "seed": {"type": "integer", "minimum": 0, "maximum": MAX_SEED, "default": 0},
                "tolerance": ref("tolerance"),
                "defaults": _defaults(),
                "include": array(TEXT),
                "cases": {"type": "array", "items": ref("case")},
                "known": {"type": "array", "items": ref("known")},
            },
            required=["version"],
        ),
        "$defs": _definitions(),
    }


def ref(name: str) -> Schema:
    """A reference into the schema's definitions."""
    return {"$ref": f"#/$defs/{name}"}


def mapping(properties: Mapping[str, Schema], required: Iterable[str] = ()) -> Schema:
    """A mapping that takes these keys and no other."""
    schema: Schema = {"type": "object", "properties": dict(properties), "additionalProperties": False}
    return {**schema, "required": list(required)} if required else schema


def array(items: Schema) -> Schema:
    """A list with at least one item."""
    return {"type": "array", "items": items, "minItems": 1}


def or_reference(schema: Schema) -> Schema:
    """The schema, where a `${path}` may stand for the value or for any item of a list."""
    if schema.get("type") == "array" and isinstance(schema.get("items"), dict):
        schema = {**schema, "items": or_reference(schema["items"])}
    if "anyOf" in schema:
        return {**schema, "anyOf": [*(or_reference(s) for s in schema["anyOf"]), ref("reference")]}
    return {"anyOf": [schema, ref("reference")]}


def dataclass_schema(cls: type[Any], required: Iterable[str] = (), *, references: bool = True) -> Schema:
    """The keys of a dataclass as pydantic describes them; `references`: it is a part of a case."""
    properties = TypeAdapter(cls).json_schema().get("properties", {})
    plain = {name: {k: v for k, v in schema.items() if k != "title"} for name, schema in properties.items()}
    return mapping({k: or_reference(v) for k, v in plain.items()} if references else plain, required)


def _definitions() -> Schema:
    table = mapping({dtype: dataclass_schema(Tolerance, ("rtol", "atol")) for dtype in COARSENESS})
    return {
        "reference": {**REFERENCE, "description": "a value of the case itself"},
        "dtypes": {**array({"enum": list(COARSENESS)}), "uniqueItems": True},
        "backend": {"anyOf": [_short_backend(), _backend_mapping()]},
        "tolerance_table": table,
        "tolerance": mapping(
            {
                **table["properties"],
                "gradients": ref("tolerance_table"),
                "tensors": {"type": "object", "additionalProperties": ref("tolerance_table")},
            }
        ),
        "tensor": _tensor(),
        "case": {"if": {"required": [KIND]}, "then": ref("training"), "else": ref("op_case")},
        "op_case": _case(),
        "training": _training(),
        **_training_parts(),
        "known": _known(),
        **{f"{name}.params": dataclass_schema(op.params) for name, op in OPS.items()},
        **{f"{name}.inputs": _inputs(op) for name, op in OPS.items()},
    }


def _known() -> Schema:
    schema = dataclass_schema(KnownEntry, ("case", "reason"), references=False)
    schema["properties"] |= {
        "dtype": {"enum": [*COARSENESS, None]},
        "diagnosis": {"enum": [*DIAGNOSES, None]},
        "error_ratio": {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "null"}]},
        "outcome": {"enum": [UNSUPPORTED, None]},
    }
    said = {"required": ["outcome"], "properties": {"outcome": {"const": UNSUPPORTED}}}
    return {**schema, "if": said, "then": {"properties": {key: {"type": "null"} for key in MEASURED}}}


def _short_backend() -> Schema:
    names = "|".join(rf"{name}(==[^=:\s]+)?(:({'|'.join(traits.modes)}))?" for name, traits in ADAPTERS.items())
    return {**TEXT, "pattern": f"^({names})$", "description": "NAME[==VERSION][:MODE]"}


def _backend_mapping() -> Schema:
    properties: dict[str, Schema] = dict.fromkeys(BACKEND_KEYS, TEXT)
    properties["adapter"] = {"enum": list(ADAPTERS)}
    properties["version"] = {"type": ["string", "number"]}
    properties["mode"] = {"enum": sorted({mode for traits in ADAPTERS.values() for mode in traits.modes})}
    properties["device"] = {"enum": sorted({device for traits in ADAPTERS.values() for device in traits.devices})}
    properties["ranks"] = {"type": "integer", "minimum": 1, "maximum": MAX_RANKS, "default": 1}
    return mapping(properties, required=["name"])


def _tensor() -> Schema:
    number = or_reference({"type": "number"})
    axis = or_reference({"type": "integer", "minimum": 1})
    properties = {
        "shape": or_reference({"type": "array", "items": axis, "maxItems": MAX_AXES}),
        **{name: dataclass_schema(cls) for name, cls in DISTRIBUTIONS.items()},
        "values": {"type": ["array", "number", "string"]},
        "file": {**TEXT, "description": "a .npy file, relative to the config"},
        "scale": number,
        "offset": number,
        "special": dataclass_schema(Special),
    }
    properties["constant"] = {"anyOf": [number, properties["constant"]]}
    pairs = [{"required": list(pair)} for pair in combinations(sorted(DRAW_KEYS), 2)]
    return {**mapping(properties), "not": {"anyOf": pairs}}


def _input(item: Input) -> Schema:
    if item.listed:
        return {"type": "array", "items": ref("tensor")}
    return {"anyOf": [ref("tensor"), {"type": "null"}]} if item.optional else ref("tensor")


def _inputs(op: Op) -> Schema:
    upstream = op.upstream if op.differentiable else ()
    gradients = {f"grad.{name}": ref("tensor") for name in upstream}
    return mapping({**{item.name: _input(item) for item in op.inputs}, **gradients})


def _partial(op: Op) -> dict[str, Schema]:
    """What a case of `op`, or the defaults of such cases, may hold."""
    return {"params": ref(f"{op.name}.params"), "inputs": ref(f"{op.name}.inputs")}


COMMON: Mapping[str, Schema] = {
    "dtypes": or_reference(ref("dtypes")),
    "tolerance": ref("tolerance"),
    "gradients": or_reference({"type": "boolean"}),
}


def _case() -> Schema:
    swept = {"type": "object", "patternProperties": {SWEPT: array({})}, "additionalProperties": False}
    whole = mapping(
        {
            "id": {"type": ["string", "number"]},
            "op": {"enum": list(OPS), "description": "\n".join(f"{op.name}: {op.summary}" for op in OPS.values())},
            "params": {"type": "object"},
            "inputs": {"type": "object"},
            "sweep": swept,
            **COMMON,
        }
    )
    by_op = [
        {
            "if": {"properties": {"op": {"const": name}}, "required": ["op"]},
            "then": {"properties": _partial(op)},
        }
        for name, op in OPS.items()
    ]
    return {**whole, "allOf": by_op}


def _training() -> Schema:
    counts = dict.fromkeys(COUNTS, or_reference({"type": "integer", "minimum": 1}))
    swept = {"type": "object", "patternProperties": {SWEPT_OF_TRAINING: array({})}, "additionalProperties": False}
    model = mapping({name: _options(preset.options) for name, preset in PRESETS.items()})
    models = {"anyOf": [{"enum": list(PRESETS)}, {**model, "maxProperties": 1}, array(ref("layer"))]}
    return mapping(
        {
            "id": {"type": ["string", "number"]},
            KIND: {"const": TRAIN, "description": "a training: all steps of it in every backend, side by side"},
            "model": models,
            **{part: or_reference(ref(f"training.{part}")) for part in NAMED},
            "loss": or_reference({"enum": sorted({kind.loss for kind in GENERATORS.values()})}),
            **counts,
            "ensemble": dataclass_schema(EnsembleOptions),
            "sweep": swept,
            "dtypes": COMMON["dtypes"],
            "tolerance": COMMON["tolerance"],
        },
        required=[KIND],
    )


def _training_parts() -> dict[str, Schema]:
    """The layers of a model, and what goes by a name: data, optimizer, schedule, clip."""
    rows = dataclass_schema(RowOptions)["properties"]
    return {
        "layer": _layer(),
        **{f"layer.{name}": _options(kind.options, _layers_in(kind)) for name, kind in KINDS.items()},
        "training.data": _by_name({name: {**_keys(kind.options), **rows} for name, kind in GENERATORS.items()}),
        "training.optimizer": _by_name({name: _optimizer(op) for name, op in optimizers(OPS).items()}),
        "training.schedule": _by_name({name: _keys(kind.options) for name, kind in SCHEDULES.items()}),
        "training.clip": {"anyOf": [_by_name({name: _keys(cls) for name, cls in CLIPS.items()}), {"type": "null"}]},
    }


def _by_name(table: Mapping[str, dict[str, Schema]]) -> Schema:
    """A name of the table, or a mapping with the options that go with it; a sweep may bring the name."""
    named = [mapping({"name": or_reference({"const": name}), **options}) for name, options in table.items()]
    return {"anyOf": [{"enum": list(table)}, *named]}


def _keys(cls: type[Any]) -> dict[str, Schema]:
    return {key: schema for key, schema in dataclass_schema(cls)["properties"].items() if key != STEP}


def _optimizer(op: Op) -> dict[str, Schema]:
    patterns = {"type": "array", "items": TEXT}
    group = mapping({"parameters": {**patterns, "minItems": 1}, **_keys(op.params)}, required=["parameters"])
    return {**_keys(op.params), "groups": {"type": "array", "items": group}, EXCLUDES: patterns}


def _options(cls: type[Any], others: Mapping[str, Schema] | None = None) -> Schema:
    """The options of a preset or a layer, which may all be left out; `others` are described elsewhere."""
    return {"anyOf": [mapping({**_keys(cls), **(others or {})}), {"type": "null"}]}


def _layers_in(kind: Kind) -> dict[str, Schema]:
    return {"layers": array(ref("layer"))} if kind.adds else {}


def _layer() -> Schema:
    """A kind, or a mapping from it to its options or to the one that stands for them."""
    kinds = {}
    for name, kind in KINDS.items():
        short = {**_keys(kind.options), **_layers_in(kind)}.get(kind.short)
        kinds[name] = {"anyOf": [ref(f"layer.{name}"), short]} if short else ref(f"layer.{name}")
    return {"anyOf": [{"enum": list(KINDS)}, {**mapping(kinds), "minProperties": 1, "maxProperties": 1}]}


def _defaults() -> Schema:
    ops = {name: mapping({**_partial(op), **COMMON}) for name, op in OPS.items()}
    return mapping({**COMMON, "ops": mapping(ops)})
