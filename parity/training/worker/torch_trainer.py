"""PyTorch: torch.nn, torch.optim and torch.optim.lr_scheduler, eager and in its modes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

from parity.adapters.base import Unsupported
from parity.adapters.torch.modes import in_bfloat16
from parity.training.worker.torch_style import TorchStyleTrainer


def linear(lr_scheduler: Any, optimizer: Any, total_iters: int, start_factor: float) -> Any:
    """LinearLR, which takes factors above 0 up to 1."""
    if 0 < start_factor <= 1:
        return lr_scheduler.LinearLR(optimizer, start_factor, 1.0, total_iters)
    return lr_scheduler.LambdaLR(optimizer, partial(rising, total_iters=total_iters, start_factor=start_factor))


def polynomial(lr_scheduler: Any, optimizer: Any, total_iters: int, power: float, end_lr: float) -> Any:
    """PolynomialLR, which ends at 0."""
    if end_lr == 0:
        return lr_scheduler.PolynomialLR(optimizer, total_iters, power)
    return by_group(lr_scheduler, optimizer, partial(falling, total_iters=total_iters, power=power, end_lr=end_lr))


def warmup_polynomial(
    lr_scheduler: Any,
    optimizer: Any,
    warmup_steps: int,
    total_iters: int,
    start_factor: float,
    power: float,
    end_lr: float,
) -> Any:
    """LambdaLR, as in transformers.get_polynomial_decay_schedule_with_warmup."""

    def factor(t: int, lr: float) -> float:
        if t < warmup_steps:
            return rising(t, warmup_steps, start_factor)
        return falling(t - warmup_steps, lr, total_iters - warmup_steps, power, end_lr)

    return by_group(lr_scheduler, optimizer, factor)


def by_group(lr_scheduler: Any, optimizer: Any, factor: Callable[..., float]) -> Any:
    """LambdaLR with a `factor(t, lr=...)` that depends on the group's base rate."""
    rates = [group["lr"] for group in optimizer.param_groups]
    if 0.0 in rates:
        raise Unsupported("torch's LambdaLR multiplies the rate of a group, so a rate of 0 stays 0")
    return lr_scheduler.LambdaLR(optimizer, [partial(factor, lr=rate) for rate in rates])


def rising(t: int, total_iters: int, start_factor: float) -> float:
    """From `start_factor` to 1, linearly."""
    return start_factor + (1 - start_factor) * min(t, total_iters) / total_iters


def falling(t: int, lr: float, total_iters: int, power: float, end_lr: float) -> float:
    """From 1 to `end_lr` / lr, as a power of the remaining share of steps."""
    left: float = (1 - min(t, total_iters) / total_iters) ** power
    return ((lr - end_lr) * left + end_lr) / lr


class TorchTrainer(TorchStyleTrainer):
    """Training in PyTorch, with its schedulers, or LambdaLR for rates that start at 0 or end above 0."""

    schedulers: ClassVar[Mapping[str, Callable[..., Any]]] = {
        **TorchStyleTrainer.schedulers,
        "linear": linear,
        "polynomial": polynomial,
        "warmup_polynomial": warmup_polynomial,
    }

    def scheduler_of(self, name: str, **options: Any) -> Any:
        # Schedulers expect calls of `optimizer.step`; there are none while a schedule is restored.
        warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
        return super().scheduler_of(name, **options)

    def optimizer_state(self, name: str) -> Mapping[str, Any]:
        return self.optimizer.state.get(self.parameters[name], {})  # type: ignore[no-any-return]

    def load_optimizer_state(self, done: int, states: Mapping[str, Mapping[str, Any]]) -> None:
        names = [name for group in self.groups for name in group.names]
        step = self.framework.tensor(float(done))
        state = {i: {"step": step.clone(), **states[name]} for i, name in enumerate(names) if states[name]}
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})


class CompileTrainer(TorchTrainer):
    """Compiles the model, forward and backward, into one graph by `torch.compile`; loss and optimizer are eager."""

    def build(self) -> None:
        super().build()
        self.framework.compiler.reset()
        self.model = self.framework.compile(self.module, fullgraph=True, dynamic=False)


class ChannelsLastTrainer(TorchTrainer):
    """Images and convolution weights have the memory format NHWC."""

    def build(self) -> None:
        super().build()
        if not any(parameter.dim() == 4 for parameter in self.parameters.values()):
            raise Unsupported("channels_last is a format of four axes, and no parameter has four")
        self.module.to(memory_format=self.framework.channels_last)


class AmpTrainer(TorchTrainer):
    """Runs forward passes under `torch.autocast` to bfloat16; output and loss have the weights' dtype."""

    def forward(self, x: Any) -> Any:
        output = in_bfloat16(self.framework, self.adapter.device, self.model, x)
        return output.to(getattr(self.framework, self.job.dtype))
