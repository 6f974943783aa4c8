"""PyTorch: `torch.nn.Module`."""

from __future__ import annotations

from typing import Any, Iterable, Iterator, List, Tuple

import numpy as np

from parity.capture.frameworks.recorder import LayeredFramework

WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module")
"""Attributes in which torch.compile and activation checkpoints keep the layer that they stand for."""

PARALLEL = ("DataParallel", "DistributedDataParallel")
"""Classes whose attribute `module` is the model."""


class TorchStyleFramework(LayeredFramework):
    """A framework with PyTorch's modules and tensors."""

    def named_layers(self, model: Any) -> Iterator[Tuple[str, Any]]:
        return named(model, model.named_modules())

    def named_parameters(self, model: Any) -> Iterator[Tuple[str, Any]]:
        return named(model, model.named_parameters())

    def named_buffers(self, model: Any) -> Iterator[Tuple[str, Any]]:
        return named(model, model.named_buffers())

    def has_history(self, tensor: Any) -> bool:
        return bool(tensor.requires_grad)


class TorchFramework(TorchStyleFramework):
    """PyTorch 1.13 and later. What torch.compile has compiled is one layer: values within it are never stored."""

    name = "torch"

    def __init__(self) -> None:
        import torch

        self.framework = torch
        self.base = torch.nn.Module
        self.compiling = getattr(getattr(torch, "compiler", None), "is_compiling", None)

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, self.framework.Tensor) and value.device.type != "meta"

    def is_tracing(self) -> bool:
        return self.compiling is not None and bool(self.compiling())

    def compiled(self, model: Any) -> List[str]:
        return [name for name, layer in self.named_layers(model) if is_compiled(layer)]

    def to_numpy(self, tensor: Any) -> Any:
        torch = self.framework
        values = tensor.detach()
        if values.layout != torch.strided:
            values = values.to_dense()
        if values.is_quantized:
            values = values.dequantize()
        values = values.cpu().resolve_conj().resolve_neg()
        if str(values.dtype) == "torch.uint16":
            values = values.to(torch.int32)
        if values.dtype == torch.bfloat16:
            return np.array(values.view(torch.int16).numpy().view(np.uint16))
        if values.dtype.is_floating_point and values.element_size() == 1:
            values = values.float()
        return np.array(values.numpy())

    def alias(self, tensor: Any) -> Any:
        return tensor.view_as(tensor)


def named(model: Any, pairs: Iterable[Tuple[str, Any]]) -> Iterator[Tuple[str, Any]]:
    """Names without the wrappers' parts; of a wrapper and what it stands for, the wrapper."""
    parallel = type(model).__name__ in PARALLEL
    taken = set()
    for name, value in pairs:
        parts = [part for part in name.split(".") if part not in WRAPPERS]
        clean = ".".join(parts[1:] if parallel and parts[:1] == ["module"] else parts)
        if clean not in taken:
            taken.add(clean)
            yield clean, value


def is_compiled(layer: Any) -> bool:
    """Whether torch.compile made this layer, or `compile()` was called on it."""
    return hasattr(layer, "_orig_mod") or getattr(layer, "_compiled_call_impl", None) is not None
