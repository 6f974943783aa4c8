"""The data set of a training: what a config says of it, and what it is to the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal

from parity.cases.draw import Shape
from parity.config.fields import check_keys, field_specs, fill
from parity.config.nodes import Node, Report, child
from parity.training.config.recipe import choice, filled
from parity.training.data import GENERATORS
from parity.training.data import check as check_data
from parity.training.spec import Data

ROWS = 1024
MAX_AXES = 4
MAX_ELEMENTS = 2**28
"""Numbers in a data set; every side holds all of it."""


@dataclass(frozen=True)
class RowOptions:
    """What every data set takes besides its generator's options."""

    rows: int = ROWS
    order: Literal["shuffled", "sequential"] = "shuffled"


@dataclass(frozen=True)
class DataSet:
    """A data set with what an example is to the first layer, and what the model is to answer."""

    data: Data
    tokens: int | None
    output: Shape
    loss: str


def parse_data(node: Node | None, implied: Mapping[str, Any], case: Node, report: Report) -> DataSet | None:
    """The data set, or None after reporting what is wrong. `implied` is the model's, as a config would write it."""
    node = _over(node, implied, case)
    if node is None:
        message = 'a list of layers needs "data", for example {name: classification, features: [16], classes: 10}'
        report.add(case, message, key=f"{case.key}.data", allowed=GENERATORS)
        return None
    name = choice(node, GENERATORS, "data set", report)
    if name is None:
        return None
    kind = GENERATORS[name]
    own, rows_keys = tuple(field_specs(kind.options)), tuple(field_specs(RowOptions))
    complete = check_keys(node, ("name", *own, *rows_keys), report, f"the data set {name}")
    rows: RowOptions | None = fill(RowOptions, _only(node, rows_keys), report, "a data set")
    options = filled(kind.options, _only(node, own), report, f"the data set {name}", check_data)
    if not complete or rows is None or options is None:
        return None
    data = Data(name, rows.rows, kind.x(options), kind.target(options), dict(vars(options)), rows.order)
    found = DataSet(data, kind.tokens(options) if kind.tokens else None, kind.output(options), kind.loss)
    return found if _sane(found, node, report) else None


def _over(node: Node | None, implied: Mapping[str, Any], case: Node) -> Node | None:
    """What is written over what the model implies, as long as both speak of the same generator."""
    if not implied or (node is not None and not node.is_mapping):
        return node
    written = {} if node is None else node.mapping
    if "name" in written and written["name"].value != implied["name"]:
        return node
    place = case.get("model") or case
    base = {key: replace(plain_node(value, place), key=f"{case.key}.data.{key}") for key, value in implied.items()}
    return (node or child(case, "data", {})).with_value({**base, **written})


def plain_node(value: Any, place: Node) -> Node:
    """A plain value as a node that stands for something at `place`."""
    node = replace(place, value=value, text=str(value))
    if isinstance(value, dict):
        return node.with_value({key: plain_node(item, place) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return node.with_value(tuple(plain_node(item, place) for item in value))
    return node


def _only(node: Node, keys: tuple[str, ...]) -> Node:
    return node.with_value({key: entry for key, entry in node.mapping.items() if key in keys})


def _sane(found: DataSet, node: Node, report: Report) -> bool:
    """Whether the data set can be held; reports it when not."""
    data = found.data
    n_elements = data.rows * (prod(data.x) + prod(data.target))
    if data.rows < 1:
        report.add(node.mapping["rows"], f"rows must be 1 or more, not {data.rows}")
    elif len(data.x) > MAX_AXES:
        report.add(node, f"an example has at most {MAX_AXES} axes, not {len(data.x)}")
    elif n_elements > MAX_ELEMENTS:
        report.add(node, f"the data set would have {n_elements} numbers; at most {MAX_ELEMENTS} are possible")
    elif prod(found.output) > MAX_ELEMENTS:
        message = f"the model would answer an example with {prod(found.output)} numbers; at most {MAX_ELEMENTS}"
        report.add(node, message)
    else:
        return True
    return False
