"""PaddlePaddle: `paddle.nn.Layer`."""

from __future__ import annotations

from typing import Any, Iterator, Tuple

import numpy as np

from parity.capture.frameworks.recorder import LayeredFramework

STATISTICS = ("_mean", "_variance")
"""Parameters of paddle.nn.BatchNorm* that are buffers in other frameworks."""


class PaddleFramework(LayeredFramework):
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

    def has_history(self, tensor: Any) -> bool:
        return not tensor.stop_gradient

    def alias(self, tensor: Any) -> Any:
        return tensor.reshape(tensor.shape)


def is_statistic(name: str) -> bool:
    """Whether the parameter of this name is a running statistic."""
    return name.rpartition(".")[2] in STATISTICS
