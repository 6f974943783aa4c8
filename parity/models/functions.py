"""A traced program as a file that is an op of its own, and what it calls: parity's ops by name.

The options of the ops in it are params of the whole, so another value of one is found like that of any op.
"""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any

from parity.cases import OPS
from parity.models.ports import ModelError

HEAD = '''"""{title}, as NumPy."""

import numpy as np

from parity.models.functions import expect, op


def {name}({arguments}):
    expect({shapes})
'''


def op(name: str, **given: Any) -> Any:
    """The first output of an op's reference; tensors and params by keyword. Raises KeyError for an unknown op."""
    definition = OPS[name]
    known = {item.name for item in definition.inputs}
    params = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    params = {name: value for name, value in params.items() if name not in known}
    outputs = definition.reference({n: v for n, v in given.items() if n in known}, definition.params(**params))
    return outputs[definition.upstream[0]] if definition.upstream else next(iter(outputs.values()))


def expect(*tensors: tuple[Any, tuple[int, ...]]) -> None:
    """Raise ValueError for tensors of other shapes than those that the program was traced with."""
    for tensor, shape in tensors:
        if tuple(tensor.shape) != shape:
            raise ValueError(f"this was traced with a tensor of shape {list(shape)}, not {list(tensor.shape)}")


def source(
    name: str,
    title: str,
    lines: Sequence[Mapping[str, Any]],
    returned: Mapping[str, str],
    inputs: Mapping[str, tuple[int, ...]],
) -> tuple[str, dict[str, Any]]:
    """The text of a file with the function `name`, and its params with their values. Raises ModelError for a call of
    what is no op."""
    options: dict[str, Any] = {}
    body = [f"    {line['name']} = {called(line, options) if line['op'] else line['text']}" for line in lines]
    arguments = ", ".join([*inputs, *(f"{option}={value!r}" for option, value in options.items())])
    values = ", ".join(f'"{output}": {value}' for output, value in returned.items())
    shapes = ", ".join(f"({name}, {shape})" for name, shape in inputs.items())
    return "\n".join([HEAD.format(title=title, name=name, arguments=arguments, shapes=shapes) + "\n".join(body),
                      f"    return {{{values}}}", ""]), options  # fmt: skip


def called(line: Mapping[str, Any], options: dict[str, Any]) -> str:
    """The call of an op, whose numbers and words are added to the options."""
    name, given = line["op"], dict(line["given"])
    if name not in OPS:
        raise ModelError(f"{name} has no translation to NumPy")
    definition = OPS[name]
    known = {item.name for item in definition.inputs}
    texts = {key: value for key, value in given.items() if key in known}
    for field in fields(definition.params):
        default = None if field.default is MISSING else field.default
        if field.name in given and not is_option(field.type):
            texts[field.name] = given[field.name]
        elif is_option(field.type) and (field.name in given or default is not None):
            option = unused(f"{name}_{field.name}", options)
            options[option] = literal_eval(given[field.name]) if field.name in given else default
            texts[field.name] = option
    left = {key: value for key, value in given.items() if key not in texts and value not in ("False", "None")}
    if left:
        raise ModelError(f"{name} is called with {', '.join(left)}, which parity's op does not have")
    return f"op({name!r}, {', '.join(f'{key}={value}' for key, value in texts.items())})"


def is_option(kind: Any) -> bool:
    """Whether a param is a number or a word that may be another one: not a size, an axis or a flag of shape."""
    return kind == "float" or "Literal" in str(kind) or str(kind) == "Reduction"


def unused(name: str, taken: Mapping[str, Any]) -> str:
    """A name that no option has."""
    return name if name not in taken else next(f"{name}_{i}" for i in range(2, 1000) if f"{name}_{i}" not in taken)
