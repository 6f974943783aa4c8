"""MindSpore's modes of execution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from parity.adapters.base import Job, named_outputs
from parity.adapters.mindspore.adapter import MindsporeAdapter
from parity.adapters.modes import check_traceable


class MindsporeGraph(MindsporeAdapter):
    """Each op, and its gradients, as a graph that mindspore.jit traces."""

    def run(self, job: Job) -> dict[str, Any]:
        check_traceable(job, "mindspore.jit")
        return super().run(job)

    def staged(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(**given: Any) -> Any:
            tensors = {name: value for name, value in given.items() if isinstance(value, self.framework.Tensor)}
            params = {name: value for name, value in given.items() if name not in tensors}
            names: list[str] = []

            def program(*values: Any) -> Any:
                outputs = named_outputs(function(**dict(zip(tensors, values)), **params))
                names[:] = outputs
                return tuple(outputs.values())

            outputs = self.framework.jit(program, capture_mode="trace")(*tensors.values())
            return dict(zip(names, outputs))

        return call
