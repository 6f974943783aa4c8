"""Pydantic models of a config, and their errors as messages with the location in the YAML.

A mapping of a config is a model whose fields are the keys; its JSON schema is part of `parity schema`.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le
from pydantic import (
    AfterValidator,
    AllowInfNan,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
    ValidationError,
    WithJsonSchema,
    create_model,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, ErrorDetails, InitErrorDetails, PydanticCustomError, core_schema

from parity.config.errors import nearest
from parity.config.nodes import Node, Problems
from parity.config.tree import step

Model = TypeVar("Model", bound="ConfigModel")

IN_WORDS = "in_words"
"""The type of an error whose message is already parity's."""

SWEPT_VALUE = re.compile(r"(\.sweep\..*)\[[0-9]+\]$")
"""One value of a swept path: an unknown key is an error of the path, whatever the value."""

PHRASES: Mapping[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    type(None): "null",
    Any: "anything",
}

Text = Annotated[str | bool | int | float, Field(description="text"), WithJsonSchema({"type": ["string", "number"]})]
"""A word that may look like a number; its value is the node's text: `version: 2.10` is not the number 2.1."""


def list_of(kind: Any) -> Any:
    """The type of a list of such items."""
    return tuple[kind, ...]


def union_of(kinds: Iterable[Any]) -> Any:
    """The type of a value of one of these types."""
    return Union[tuple(kinds)]  # noqa: UP007 - X | Y takes no list of types


def literal_of(words: Iterable[str]) -> Any:
    """The type of one of these words."""
    return Literal[tuple(words)]


@dataclass(frozen=True)
class Allowed:
    """The words that are offered if a whole value is wrong."""

    words: tuple[str, ...]


class ConfigModel(BaseModel):
    """A mapping of a config. `what` is its name in messages, `wanted` its description if something else is found."""

    model_config = ConfigDict(strict=True, extra="forbid")
    what: ClassVar[str] = "a mapping"
    wanted: ClassVar[str] = "a mapping (key: value)"

    @classmethod
    def accepts(cls, value: Any) -> bool:
        """Whether a value can be such a mapping at all."""
        return isinstance(value, dict)

    @model_validator(mode="wrap")
    @classmethod
    def _in_words(cls, value: Any, handler: ModelWrapValidatorHandler[Any]) -> Any:
        if not cls.accepts(value):
            raise refusal(f"{{name}} must be {cls.wanted}")
        try:
            return handler(value)
        except ValidationError as error:
            raise ValidationError.from_exception_data(cls.__name__, list(_in_words(cls, error))) from None


class CaseModel(ConfigModel):
    """A mapping in a case: its values may be `${path}`, and a sweep or defaults may add missing keys."""


def model_of(
    name: str, what: str, keys: Mapping[str, Any], base: type[ConfigModel] = CaseModel, module: str = __name__
) -> type[Any]:
    """A model with these keys (a type and a default); a key need not be an identifier.

    Types that are defined later are looked up in `module`.
    """
    plain = {re.sub(r"\W", "_", key): (kind, _aliased(default, key)) for key, (kind, default) in keys.items()}
    model: type[ConfigModel] = create_model(name, __base__=base, __module__=module, **plain)  # type: ignore[call-overload]
    model.what = what
    return model


def _aliased(default: Any, key: str) -> Any:
    return default if key.isidentifier() else Field(default, alias=key)


def required(field: Any) -> bool:
    """Whether a dataclass field has no default."""
    return field.default is MISSING and field.default_factory is MISSING


def option_keys(cls: type[Any]) -> dict[str, tuple[Any, Any]]:
    """The fields of a dataclass as keys of a model."""
    hints = get_type_hints(cls, include_extras=True)
    return {f.name: (hints[f.name], ... if required(f) else f.default) for f in fields(cls) if f.init}


def options(
    cls: type[Any],
    name: str,
    what: str,
    check: Callable[[Any], None] | None = None,
    *,
    keys: Mapping[str, Any] | None = None,
    base: type[CaseModel] = CaseModel,
    module: str = __name__,
) -> Any:
    """The type of a mapping whose keys are the fields of a dataclass; validated, it is an instance of that.

    `keys` replaces the types of some fields.
    """
    model = model_of(name, what, {**option_keys(cls), **(keys or {})}, base, module)
    return Annotated[model, AfterValidator(lambda values: instance(cls, values, check))]


def instance(cls: type[Any], values: ConfigModel, check: Callable[[Any], None] | None = None) -> Any:
    """An instance of a dataclass; an error of the dataclass or of `check` is reported at the key that it names."""
    try:
        filled = cls(**{f.name: getattr(values, f.name) for f in fields(cls) if f.name in type(values).model_fields})
        if check is not None:
            check(filled)
    except ValueError as error:
        key = str(getattr(error, "key", "")).rpartition(".")[2]
        raise refusal(str(error), at=(key,) if key in values.model_fields_set else ()) from None
    return filled


@dataclass(frozen=True)
class Word:
    """Restricts a text to the allowed words, which a function gives where it is costly to know them; `{word}` in the
    message is the wrong one."""

    message: str
    allowed: tuple[str, ...] | Callable[[], Iterable[str]]

    @property
    def words(self) -> tuple[str, ...]:
        """The allowed words."""
        return tuple(self.allowed()) if callable(self.allowed) else self.allowed

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, _schema: CoreSchema, _handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"enum": list(self.words)}

    def _check(self, text: str) -> str:
        if text in self.words:
            return text
        raise refusal(self.message.replace("{word}", f'"{text}"'), allowed=self.words, near=text)


@dataclass(frozen=True)
class OrWritten:
    """Other types that may be written instead of this one, with their conversions before validation."""

    types: tuple[Any, ...]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        read = handler(source)
        forms = core_schema.union_schema([read, *(handler.generate_schema(form) for form in self.types)])
        describe_all = {"pydantic_js_annotation_functions": [lambda _, write: write(forms)]}
        return core_schema.no_info_after_validator_function(lambda value: value, read, metadata=describe_all)


@dataclass(frozen=True)
class ByName(OrWritten):
    """Mappings that are distinguished by their `name`, or such a name alone."""

    what: str

    @property
    def names(self) -> tuple[str, ...]:
        """The allowed names."""
        return get_args(self.types[0])


def refusal(
    message: str,
    *,
    at: tuple[str | int, ...] = (),
    allowed: Iterable[str] = (),
    near: str | None = None,
    missing: str = "",
    unknown: bool = False,
) -> PydanticCustomError:
    """An error with parity's message, at the validated value or at a path below it.

    `missing` is the missing key; an `unknown` key is reported once, however many values a sweep gives it.
    """
    context = {"message": message, "at": at, "allowed": tuple(allowed), "near": near}
    return PydanticCustomError(IN_WORDS, "{message}", {**context, "missing": missing, "unknown": unknown})


def key_types(model: type[ConfigModel]) -> dict[str, FieldInfo]:
    """The keys of a mapping with their types."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def unknown_key(model: type[ConfigModel], key: str) -> PydanticCustomError:
    """The error for a key that a mapping does not have."""
    keys = key_types(model)
    message = f'{model.what} has no "{key}"' if keys else f"{model.what} has no keys"
    return refusal(message, allowed=keys, near=key, unknown=True)


def _in_words(model: type[ConfigModel], error: ValidationError) -> Iterable[InitErrorDetails]:
    """The errors of a mapping with parity's messages, one per union."""
    keys, by_key = key_types(model), dict[Any, list[ErrorDetails]]()
    for details in error.errors(include_url=False):
        by_key.setdefault(details["loc"][0], []).append(details)
    meant = {nearest(str(key), keys) for key, (first, *_) in by_key.items() if first["type"] == "extra_forbidden"}
    for key, errors in sorted(by_key.items(), key=lambda item: item[1][0]["type"] != "extra_forbidden"):
        first = errors[0]
        if any(details["type"] == IN_WORDS for details in errors):
            for details in errors:
                if details["type"] == IN_WORDS:
                    yield _details(refusal(**details["ctx"]), details["loc"])
        elif first["type"] == "extra_forbidden":
            yield _details(unknown_key(model, key), (key,))
        elif first["type"] != "missing":
            yield _wrong_value(key, keys[key], errors)
        elif key not in meant:
            message = f'{model.what} needs "{key}": {phrase(keys[key])}'
            yield _details(refusal(message, missing=key), ())


def _details(error: PydanticCustomError, loc: tuple[str | int, ...]) -> InitErrorDetails:
    return InitErrorDetails(type=error, loc=loc, input=None)


def _wrong_value(key: str, field: FieldInfo, errors: list[ErrorDetails]) -> InitErrorDetails:
    """The error for a wrong value; if one item of a list is wrong, at that item."""
    loc, value = errors[0]["loc"], errors[0]["input"]
    choice = next((item for item in field.metadata if isinstance(item, ByName)), None)
    if choice is not None:
        return _wrong_choice(key, choice, value)
    words = next((item.words for item in field.metadata if isinstance(item, Allowed)), ())
    if len(errors) == 1 and len(loc) == 2 and isinstance(loc[1], int):
        return _details(refusal(f"an item of {key} must be {item_phrase(field, loc[1])}{_aside(value)}"), loc)
    return _details(refusal(f"{key} must be {phrase(field)}{_aside(value)}", allowed=words), (key,))


def _wrong_choice(key: str, choice: ByName, value: Any) -> InitErrorDetails:
    """The error for a missing or unknown name of a mapping that is chosen by its name."""
    what, names = choice.what, choice.names
    if not isinstance(value, dict):
        message = f"{what} must be a name, or a mapping: {{name: {names[0]}, ...}}"
        return _details(refusal(message, allowed=names), (key,))
    if "name" not in value:
        return _details(refusal(f"{what} needs a name", allowed=names, missing="name"), (key,))
    return _details(refusal(f"no such {what}", at=("name",), allowed=names, near=str(value["name"])), (key,))


def _models(hint: Any) -> list[type[ConfigModel]]:
    """The models in a union of (annotated) models."""
    if get_origin(hint) in (Union, types.UnionType, Annotated):
        return [model for part in get_args(hint) for model in _models(part)]
    return [hint] if isinstance(hint, type) and issubclass(hint, ConfigModel) else []


def _aside(value: Any) -> str:
    """A hint for a common mistake: a number in quotes, or 1e-5, which YAML 1.1 tools write as text."""
    if isinstance(value, str):
        try:
            float(value)
        except ValueError:
            return ""
        return "; this is text: remove the quotes"
    return ""


def phrase(field: FieldInfo) -> str:
    """What a key's value must be, in words."""
    return field.description or describe(field.annotation, field.metadata)


def item_phrase(field: FieldInfo, index: int) -> str:
    """What an item of a key's list must be."""
    items = get_args(field.annotation)
    return describe(items[0] if Ellipsis in items else items[index])


def describe(hint: Any, limits: Iterable[Any] = ()) -> str:
    """A type in words: `int | None` is "a whole number or null"."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        own = next((item.description for item in args if isinstance(item, FieldInfo) and item.description), None)
        return own or describe(args[0], args[1:])
    if origin is Literal:
        return "one of " + ", ".join(map(str, args))
    if origin in (Union, types.UnionType):
        return " or ".join(describe(arg, limits if arg is not type(None) else ()) for arg in args)
    if origin is tuple:
        items = dict.fromkeys(describe(arg).removeprefix("a ") for arg in args if arg is not Ellipsis)
        length = "" if Ellipsis in args else f"{len(args)} "
        return f"a list of {length}{' and '.join(f'{item}s' for item in items)}"
    limits = tuple(limits)
    finite = any(isinstance(item, AllowInfNan) for item in limits)
    return ("a finite number" if finite else PHRASES.get(hint, getattr(hint, "what", str(hint)))) + _limited(limits)


def _limited(limits: tuple[Any, ...]) -> str:
    """The limits of a number in words."""
    least = next((item.ge for item in limits if isinstance(item, Ge)), None)
    most = next((item.le for item in limits if isinstance(item, Le)), None)
    above = next((f" above {item.gt}" for item in limits if isinstance(item, Gt)), "")
    if most is not None:
        return f", from {least} to {most}"
    return above if least is None else f", {least} or more"


def read(model: type[Model], node: Node, report: Problems) -> Model | None:
    """The content of a mapping; None and a report of all problems if there are any."""
    try:
        return model.model_validate(node.plain())
    except ValidationError as error:
        for details in error.errors(include_url=False, include_input=False):
            _report(details, node, report)
        return None


def read_partly(model: type[Model], node: Node, report: Problems) -> Model | None:
    """The content of a mapping without its invalid keys, which are reported; None if nothing is left."""
    values = node.plain()
    try:
        return model.model_validate(values)
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_input=False)
    for details in wrong:
        _report(details, node, report)
    left_out = {details["loc"][0] for details in wrong if details["loc"]}
    try:
        rest: Model = _optional(model).model_validate({key: values[key] for key in node.mapping if key not in left_out})
    except ValidationError:
        return None
    return rest


@cache
def _optional(model: type[Model]) -> type[Model]:
    """The model with all its required keys made optional."""
    fields = {name: copy(field) for name, field in model.model_fields.items() if field.is_required()}
    for field in fields.values():
        field.default = None
    keys: Any = {name: (field.annotation, field) for name, field in fields.items()}
    return create_model(model.__name__, __base__=model, **keys)


def check_keys(model: type[ConfigModel], node: Node, report: Problems, *, deep: bool = False) -> None:
    """Reports the unknown keys of a mapping, whatever their values; `deep`: also in the mappings below it."""
    keys = key_types(model)
    for key, entry in node.mapping.items():
        if key not in keys:
            _add_problem(unknown_key(model, key).context, node, (key,), report)
        for inner in _models(keys[key].annotation) if deep and key in keys else ():
            check_keys(inner, entry, report, deep=True)


def require_mapping(node: Node, report: Problems, what: str) -> bool:
    """Whether `node` is a mapping; reports it if not."""
    if not node.is_mapping:
        report.add(node, f"{what} must be a mapping (key: value)")
    return node.is_mapping


def _report(details: ErrorDetails, node: Node, report: Problems) -> None:
    _add_problem(details["ctx"], node, details["loc"], report)


def _add_problem(context: Any, root: Node, loc: tuple[str | int, ...], report: Problems) -> None:
    """Reports an error at its line of the YAML; names in `loc` that only choose a type are skipped."""
    node, path = root, [str(part) for part in (*loc, *context["at"])]
    for part in path:
        node = step(node, part) or node
    name = next((part for part in reversed(path) if not part.isdecimal()), root.key.rpartition(".")[2])
    message = context["message"].replace("{name}", name)
    key = SWEPT_VALUE.sub(r"\1", node.key)
    if context["missing"]:
        report.add(node, message, key=f"{key}.{context['missing']}", allowed=context["allowed"])
    elif context["unknown"]:
        shown = key == node.key
        report.add(node, message, key=key, allowed=context["allowed"], near=context["near"], value=shown)
    else:
        report.add(node, message, allowed=context["allowed"], near=context["near"])
