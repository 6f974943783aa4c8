"""`parity.capture(model, folder)`: every layer of a model, as a dump."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional, Union

from parity.capture.frameworks import framework_of
from parity.capture.frameworks.base import Capture


def capture(model: Any, folder: Union[str, Path], *, gradients: bool = False, steps: Optional[int] = None) -> Capture:
    """Store the inputs, outputs and parameters of every layer of `model`, from here to `close()` or the process's end.

    Use it as a statement, or as a context manager. Tensors are written as each layer is called, so memory is bounded
    by the largest layer. Each process of a launcher writes to its own `rankN` of the folder.

    Args:
        model: a model of one of the frameworks in `FRAMEWORKS`.
        folder: the dump's; an earlier dump in it is replaced.
        gradients: also store the gradients of inputs, outputs and parameters.
        steps: the number of calls of the model to store (None: all).

    Raises:
        CaptureError: the folder cannot be used.
        TypeError: `model` is no model of these frameworks.
    """
    framework = framework_of(model)
    recording = Capture(folder, gradients=gradients, steps=steps)
    recording.begin(framework, model)
    return recording
