"""A sweep makes one case for each combination of the values it lists."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Annotated, Any

from pydantic import WithJsonSchema

from parity.config.grammar import require_mapping
from parity.config.nodes import Node, Problems
from parity.config.references import as_text
from parity.config.tree import put, split_path

MAX_COMBINATIONS = 100_000
ROOTS = ("params", "inputs", "op", "dtypes", "gradients")
"""The parts of a case of an op that a sweep may set."""

EXAMPLE = "params.eps or inputs.x.normal.mean"
SCALARS = ("op", "dtypes", "gradients", "loss", "batch_size", "accumulation", "steps")
"""Keys of any case that have no keys below them."""


def sweep_of(roots: Collection[str]) -> Any:
    """The type of a sweep: paths below these roots with a list of values each."""
    inner = "|".join(root for root in roots if root not in SCALARS)
    alone = "|".join(root for root in roots if root in SCALARS)
    axes = {rf"^({inner})(\..+)?$|^({alone})$": {"type": "array", "minItems": 1}}
    return Annotated[Any, WithJsonSchema({"type": "object", "patternProperties": axes, "additionalProperties": False})]


@dataclass(frozen=True)
class Combination:
    """A case with one value set for each path of its sweep."""

    case: Node
    swept: tuple[tuple[str, Node], ...] = ()


def expand(
    case: Node, report: Problems, roots: Collection[str] = ROOTS, example: str = EXAMPLE
) -> Iterator[Combination]:
    """The case itself, or the cases of its sweep, which may set values below `roots`; problems are reported."""
    sweep = case.get("sweep")
    if sweep is None:
        yield Combination(case)
        return
    if not _valid(sweep, report, roots, example):
        return
    for values in product(*(axis.items for axis in sweep.mapping.values())):
        swept = tuple(zip(sweep.mapping, values, strict=True))
        combined = _set_all(case, swept, report)
        if combined is None:
            return
        yield Combination(combined, swept)


def _valid(sweep: Node, report: Problems, roots: Collection[str], example: str) -> bool:
    if not require_mapping(sweep, report, "a sweep"):
        return False
    n_before = len(report)
    for path, axis in sweep.mapping.items():
        _check_axis(path, axis, report, roots, example)
    for path, axis in sweep.mapping.items():
        for other in sweep.mapping:
            if path.startswith(f"{other}."):
                report.add(axis, f'"{path}" is part of "{other}", which is also swept', value=False)
    n_combinations = prod(len(axis.items) for axis in sweep.mapping.values())
    if n_combinations > MAX_COMBINATIONS:
        report.add(sweep, f"{n_combinations} combinations; a sweep may have at most {MAX_COMBINATIONS}", value=False)
    return len(report) == n_before


def _check_axis(path: str, axis: Node, report: Problems, roots: Collection[str], example: str) -> None:
    parts = split_path(path)
    root = parts[0]
    if root not in roots:
        message = f'unknown path "{path}": a sweep sets paths such as {example}'
        report.add(axis, message, allowed=roots, near=root, value=False)
    elif not all(parts) or (len(parts) > 1 and root in SCALARS):
        report.add(axis, f'unknown path "{path}"', value=False)
    if not axis.is_list:
        report.add(axis, f"a sweep needs a list of values for {path}: [first, second]")
    elif not axis.items:
        report.add(axis, f"a sweep needs at least one value for {path}")


def _set_all(case: Node, swept: tuple[tuple[str, Node], ...], report: Problems) -> Node | None:
    tree = case
    for path, value in swept:
        new = put(tree, split_path(path), value)
        if new is None:
            report.add(value, f'"{path}" cannot be set: a part of it is not a mapping, or is a list that is too short')
            return None
        tree = new
    return tree


def suffixes(swept: tuple[tuple[str, Node], ...]) -> tuple[str, ...]:
    """`mean=100` for each swept path: its last word, or as many as distinguish the paths."""
    names = _short_names(tuple(path for path, _ in swept))
    return tuple(_suffix(name, value) for name, (_, value) in zip(names, swept, strict=True))


def _suffix(name: str, value: Node) -> str:
    """A value as parts of an id; a mapping gives one part per entry."""
    if value.mapping:
        return "-".join(_suffix(key, entry) for key, entry in value.mapping.items())
    return f"{name}={as_text(value)}"


def _short_names(paths: tuple[str, ...]) -> tuple[str, ...]:
    def tail(path: str, n: int) -> str:
        return ".".join(path.split(".")[-n:])

    names = []
    for path in paths:
        others = [other for other in paths if other != path]
        # An index means nothing without the word before it.
        lengths = range(2 if path.rpartition(".")[2].isdigit() else 1, path.count(".") + 2)
        n = next((n for n in lengths if all(tail(path, n) != tail(other, n) for other in others)), len(lengths))
        names.append(tail(path, n))
    return tuple(names)
