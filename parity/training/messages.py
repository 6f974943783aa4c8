"""What a worker is told of a training, back to a Training: for the oracle's lines inside a worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from parity.cases import OPS
from parity.cases.draw import Shape
from parity.training.spec import RESIDUAL, Clip, Data, Group, Layer, Loss, Parameter, Schedule, Training


def training_of(recipe: Mapping[str, Any], shapes: Mapping[str, Shape]) -> Training:
    """The training of a message (`spec.message`), with the shapes of its parameters and buffers by name.

    The data set is not in the message, and is given as one without rows.
    """
    schedule = dict(recipe["schedule"])
    tensors = [Parameter(name, shapes[name]) for name in recipe["parameters"]]
    tensors += [Parameter(name, shapes[name], trained=False) for name in recipe["buffers"]]
    return Training(
        layers=layers_of(recipe["layers"], tensors),
        data=Data("", 0, (), ()),
        optimizer=recipe["optimizer"],
        groups=tuple(Group(tuple(g["parameters"]), read(g["options"])) for g in recipe["groups"]),
        steps=recipe["steps"],
        batch_size=recipe["batch_size"],
        loss=Loss(recipe["loss"]),
        schedule=Schedule(schedule.pop("name"), read(schedule)),
        clip=None if recipe["clip"] is None else Clip(**recipe["clip"]),
        accumulation=recipe["accumulation"],
    )


def layers_of(messages: Sequence[Mapping[str, Any]], tensors: Sequence[Parameter]) -> tuple[Layer, ...]:
    """Layers with their own weights."""
    return tuple(layer_of(message, {p.name: p for p in tensors}) for message in messages)


def layer_of(message: Mapping[str, Any], tensors: Mapping[str, Parameter]) -> Layer:
    """One layer, or a residual with those in it."""
    if message["op"] == RESIDUAL:
        return Layer(RESIDUAL, message["name"], layers=layers_of(message["layers"], tuple(tensors.values())))
    own = tuple(tensors[name] for name in message["tensors"].values())
    params = OPS[message["op"]].params(**read(message["params"]))
    return Layer(message["op"], message["name"], params, parameters=own)


def read(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options with tuples for lists."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
