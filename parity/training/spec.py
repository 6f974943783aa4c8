"""What a training case is: a model, its data, and the recipe of a step. Sizes and names are resolved, nothing is drawn.

Steps are numbered from 1. A step takes `batch_size` rows of the data set, in `accumulation` micro-batches of equal size
one after the other, and goes through the stages of `STAGES`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from parity.cases import OPS
from parity.cases.draw import Constant, Draw, Shape
from parity.cases.op import call_params, default_params

TRAIN = "train"
"""The `op` of a training case, and the `kind` by which a config asks for one."""

RESIDUAL = "residual"

STAGES = ("data", "forward", "loss", "gradient", "clip", "schedule", "update")
"""The stages of a step, in the order in which a fault of one is carried into the next."""


CURVES = ("loss", "grad_norm", "param", "state", "buffer")
"""What is compared of every step: the loss, the norm of all gradients before clipping, and all tensors of a kind."""


@dataclass(frozen=True)
class Parameter:
    """A weight of the model, or with `trained` False a buffer: `layer.weight`, its shape, and how it starts."""

    name: str
    shape: Shape
    draw: Draw = field(default_factory=lambda: Constant(0.0))
    trained: bool = True


@dataclass(frozen=True)
class Layer:
    """One layer: an op with its params, or `residual`, which adds the answer of its `layers` to x.

    `x` is the shape of an example that comes in. `parameters` are named `<layer>.<parameter>` in PyTorch's names and
    layouts.
    """

    op: str
    name: str
    params: Any = None
    x: Shape = ()
    layers: tuple[Layer, ...] = ()
    parameters: tuple[Parameter, ...] = ()

    @property
    def options(self) -> dict[str, Any]:
        """The layer as a report shows it: its params, and whether it has a bias where it may have none."""
        if self.op == RESIDUAL:
            return {}
        params = {name: value for name, value in vars(self.params).items() if value is not None}
        names = {p.name.rpartition(".")[2] for p in self.parameters}
        optional = any(item.name == "bias" and item.optional for item in OPS[self.op].inputs)
        return {**params, **({"bias": "bias" in names} if optional else {})}


@dataclass(frozen=True)
class Loss:
    """`cross_entropy` over the last axis (targets are class numbers, those below 0 are ignored) or `mse_loss`; the
    mean over the elements that count, per micro-batch."""

    name: str = "cross_entropy"


@dataclass(frozen=True)
class Group:
    """Parameters that share the optimizer's options, which are the fields of its params but for `step`."""

    parameters: tuple[str, ...]
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Schedule:
    """How the rate of every group changes: `name` is a key of `schedules.SCHEDULES`, `options` its numbers."""

    name: str = "constant"
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Clip:
    """Gradient clipping: by `norm`, over all tensors (`global`), the parameters of a `group` or each `tensor`, or by
    `value`, element by element."""

    name: str = "norm"
    max_norm: float = 1.0
    norm_type: float = 2.0
    scope: str = "global"
    clip_value: float = 1.0


@dataclass(frozen=True)
class DataSpec:
    """The data set: `name` is a key of `data.GENERATORS`, `options` its numbers; `rows` examples in all.

    `x` and `target` are the shapes of one example. `order` is `shuffled` (a new permutation in each epoch) or
    `sequential`.
    """

    name: str
    rows: int
    x: Shape
    target: Shape
    options: Mapping[str, Any] = field(default_factory=dict)
    order: str = "shuffled"


@dataclass(frozen=True)
class Training:
    """A training case, which is the `params` of its CasePlan. `optimizer` is the name of an optimizer's op.

    `members` is how many runs whose start is perturbed by an ulp give the envelope of the curves; they are runs of the
    `oracle` or of the `baseline`, and `auto` takes the oracle where it is quick enough.
    """

    layers: tuple[Layer, ...]
    data: DataSpec
    optimizer: str
    groups: tuple[Group, ...]
    steps: int
    batch_size: int
    loss: Loss = field(default_factory=Loss)
    schedule: Schedule = field(default_factory=Schedule)
    clip: Clip | None = None
    accumulation: int = 1
    members: int = 4
    ensemble: str = "auto"

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The trained parameters, in the model's order."""
        return tuple(p for p in self.tensors if p.trained)

    @property
    def buffers(self) -> tuple[Parameter, ...]:
        """What the model keeps and no optimizer touches: running statistics."""
        return tuple(p for p in self.tensors if not p.trained)

    @property
    def tensors(self) -> tuple[Parameter, ...]:
        """Parameters and buffers."""
        return tuple(parameter for layer in walk(self.layers) for parameter in layer.parameters)

    def group_of(self, parameter: str) -> int:
        """The number of the group that a parameter belongs to."""
        return next(i for i, group in enumerate(self.groups) if parameter in group.parameters)


def walk(layers: tuple[Layer, ...]) -> Iterator[Layer]:
    """All layers, those inside of residuals included, in the order of the forward pass."""
    for layer in layers:
        yield layer
        yield from walk(layer.layers)


def message(training: Training) -> dict[str, Any]:
    """The training as a message to a worker: plain JSON values."""
    return {
        "layers": [layer_message(layer) for layer in training.layers],
        "parameters": [p.name for p in training.parameters],
        "buffers": [p.name for p in training.buffers],
        "loss": op_message(training.loss.name, OPS[training.loss.name].params()),
        "optimizer": training.optimizer,
        "groups": [group_message(training.optimizer, group) for group in training.groups],
        "schedule": {"name": training.schedule.name, **plain(training.schedule.options)},
        "clip": None if training.clip is None else vars(training.clip),
        "accumulation": training.accumulation,
        "batch_size": training.batch_size,
        "steps": training.steps,
    }


def op_message(op: str, params: Any) -> dict[str, Any]:
    """An op as a message to a worker, as in the request `run`: `droppable` are the params at their default."""
    passed = call_params(params)
    return {"op": op, "params": plain(passed), "droppable": sorted(passed.keys() & default_params(params))}


def layer_message(layer: Layer) -> dict[str, Any]:
    """A layer as a message to a worker: an op, and the names of its tensors (None for one that is switched off).

    A residual, which is no op, has `layers`.
    """
    if layer.op == RESIDUAL:
        inner = [layer_message(item) for item in layer.layers]
        return {"op": RESIDUAL, "name": layer.name, "params": {}, "droppable": [], "tensors": {}, "layers": inner}
    names = {p.name.removeprefix(f"{layer.name}."): p.name for p in layer.parameters}
    tensors = {item.name: names.get(item.name) for item in OPS[layer.op].inputs[1:]}
    return {**op_message(layer.op, layer.params), "name": layer.name, "tensors": tensors}


def group_message(optimizer: str, group: Group) -> dict[str, Any]:
    """A group as a message to a worker, with the `states` that the optimizer keeps, and those that are `absent`."""
    op = OPS[optimizer]
    kept = op.infer_shapes(op.params(**group.options), {"param": (1,)}).inputs
    states = {item.name: item.name in kept for item in op.inputs if item.name not in ("param", "grad")}
    return {
        "parameters": list(group.parameters),
        "options": plain(group.options),
        "states": [name for name, is_kept in states.items() if is_kept],
        "absent": [name for name, is_kept in states.items() if not is_kept],
    }


def plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options with lists for tuples."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in options.items()}


def as_member(recipe: Mapping[str, Any], dtype: str, order: int = 1) -> dict[str, Any]:
    """The message for a member of an ensemble: with every rate, beta and other fraction as `dtype` keeps it, and with
    the norm that gradients are clipped by as the sum of their powers one after the other, from the first on or (`order`
    -1) from the last.

    A careful kernel may keep its attributes in the dtype that it computes in: 1 - 0.999 is then off by 1.3e-5 in
    float32. And it may add up as it comes: 0.7 million squares then lose up to 1e-3 of a norm, in every step about as
    much, and most where the large ones come first.
    So the members of an ensemble do both, as their weights are perturbed.
    """

    def narrowed(value: Any) -> Any:
        if isinstance(value, float):
            return float(np.dtype(dtype).type(value))
        return list(map(narrowed, value)) if isinstance(value, (list, tuple)) else value

    def options(values: Mapping[str, Any]) -> dict[str, Any]:
        return {key: narrowed(value) for key, value in values.items()}

    groups = [{**group, "options": options(group["options"])} for group in recipe["groups"]]
    return {**recipe, "groups": groups, "schedule": options(recipe["schedule"]), "norm_in_sequence": order}
