"""The parts of a training's message, as a trainer reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Mapping, Optional, Sequence

from parity.adapters.base import with_tuples

Arrays = Mapping[str, Any]
Keep = Callable[[str, Any], None]
"""Copies a tensor of the step, a NumPy array, into the record under this name."""


class UserFunctionError(ValueError):
    """The result of a user's function cannot be used."""


Own = Callable[..., Optional[Callable[..., Any]]]
"""`own(name, optional=(), returns=())`: the user's function of that name, called by keyword, or None. It need not take
the `optional` arguments; the mapping that it returns must have the names in `returns`."""


@dataclass(frozen=True)
class TrainJob:
    """A training as requested from a worker.

    `recipe` is the message of `parity.training.spec`; `x` and `target` [rows, ...] are the data set, `tensors` the
    initial parameters and buffers. All floats have `dtype`.
    """

    recipe: Mapping[str, Any]
    dtype: str
    x: Any
    target: Any
    tensors: Arrays
    own: Own


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters that share an optimizer's options; `lr` is their base rate.

    `states` are the states that the optimizer keeps for each of them, `absent` those that it lacks with these options.
    """

    names: Sequence[str]
    lr: float
    options: Mapping[str, Any]
    states: Sequence[str] = ()
    absent: Sequence[str] = ()


HOOKS = ("batch", "learning_rate", "scale_loss", "shard", "zero_grad")
"""The functions of a user's file that take part in a step but are not ops."""

PLAIN_SGD: Mapping[str, Any] = {"momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False}


def group_of(message: Mapping[str, Any]) -> ParameterGroup:
    """A group from its message."""
    options = with_tuples(message["options"])
    lr = float(options.pop("lr"))
    return ParameterGroup(tuple(message["parameters"]), lr, options, tuple(message["states"]), tuple(message["absent"]))
