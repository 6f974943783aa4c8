"""The JSON schema of a config file: for editors, and for programs that write configs.

It is made from the models that read the files. Constraints between files, and between shapes and params, are checked
only by loading.
"""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import GenerateJsonSchema, models_json_schema
from pydantic_core import core_schema

from parity.cases import OPS
from parity.config.case_models import DefaultsByOp, OpCase, case_model_of, defaults_model_of
from parity.config.cases import case_kind
from parity.config.documents import ConfigKeys
from parity.config.grammar import CaseModel
from parity.config.kinds import KIND, KINDS

Schema = dict[str, Any]

REFERENCE: Schema = {"type": "string", "pattern": r"\$\{[^{}]+\}"}
"""A reference to another value of the case."""
PARTS = ("params", "inputs")
"""The keys of a case that depend on its op."""


def json_schema() -> Schema:
    """The schema of a config file (JSON Schema draft 2020-12)."""
    kinds = {name: case_kind(name).model for name in KINDS}
    cases, defaults = ({name: model(name) for name in OPS} for model in (case_model_of, defaults_model_of))
    models: list[Any] = [ConfigKeys, OpCase, *kinds.values(), *cases.values(), *defaults.values()]
    refs, whole = models_json_schema([(model, "validation") for model in models], schema_generator=AsWritten)
    definitions = whole["$defs"]
    root, op_case = definitions.pop(ConfigKeys.__name__), definitions[OpCase.__name__]
    op_case["properties"]["op"]["description"] = "\n".join(f"{op.name}: {op.summary}" for op in OPS.values())
    op_case["if"], op_case["then"] = {"not": {"required": ["reference"]}}, {"properties": {"op": {"enum": list(OPS)}}}
    op_case["allOf"] = [
        _if({"op": {"const": name}}, {"properties": _parts(definitions.pop(model.__name__))})
        for name, model in cases.items()
    ]
    by_op = {name: refs[model, "validation"] for name, model in defaults.items()}
    definitions[DefaultsByOp.__name__]["properties"] = by_op
    of_kinds = [_if({KIND: {"const": name}}, refs[model, "validation"]) for name, model in kinds.items()]
    known = {KIND: {"enum": list(KINDS)}}
    definitions["case"] = {
        "type": "object",
        "allOf": of_kinds,
        "if": {"required": [KIND]},
        "then": {"properties": known},
        "else": refs[OpCase, "validation"],
    }
    root["properties"]["cases"]["items"] = {"$ref": "#/$defs/case"}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **root, "$defs": definitions}


def _if(properties: Schema, then: Schema) -> Schema:
    return {"if": {"properties": properties, "required": list(properties)}, "then": then}


def _parts(case: Schema) -> Schema:
    return {key: case["properties"][key] for key in PARTS}


class AsWritten(GenerateJsonSchema):
    """Schemas of configs as written: in a case no key is required, and any value may be a reference."""

    def model_schema(self, schema: core_schema.ModelSchema) -> Schema:
        """The schema of a mapping."""
        written = super().model_schema(schema)
        if issubclass(schema["cls"], CaseModel):
            written.pop("required", None)
            written["properties"] = {key: or_reference(value) for key, value in written["properties"].items()}
        return written

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> Schema:
        """The schema of an optional value, without defaults that mean "not given"."""
        written = super().default_schema(schema)
        return written if written.get("default") else {key: value for key, value in written.items() if key != "default"}

    def tagged_union_schema(self, schema: core_schema.TaggedUnionSchema) -> Schema:
        """The schema of mappings that are distinguished by a key, which a sweep may set."""
        written = super().tagged_union_schema(schema)
        return {"anyOf": written["oneOf"]}

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - none has a title
        """Keys need no title."""
        return False


def or_reference(schema: Schema) -> Schema:
    """The schema with `${path}` allowed for the value or for any item of a list."""
    if "$ref" in schema or schema.get("type") == "object":
        return schema
    if isinstance(schema.get("items"), dict):
        schema = {**schema, "items": or_reference(schema["items"])}
    if "anyOf" not in schema:
        return {"anyOf": [schema, REFERENCE]}
    forms = [form for part in map(or_reference, schema["anyOf"]) for form in part.get("anyOf", [part])]
    return {**schema, "anyOf": [*(form for form in forms if form != REFERENCE), REFERENCE]}
