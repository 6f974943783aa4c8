"""Training in OneFlow: oneflow.nn, oneflow.optim and its schedulers in eager mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from parity.adapters.base import Unsupported
from parity.adapters.oneflow.adapter import RENAMED
from parity.training.worker.job import ParameterGroup
from parity.training.worker.torch_style import TorchStyleTrainer


def linear(lr_scheduler: Any, optimizer: Any, total_iters: int, start_factor: float) -> Any:
    """LinearLR."""
    return lr_scheduler.LinearLR(optimizer, start_factor, 1.0, total_iters)


def polynomial(lr_scheduler: Any, optimizer: Any, total_iters: int, power: float, end_lr: float) -> Any:
    """PolynomialLR."""
    return lr_scheduler.PolynomialLR(optimizer, total_iters, end_lr, power)


def warmup_polynomial(
    lr_scheduler: Any,
    optimizer: Any,
    warmup_steps: int,
    total_iters: int,
    start_factor: float,
    power: float,
    end_lr: float,
) -> Any:
    """WarmupLR followed by PolynomialLR, which counts from its own first step."""
    after = polynomial(lr_scheduler, optimizer, total_iters - warmup_steps, power, end_lr)
    return lr_scheduler.WarmupLR(after, start_factor, warmup_steps, "linear", warmup_prefix=True)


class OneflowTrainer(TorchStyleTrainer):
    """Training in OneFlow, with its own schedulers."""

    schedulers: ClassVar[Mapping[str, Callable[..., Any]]] = {
        **TorchStyleTrainer.schedulers,
        "linear": linear,
        "polynomial": polynomial,
        "warmup_polynomial": warmup_polynomial,
    }

    def optimizer_group(self, group: ParameterGroup) -> dict[str, Any]:
        if self.recipe["optimizer"] == "rmsprop" and group.options["momentum"]:
            raise Unsupported("oneflow.optim.RMSprop has no momentum")
        return super().optimizer_group(group)

    def optimizer_state(self, name: str) -> Mapping[str, Any]:
        kept = self.optimizer._state[self.parameters[name]]
        return {state: kept[own] for state in self.states[name] if (own := RENAMED.get(state, state)) in kept}

    def load_optimizer_state(self, done: int, states: Mapping[str, Mapping[str, Any]]) -> None:
        stored: dict[Any, Any] = {"step": done}
        names = [name for group in self.groups for name in group.names]
        for i, name in enumerate(names):
            stored[i] = {RENAMED.get(state, state): tensor for state, tensor in states[name].items()}
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": stored, "param_groups": groups})
