"""A traced program as a file that defines an op and calls parity's ops by name.

The options of these ops are params of the whole, so the judge tries other values of them like those of any op.
"""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np

from parity.cases import OPS
from parity.cases.writable import TRACING, unwrapped, wrapped
from parity.models.ports import ModelError

MOST_AXES = 4
HEAD = '''"""{title}, as NumPy."""

import numpy as np
from numpy import inf, nan

from parity.models.functions import added, assigned, cast, expect, op


def {name}({arguments}):
    expect({shapes})
'''


def op(name: str, **given: Any) -> Any:
    """The first output of an op's reference; tensors and params by keyword. Raises KeyError for an unknown op."""
    definition, is_traced = OPS[name], TRACING.get()
    given = unwrapped(given) if is_traced else given
    known = {item.name for item in definition.inputs}
    params = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    params = {name: value for name, value in params.items() if name not in known}
    outputs = definition.reference({n: v for n, v in given.items() if n in known}, definition.params(**params))
    output = outputs[definition.grad_outputs[0]] if definition.grad_outputs else next(iter(outputs.values()))
    return wrapped(output) if is_traced else output


def expect(*tensors: tuple[Any, tuple[int, ...]]) -> None:
    """Raise ValueError for tensors of other shapes than when the program was traced."""
    for tensor, shape in tensors:
        if tuple(tensor.shape) != shape:
            raise ValueError(f"this was traced with a tensor of shape {list(shape)}, not {list(tensor.shape)}")


def cast(x: Any, dtype: str) -> Any:
    """x in another dtype."""
    return x != 0 if dtype == "bool" else x.astype(dtype)


def assigned(x: Any, index: Any, value: Any) -> Any:
    """x with a value at an index."""
    new = x.copy()
    new[index] = value
    return new


def added(x: Any, index: Any, values: Any) -> Any:
    """x with values added at an index, also where that repeats."""
    new = x.copy()
    np.add.at(new, index, values)
    return new


def source(
    name: str,
    title: str,
    lines: Sequence[Mapping[str, Any]],
    returned: Mapping[str, str],
    inputs: Mapping[str, tuple[int, ...]],
) -> tuple[str, dict[str, Any], dict[str, tuple[str, str]]]:
    """The text of a file with the function `name`, its params with their values, and which param of which op each is.

    Raises ModelError if it calls something that is no op.
    """
    options: dict[str, Any] = {}
    params: dict[str, tuple[str, str]] = {}
    body = [f"    {line['name']} = {called(line, options, params) if line['op'] else line['text']}" for line in lines]
    arguments = ", ".join([*inputs, *(f"{option}={value!r}" for option, value in options.items())])
    values = ", ".join(f'"{output}": {value}' for output, value in returned.items())
    shapes = ", ".join(f"({name}, {shape})" for name, shape in inputs.items())
    return "\n".join([HEAD.format(title=title, name=name, arguments=arguments, shapes=shapes) + "\n".join(body),
                      f"    return {{{values}}}", ""]), options, params  # fmt: skip


def called(line: Mapping[str, Any], options: dict[str, Any], params: dict[str, tuple[str, str]]) -> str:
    """The text of an op's call; its numbers and words are added to the options."""
    name, given = line["op"], dict(line["given"])
    if name not in OPS:
        raise ModelError(f"{line['source_line']}: {name} has no translation to NumPy")
    definition = OPS[name]
    known = {item.name for item in definition.inputs}
    texts = {key: value for key, value in given.items() if key in known}
    for field, kind in zip(fields(definition.params), types_of(name).values(), strict=True):
        default = None if field.default is MISSING else field.default
        if field.name in given and not is_option(field.name, kind):
            texts[field.name] = given[field.name]
        elif is_option(field.name, kind) and (field.name in given or default is not None):
            option = unused(f"{name}_{field.name}", options)
            options[option] = literal_eval(given[field.name]) if field.name in given else default
            texts[field.name], params[option] = option, (name, field.name)
    left = {key: value for key, value in given.items() if key not in texts and value not in ("False", "None")}
    if left:
        raise ModelError(
            f"{line['source_line']}: {name} is called with {', '.join(left)}, which parity's op does not have"
        )
    return f"op({name!r}, {', '.join(f'{key}={value}' for key, value in texts.items())})"


def is_option(name: str, kind: Any) -> bool:
    """Whether other values of a param are tried: a number, a word or an axis, but no size and no flag of shapes."""
    return kind in (float, "float") or bool(words_of(kind)) or name == "dim"


def words_of(kind: Any) -> tuple[Any, ...]:
    """The values of a param that is a word or a bool; empty for a number."""
    if kind is bool or bool in get_args(kind):
        return True, False
    return get_args(kind) if get_origin(kind) is Literal else ()


def types_of(name: str) -> dict[str, Any]:
    """The types of an op's params."""
    return get_type_hints(OPS[name].params)


def others(options: Mapping[str, Any], params: Mapping[str, tuple[str, str]]) -> Iterator[tuple[str, Any]]:
    """Every other word or axis that an option may be; `params` maps options to op and param."""
    for option, value in options.items():
        op_name, param = params[option]
        axes = tuple(range(-MOST_AXES, 0)) if param == "dim" else ()
        yield from ((option, other) for other in (*words_of(types_of(op_name)[param]), *axes) if other != value)


def unused(name: str, taken: Mapping[str, Any]) -> str:
    """A name that no option has."""
    return name if name not in taken else next(f"{name}_{i}" for i in range(2, 1000) if f"{name}_{i}" not in taken)
