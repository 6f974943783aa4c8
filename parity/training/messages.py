"""What a worker is told of a training, back to a Training: for the oracle's lines inside a worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from parity.cases.draw import Shape
from parity.training.spec import Clip, Data, Group, Layer, Loss, Parameter, Schedule, Training


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
    """Layers with their own weights, which are those under their names; one that holds layers has none."""
    found = []
    for message in messages:
        options = {key: value for key, value in message.items() if key not in ("kind", "name", "layers")}
        inner = layers_of(message.get("layers", ()), tensors)
        own = () if inner else tuple(p for p in tensors if p.name.startswith(f"{message['name']}."))
        found.append(Layer(message["kind"], message["name"], options, inner, own))
    return tuple(found)


def read(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options with tuples for lists."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
