"""Paddle's modes of execution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from parity.adapters.base import Job, Unsupported, named_outputs
from parity.adapters.modes import check_traceable
from parity.adapters.paddle.adapter import PaddleAdapter


class PaddleStatic(PaddleAdapter):
    """`paddle.jit.to_static` of each op as one program, which `full_graph` asks for."""

    def run(self, job: Job) -> dict[str, Any]:
        check_traceable(job.op, "paddle.jit.to_static")
        return super().run(job)

    def in_mode(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(**given: Any) -> Any:
            tensors = {name: value for name, value in given.items() if self.framework.is_tensor(value)}
            params = {name: value for name, value in given.items() if name not in tensors}

            def program(tensors: Any) -> Any:
                return function(**tensors, **params)

            return self.framework.jit.to_static(program, full_graph=True)(tensors)

        return call


class PaddleAmp(PaddleAdapter):
    """`paddle.amp.auto_cast` to bfloat16; results come back in the dtype of the inputs."""

    def in_mode(self, function: Callable[..., Any]) -> Callable[..., Any]:
        self.check_effect()

        def call(**given: Any) -> Any:
            dtype = next(value.dtype for value in given.values() if self.framework.is_tensor(value))
            with self.framework.amp.auto_cast(dtype="bfloat16"):
                outputs = named_outputs(function(**given))
            return {name: value.astype(dtype) for name, value in outputs.items()}

        return call

    def trainer(self, job: Any) -> Any:
        self.check_effect()
        return super().trainer(job)

    def check_effect(self) -> None:
        """Raise Unsupported where a product of matrices stays as it is."""
        ones = self.framework.ones([2, 2])
        with self.framework.amp.auto_cast(dtype="bfloat16"):
            dtype = self.framework.matmul(ones, ones).dtype
        device = self.device
        if dtype != self.framework.bfloat16:
            raise Unsupported(f"paddle.amp.auto_cast to bfloat16 does nothing on {device}")
