"""Ports of models that can be taken apart: a class per framework. Nothing here imports one before it is needed."""

from __future__ import annotations

from typing import Type

from parity.adapters import load_object
from parity.adapters.base import Unsupported
from parity.models.worker.ports.base import Port

PORTS = {
    "torch": "parity.models.worker.ports.torch_style:TorchPort",
    "paddle": "parity.models.worker.ports.torch_style:PaddlePort",
    "oneflow": "parity.models.worker.ports.torch_style:OneflowPort",
    "onnxruntime": "parity.models.worker.ports.onnxruntime:OnnxruntimePort",
    "keras": "parity.models.worker.ports.keras:KerasPort",
}
"""Adapter to the path of its class, `module:Class`."""


def port_class(adapter: str) -> Type[Port]:
    """The class of an adapter's ports; raises Unsupported where there is none."""
    if adapter not in PORTS:
        *others, last = PORTS
        raise Unsupported(f"models of {adapter} cannot be taken apart yet; {', '.join(others)} and {last} can")
    cls: Type[Port] = load_object(PORTS[adapter])
    return cls
