"""What a training's message says, as a trainer reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Mapping, Optional, Sequence

from parity.adapters.base import with_tuples

Arrays = Mapping[str, Any]
Keep = Callable[[str, Any], None]
"""Takes a tensor of the step by its name in the record, as a NumPy array, and copies it."""


class OwnError(ValueError):
    """What a user's function returned cannot be used."""


Own = Callable[..., Optional[Callable[..., Any]]]
"""`own(name, optional=(), returns=())`: the user's function of that name, called by keyword, or None. It need not take
what is `optional`; the mapping that it returns must have the names in `returns`."""


@dataclass(frozen=True)
class TrainJob:
    """A training as a worker is asked for it.

    `recipe` is the message of `parity.training.spec`; `x` and `target` [rows, ...] are the data set, `tensors` the
    parameters and buffers as they start. All floats are of `dtype`.
    """

    recipe: Mapping[str, Any]
    dtype: str
    x: Any
    target: Any
    tensors: Arrays
    own: Own


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters that share an optimizer's options; `lr` is the rate that the schedule starts from.

    `states` are what the optimizer keeps for each of them, `absent` what it does not keep with these options.
    """

    names: Sequence[str]
    lr: float
    options: Mapping[str, Any]
    states: Sequence[str] = ()
    absent: Sequence[str] = ()


HOOKS = ("batch", "learning_rate", "scale_loss", "shard", "zero_grad")
"""The functions of a user's file that take part in a step and are no ops."""

PLAIN_SGD: Mapping[str, Any] = {"momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False}


def group_of(message: Mapping[str, Any]) -> ParameterGroup:
    """A group from its message."""
    options = with_tuples(message["options"])
    lr = float(options.pop("lr"))
    return ParameterGroup(tuple(message["parameters"]), lr, options, tuple(message["states"]), tuple(message["absent"]))
