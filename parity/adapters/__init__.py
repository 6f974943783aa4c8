"""WHO computes it: one file per framework. Nothing here is imported before a worker needs it."""

from __future__ import annotations

ADAPTERS = {
    "torch": "parity.adapters.torch_adapter:TorchAdapter",
    "paddle": "parity.adapters.paddle_adapter:PaddleAdapter",
    "oneflow": "parity.adapters.oneflow_adapter:OneflowAdapter",
    "numpy": "parity.adapters.numpy_adapter:NumpyAdapter",
}
"""Adapter name to the place of its class."""
