"""The layers of each framework's models: one file per framework, which imports it only when needed."""

from __future__ import annotations

from parity.adapters import load_object
from parity.capture.frameworks.base import Framework

FRAMEWORKS = {
    "torch": "parity.capture.frameworks.torch:TorchFramework",
    "paddle": "parity.capture.frameworks.paddle:PaddleFramework",
    "oneflow": "parity.capture.frameworks.oneflow:OneflowFramework",
    "flax": "parity.capture.frameworks.flax:FlaxFramework",
    "keras": "parity.capture.frameworks.keras:KerasFramework",
    "mindspore": "parity.capture.frameworks.mindspore:MindsporeFramework",
    "onnxruntime": "parity.capture.frameworks.onnxruntime:OnnxruntimeFramework",
}
"""The module that a framework's classes come from, to our class."""


def framework(name: str) -> Framework:
    """The framework of this name; it is imported. Raises KeyError for one that `FRAMEWORKS` lacks."""
    made: Framework = load_object(FRAMEWORKS[name])()
    return made


def framework_of(model: object) -> Framework:
    """The framework whose class `model` is, by the modules of its class and of its bases.

    Raises:
        TypeError: it is no model of a framework in `FRAMEWORKS`.
    """
    for cls in type(model).__mro__:
        root = cls.__module__.partition(".")[0]
        if root in FRAMEWORKS:
            return framework(root)
    known = ", ".join(FRAMEWORKS)
    raise TypeError(f"{type(model).__name__} is no model of a framework that parity can capture: {known}.")
