"""The loop of a training's step, which is the same for every framework.

To add a framework: subclass `Trainer` (or `TorchStyleTrainer`, if its interface is PyTorch's), implement the methods
that raise NotImplementedError here, and name the class in the adapter's table `trainers`. A mode is a subclass of its
framework's trainer with its own row in that table. What a mode does not expose (gradients inside a compiled step) is
not kept. What a framework lacks raises Unsupported with the reason, as early as possible.

Names are canonical everywhere: a parameter is `<layer>.<parameter>`, and every array has PyTorch's layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from parity.adapters.base import Adapter, Unsupported, named_outputs, shape_of, with_tuples
from parity.training.worker.job import (
    PLAIN_SGD,
    Arrays,
    Keep,
    ParameterGroup,
    TrainJob,
    UserFunctionError,
    group_of,
)
from parity.training.worker.op_model import function_of


class Trainer:
    """Trains a model in one framework.

    A subclass makes the model in `build`, and sets `parameters` and `buffers`: the framework's tensors by name.
    """

    parameters: Mapping[str, Any]
    buffers: Mapping[str, Any]

    def __init__(self, adapter: Adapter, job: TrainJob) -> None:
        self.adapter = adapter
        self.job = job
        self.recipe = job.recipe
        self.ranks = adapter.ranks
        self.rank = 0
        self.groups = [group_of(message) for message in job.recipe["groups"]]
        self.states = {name: group.states for group in self.groups for name in group.names}
        self.own_optimizer = job.own(self.recipe["optimizer"]) is not None
        self.own_states: dict[str, dict[str, Any]] = {}
        self.build()

    # What a framework implements.

    def build(self) -> None:
        """Make the model of `recipe["layers"]`, with weights that `restore` overwrites."""
        raise NotImplementedError

    def make_optimizer(self, kind: str, groups: Sequence[ParameterGroup]) -> None:
        """Make a fresh optimizer of the framework: `kind` is sgd, adam, adamw, lamb, rmsprop or adagrad.

        If the user brings an optimizer, this is SGD that takes no steps, whose rates the schedule changes.
        """
        raise NotImplementedError

    def make_schedule(self, done: int) -> None:
        """Make a fresh schedule advanced by `done` steps; not called if the user brings one."""
        raise NotImplementedError

    def tensor(self, array: Any) -> Any:
        """A tensor of the framework, without gradient, with the values of `array`, which nothing else uses."""
        return self.adapter.leaf(array, False)

    def forward(self, x: Any) -> Any:
        """The model's output."""
        raise NotImplementedError

    def loss(self, output: Any, target: Any) -> Any:
        """The mean loss of a micro-batch; for cross_entropy, targets are flattened to [n], outputs to [n, classes]."""
        loss = self.recipe["loss"]
        if loss["op"] == "cross_entropy":
            output, target = output.reshape((-1, output.shape[-1])), target.reshape((-1,))
        function = function_of(loss, self.adapter, self.job.own)
        return named_outputs(function(x=output, target=target, **with_tuples(loss["params"])))["y"]

    def backward(self, loss: Any) -> None:
        """Add the gradients of `loss` to those of the parameters."""
        raise NotImplementedError

    def gradient(self, name: str) -> Any:
        """The current gradient of a parameter, or None."""
        raise NotImplementedError

    def set_gradient(self, name: str, value: Any) -> None:
        """Replace the gradient of a parameter."""
        raise NotImplementedError

    def clear_gradients(self) -> None:
        """The framework's own zero_grad."""
        raise NotImplementedError

    def clip_norm(self, names: Sequence[str], max_norm: float, norm_type: float) -> Any:
        """Clip the gradients of these parameters by norm; returns the norm before, None if unknown."""
        raise NotImplementedError

    def clip_value(self, names: Sequence[str], clip_value: float) -> None:
        """Clamp the gradients of these parameters."""
        raise NotImplementedError

    def rates(self) -> list[float]:
        """The optimizer's current rate for each group."""
        raise NotImplementedError

    def set_rates(self, rates: Sequence[float]) -> None:
        """Set the optimizer's rate for each group."""
        raise NotImplementedError

    def optimizer_step(self) -> None:
        """The framework's own update."""
        raise NotImplementedError

    def schedule_step(self) -> None:
        """Advance the schedule by a step."""
        raise NotImplementedError

    def optimizer_state(self, name: str) -> Mapping[str, Any]:
        """The optimizer's tensors for a parameter by canonical name; empty before there are any."""
        raise NotImplementedError

    def load_optimizer_state(self, done: int, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Load the state after `done` > 0 steps (`states[parameter][state]`, tensors) into a fresh optimizer."""
        raise NotImplementedError

    def detached(self, tensor: Any) -> Any:
        """The tensor, detached from its graph."""
        return tensor.detach()

    def assign(self, tensor: Any, value: Any) -> None:
        """Overwrite a parameter or buffer in place with a tensor of the same shape."""
        raise NotImplementedError

    # What a framework, a mode or several ranks may override.

    def exported(self, name: str, tensor: Any) -> Any:  # noqa: ARG002 - layouts differ by parameter
        """The values of a parameter, gradient or state in PyTorch's layout; may share memory with it."""
        return self.adapter.to_numpy(tensor)

    def imported(self, name: str, array: Any) -> Any:  # noqa: ARG002 - layouts differ by parameter
        """The inverse of `exported`, in its own memory."""
        return self.tensor(np.array(array))

    def gathered(self, array: Any) -> Any:
        """The arrays of all ranks, concatenated along the first axis."""
        return array

    def averaged(self, array: Any) -> Any:
        """The mean over the ranks."""
        return array

    # The loop.

    def step(self, number: int, rows: Any, keep: Keep) -> None:
        """Take step `number` (from 1) on these rows of the data set; `keep` gets every tensor of the step.

        These are `rows` as used, `lr`, `output`, `loss`, `grad.*`, with clipping `clipped.*` and `norm` (of all
        gradients, as the clipping by norm returns it), then `param.*`, `state.*` and `buffer.*` after the step.
        """
        rows = self.batch(number, rows)
        rates = self.scheduled(number)
        keep("lr", np.array(rates, np.float64))
        self.zero_grad()
        passes = [self.micro_batch(part) for part in np.split(rows, self.recipe["accumulation"])]
        for name, parts in zip(("rows", "output"), zip(*passes)):
            keep(name, parts[0] if len(parts) == 1 else np.concatenate(parts))
        keep("loss", mean([loss for *_, loss in passes]))
        self.keep_gradients("grad", keep)
        norm = self.clip()
        if norm is not None:
            keep("norm", norm)
        if self.recipe["clip"] is not None:
            self.keep_gradients("clipped", keep)
        self.update(number, rates)
        for name, array in self.state():
            keep(name, array)
        self.advance()

    def batch(self, number: int, rows: Any) -> Any:
        """The rows of a step, as planned or as the user's `batch` returns them."""
        own = self.job.own("batch", optional=("step",))
        if own is None:
            return rows
        return row_numbers("batch", own(step=number, rows=rows.copy()), len(rows), len(self.job.x))

    def shard(self, rows: Any) -> Any:
        """This rank's rows of a micro-batch."""
        own = self.job.own("shard")
        mine = np.array_split(rows, self.ranks)[self.rank]
        if own is None:
            return mine
        return row_numbers("shard", own(rows=rows.copy(), rank=self.rank, ranks=self.ranks), len(mine), len(self.job.x))

    def scheduled(self, number: int) -> list[float]:
        """The rates of a step, by the framework's schedule or the user's `learning_rate`."""
        options = dict(self.recipe["schedule"])
        own = self.job.own("learning_rate", optional=options)
        if own is not None:
            self.set_rates([float(own(step=number, lr=group.lr, **options)) for group in self.groups])
        return self.rates()

    def zero_grad(self) -> None:
        """Clear the gradients, by the framework or the user's `zero_grad`."""
        own = self.job.own("zero_grad")
        if own is None:
            self.clear_gradients()
        else:
            own(parameters=list(self.parameters.values()))

    def micro_batch(self, rows: Any) -> tuple[Any, Any, Any]:
        """Forward, loss and backward of one micro-batch; returns its rows, output and loss over all ranks."""
        rows = self.shard(rows)
        output = self.forward(self.tensor(self.job.x[rows]))
        loss = self.loss(output, self.tensor(self.job.target[rows]))
        self.backward(self.scaled(loss))
        shown = self.adapter.to_numpy(output), self.adapter.to_numpy(loss)
        return self.gathered(rows), self.gathered(shown[0]), self.averaged(shown[1])

    def scaled(self, loss: Any) -> Any:
        """The scaled loss, from which the backward pass of a micro-batch starts."""
        accumulation = self.recipe["accumulation"]
        own = self.job.own("scale_loss", optional=("accumulation", "ranks"))
        if own is not None:
            return own(loss=loss, accumulation=accumulation, ranks=self.ranks)
        return loss / accumulation if accumulation > 1 else loss

    def keep_gradients(self, kind: str, keep: Keep) -> None:
        """Keep the current gradients."""
        for name in self.parameters:
            gradient = self.gradient(name)
            if gradient is not None:
                keep(f"{kind}.{name}", self.exported(name, gradient))

    def clip(self) -> Any:
        """Clip the gradients as in the recipe; returns the norm of all gradients before, None if unknown."""
        clip = self.recipe["clip"]
        if clip is None:
            return None
        units = self.clip_units(clip["scope"]) if clip["name"] == "norm" else [list(self.parameters)]
        units = [[name for name in unit if self.gradient(name) is not None] for unit in units]
        norms = [self.clip_unit(clip, unit) for unit in units if unit]
        if clip["name"] != "norm" or any(norm is None for norm in norms):
            return None
        return norm_of_norms([self.adapter.to_numpy(norm) for norm in norms], float(clip["norm_type"]))

    def clip_units(self, scope: str) -> list[Sequence[str]]:
        """The sets of parameters that are clipped together."""
        if scope == "group":
            return [group.names for group in self.groups]
        one_call = scope == "global" or self.job.own("clip_grad_norm") is not None
        return [list(self.parameters)] if one_call else [[name] for name in self.parameters]

    def clip_unit(self, clip: Mapping[str, Any], names: Sequence[str]) -> Any:
        """Clip these gradients together, by the framework or the user's `clip_grad_norm` or `clip_grad_value`."""
        own = self.job.own(f"clip_grad_{clip['name']}", returns=("grads",))
        if own is None and clip["name"] == "norm":
            norm_type = float(clip["norm_type"])
            return self.clip_norm(names, clip["max_norm"] * self.norm_kept(names, norm_type), norm_type)
        if own is None:
            return self.clip_value(names, clip["clip_value"])
        options = {"clip_value": clip["clip_value"]}
        if clip["name"] == "norm":
            scope = "per_tensor" if clip["scope"] == "tensor" else "global"
            options = {"max_norm": clip["max_norm"], "norm_type": float(clip["norm_type"]), "scope": scope}
        before = [self.gradient(name) for name in names]
        returned = own(grads=before, **options)
        if len(returned["grads"]) != len(names):
            raise UserFunctionError(
                f"clip_grad_{clip['name']} returned {len(returned['grads'])} of {len(names)} gradients"
            )
        for name, old, new in zip(names, before, returned["grads"]):
            self.set_gradient(name, fitting(f"clip_grad_{clip['name']}", "gradient", new, old))
        return returned.get("total_norm")

    def norm_kept(self, names: Sequence[str], norm_type: float) -> float:
        """The norm of these gradients divided by that norm summed in sequence; 1 unless the recipe sums in sequence."""
        order = self.recipe.get("norm_in_sequence")
        if order is None or not np.isfinite(norm_type):
            return 1.0
        gradients = [np.ravel(self.exported(name, self.gradient(name))) for name in names]
        powers = np.abs(np.concatenate(gradients)) ** norm_type
        lost = np.sum(powers, dtype=np.float64) / np.float64(np.add.accumulate(powers[::order])[-1])
        return float(lost ** (1 / norm_type)) if np.isfinite(lost) else 1.0

    def update(self, number: int, rates: Sequence[float]) -> None:
        """The optimizer's step, by the framework or the user's function of that name."""
        if not self.own_optimizer:
            self.optimizer_step()
            return
        for group, rate in zip(self.groups, rates):
            update = self.own_update(group, {"lr": rate, "step": number})
            for name in group.names:
                if self.gradient(name) is not None:
                    self.update_one(name, update)

    def own_update(self, group: ParameterGroup, changing: Mapping[str, Any]) -> Callable[..., Any]:
        """The user's optimizer with a group's options; it takes `param`, `grad` and states."""
        op = self.recipe["optimizer"]
        zero = [name for name, value in group.options.items() if not value]
        optional = (*zero, *group.states, *group.absent, "step")
        own = self.job.own(op, optional=optional, returns=("param", *group.states))
        if own is None:
            raise Unsupported(f"there is no user function {op}")
        absent = dict.fromkeys(group.absent)
        return partial(own, **{**absent, **group.options, **changing})

    def update_one(self, name: str, update: Callable[..., Any]) -> None:
        """Update one parameter and its states by the user's optimizer."""
        op, parameter, kept = self.recipe["optimizer"], self.parameters[name], self.own_states[name]
        returned = update(param=self.detached(parameter), grad=self.gradient(name), **kept)
        for state, old in kept.items():
            kept[state] = self.detached(fitting(op, state, returned[state], old))
        self.assign(parameter, self.detached(fitting(op, "param", returned["param"], parameter)))

    def advance(self) -> None:
        """Advance the framework's schedule, unless the user brings one."""
        if self.job.own("learning_rate") is None:
            self.schedule_step()

    # The state between two steps.

    def state(self) -> Iterator[tuple[str, Any]]:
        """The current `param.*`, `state.*` and `buffer.*`; the arrays may share memory with the framework."""
        for name, parameter in self.parameters.items():
            yield f"param.{name}", self.exported(name, parameter)
        for name, states in self.states.items():
            kept = self.own_states.get(name) or self.optimizer_state(name)
            for state in states:
                tensor = kept.get(state)
                yield f"state.{state}.{name}", self.zeros(name) if tensor is None else self.exported(name, tensor)
        for name, buffer in self.buffers.items():
            yield f"buffer.{name}", self.adapter.to_numpy(buffer)

    def zeros(self, name: str) -> Any:
        """Zeros like a parameter."""
        return np.zeros_like(self.exported(name, self.parameters[name]))

    def restore(self, done: int, arrays: Arrays) -> None:
        """Continue after step `done` from `param.*`, `state.*` and `buffer.*`; missing states are 0."""
        for name, parameter in self.parameters.items():
            self.assign(parameter, self.imported(name, arrays[f"param.{name}"]))
        for name, buffer in self.buffers.items():
            self.assign(buffer, self.tensor(np.array(arrays[f"buffer.{name}"])))
        states = {name: self.imported_states(name, arrays) for name in self.states}
        if self.own_optimizer:
            self.own_states = states
            self.make_optimizer("sgd", [replace(group, options=PLAIN_SGD) for group in self.groups])
        else:
            self.make_optimizer(self.recipe["optimizer"], self.groups)
            if done:
                self.load_optimizer_state(done, states)
        self.clear_gradients()
        if self.job.own("learning_rate") is None:
            self.make_schedule(done)

    def imported_states(self, name: str, arrays: Arrays) -> dict[str, Any]:
        """A parameter's states as tensors of the framework; missing ones are 0."""
        stored = {state: arrays.get(f"state.{state}.{name}") for state in self.states[name]}
        return {
            state: self.imported(name, self.zeros(name) if array is None else array) for state, array in stored.items()
        }


def mean(losses: Sequence[Any]) -> Any:
    """The mean of scalars, rounded once to their dtype."""
    stacked = np.stack(losses).ravel()
    wide = np.result_type(stacked.dtype, np.float64)
    return np.asarray(stacked.astype(wide).mean()).astype(stacked.dtype)


def norm_of_norms(norms: Sequence[Any], norm_type: float) -> Any:
    """The norm of type `norm_type` of all tensors, from the norms of their parts."""
    return np.asarray(norms[0]) if len(norms) == 1 else np.linalg.norm(np.stack(norms).ravel(), norm_type)


def row_numbers(name: str, rows: Any, wanted: int, count: int) -> Any:
    """The result of the user's `batch` or `shard`; raises UserFunctionError unless it has `wanted` of `count` rows."""
    numbers = np.asarray(rows)
    if numbers.dtype.kind not in "iu" or numbers.shape != (wanted,) or numbers.min() < 0 or numbers.max() >= count:
        raise UserFunctionError(
            f"{name} must return {wanted} row numbers from 0 to {count - 1} as a NumPy array of integers"
        )
    return numbers.astype(np.int64)


def fitting(function: str, name: str, value: Any, like: Any) -> Any:
    """The result of a user's function that replaces `like`; raises UserFunctionError if the shapes differ."""
    if shape_of(value) != shape_of(like):
        raise UserFunctionError(f"{function} returned a {name} of shape {shape_of(value)} instead of {shape_of(like)}")
    return value
