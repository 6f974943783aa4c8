"""The base of adapters for frameworks that differentiate functions instead of recording a tape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from parity.adapters.base import Adapter, named_outputs


class TransformAdapter(Adapter):
    """Keeps the latest call in `latest`, which `gradients` differentiates."""

    latest: SimpleNamespace

    def pullback(self, forward: Callable[..., Any], leaves: Sequence[Any], grad_outputs: Sequence[Any]) -> list[Any]:
        """The gradient of sum(outputs * grad_outputs) for each leaf; `forward` maps the leaves to the outputs."""
        raise NotImplementedError

    def in_mode(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The staged function, whose calls are kept."""
        staged = self.staged(function)

        def call(**given: Any) -> Any:
            outputs = named_outputs(staged(**given))
            self.latest.function, self.latest.given, self.latest.outputs = staged, given, outputs
            return outputs

        return call

    def staged(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function as the mode runs it; in eager mode, the function itself."""
        return function

    def gradients(self, outputs: Sequence[Any], grad_outputs: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
        function, given = self.latest.function, self.latest.given
        wanted = [name for y in outputs for name, value in self.latest.outputs.items() if value is y]
        names = [name for leaf in leaves for name, value in given.items() if value is leaf]

        def forward(*values: Any) -> Any:
            results = named_outputs(function(**{**given, **dict(zip(names, values))}))
            return [results[name] for name in wanted]

        return self.pullback(forward, leaves, [dy.astype(y.dtype) for y, dy in zip(outputs, grad_outputs)])
