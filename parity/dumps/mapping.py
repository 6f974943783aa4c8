"""Mapping files: the right dump's tensor for each of the left dump's, as YAML that a person can edit.

A line is `left name: right name`, or `left name: {name: right name, transform: transpose}`; see `TransformKeys`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from parity.config.errors import ConfigError
from parity.config.grammar import ConfigModel, read
from parity.config.known_edit import quoted, word
from parity.config.nodes import Node, Problems, printable
from parity.config.yaml_lines import read_yaml
from parity.dumps.matching import How, Matching, Pair, Transform

START = "a mapping has a line `left name: right name` for each tensor"
MAX_KEY = 500
"""YAML requires a marker before longer keys; its limit is 1,024."""


class TransformKeys(ConfigModel):
    """`axes`: the right tensor's axes in the left one's order. `blocks`: the order of equal blocks along the first axis
    then, as of an LSTM's gates. `reshape`: it takes the left one's shape at last."""

    what: ClassVar[str] = "a transform"
    axes: tuple[int, ...] = ()
    blocks: tuple[int, ...] = ()
    reshape: bool = False


class EntryKeys(ConfigModel):
    """A tensor of the right dump, and how it becomes the left one."""

    what: ClassVar[str] = "a tensor of the right dump"
    name: str
    transform: Any = None


SHORT = {"transpose": Transform((1, 0)), "reshape": Transform(reshape=True)}
"""The transforms that are one word."""


def read_mapping(path: Path) -> dict[str, tuple[str, Transform]]:
    """The right name and the transform of every left name. Raises ConfigError with all problems."""
    problems = Problems()
    file = read_yaml(path, problems, start=START)
    mapping = {}
    for name, node in file.root.mapping.items() if file else ():
        entry = entry_of(node, problems)
        if entry is not None:
            mapping[name] = entry
    taken: dict[str, str] = {}
    for name, (other, _) in mapping.items():
        if other in taken and file:
            problems.add(file.root.mapping[name], f"{other} is already mapped to {taken[other]}")
        taken[other] = name
    if problems.problems:
        raise ConfigError(problems.problems)
    return mapping


def entry_of(node: Node, problems: Problems) -> tuple[str, Transform] | None:
    """One entry; None and a report if it is wrong."""
    if not node.is_mapping:
        if node.is_list or node.value is None:
            problems.add(node, "expected the name of a tensor of the right dump, or {name: ..., transform: ...}")
            return None
        return node.text, Transform()
    keys = read(EntryKeys, node, problems)
    if keys is None:
        return None
    given = node.get("transform")
    transform = Transform() if given is None or given.value is None else transform_of(given, problems)
    return None if transform is None else (keys.name, transform)


def transform_of(node: Node, problems: Problems) -> Transform | None:
    """A transform; None and a report if it is wrong."""
    if not node.is_mapping:
        if node.text not in SHORT:
            problems.add(node, "expected a transform", allowed=(*SHORT, "{axes: [...], blocks: [...], reshape: true}"))
        return SHORT.get(node.text)
    keys = read(TransformKeys, node, problems)
    if keys is None:
        return None
    for name, order in (("axes", keys.axes), ("blocks", keys.blocks)):
        if sorted(order) != list(range(len(order))):
            problems.add(node.mapping[name], f"{name} must hold each number from 0 to {max(0, len(order) - 1)} once")
            return None
    return Transform(keys.axes, keys.blocks, keys.reshape)


def mapping_text(matching: Matching) -> str:
    """The pairs of a matching as a mapping file; how they were found, and doubts, are comments."""
    return "".join(f"{line}\n" for line in lines_of(matching))


def lines_of(matching: Matching) -> Iterator[str]:
    """The lines of a mapping file."""
    counts = ", ".join(f"{n} by {how.value}" for how, n in matching.counts().items())
    yield f"# left name: right name ({counts})"
    for pair in matching.pairs:
        if pair.doubt:
            yield f"# {printable(pair.doubt)}"
        comment = "" if pair.how is How.EXACT else f"  # {pair.how.value}"
        yield f"{key(pair.left)}: {value(pair)}{comment}"
    for which, names in (("left", matching.left_only), ("right", matching.right_only)):
        yield from (f"# only on the {which}: {printable(name)}" for name in names)


def key(name: str) -> str:
    """A left name as a key."""
    return word(name) if len(name) <= MAX_KEY else f"? {quoted(name)}\n"


def value(pair: Pair) -> str:
    """The right name, with the transform if there is one."""
    made = transform_text(pair.transform)
    return f"{{name: {word(pair.right)}, transform: {made}}}" if made else word(pair.right)


def transform_text(transform: Transform) -> str:
    """A transform as YAML; empty for none."""
    short = next((word for word, meant in SHORT.items() if meant == transform), "")
    if short or transform == Transform():
        return short
    parts = {"axes": list(transform.axes), "blocks": list(transform.blocks), "reshape": transform.reshape and "true"}
    return "{" + ", ".join(f"{name}: {part}" for name, part in parts.items() if part) + "}"
