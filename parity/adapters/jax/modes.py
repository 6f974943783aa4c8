"""JAX's modes of execution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from parity.adapters.base import named_outputs
from parity.adapters.jax.adapter import JaxAdapter


class JaxJit(JaxAdapter):
    """Each op, and its gradients, as a whole through jax.jit."""

    def staged(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(**given: Any) -> Any:
            tensors = {name: value for name, value in given.items() if isinstance(value, self.framework.Array)}
            params = {name: value for name, value in given.items() if name not in tensors}
            return self.framework.jit(lambda tensors: named_outputs(function(**tensors, **params)))(tensors)

        return call
