"""Paddle's modes of execution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from parity.adapters.base import Job
from parity.adapters.modes import AutocastMode, check_traceable
from parity.adapters.paddle.adapter import PaddleAdapter


class PaddleStatic(PaddleAdapter):
    """`paddle.jit.to_static` of each op as one program, which `full_graph` asks for."""

    def run(self, job: Job) -> dict[str, Any]:
        check_traceable(job, "paddle.jit.to_static")
        return super().run(job)

    def in_mode(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(**given: Any) -> Any:
            tensors = {name: value for name, value in given.items() if self.framework.is_tensor(value)}
            params = {name: value for name, value in given.items() if name not in tensors}

            def program(tensors: Any) -> Any:
                return function(**tensors, **params)

            return self.framework.jit.to_static(program, full_graph=True)(tensors)

        return call


class PaddleAmp(AutocastMode, PaddleAdapter):
    """`paddle.amp.auto_cast` to bfloat16."""

    def autocast(self) -> Any:
        return self.framework.amp.auto_cast(dtype="bfloat16")
