"""The data set of a training, from its config to the sizes that the model needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from parity.cases.draw import Shape
from parity.config.nodes import Node, Problems, child
from parity.training.config.models import ChosenOptions
from parity.training.data import GENERATORS
from parity.training.spec import DataSpec

MAX_AXES = 4
MAX_ELEMENTS = 2**28
"""Limit on the numbers in a data set, since every backend holds all of it."""


@dataclass(frozen=True)
class DataSet:
    """A data set, with its number of different tokens (None for floats), the model's output shape, and the loss."""

    data: DataSpec
    tokens: int | None
    output: Shape
    loss: str


def data_set(chosen: ChosenOptions, node: Node, report: Problems) -> DataSet | None:
    """The data set with its sizes; None after reporting that it is too large."""
    kind, options, rows = GENERATORS[chosen.name], chosen.options, chosen.beside
    data = DataSpec(chosen.name, rows.rows, kind.x(options), kind.target(options), dict(vars(options)), rows.order)
    dataset = DataSet(data, kind.tokens(options) if kind.tokens else None, kind.output(options), kind.loss)
    return dataset if _sane(dataset, node, report) else None


def with_implied(node: Node | None, implied: Mapping[str, Any], case: Node) -> Node | None:
    """The written data set with the values that the model implies, if both have the same generator."""
    if not implied or (node is not None and not node.is_mapping):
        return node
    written = {} if node is None else node.mapping
    if "name" in written and written["name"].value != implied["name"]:
        return node
    model = case.get("model") or case
    base = {key: replace(plain_node(value, model), key=f"{case.key}.data.{key}") for key, value in implied.items()}
    return (node or child(case, "data", {})).with_value({**base, **written})


def plain_node(value: Any, source: Node) -> Node:
    """A plain value as a node; errors in it are reported at `source`, which implies it."""
    node = replace(source, value=value, text=str(value))
    if isinstance(value, dict):
        return node.with_value({key: plain_node(item, source) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return node.with_value(tuple(plain_node(item, source) for item in value))
    return node


def _sane(dataset: DataSet, node: Node, report: Problems) -> bool:
    """Whether the data set fits into the limits; if not, reports why."""
    data = dataset.data
    n_elements = data.rows * (prod(data.x) + prod(data.target))
    if len(data.x) > MAX_AXES:
        report.add(node, f"an example has at most {MAX_AXES} axes, not {len(data.x)}")
    elif n_elements > MAX_ELEMENTS:
        report.add(node, f"the data set would have {n_elements} numbers; at most {MAX_ELEMENTS} are possible")
    elif prod(dataset.output) > MAX_ELEMENTS:
        n_outputs = prod(dataset.output)
        message = f"the model's output would have {n_outputs} numbers per example; at most {MAX_ELEMENTS} are possible"
        report.add(node, message)
    else:
        return True
    return False
