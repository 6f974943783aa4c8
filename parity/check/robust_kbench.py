"""robust-kbench: `Model.forward(..., fn=forward_fn)`, a candidate that is another `fn`, and sizes in a JSON."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parity.check import CheckError
from parity.check.generated import CANDIDATE, REFERENCE, Source, loaded, written
from parity.check.pair import (
    INIT_INPUTS,
    INPUTS,
    MODEL,
    FilePair,
    FormatPair,
    Named,
    definitions,
    lacking,
    named_file,
)
from parity.program.worker.user_module import NEW

FUNCTION = "fn"
NAME = "forward_fn"
CONFIG = "config_forward.json"
GIVEN = '''
{settings}
parity_sizes = {sizes!r}

parity_inputs, parity_model = {inputs}, {model}


def get_inputs():
    """What the file's function gives at these sizes."""
    return list(parity_inputs({input_arguments}))


def get_init_inputs():
    """The constructor's arguments at these sizes."""
    return [{init_arguments}]
'''
CALLED = '''
parity_function = {name}

with open({reference!r}, "rb") as parity_file:
    parity_names = {{"__name__": __name__, "__file__": {reference!r}}}
    exec(compile(parity_file.read(), {reference!r}, "exec", dont_inherit=True), parity_names)


class {new}(parity_names[{model!r}]):
    """The reference's class, which calls the candidate's function."""

    def forward(self, *args, **kwargs):
        """As the reference's class."""
        return super().forward(*args, **{{**kwargs, {function!r}: parity_function}})
'''


def module_pair(reference: str, candidate: str, folder: Path, inputs: str | None) -> FormatPair:
    """The pair of a module and of a function that it calls. Raises CheckError."""
    path, name = named_file(reference)
    model = definitions(path).get(name or MODEL)
    if model is None or not model.is_class:
        raise CheckError(f"{path} has no class {name or MODEL} whose forward() takes {FUNCTION}")
    source = Source(path)
    file = written(folder, REFERENCE, source.text("robust-kbench"))
    names = loaded(file, path)
    given = sizes(path)
    if inputs is None and INPUTS in names:
        file = written(folder, REFERENCE, source.text("robust-kbench") + given_text(names, model.name, given))
        loaded(file, path)
    own, function = function_of(candidate)
    text = CALLED.format(
        name=function.name, reference=str(path.absolute()), new=model.name + NEW, model=model.name, function=FUNCTION
    )
    new = written(folder, CANDIDATE, Source(own).text("robust-kbench") + text)
    at, what = named_file(inputs) if inputs else (file, INPUTS)
    return FormatPair(
        FilePair(
            Named(file, model.name, True, model.line, path),
            Named(new, function.name, True, function.line, own),
            (at, what or INPUTS),
        )
    )


def function_of(candidate: str) -> tuple[Path, Named]:
    """The candidate's function: the one that is named, `forward_fn`, or the only one. Raises CheckError."""
    path, name = named_file(candidate)
    if path.suffix != ".py":
        raise CheckError(f"{path} is no Python file; write one whose {NAME} loads and calls it")
    functions = {n: item for n, item in definitions(path).items() if not item.is_class}
    if not name and NAME not in functions and len(functions) == 1:
        return path, next(iter(functions.values()))
    if (name or NAME) not in functions:
        raise lacking(path, f"function {name or NAME}", functions)
    return path, functions[name or NAME]


def sizes(path: Path) -> dict[str, Any]:
    """The first configuration of the JSON beside the file, by the names of arguments. Raises CheckError."""
    config = path.parent / CONFIG
    if not config.is_file():
        return {}
    try:
        given = json.loads(config.read_bytes())
        parts = [given.get(f"single_{part}_configs") or [{}] for part in ("shared", "input", "init")]
        return {name: value for part in parts for name, value in part[0].items()}
    except (ValueError, AttributeError, LookupError) as error:
        raise CheckError(f"{config} is no configuration of robust-kbench: {error}") from error


def given_text(names: Mapping[str, Any], model: str, given: Mapping[str, Any]) -> str:
    """The functions that give arguments, with sizes as globals, which can be set and made smaller."""
    values: dict[str, Any] = {}
    arguments = {key: arguments_of(names[key], given, values) for key in (INPUTS, model)}
    if INIT_INPUTS in names:
        words = "*" + INIT_INPUTS
        arguments[model] = [f"{words}()"]
    taken = {name: name if name not in names else f"{name}_" for name in values}
    text = GIVEN.format(
        settings="\n".join(f"{taken[name]} = {value!r}" for name, value in values.items()),
        sizes=list(taken.values()),
        inputs=INPUTS,
        model=model,
        input_arguments=", ".join(f"{name}={taken[name]}" for name in arguments[INPUTS]),
        init_arguments=", ".join(taken.get(name, name) for name in arguments[model]),
    )
    return text if INIT_INPUTS not in names else text.partition("\n\n\ndef get_init_inputs")[0] + "\n"


def arguments_of(function: Any, given: Mapping[str, Any], values: dict[str, Any]) -> list[str]:
    """The arguments of a function that have a value, which is put into `values`."""
    names_given = []
    for name, parameter in inspect.signature(function).parameters.items():
        value = given.get(name, parameter.default)
        if value is not inspect.Parameter.empty and isinstance(value, (bool, int, float, str, tuple, list)):
            values[name] = value
            names_given.append(name)
    return names_given
