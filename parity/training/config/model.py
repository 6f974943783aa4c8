"""The layers of a model: their options in a config, and the sizes that follow from the data."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from math import prod
from typing import Any, NoReturn

from parity.cases.draw import Shape
from parity.cases.op import CaseError
from parity.config.nodes import Node, Problems, child
from parity.training.layers import KINDS, Kind, Signal, named
from parity.training.spec import Layer

MAX_LAYERS = 2_000
MAX_PARAMETERS = 2**27
"""About as many as BERT-base has; the host holds every backend's parameters, gradients and states as well."""

MAX_NAME = 150
"""Parameters' names are parts of file names."""


@dataclass(frozen=True)
class SizedModel:
    """A model with its sizes: the shape of its output for an example, and how many numbers it computes for one."""

    layers: tuple[Layer, ...]
    output: Shape
    n_computed: int


@dataclass(frozen=True)
class WrittenLayer:
    """A layer as written in the config, checked on its own, with its node."""

    kind: Kind
    node: Node
    options: Any
    name: str
    layers: tuple[WrittenLayer, ...] = ()


def build_model(
    layers: Sequence[Any], items: Sequence[Node], signal: Signal | None, report: Problems
) -> SizedModel | None:
    """The model of a list of layers; None after reporting errors, or without a signal, since sizes are unknown."""
    n_before = len(report)
    written = _written(layers, items, "", report)
    if len(report) > n_before or signal is None:
        return None
    sizes = _Sizes(report)
    try:
        resolved, last = sizes.resolve(written, signal)
    except _DoesNotFitError:
        return None
    return SizedModel(resolved, last.shape, sizes.n_computed)


def _written(layers: Sequence[Any], items: Sequence[Node], prefix: str, report: Problems) -> tuple[WrittenLayer, ...]:
    """The layers of a list with their names, and the layers inside them."""
    if len(items) > MAX_LAYERS:
        report.add(items[0], f"{len(items)} layers; at most {MAX_LAYERS} are allowed", value=False)
        return ()
    own = [
        WrittenLayer(KINDS[kind], item.get(kind) or child(item, kind), options, "")
        for (kind, options), item in zip((layer.entry for layer in layers), items, strict=True)
    ]
    return tuple(_under(item, f"{prefix}{name}", report) for item, name in zip(own, _names(own, report), strict=True))


def _under(layer: WrittenLayer, name: str, report: Problems) -> WrittenLayer:
    """The layer with its full name, and the layers inside it."""
    if len(name) > MAX_NAME:
        report.add(layer.node, f"the full name of the layer has more than {MAX_NAME} characters")
    if not layer.kind.adds:
        return replace(layer, name=name)
    items = (layer.node.get("layers") or layer.node).items
    return replace(layer, name=name, layers=_written(layer.options.layers, items, f"{name}.", report))


def _names(layers: Sequence[WrittenLayer], report: Problems) -> list[str]:
    """The names of a list's layers: as written, else the kind and the first free number."""
    taken: set[str] = set()
    for layer in layers:
        if layer.options.name in taken:
            report.add(layer.node.mapping["name"], f'duplicate layer name "{layer.options.name}"')
        if layer.options.name is not None:
            taken.add(layer.options.name)
    numbered = {kind: _numbered(kind, taken) for kind in KINDS}
    return [layer.options.name or next(numbered[layer.kind.name]) for layer in layers]


def _numbered(kind: str, taken: Collection[str]) -> Iterator[str]:
    return (name for i in count() if (name := f"{kind}{i}") not in taken)


class _DoesNotFitError(Exception):
    pass


@dataclass
class _Sizes:
    """Follows one example through the layers; stops at the first layer that does not fit."""

    report: Problems
    n_computed: int = 0
    n_layers: int = 0
    n_parameters: int = 0

    def resolve(self, written: Sequence[WrittenLayer], signal: Signal) -> tuple[tuple[Layer, ...], Signal]:
        layers = []
        for item in written:
            layer, signal = self._layer(item, signal)
            layers.append(layer)
        return tuple(layers), signal

    def _layer(self, item: WrittenLayer, signal: Signal) -> tuple[Layer, Signal]:
        try:
            resolved = item.kind.resolve(item.options, signal)
        except CaseError as error:
            self._refuse(item.node.get(error.key) or item.node, f"{item.name}: {error.message}")
        inner, after = self.resolve(item.layers, signal)
        if item.kind.adds and after != signal:
            sizes = f"{list(signal.shape)} to {list(after.shape)}"
            self._refuse(item.node, f"{item.name}: x is added to the output of its layers, but they change {sizes}")
        self.n_layers += 1
        self.n_computed += prod(resolved.shape) + resolved.scratch
        self.n_parameters += sum(prod(parameter.shape) for parameter in resolved.parameters)
        if self.n_parameters > MAX_PARAMETERS:
            self._refuse(
                item.node,
                f"the layers up to {item.name} have {self.n_parameters} parameters; the limit is {MAX_PARAMETERS}",
            )
        if self.n_layers > MAX_LAYERS:
            self._refuse(item.node, f"more than {MAX_LAYERS} layers")
        return named(item.name, resolved, inner), Signal(resolved.shape, signal.rows)

    def _refuse(self, node: Node, message: str) -> NoReturn:
        self.report.add(node, message, value=False)
        raise _DoesNotFitError
