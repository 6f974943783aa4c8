"""`parity.capture(model, folder)`: every layer of a model, as a dump."""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, List, Mapping, Optional, Union

from parity.capture.dump import DumpWriter
from parity.capture.frameworks import framework_of
from parity.capture.frameworks.base import Framework
from parity.capture.frameworks.calls import Call, CapturedLayer, joined

RANKS = (("RANK", "WORLD_SIZE"), ("PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM"))
"""Environment variables of launchers: this process's rank, and how many there are."""


def capture(model: Any, folder: Union[str, Path], *, gradients: bool = False, steps: Optional[int] = None) -> "Capture":
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


class Capture:
    """A recording into a dump: of one model, or of each that is called.

    `is_step`: the current outermost call is one of the first `steps`, so it and its gradients are stored.
    """

    def __init__(self, folder: Union[str, Path], *, gradients: bool = False, steps: Optional[int] = None) -> None:
        self.gradients = gradients
        self.steps = steps
        self.dump = DumpWriter(Path(folder) / rank_folder(os.environ))
        self.stack = ExitStack()
        self.open = True
        self.process = os.getpid()
        self.is_step = True
        atexit.register(self.close)

    def begin(self, framework: Framework, model: Any = None) -> None:
        """Record a framework's model, or (None) each outermost one that is called."""
        self.stack.callback(framework.attach(self, model))

    def sink(self, call: Call, role: str, where: str, array: Any) -> None:
        """Store a tensor of a call."""
        self.guarded(lambda: self.dump.record(call, role, where, array))

    def store_model(self, framework: Framework, model: Any, prefix: str) -> None:
        """Store a model's layers, and its parameters and buffers before its first call."""
        self.add_layers(framework, [replace(it, name=joined(prefix, it.name)) for it in framework.layers(model)])
        for name in framework.compiled(model):
            say(f"{joined(prefix, name) or 'the model'} is compiled: values within compiled code are not stored.")
        for name, tensor in framework.named_parameters(model):
            self.store(framework, joined(prefix, name), tensor, "parameters")
            if self.gradients and framework.has_history(tensor):
                framework.watched(tensor, self.gradient_sink(framework, joined(prefix, name)))
        for name, tensor in framework.named_buffers(model):
            self.store(framework, joined(prefix, name), tensor, "buffers")

    def add_layers(self, framework: Framework, layers: List[CapturedLayer]) -> None:
        """Add layers and their framework to the index."""
        self.guarded(lambda: self.dump.add_layers(framework.name, framework.version(), layers))

    def store(self, framework: Framework, name: str, tensor: Any, group: Optional[str] = None) -> None:
        """Store a tensor that belongs to no call."""
        self.pass_values(framework, tensor, name, lambda array: self.guarded(lambda: self.dump.add(name, array, group)))

    def pass_values(self, framework: Framework, tensor: Any, name: str, function: Callable[[Any], None]) -> None:
        """Pass a tensor's values to `function`; a tensor without values (on a meta device, in vmap) is left out."""
        try:
            framework.pass_values(tensor, function)
        except Exception as error:  # whatever a framework raises for a tensor without values
            self.dump.index["left_out"][name] = f"{type(error).__name__}: {error}"[:200]

    def gradient_sink(self, framework: Framework, name: str) -> Callable[[Any], None]:
        """A function that stores the gradients of a parameter."""

        def store(gradient: Any) -> None:
            if self.open and self.is_step:
                self.store(framework, f"{name}.grad", gradient)

        return store

    def guarded(self, write: Callable[[], None]) -> None:
        """Write; if the disk is full, the user's program continues and the dump stays incomplete."""
        if not self.open or os.getpid() != self.process:  # a fork has the file, too
            return
        try:
            write()
        except OSError as error:
            self.open = False
            with suppress(OSError):
                self.dump.close(complete=False)
            say(f"{self.dump.folder} is incomplete: {error.strerror or error}.")

    def close(self) -> None:
        """End the recording and write the rest of the index."""
        atexit.unregister(self.close)
        self.stack.close()
        self.guarded(self.dump.close)
        self.open = False

    def __enter__(self) -> "Capture":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def rank_folder(environment: Mapping[str, str]) -> str:
    """The folder of this rank, "" where there is only one."""
    for rank, ranks in RANKS:
        if environment.get(ranks, "1") != "1" and environment.get(rank, "").isdigit():
            return f"rank{environment[rank]}"
    return ""


def say(message: str) -> None:
    """A line on stderr."""
    sys.stderr.write(f"parity.capture: {message}\n")
