"""WHO computes it: one file per framework. Nothing here is imported before a worker needs it."""

from __future__ import annotations

ADAPTERS = {
    "torch": "parity.adapters.torch_adapter:TorchAdapter",
    "paddle": "parity.adapters.paddle_adapter:PaddleAdapter",
    "oneflow": "parity.adapters.oneflow_adapter:OneflowAdapter",
    "numpy": "parity.adapters.numpy_adapter:NumpyAdapter",
}
"""Adapter name to the place of its class."""

MODES = {
    "torch:compile": "parity.adapters.torch_modes:TorchCompile",
    "torch:channels_last": "parity.adapters.torch_modes:TorchChannelsLast",
    "torch:amp-bf16": "parity.adapters.torch_modes:TorchAmp",
    "torch:tf32": "parity.adapters.torch_modes:TorchTf32",
    "paddle:static": "parity.adapters.paddle_modes:PaddleStatic",
    "paddle:amp-bf16": "parity.adapters.paddle_modes:PaddleAmp",
    "oneflow:graph": "parity.adapters.oneflow_modes:OneflowGraph",
    "oneflow:amp-bf16": "parity.adapters.oneflow_modes:OneflowAmp",
}
"""Adapter and mode, other than eager, to the place of its class."""


def place_of(adapter: str, mode: str = "eager") -> str:
    """The place of the class that computes in `mode`: `module:Class`."""
    return ADAPTERS[adapter] if mode == "eager" else MODES[f"{adapter}:{mode}"]
