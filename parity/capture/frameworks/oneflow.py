"""OneFlow: `oneflow.nn.Module`."""

from __future__ import annotations

import itertools
import os
from typing import Any, Callable, List

import numpy as np

from parity.capture.frameworks.torch import TorchStyleFramework


class OneflowFramework(TorchStyleFramework):
    """OneFlow in eager mode. Within an nn.Graph nothing is recorded: its calls only trace."""

    name = "oneflow"

    def __init__(self) -> None:
        # OneFlow 0.9.0 would write a folder `log` into the working directory.
        os.environ.setdefault("GLOG_logtostderr", "1")
        import oneflow

        self.framework = oneflow
        self.base = oneflow.nn.Module

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, self.framework.Tensor)

    def is_tracing(self) -> bool:
        return bool(self.framework._oneflow_internal.lazy_mode.is_enabled())

    def to_numpy(self, tensor: Any) -> Any:
        values = tensor.detach()
        if values.dtype == self.framework.bfloat16:
            return (values.to(self.framework.float32).numpy().view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        return np.array(values.numpy())

    def alias(self, tensor: Any) -> Any:
        return tensor.reshape(tensor.shape)

    def watched(self, tensor: Any, function: Callable[[Any], None]) -> Any:
        # OneFlow 0.9.0 calls the hook of a leaf twice in each backward pass, with the same gradient.
        turns = itertools.cycle(range(self.calls_of_a_leaf_hook if tensor.is_leaf else 1))
        tensor.register_hook(lambda gradient: function(gradient) if next(turns) == 0 else None)
        return tensor

    @property
    def calls_of_a_leaf_hook(self) -> int:
        """How often the hook of a leaf is called in one backward pass."""
        seen: List[Any] = []
        leaf = self.framework.ones(1).requires_grad_(True)
        leaf.register_hook(lambda gradient: seen.append(gradient))  # it takes no built-in
        (leaf * 2).sum().backward()
        return len(seen)
