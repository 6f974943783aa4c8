"""WHO computes it: one folder per framework, imported only when a worker needs it."""

from __future__ import annotations

import importlib
from typing import Any

ADAPTERS = {
    "torch": "parity.adapters.torch.adapter:TorchAdapter",
    "paddle": "parity.adapters.paddle.adapter:PaddleAdapter",
    "oneflow": "parity.adapters.oneflow.adapter:OneflowAdapter",
    "jax": "parity.adapters.jax.adapter:JaxAdapter",
    "tensorflow": "parity.adapters.tensorflow.adapter:TensorflowAdapter",
    "mindspore": "parity.adapters.mindspore.adapter:MindsporeAdapter",
    "onnxruntime": "parity.adapters.onnxruntime.adapter:OnnxruntimeAdapter",
    "keras": "parity.adapters.keras.adapter:KerasTensorflow",
    "mlx": "parity.adapters.mlx.adapter:MlxAdapter",
    "numpy": "parity.adapters.numpy.adapter:NumpyAdapter",
}
"""Adapter name to its class, `module:Class`."""

MODES = {
    "torch:compile": "parity.adapters.torch.modes:TorchCompile",
    "torch:script": "parity.adapters.torch.modes:TorchScript",
    "torch:channels_last": "parity.adapters.torch.modes:TorchChannelsLast",
    "torch:amp-bf16": "parity.adapters.torch.modes:TorchAmp",
    "torch:tf32": "parity.adapters.torch.modes:TorchTf32",
    "torch:triton-interpret": "parity.adapters.torch.modes:TorchTritonInterpret",
    "paddle:static": "parity.adapters.paddle.modes:PaddleStatic",
    "paddle:amp-bf16": "parity.adapters.paddle.modes:PaddleAmp",
    "oneflow:graph": "parity.adapters.oneflow.modes:OneflowGraph",
    "oneflow:amp-bf16": "parity.adapters.oneflow.modes:OneflowAmp",
    "jax:jit": "parity.adapters.jax.modes:JaxJit",
    "tensorflow:xla": "parity.adapters.tensorflow.modes:TensorflowXla",
    "mindspore:graph": "parity.adapters.mindspore.modes:MindsporeGraph",
    "keras:tensorflow": "parity.adapters.keras.adapter:KerasTensorflow",
    "keras:jax": "parity.adapters.keras.adapter:KerasJax",
    "keras:torch": "parity.adapters.keras.adapter:KerasTorch",
}
"""Adapter and mode, other than eager, to its class."""

RANKS = {
    "torch": "parity.adapters.ranks:TorchRanks",
    "paddle": "parity.adapters.ranks:PaddleRanks",
    "oneflow": "parity.adapters.ranks:OneflowRanks",
}
"""Adapter to its class for one of several ranks."""


def load_object(path: str) -> Any:
    """The object at `module:name`, importing its module (`pkgutil.resolve_name`, which Python 3.8 lacks)."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def class_path(adapter: str, mode: str = "eager", ranks: int = 1) -> str:
    """The path, `module:Class`, of the adapter class for `mode`, or for one of several `ranks`."""
    if ranks > 1:
        return RANKS[adapter]
    return ADAPTERS[adapter] if mode == "eager" else MODES[f"{adapter}:{mode}"]


def adapter_class(adapter: str) -> type[Any]:
    """The class of an adapter, or of a mode of it (`torch:compile`); its framework is not imported."""
    framework, _, mode = adapter.partition(":")
    cls: type[Any] = load_object(class_path(framework, mode or "eager"))
    return cls
