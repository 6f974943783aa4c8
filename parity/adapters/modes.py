"""The parts that modes of execution share: a check for ops that cannot be traced, and autocasts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from parity.adapters.base import Job, Unsupported, named_outputs
from parity.adapters.torch_style import FunctionalAdapter


def check_traceable(job: Job, tracer: str) -> None:
    """Raise Unsupported for an op that `tracer` cannot trace alone: one that takes gradients."""
    if "grad" in job.inputs or "grads" in job.inputs:
        message = f"{tracer} traces a function of tensors, and {job.op} is a step that changes parameters in place"
        raise Unsupported(message)


class AutocastMode(FunctionalAdapter):
    """An autocast to bfloat16; results come back in the dtype of the inputs."""

    def autocast(self) -> Any:
        """The framework's own context."""
        raise NotImplementedError

    def in_mode(self, function: Callable[..., Any]) -> Callable[..., Any]:
        self.check_effect()

        def call(**given: Any) -> Any:
            tensors = [value for value in given.values() if self.framework.is_tensor(value)]
            dtype = next(tensor.dtype for tensor in tensors if tensor.is_floating_point())
            with self.autocast():
                outputs = named_outputs(function(**given))
            return {name: value.to(dtype) for name, value in outputs.items()}

        return call

    def trainer(self, job: Any) -> Any:
        self.check_effect()
        return super().trainer(job)

    def check_effect(self) -> None:
        """Raise Unsupported if the autocast does not change a matrix product."""
        ones = self.framework.ones([2, 2])
        with self.autocast():
            dtype = self.framework.matmul(ones, ones).dtype
        name, device = self.framework.__name__, self.device
        if dtype != self.framework.bfloat16:
            raise Unsupported(f"the autocast of {name} to bfloat16 has no effect on {device}")
