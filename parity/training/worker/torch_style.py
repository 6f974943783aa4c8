"""The base of trainers for frameworks with PyTorch's interface."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from parity.adapters.base import Unsupported
from parity.adapters.torch_style import OPTIMIZERS
from parity.training.worker.job import ParameterGroup
from parity.training.worker.op_model import attribute_of, model_class, op_layer
from parity.training.worker.trainer import Trainer


class TorchStyleTrainer(Trainer):
    """`nn` modules, `optim` with groups of parameters, and a scheduler that changes their rates.

    `module` holds the parameters; `model` is what is called, which a mode may wrap or compile.
    """

    schedulers: ClassVar[Mapping[str, Callable[..., Any]]] = {
        "constant": lambda _lr_scheduler, _optimizer: None,
        "cosine": lambda lr_scheduler, optimizer, **options: lr_scheduler.CosineAnnealingLR(optimizer, **options),
        "step": lambda lr_scheduler, optimizer, **options: lr_scheduler.StepLR(optimizer, **options),
    }
    """Schedule to the framework's scheduler: (lr_scheduler, optimizer, **options)."""

    transposed: Collection[str] = ()
    """Parameters that the framework keeps transposed."""

    def build(self) -> None:
        self.framework = self.adapter.framework  # type: ignore[attr-defined]
        transposed = frozenset(map(attribute_of, self.transposed))
        make = model_class(self.module_base(), transposed, lambda to, value: self.assign(to, self.detached(value)))
        layers = [op_layer(message, self.adapter, self.job.own) for message in self.recipe["layers"]]
        self.module = self.model = make(layers)
        self.parameters = {name: self.parameter(name) for name in self.recipe["parameters"]}
        self.buffers = {name: self.tensor(np.array(self.job.tensors[name])) for name in self.recipe["buffers"]}
        for name, parameter in self.parameters.items():
            setattr(self.module, attribute_of(name), parameter)
        for name, buffer in self.buffers.items():
            self.module.register_buffer(attribute_of(name), buffer)

    def module_base(self) -> type[Any]:
        """The framework's class of modules."""
        return self.framework.nn.Module  # type: ignore[no-any-return]

    def parameter(self, name: str) -> Any:
        """A parameter of the framework with its initial values."""
        return self.framework.nn.Parameter(self.tensor(np.array(self.job.tensors[name])))

    def forward(self, x: Any) -> Any:
        return self.model(x)

    def backward(self, loss: Any) -> None:
        loss.backward()

    def gradient(self, name: str) -> Any:
        return self.parameters[name].grad

    def set_gradient(self, name: str, value: Any) -> None:
        self.parameters[name].grad = value.detach()

    def clear_gradients(self) -> None:
        self.optimizer.zero_grad()

    def clip_norm(self, names: Sequence[str], max_norm: float, norm_type: float) -> Any:
        parameters = [self.parameters[name] for name in names]
        return self.framework.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)

    def clip_value(self, names: Sequence[str], clip_value: float) -> None:
        self.framework.nn.utils.clip_grad_value_([self.parameters[name] for name in names], clip_value)

    def make_optimizer(self, kind: str, groups: Sequence[ParameterGroup]) -> None:
        optim = self.framework.optim
        make = getattr(optim, OPTIMIZERS[kind], None)
        if make is None:
            raise Unsupported(
                f"{optim.__name__} has no {kind}; a function {kind} in the file of `ops` can take its place"
            )
        self.optimizer = make([self.optimizer_group(group) for group in groups])

    def optimizer_group(self, group: ParameterGroup) -> dict[str, Any]:
        """A group in the optimizer's format."""
        return {"params": [self.parameters[name] for name in group.names], "lr": group.lr, **group.options}

    def rates(self) -> list[float]:
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def set_rates(self, rates: Sequence[float]) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates):
            group["lr"] = rate

    def optimizer_step(self) -> None:
        self.optimizer.step()

    def make_schedule(self, done: int) -> None:
        self.scheduler = self.scheduler_of(**self.recipe["schedule"])
        for _ in range(done):
            self.schedule_step()

    def scheduler_of(self, name: str, **options: Any) -> Any:
        """The framework's scheduler on the optimizer; None for a constant rate."""
        try:
            return self.schedulers[name](self.framework.optim.lr_scheduler, self.optimizer, **options)
        except (AssertionError, ValueError) as error:
            raise Unsupported(f"{self.framework.__name__}.optim.lr_scheduler: {error}") from error

    def schedule_step(self) -> None:
        if self.scheduler is not None:
            self.scheduler.step()

    def assign(self, tensor: Any, value: Any) -> None:
        with self.framework.no_grad():
            tensor.copy_(value)
