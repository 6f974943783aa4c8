"""A training case in results.json: enough for a reader, without the long lists."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from parity.reporting.results.rows import InputRow
from parity.reporting.text.words import few
from parity.training.spec import Group, Layer, Training, plain

MAX_LAYERS = 40


def params(training: Training) -> dict[str, Any]:
    """Model and recipe, with the first MAX_LAYERS layers, and a few parameters of each group."""
    return {
        "model": described(training.layers),
        "weights": sum(math.prod(parameter.shape) for parameter in training.parameters),
        "loss": training.loss.name,
        "optimizer": training.optimizer,
        "groups": [group_row(group) for group in training.groups],
        "schedule": {"name": training.schedule.name, **plain(training.schedule.options)},
        "clip": None if training.clip is None else clip_row(dataclasses.asdict(training.clip)),
        "data": {"name": training.data.name, "rows": training.data.rows, "order": training.data.order},
        "batch_size": training.batch_size,
        "accumulation": training.accumulation,
        "steps": training.steps,
    }


def described(layers: Sequence[Layer]) -> list[str]:
    """A text for each layer, and how many more there are."""
    hidden = len(layers) - MAX_LAYERS
    return [*map(layer_text, layers[:MAX_LAYERS]), *([f"and {hidden} more layers"] if hidden > 0 else [])]


def layer_text(layer: Layer) -> str:
    """`linear0 (in_features=8, out_features=16, bias=True)`; a residual with its layers."""
    named = layer.name if layer.name.rstrip("0123456789") == layer.op else f"{layer.name}: {layer.op}"
    options = ", ".join(f"{key}={value}" for key, value in plain(layer.options).items())
    inner = ", ".join(described(layer.layers))
    return named + (f" ({options})" if options else "") + (f" [{inner}]" if inner else "")


def group_row(group: Group) -> dict[str, Any]:
    """A group's options, with the first names of its parameters and how many more there are."""
    return {"parameters": few(group.parameters), **plain(group.options)}


def clip_row(clip: Mapping[str, Any]) -> dict[str, Any]:
    """The clipping: the norm and its scope, or the value."""
    wanted = ("name", "clip_value") if clip["name"] == "value" else ("name", "max_norm", "norm_type", "scope")
    return {key: clip[key] for key in wanted}


def inputs(training: Training, folder: Path | None) -> dict[str, InputRow]:
    """The data set and the initial weights: shapes, and how they are drawn; `folder` has the data set's files."""
    data = training.data
    drawn = f"{data.name}({', '.join(f'{key}={value}' for key, value in plain(data.options).items())})"
    weights = sum(math.prod(parameter.shape) for parameter in training.tensors)
    shapes = {"x": (data.rows, *data.x), "target": (data.rows, *data.target)}
    rows = {name: row(shape, drawn, folder and folder / f"{name}.npy") for name, shape in shapes.items()}
    return rows | {"weights": row((weights,), f"{len(training.tensors)} tensors of the model", None)}


def row(shape: Sequence[int], draw: str, file: Path | None) -> InputRow:
    """An input."""
    return InputRow(list(shape), draw, None if file is None else str(file))
