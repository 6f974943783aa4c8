"""What trainers of frameworks that follow PyTorch's interface have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from parity.adapters.base import Unsupported
from parity.training.worker.job import ParameterGroup
from parity.training.worker.torch_layers import TorchStyleLayers
from parity.training.worker.trainer import Trainer


class TorchStyleTrainer(Trainer):
    """`nn` modules, `optim` with groups of parameters, and a scheduler that changes their rates.

    `module` holds the parameters; `model` is what is called, which a mode may make another object of.
    """

    layers: ClassVar[type[TorchStyleLayers]] = TorchStyleLayers

    optimizers: ClassVar[Mapping[str, str]] = {
        "sgd": "SGD",
        "adam": "Adam",
        "adamw": "AdamW",
        "rmsprop": "RMSprop",
        "adagrad": "Adagrad",
    }
    """Optimizer to the class in `optim`."""

    def build(self) -> None:
        self.framework = framework = self.adapter.framework  # type: ignore[attr-defined]
        layers = self.layers(framework, self.job.own, self.job.x.ndim)
        self.module = layers.sequence(self.recipe["layers"]).to(self.adapter.device, getattr(framework, self.job.dtype))
        self.module.train()
        self.model = self.module
        tensors = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        self.parameters = {name: tensors[name] for name in self.recipe["parameters"]}
        self.buffers = {name: tensors[name] for name in self.recipe["buffers"]}

    def forward(self, x: Any) -> Any:
        return self.model(x)

    def loss(self, output: Any, target: Any) -> Any:
        name = self.recipe["loss"]
        if name == "cross_entropy":
            output, target = output.reshape((-1, output.shape[-1])), target.reshape((-1,))
        own = self.job.own(name)
        if own is not None:
            return own(x=output, target=target)
        return getattr(self.framework.nn.functional, name)(output, target)

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
        found = getattr(optim, self.optimizers.get(kind, ""), None)
        if found is None:
            raise Unsupported(
                f"{optim.__name__} has no {kind}; a function {kind} in the file of `ops` can take its place"
            )
        self.optimizer = found([self.optimizer_group(group) for group in groups])

    def optimizer_group(self, group: ParameterGroup) -> dict[str, Any]:
        """A group as the optimizer takes it."""
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
        raise NotImplementedError

    def schedule_step(self) -> None:
        if self.scheduler is not None:
            self.scheduler.step()

    def assign(self, tensor: Any, value: Any) -> None:
        with self.framework.no_grad():
            tensor.copy_(value)
