"""A user's script, run unchanged, with each outermost model that it calls captured; or an ONNX model, run once."""

from __future__ import annotations

import functools
import importlib.util
import runpy
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, Callable, Iterable, Optional

import numpy as np

from parity.capture.capturing import capture
from parity.capture.dump import CaptureError
from parity.capture.frameworks import FRAMEWORKS, framework
from parity.capture.frameworks.base import Capture, say

USAGE = 2
WATCHED = tuple(name for name in FRAMEWORKS if name != "onnxruntime")
"""Without ONNX Runtime, whose sessions have no layers to watch; `parity.capture(session, folder)` captures one."""


def run(script: str, out: str, gradients: bool, steps: Optional[int], inputs: Optional[str]) -> int:
    """Capture what `script` (a Python file, with `sys.argv` as it is, or an ONNX model on `inputs`) computes in `out`.

    Returns the exit code; that of a Python file is its own.
    """
    try:
        if script.endswith(".onnx"):
            run_onnx(script, out, str(inputs))
        else:
            run_script(script, Capture(out, gradients=gradients, steps=steps))
    except CaptureError as error:
        say(str(error))
        return USAGE
    return 0


def run_script(script: str, recording: Capture) -> None:
    """Run a Python file; every framework is watched from the end of its import."""
    with recording:
        sys.meta_path.insert(0, ImportHook(WATCHED, functools.partial(begin, recording)))
        runpy.run_path(script, run_name="__main__")
    index = recording.dump.index
    if not index["layers"]:
        say(f"{script} called no model of {', '.join(WATCHED)}: nothing is stored.")
    elif index["complete"]:
        say(f"{len(index['tensors'])} tensors of {len(index['layers'])} layers are in {recording.dump.folder}.")


def begin(recording: Capture, name: str) -> None:
    """Record a framework's models; if that fails, the script continues."""
    try:
        recording.begin(framework(name))
    except Exception as error:  # whatever an unknown release raises
        say(f"{name} cannot be captured: {error!r}")


class ImportHook(MetaPathFinder):
    """Calls a function with the name of each of some top-level modules, once it has been imported."""

    def __init__(self, names: Iterable[str], function: Callable[[str], None]) -> None:
        self.waiting = set(names)
        self.function = function

    def find_spec(self, fullname: str, *_: Any) -> Optional[ModuleSpec]:
        """The module's own spec, with a loader that calls the function."""
        if fullname not in self.waiting:
            return None
        self.waiting.remove(fullname)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_call(module: Any) -> None:
                execute(module)
                self.function(fullname)

            spec.loader.exec_module = execute_and_call  # type: ignore[method-assign]
        return spec


def run_onnx(model: str, out: str, inputs: str) -> None:
    """Run a model once on the arrays of an .npz file.

    Raises:
        CaptureError: a file cannot be read, or the model does not take these inputs.
    """
    try:
        import onnxruntime

        with np.load(inputs, allow_pickle=False) as file:
            feed = dict(file)
        session = onnxruntime.InferenceSession(Path(model).as_posix(), providers=["CPUExecutionProvider"])
        with capture(session, out):
            session.run(None, feed)
    except CaptureError:
        raise
    except Exception as error:  # onnxruntime's errors have no common class
        raise CaptureError(f"{model} with {inputs}: {error}") from error
