"""A training case: a model, its data and the recipe of a step, with sizes and names resolved but nothing drawn.

Steps are numbered from 1. A step takes `batch_size` rows of the data set, in `accumulation` micro-batches of equal size
one after another, and goes through the stages of `STAGES`.
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
"""The stages of a step, in the order in which an error propagates."""

CURVES = ("loss", "grad_norm", "param", "state", "buffer")
"""The curves that are compared: the loss, the norm of all gradients before clipping, and all tensors of a kind."""


@dataclass(frozen=True)
class Parameter:
    """A weight of the model, or a buffer if not `trained`: its name (`layer.weight`), shape and initial values."""

    name: str
    shape: Shape
    draw: Draw = field(default_factory=lambda: Constant(0.0))
    trained: bool = True


@dataclass(frozen=True)
class Layer:
    """One layer: an op with its params, or `residual`, which adds the output of its `layers` to its input.

    `x` is the shape of an input example. `parameters` are named `<layer>.<parameter>`; names and layouts are PyTorch's.
    """

    op: str
    name: str
    params: Any = None
    x: Shape = ()
    layers: tuple[Layer, ...] = ()
    parameters: tuple[Parameter, ...] = ()

    @property
    def options(self) -> dict[str, Any]:
        """The layer's options in reports: its params, and whether it has a bias if that is optional."""
        if self.op == RESIDUAL:
            return {}
        params = {name: value for name, value in vars(self.params).items() if value is not None}
        names = {p.name.rpartition(".")[2] for p in self.parameters}
        optional = any(item.name == "bias" and item.optional for item in OPS[self.op].inputs)
        return {**params, **({"bias": "bias" in names} if optional else {})}


@dataclass(frozen=True)
class Loss:
    """`cross_entropy` over the last axis (targets are class indices; negative ones are ignored) or `mse_loss`: the mean
    over the elements of a micro-batch that are not ignored."""

    name: str = "cross_entropy"


@dataclass(frozen=True)
class Group:
    """Parameters that share the optimizer's options, which are the fields of its params except `step`."""

    parameters: tuple[str, ...]
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Schedule:
    """How the rate of every group changes: `name` is a key of `schedules.SCHEDULES`, `options` its numbers."""

    name: str = "constant"
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Clip:
    """Gradient clipping: by the `norm` of all tensors (`global`), of a `group` or of each `tensor`, or by `value`,
    element by element."""

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
    """A training case: the `params` of its CasePlan. `optimizer` is the name of an optimizer's op.

    `members` is the number of perturbed runs that give the envelope of the curves. They are runs of the `oracle` or of
    the `baseline`; `auto` takes the oracle if it is quick enough.
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
        """The model's tensors that no optimizer changes: running statistics."""
        return tuple(p for p in self.tensors if not p.trained)

    @property
    def tensors(self) -> tuple[Parameter, ...]:
        """Parameters and buffers."""
        return tuple(parameter for layer in walk(self.layers) for parameter in layer.parameters)

    def group_of(self, parameter: str) -> int:
        """The number of the group that a parameter belongs to."""
        return next(i for i, group in enumerate(self.groups) if parameter in group.parameters)


def walk(layers: tuple[Layer, ...]) -> Iterator[Layer]:
    """All layers, including those inside residuals, in the order of the forward pass."""
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
    """An op as a message to a worker, as in the request `run`; `droppable` are the params at their default."""
    passed = call_params(params)
    return {"op": op, "params": plain(passed), "droppable": sorted(passed.keys() & default_params(params))}


def layer_message(layer: Layer) -> dict[str, Any]:
    """A layer as a message to a worker: an op, and the names of its tensors (None for one that is absent).

    A residual, which is not an op, has `layers`.
    """
    if layer.op == RESIDUAL:
        inner = [layer_message(item) for item in layer.layers]
        return {"op": RESIDUAL, "name": layer.name, "params": {}, "droppable": [], "tensors": {}, "layers": inner}
    names = {p.name.removeprefix(f"{layer.name}."): p.name for p in layer.parameters}
    tensors = {item.name: names.get(item.name) for item in OPS[layer.op].inputs[1:]}
    return {**op_message(layer.op, layer.params), "name": layer.name, "tensors": tensors}


def group_message(optimizer: str, group: Group) -> dict[str, Any]:
    """A group as a message to a worker, with the optimizer's `states`, and those `absent` with these options."""
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
    """The message for a perturbed run: rates, betas and other fractions are rounded to `dtype`, and the norm for
    clipping is summed in sequence, from the first element on or (`order` -1) from the last.

    A careful kernel may do both. It may keep its attributes in the dtype that it computes in: 1 - 0.999 then has an
    error of 1.3e-5 in float32. And it may sum in sequence: over 0.7 million squares, a norm then loses up to 1e-3,
    about as much in every step, and most if large squares come first.
    """

    def narrowed(value: Any) -> Any:
        if isinstance(value, float):
            return float(np.dtype(dtype).type(value))
        return list(map(narrowed, value)) if isinstance(value, (list, tuple)) else value

    def options(values: Mapping[str, Any]) -> dict[str, Any]:
        return {key: narrowed(value) for key, value in values.items()}

    groups = [{**group, "options": options(group["options"])} for group in recipe["groups"]]
    return {**recipe, "groups": groups, "schedule": options(recipe["schedule"]), "norm_in_sequence": order}
