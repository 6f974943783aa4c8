"""MindSpore: `mindspore.nn.Cell`."""

from __future__ import annotations

from typing import Any, Callable, Iterator, Tuple

import numpy as np

from parity.capture.frameworks.recorder import LayeredFramework


class MindsporeFramework(LayeredFramework):
    """MindSpore in PyNative mode. In graph mode, and within `jit`, cells are compiled and cannot be recorded."""

    name = "mindspore"

    def __init__(self) -> None:
        import mindspore

        self.framework = mindspore
        self.base = mindspore.nn.Cell

    def named_layers(self, model: Any) -> Iterator[Tuple[str, Any]]:
        return iter(model.cells_and_names())

    def named_parameters(self, model: Any) -> Iterator[Tuple[str, Any]]:
        return ((name, tensor) for name, tensor in model.parameters_and_names() if tensor.requires_grad)

    def named_buffers(self, model: Any) -> Iterator[Tuple[str, Any]]:
        return ((name, tensor) for name, tensor in model.parameters_and_names() if not tensor.requires_grad)

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, self.framework.Tensor)

    def is_tracing(self) -> bool:
        return bool(self.framework.get_context("mode") == self.framework.GRAPH_MODE)

    def to_numpy(self, tensor: Any) -> Any:
        if tensor.dtype == self.framework.bfloat16:
            bits = tensor.astype(self.framework.float32).asnumpy().view(np.uint32) >> np.uint32(16)
            return bits.astype(np.uint16)
        return np.array(tensor.asnumpy())

    def has_history(self, tensor: Any) -> bool:
        return bool(tensor.is_floating_point()) and not isinstance(tensor, self.framework.Parameter)

    def alias(self, tensor: Any) -> Any:
        return tensor

    def watched(self, tensor: Any, function: Callable[[Any], None]) -> Any:
        def hook(gradient: Any) -> Any:
            function(gradient)
            return gradient

        return self.framework.ops.InsertGradientOf(hook)(tensor)
