"""PaddlePaddle: `paddle.nn.Layer`."""

from __future__ import annotations

from typing import Any, Iterator, List, Tuple

import numpy as np

from parity.adapters.bits import values_of
from parity.capture.frameworks.base import Framework

STATISTICS = ("_mean", "_variance")
"""Parameters of paddle.nn.BatchNorm* that are buffers in other frameworks."""


class PaddleFramework(Framework):
    """Paddle in dynamic mode. What paddle.jit.to_static has compiled is one layer."""

    name = "paddle"

    def __init__(self) -> None:
        import paddle

        self.framework = paddle
        self.base = paddle.nn.Layer

    def named_layers(self, model: Any) -> Iterator[Tuple[str, Any]]:
        return iter(model.named_sublayers(include_self=True))

    def named_parameters(self, model: Any) -> Iterator[Tuple[str, Any]]:
        return ((name, tensor) for name, tensor in model.named_parameters() if not is_statistic(name))

    def named_buffers(self, model: Any) -> Iterator[Tuple[str, Any]]:
        statistics = [(name, tensor) for name, tensor in model.named_parameters() if is_statistic(name)]
        return iter([*statistics, *model.named_buffers()])

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, self.framework.Tensor)

    def is_tracing(self) -> bool:
        return not self.framework.in_dynamic_mode()

    def to_numpy(self, tensor: Any) -> Any:
        return np.array(tensor.detach().numpy())  # bfloat16 comes as its bits

    def from_numpy(self, array: Any, like: Any) -> Any:
        return self.tensor(array, like.place).astype(like.dtype)

    def leaf(self, array: Any) -> Any:
        leaf = self.tensor(array)
        leaf.stop_gradient = not leaf.is_floating_point()
        return leaf

    def tensor(self, array: Any, place: Any = None) -> Any:
        """A copy of an array; uint16 are the bits of bfloat16."""
        array = np.array(array)
        if array.dtype == np.uint16:
            return self.framework.to_tensor(values_of(array), place=place).astype("bfloat16")
        return self.framework.to_tensor(array, place=place)

    def assign(self, tensor: Any, array: Any) -> None:
        tensor.set_value(self.from_numpy(array, tensor))

    def has_history(self, tensor: Any) -> bool:
        return not tensor.stop_gradient

    def alias(self, tensor: Any) -> Any:
        return tensor.reshape(tensor.shape)

    def gradients(self, outputs: List[Any], leaves: List[Any], grad_outputs: List[Any]) -> List[Any]:
        return list(self.framework.grad(outputs, leaves, grad_outputs, allow_unused=True))


def is_statistic(name: str) -> bool:
    """Whether the parameter of this name is a running statistic."""
    return name.rpartition(".")[2] in STATISTICS
