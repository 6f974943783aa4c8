"""TensorFlow's modes of execution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from parity.adapters.base import named_outputs
from parity.adapters.tensorflow.adapter import TensorflowAdapter


class TensorflowXla(TensorflowAdapter):
    """Each op, and its gradients, as a whole through tf.function with jit_compile."""

    def staged(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **given: Any) -> Any:
            every: dict[Any, Any] = {**dict(enumerate(args)), **given}
            tensors = {key: value for key, value in every.items() if self.framework.is_tensor(value)}

            def program(tensors: Any) -> Any:
                values = [tensors.get(i, value) for i, value in enumerate(args)]
                named = {name: tensors.get(name, value) for name, value in given.items()}
                return named_outputs(function(*values, **named))

            return self.framework.function(program, jit_compile=True, autograph=False)(tensors)

        return call
