"""Ports of PyTorch's kind: layers with `forward`, parameters and buffers, gradients in `grad`."""

from __future__ import annotations

import inspect
from typing import Any, Callable, Collection, ContextManager, Dict, Mapping, Tuple

from parity.models.worker.ports.layered import LayeredPort
from parity.program.worker.torch_calls import passing

CASTS = {"float64": "double", "float32": "float", "bfloat16": "bfloat16", "float16": "half"}


class TorchStylePort(LayeredPort):
    """What PyTorch, OneFlow and PaddlePaddle share."""

    def built(self, build: Callable[[], Any]) -> Any:
        self.framework.set_default_dtype(self.framework.float32)
        model = super().built(build)
        model.train() if self.mode == "train" else model.eval()
        return model

    def seeded(self) -> None:
        self.framework.manual_seed(0)

    def own(self, layer: Any) -> Dict[str, Tuple[Any, bool]]:
        tensors = {name: (tensor, self.is_trained(tensor)) for name, tensor in layer._parameters.items()}
        tensors.update({name: (tensor, False) for name, tensor in layer._buffers.items()})
        return {name: pair for name, pair in tensors.items() if pair[0] is not None}

    def is_trained(self, parameter: Any) -> bool:  # noqa: ARG002 - where buffers are no parameters
        """Whether a parameter is trained, and no buffer."""
        return True

    def depends(self, tensor: Any) -> bool:
        return bool(tensor.requires_grad)

    def to_array(self, tensor: Any) -> Any:
        return super().to_array(tensor.detach())

    def flows(self, tensor: Any) -> bool:
        return self.depends(tensor)

    def assign(self, tensor: Any, array: Any) -> None:
        value = self.to_tensor(array.reshape(tuple(int(n) for n in tensor.shape)), tensor)
        with self.framework.no_grad():
            self.put(tensor, value)

    def put(self, tensor: Any, value: Any) -> None:
        """Copy a tensor into another one."""
        tensor.copy_(value)

    def cast(self, dtype: str) -> None:
        self.framework.set_default_dtype(getattr(self.framework, dtype))
        getattr(self.model, CASTS[dtype])()

    def no_gradients(self) -> Any:
        return self.framework.no_grad()

    def backward(self, loss: Any) -> Mapping[str, Any]:
        loss.backward()
        trained = (state for state in self.tensors() if state.trained and not state.tied)
        return {state.name: state.tensor.grad for state in trained if state.tensor.grad is not None}

    def clear(self) -> None:
        for state in self.tensors():
            if state.trained and state.tensor.grad is not None:
                self.forget(state.tensor)

    def forget(self, tensor: Any) -> None:
        """Clear a parameter's gradient."""
        tensor.grad = None

    def functions(self) -> Tuple[Collection[str], Collection[Any], Collection[Any]]:
        here = self.framework
        more = (module for name in ("tensor", "linalg") if inspect.ismodule(module := getattr(here, name, None)))
        return (here.__name__,), (here, here.nn.functional, *more), (here.Tensor,)


class TorchPort(TorchStylePort):
    """PyTorch, the only framework here with a hook for function calls."""

    shown = "torch"
    traced = True

    def intercepted(self, record: Callable[..., Any]) -> ContextManager[None]:
        return passing(record)


class OneflowPort(TorchStylePort):
    """OneFlow in eager mode."""

    shown = "oneflow"


class PaddlePort(TorchStylePort):
    """PaddlePaddle in dynamic mode, which keeps running statistics as parameters without a gradient."""

    shown = "paddle"

    def seeded(self) -> None:
        self.framework.seed(0)

    def is_trained(self, parameter: Any) -> bool:
        return not parameter.stop_gradient

    def depends(self, tensor: Any) -> bool:
        return not tensor.stop_gradient

    def put(self, tensor: Any, value: Any) -> None:
        tensor.set_value(value)

    def cast(self, dtype: str) -> None:
        self.framework.set_default_dtype(getattr(self.framework, dtype))
        self.model.to(dtype=dtype)

    def forget(self, tensor: Any) -> None:
        tensor.clear_grad()
