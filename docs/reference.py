"""The pages of the reference, written from the code that they describe."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import click
import msgspec

from parity import exit_codes
from parity.cases import OPS
from parity.cases.draw import DISTRIBUTIONS
from parity.cli import main
from parity.config import json_schema
from parity.diagnoses import catalogue
from parity.judge.compare.verdict import EnvelopeRow, ErrorRatios, Verdict
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.listing import op_card
from parity.outcome import Outcome
from parity.reporting.results import rows

ROOT = Path(__file__).parent.parent
Schema = Mapping[str, Any]


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    # A bar in code is one already.
    cells = [
        [re.sub(r"`[^`]*`|\||\n", lambda m: {"|": r"\|", "\n": " "}.get(m[0], m[0]), cell) for cell in line]
        for line in lines
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, ["---"] * len(head), *cells))


def prose(text: str | None) -> str:
    """A docstring without its indentation."""
    return inspect.cleandoc(text or "").replace("\b\n", "")


def code(value: Any) -> str:
    """A value as it is written; nothing for none."""
    return "" if value is None else f"`{value}`" if value != "" else '`""`'


# Commands.


def commands_page() -> str:
    """Every command with its arguments, options and example."""
    parts = ["# Commands", "Every command says the same with `--help`."]
    with click.Context(main, info_name="parity") as context:
        parts += [text for name, command in walk(main, context) for text in command_text(name, command)]
    return "\n\n".join(parts) + "\n"


def walk(group: click.Group, context: click.Context, prefix: str = "parity") -> Iterator[tuple[str, click.Command]]:
    """The commands of a group and of the groups in it, by their full names."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from walk(command, context, f"{prefix} {name}")
        elif command is not None:
            yield f"{prefix} {name}", command


def command_text(name: str, command: click.Command) -> Iterator[str]:
    """A command: usage, what it does, options, example."""
    context = click.Context(command, info_name=name)
    yield f"## {name}"
    yield f"```text\n{' '.join([name, *command.collect_usage_pieces(context)])}\n```"
    yield prose(command.help)
    options = [option_row(item, context) for item in command.params if isinstance(item, click.Option)]
    if options:
        yield table(["option", "what it does"], options)
    if command.epilog:
        lines = [line.strip() for line in command.epilog.splitlines()[2:]]
        yield "```sh\n" + "\n".join(lines) + "\n```"


def option_row(option: click.Option, context: click.Context) -> list[str]:
    """An option as its help shows it."""
    names, text = option.get_help_record(context) or ("", "")
    return [f"`{names}`", prose(text)]


# Config.

TOP = {"BackendKeys": "A backend that is a mapping", "tolerance": "Tolerances", "tensor": "An input tensor"}
MAX_WORDS = 8


schema_of_configs = cache(json_schema)


def config_page() -> str:
    """The keys of a config, from the schema by which configs are read."""
    schema = schema_of_configs()
    known = schema["properties"]["known"]["items"]
    sections = [
        ("The file", schema),
        ("A case of an op", schema["$defs"]["op_case"]),
        *((title, schema["$defs"][name]) for name, title in TOP.items()),
        *((f"`{name}`: a distribution", schema["$defs"].get(name, {})) for name in DISTRIBUTIONS),
        ("An entry of `known`", known),
        ("A training", schema["$defs"]["training"]),
    ]
    example = (ROOT / "configs" / "linear.yaml").read_text()
    parts = [
        "# Config",
        "YAML with the keys below. `parity schema` prints them for editors, `parity validate` checks a file.",
    ]
    parts += ["A config of this repository, `configs/linear.yaml`:", f"```yaml\n{example}```"]
    for title, part in sections:
        if part.get("properties"):
            parts += [f"## {title}", table(["key", "value", "default"], list(key_rows(part)))]
    return "\n\n".join(parts) + "\n"


def key_rows(schema: Schema) -> Iterator[list[str]]:
    """The keys of a mapping; those that it needs are bold."""
    for key, value in schema["properties"].items():
        needed = key in schema.get("required", ())
        yield [f"**`{key}`**" if needed else f"`{key}`", described(value), code(default_of(value))]


def default_of(value: Schema) -> Any:
    """The default of a key, which may stand in one of its forms."""
    return next((form["default"] for form in (value, *value.get("anyOf", [])) if "default" in form), None)


def described(value: Schema) -> str:
    """What a key's value is, in a few words."""
    if "anyOf" in value:
        forms = [described(form) for form in value["anyOf"] if r"\$\{" not in form.get("pattern", "")]
        return " or ".join(dict.fromkeys(form for form in forms if form))
    if "enum" in value or "const" in value:
        words = [str(word) for word in value.get("enum", [value.get("const")])]
        more = f", ... ({len(words)} in all)" if len(words) > MAX_WORDS else ""
        return ", ".join(f"`{word}`" for word in words[:MAX_WORDS]) + more
    if "$ref" in value:
        return mapping(value["$ref"].rpartition("/")[2])
    if "description" in value:
        return str(value["description"]).splitlines()[0]
    kinds = value.get("type", "anything")
    return " or ".join(WORDS.get(kind, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds))


WORDS = {
    "object": "a mapping",
    "array": "a list",
    "string": "text",
    "number": "a number",
    "integer": "a whole number",
    "boolean": "true or false",
}


def mapping(name: str) -> str:
    """A mapping of the schema: its section of the page, or its keys where it has none."""
    if name in TOP:
        return f"[a mapping](#{TOP[name].lower().replace(' ', '-')})"
    keys = schema_of_configs()["$defs"][name].get("properties", {})
    return f"a mapping of {', '.join(map(code, keys))}" if 0 < len(keys) <= MAX_WORDS else "a mapping"


# Ops.


def ops_page() -> str:
    """Every op as `parity ops NAME` tells it."""
    parts = [
        "# Ops",
        "A function of this name in your `ops:` file replaces the op. It takes tensors and params by keyword. "
        "`?` is optional: `null` leaves it out. `parity ops NAME` prints one of them.",
    ]
    for card in map(op_card, OPS):
        parts += [f"## {card.name}", f"`{card.summary}`" if "*" in card.summary else card.summary, card.notes]
        parts += ["```text\n" + "\n".join(card.formula) + "\n```"] if card.formula else []
        parts += [f"Shapes: {card.shapes}".replace("*", r"\*")]
        for title, (head, lines) in card.tables.items():
            parts += [f"{title[0].upper()}{title[1:]}:", table(head, [[code(line[0]), *line[1:]] for line in lines])]
        parts += [f"Runs on {card.runs_on}. Example:", f"```yaml\n{card.example}\n```"]
        parts += ["A kernel of your own:", f"```text\n{card.kernel}\n```"]
    return "\n\n".join(filter(None, parts)) + "\n"


# Diagnoses.


def diagnoses_page() -> str:
    """Every cause that parity can name."""
    parts = ["# Diagnoses", "Every cause that parity can name. `parity explain ID` prints one of them."]
    for entry in catalogue().values():
        parts += [f"## {entry.id}", f"*{entry.title[0].upper()}{entry.title[1:]}.* {entry.what}", entry.shows]
        parts += [f"Known in: {entry.known_in}"] if entry.known_in else []
        parts += [f"Source: {entry.source}"] if entry.source else []
    return "\n\n".join(parts) + "\n"


# results.json.


def results_page() -> str:
    """Every object of results.json with its fields."""
    parts = [
        "# results.json",
        prose(rows.__doc__),
        "The document is a `Results`. A field with a default may be missing.",
    ]
    structs = [value for value in vars(rows).values() if inspect.isclass(value) and issubclass(value, msgspec.Struct)]
    structs += [ErrorRatios, EnvelopeRow]
    for cls in [rows.Results, *(cls for cls in structs if cls not in (rows.Results, msgspec.Struct)), Diagnosis]:
        parts += [f"## {cls.__name__}", own_doc(cls), table(["field", "type", "default"], list(field_rows(cls)))]
    parts += ["## Outcomes", ", ".join(f"`{outcome.value}`" for outcome in Outcome)]
    parts += ["## Verdicts", "From harmless to worst: " + ", ".join(f"`{verdict.value}`" for verdict in Verdict)]
    return "\n\n".join(parts) + "\n"


def own_doc(cls: type[Any]) -> str:
    """A class's docstring; one that a decorator made of its signature says nothing."""
    return "" if re.match(rf"{cls.__name__}\(", cls.__doc__ or "") else prose(cls.__doc__)


def field_rows(cls: type[Any]) -> Iterator[list[str]]:
    """The fields of a struct or a dataclass as they are declared."""
    if dataclasses.is_dataclass(cls):
        for field in dataclasses.fields(cls):
            given = field.default is not dataclasses.MISSING
            yield [code(field.name), code(field.type), code(field.default) if given else ""]
        return
    for item in msgspec.structs.fields(cls):
        default = item.default if item.default_factory is msgspec.NODEFAULT else item.default_factory()
        shown = "" if default is msgspec.NODEFAULT else "`null`" if default is None else code(default)
        yield [code(item.encode_name), code(cls.__annotations__[item.name]), shown]


# Exit codes.

MEANINGS = {
    exit_codes.PASSED: "everything asked for was compared and agrees, or is accepted in `known`",
    exit_codes.MISMATCH: "at least one tensor differs at the level of `--fail-on`, or an entry of `known` is out of date",
    exit_codes.USAGE: "the command line or a config is wrong, or not everything could be written",
    exit_codes.INCOMPLETE: "nothing differs, but something asked for was not compared (unavailable, unsupported, error, "
    "crash, timeout), or nothing was",
    exit_codes.INTERRUPTED: "interrupted; what was finished is in results.json",
}


def exit_codes_page() -> str:
    """What a run's exit code means, and what each level of --fail-on lets pass."""
    levels = [[code(level), ", ".join(map(code, sorted(exit_codes.FAILING[level])))] for level in exit_codes.FAIL_ON]
    default = next(item for item in main.commands["run"].params if item.name == "fail_on").default
    return "\n\n".join(
        [
            "# Exit codes",
            "Of `parity run` and `parity init`. Other commands say theirs in [their help](commands.md).",
            table(["code", "meaning"], [[str(value), text] for value, text in MEANINGS.items()]),
            "## --fail-on",
            f"From which verdict on a tensor that differs is a mismatch. The default is `{default}`.",
            table(["level", "verdicts that fail"], levels),
        ]
    ) + "\n"  # fmt: skip


PAGES: Mapping[str, Callable[[], str]] = {
    "reference/commands.md": commands_page,
    "reference/config.md": config_page,
    "reference/ops.md": ops_page,
    "reference/diagnoses.md": diagnoses_page,
    "reference/results.md": results_page,
    "reference/exit-codes.md": exit_codes_page,
}
"""The pages that are written from the code, by their place in the site."""
