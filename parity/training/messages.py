"""Turns a training's message back into a Training, for the references inside a worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parity.adapters.base import with_tuples
from parity.cases import OPS
from parity.cases.draw import Shape
from parity.training.spec import RESIDUAL, Clip, DataSpec, Group, Layer, Loss, Parameter, Schedule, Training


def training_of(recipe: Mapping[str, Any], shapes: Mapping[str, Shape]) -> Training:
    """The training of a message (`spec.message`); `shapes` are those of its parameters and buffers.

    The message has no data set, so the training's has no rows.
    """
    schedule = dict(recipe["schedule"])
    tensors = [Parameter(name, shapes[name]) for name in recipe["parameters"]]
    tensors += [Parameter(name, shapes[name], trained=False) for name in recipe["buffers"]]
    return Training(
        layers=tuple(layer_of(message, {p.name: p for p in tensors}) for message in recipe["layers"]),
        data=DataSpec("", 0, (), ()),
        optimizer=recipe["optimizer"],
        groups=tuple(Group(tuple(g["parameters"]), with_tuples(g["options"])) for g in recipe["groups"]),
        steps=recipe["steps"],
        batch_size=recipe["batch_size"],
        loss=Loss(recipe["loss"]["op"]),
        schedule=Schedule(schedule.pop("name"), with_tuples(schedule)),
        clip=None if recipe["clip"] is None else Clip(**recipe["clip"]),
        accumulation=recipe["accumulation"],
    )


def layer_of(message: Mapping[str, Any], tensors: Mapping[str, Parameter]) -> Layer:
    """A layer with its weights, or a residual with its layers."""
    if message["op"] == RESIDUAL:
        return Layer(RESIDUAL, message["name"], layers=tuple(layer_of(item, tensors) for item in message["layers"]))
    own = tuple(tensors[name] for name in message["tensors"].values() if name is not None)
    return Layer(
        message["op"], message["name"], OPS[message["op"]].params(**with_tuples(message["params"])), parameters=own
    )
