"""NumPy: the references of a step, in the dtype under test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from parity.adapters.base import Unsupported, parts_of
from parity.training.worker.job import ParameterGroup, UserFunctionError
from parity.training.worker.op_model import flat
from parity.training.worker.trainer import Trainer

try:
    from parity.training import steps
    from parity.training.messages import training_of
    from parity.training.model import gradients
    from parity.training.spec import Clip
except ImportError as error:
    raise Unsupported(f"the oracle needs HIPS autograd in this interpreter: {error}") from error


class NumpyTrainer(Trainer):
    """Computes the gradients of each micro-batch by HIPS autograd; parameters and gradients are plain arrays.

    The user's functions may replace everything except the model. `scale_loss` is assumed to be linear.
    """

    def build(self) -> None:
        layers = [layer["op"] for layer in flat(self.recipe["layers"])]
        parts = [part for op in layers for part in parts_of(op)]
        names = dict.fromkeys([*layers, *parts, self.recipe["loss"]["op"]])
        taken = [name for name in names if self.job.own(name) is not None]
        if taken:
            raise UserFunctionError(
                f"on NumPy, trainings differentiate the references and cannot call your {', '.join(taken)}"
            )
        self.parameters = {name: np.array(self.job.tensors[name]) for name in self.recipe["parameters"]}
        self.buffers = {name: np.array(self.job.tensors[name]) for name in self.recipe["buffers"]}
        self.training = training_of(self.recipe, {name: array.shape for name, array in self.job.tensors.items()})
        self.gradients: dict[str, Any] = {}

    def micro_batch(self, rows: Any) -> tuple[Any, Any, Any]:
        rows = self.shard(rows)
        tensors = {**self.parameters, **self.buffers}
        batch = (self.job.x[rows], self.job.target[rows])
        step = gradients(self.training, tensors, [batch], dtype=self.job.dtype)
        scale = self.scaled(np.ones((), self.job.dtype))
        for name, gradient in step.grads.items():
            self.gradients[name] = self.gradients.get(name, 0) + scale * gradient
        for name, buffer in step.buffers.items():
            self.assign(self.buffers[name], buffer)
        return rows, step.output, step.loss

    def gradient(self, name: str) -> Any:
        return self.gradients.get(name)

    def set_gradient(self, name: str, value: Any) -> None:
        self.gradients[name] = value

    def zero_grad(self) -> None:
        if self.job.own("zero_grad") is not None:
            raise UserFunctionError("on NumPy, parameters have no gradients that your zero_grad could clear")
        self.clear_gradients()

    def clear_gradients(self) -> None:
        self.gradients = {}

    def clip_norm(self, names: Sequence[str], max_norm: float, norm_type: float) -> Any:
        grads = [self.gradients[name] for name in names]
        self.clip_by(Clip("norm", max_norm=max_norm, norm_type=norm_type), names)
        return steps.norm_of(grads, norm_type)

    def clip_value(self, names: Sequence[str], clip_value: float) -> None:
        self.clip_by(Clip("value", clip_value=clip_value), names)

    def clip_by(self, clip: Clip, names: Sequence[str]) -> None:
        """Clip these gradients together."""
        grads = [self.gradients[name] for name in names]
        after = steps.clip_unit(steps.Clipping(clip), grads)
        self.gradients.update({name: after[f"grads.{i}"] for i, name in enumerate(names)})

    def make_optimizer(self, kind: str, groups: Sequence[ParameterGroup]) -> None:  # noqa: ARG002 - `training` has them
        self.lr = [group.lr for group in groups]
        self.taken = 0
        self.kept: dict[str, dict[str, Any]] = {}

    def load_optimizer_state(self, done: int, states: Mapping[str, Mapping[str, Any]]) -> None:
        self.taken = done
        self.kept = {name: dict(kept) for name, kept in states.items()}

    def optimizer_state(self, name: str) -> Mapping[str, Any]:
        return self.kept.get(name, {})

    def optimizer_step(self) -> None:
        self.taken += 1
        kept = {f"{state}.{name}": value for name, states in self.kept.items() for state, value in states.items()}
        before = {"param": self.parameters, "state": kept}
        after = steps.updated(self.training, self.taken, before, self.gradients, self.lr)
        self.kept = steps.by_parameter(
            {name.removeprefix("state."): value for name, value in after.items() if name.startswith("state.")}
        )
        for name, parameter in self.parameters.items():
            self.assign(parameter, after[f"param.{name}"])

    def make_schedule(self, done: int) -> None:
        self.scheduled_steps = done
        self.schedule_step()

    def schedule_step(self) -> None:
        self.scheduled_steps += 1
        self.lr = steps.rates(self.training, self.scheduled_steps)

    def rates(self) -> list[float]:
        return list(self.lr)

    def set_rates(self, rates: Sequence[float]) -> None:
        self.lr = list(rates)

    def detached(self, tensor: Any) -> Any:
        return np.array(tensor)

    def assign(self, tensor: Any, value: Any) -> None:
        tensor[...] = value
