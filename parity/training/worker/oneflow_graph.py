"""Training in an oneflow.nn.Graph: forward, backward, clipping, optimizer and schedule compiled into one step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from parity.adapters.base import Unsupported
from parity.training.worker.job import Arrays, Keep, ParameterGroup
from parity.training.worker.oneflow_trainer import OneflowTrainer
from parity.training.worker.op_model import attribute_of
from parity.training.worker.trainer import mean

IN_GRAPH = ("zero_grad", "scale_loss", "clip_grad_norm", "clip_grad_value", "learning_rate")
"""What a graph's step does itself, besides the optimizer."""

STATES = {
    "momentum_buffer": "momentum",
    "exp_avg": "m",
    "exp_avg_sq": "v",
    "square_avg": "mean_square",
    "grad_avg": "mean_gradient",
    "sum": "sum",
}
"""State to its name in a graph."""

STEP = "System-Train-TrainStep"
"""A graph's counter of steps."""


class GraphTrainer(OneflowTrainer):
    """Exposes output, loss, gradients before clipping, parameters and states of a step, but not clipped gradients.

    The reported rates are those of a second scheduler, since a graph does not expose its own.
    """

    def build(self) -> None:
        for name in (*IN_GRAPH, self.recipe["optimizer"]):
            if self.job.own(name) is not None:
                raise Unsupported(f"an oneflow.nn.Graph uses OneFlow's own {name}, which cannot be replaced")
        super().build()

    def clear_gradients(self) -> None:
        # A graph leaves its own tensors in `grad`, which have no values.
        self.optimizer.zero_grad(set_to_none=True)

    def restore(self, done: int, arrays: Arrays) -> None:
        super().restore(done, arrays)
        shown = self.optimizer, self.scheduler
        groups = self.split_groups() if self.clips_by("tensor") else self.groups
        self.make_optimizer(self.recipe["optimizer"], groups)
        self.graph = self.graph_of(self.optimizer, self.scheduler_of(**self.recipe["schedule"]))
        self.optimizer, self.scheduler = shown
        self.graph_state = self.stored_state(done, arrays) if done else {}
        self.graph.load_state_dict(self.graph_state)

    def stored_state(self, done: int, arrays: Arrays) -> dict[str, Any]:
        """The state after step `done` under the graph's names."""
        tensors = {name: self.imported_states(name, arrays) for name in self.states}
        stored = {self.state_name(n, state): t for n, kept in tensors.items() for state, t in kept.items()}
        return {**stored, STEP: self.framework.tensor([done], dtype=self.framework.int64)}

    @staticmethod
    def state_name(name: str, state: str) -> str:
        """The graph's name of a parameter's state."""
        return f"module.{attribute_of(name)}-{STATES[state]}"

    def graph_of(self, optimizer: Any, scheduler: Any) -> Any:
        """A graph that takes a step in each call, and returns loss, output and gradients."""
        flow, n = self.framework, self.recipe["accumulation"]

        def build(graph: Any, x: Any, target: Any) -> Any:
            gradients: dict[str, Any] = {}
            for name in self.parameters:
                getattr(graph.module, attribute_of(name)).register_hook(partial(gradients.__setitem__, name))
            output = graph.module(x)
            loss = self.loss(output, target)
            loss.backward()
            self.differentiated = list(gradients)
            return (loss, output, *gradients.values())

        graph = type("Step", (flow.nn.Graph,), {"build": build})()
        graph.module = self.module
        graph.add_optimizer(optimizer, **({} if scheduler is None else {"lr_sch": scheduler}))
        if n > 1:
            graph.config.set_gradient_accumulation_steps(n)
        return graph

    def clips_by(self, scope: str) -> bool:
        """Whether the recipe clips by norm with this `scope`."""
        clip = self.recipe["clip"]
        return clip is not None and clip["name"] == "norm" and clip["scope"] == scope

    def split_groups(self) -> Sequence[ParameterGroup]:
        """Each parameter as its own group."""
        return [replace(group, names=(name,)) for group in self.groups for name in group.names]

    def optimizer_group(self, group: ParameterGroup) -> dict[str, Any]:
        clip = self.recipe["clip"]
        options = super().optimizer_group(group)
        if clip is None:
            return options
        if clip["name"] != "norm":
            raise Unsupported("an oneflow.nn.Graph clips by norm only")
        if clip["scope"] == "global" and len(self.groups) > 1:
            raise Unsupported("an oneflow.nn.Graph clips every group of parameters by its own norm, not all together")
        return {**options, "clip_grad_max_norm": clip["max_norm"], "clip_grad_norm_type": float(clip["norm_type"])}

    def step(self, number: int, rows: Any, keep: Keep) -> None:
        """Step `number` in the graph, whose outputs have the micro-batches one after another."""
        n = self.recipe["accumulation"]
        rows = np.concatenate([self.shard(part) for part in np.split(self.batch(number, rows), n)])
        keep("rows", rows)
        keep("lr", np.array(self.scheduled(number), np.float64))
        loss, output, *gradients = self.computed(rows)
        keep("output", output)
        keep("loss", mean(list(loss.reshape(-1))))
        for name, gradient in zip(self.differentiated, gradients):
            parts = gradient.reshape((n, *self.parameters[name].shape))
            keep(f"grad.{name}", parts[0] if n == 1 else parts.mean(0, dtype=np.float64).astype(parts.dtype))
        self.graph_state = self.graph.state_dict()
        for name, array in self.state():
            keep(name, array)
        self.advance()

    def computed(self, rows: Any) -> list[Any]:
        """The results of a call of the graph, as arrays."""
        try:
            results = self.graph(self.tensor(self.job.x[rows]), self.tensor(self.job.target[rows]))
            return [self.adapter.to_numpy(tensor) for tensor in results]
        except BaseException as error:
            # OneFlow 0.9.0 aborts in the first graph that is built after a failed one.
            self.adapter.worn_out = True
            if self.job.dtype == "float64" and self.adapter.lacks_kernel(error):
                message = self.adapter.describe(error).strip()
                raise Unsupported(f"no step of an oneflow.nn.Graph trains in float64: {message}") from error
            raise

    def optimizer_state(self, name: str) -> Mapping[str, Any]:
        tensors = {state: self.graph_state.get(self.state_name(name, state)) for state in self.states[name]}
        return {state: tensor for state, tensor in tensors.items() if tensor is not None}
