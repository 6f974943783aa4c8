"""`parity.capture(model, folder)`: every layer of a model, as a dump."""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Dict, Mapping, Optional, Union

from parity.capture.dump import Dump
from parity.capture.frameworks import framework_of
from parity.capture.frameworks import recorder as recorders
from parity.capture.frameworks.base import Framework
from parity.capture.frameworks.calls import Call

RANKS = (("RANK", "WORLD_SIZE"), ("PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM"))
"""Environment variables of launchers: this process's rank, and how many there are."""


def capture(model: Any, folder: Union[str, Path], *, gradients: bool = False, steps: Optional[int] = None) -> "Capture":
    """Store the inputs, outputs and parameters of every layer of `model`, from here to `close()` or the process's end.

    Use it as a statement, or as a context manager. Tensors are written as each layer is called, so memory is bounded
    by the largest layer. Each process of a launcher writes to its own `rankN` of the folder.

    Args:
        model: a model of torch, Paddle or OneFlow.
        folder: of the dump; an earlier dump in it is replaced.
        gradients: also those of inputs, outputs and parameters, in the backward passes.
        steps: only so many calls of the model (None: all).

    Raises:
        CaptureError: the folder cannot be used.
        TypeError: this is no model of a framework that parity knows.
    """
    framework = framework_of(model)
    taken = Capture(folder, gradients=gradients, steps=steps)
    taken.begin(framework, model)
    return taken


class Capture:
    """A dump that is being made: of one model, or of each that is called."""

    def __init__(self, folder: Union[str, Path], *, gradients: bool = False, steps: Optional[int] = None) -> None:
        self.gradients = gradients
        self.steps = steps
        self.dump = Dump(Path(folder) / rank_folder(os.environ))
        self.stack = ExitStack()
        self.open = True
        atexit.register(self.close)

    def begin(self, framework: Framework, model: Any = None) -> None:
        """Record a model of a framework, or each outermost one that is called."""
        recorder = ModelRecorder(self, framework, model)
        recorders.start(recorder)
        self.stack.callback(recorders.stop, recorder)

    def sink(self, call: Call, role: str, where: str, array: Any) -> None:
        """Store a tensor of a call."""
        self.guarded(lambda: self.dump.record(call, role, where, array))

    def store_model(self, framework: Framework, model: Any, prefix: str) -> None:
        """Store what a model consists of, and its parameters as they are before its first call."""
        layers = [replace(layer, name=joined(prefix, layer.name)) for layer in framework.layers(model)]
        self.guarded(lambda: self.dump.add_layers(framework.name, framework.version(), layers))
        for name, layer in framework.named_layers(model):
            if framework.is_compiled(layer):
                say(f"{joined(prefix, name) or 'the model'} is compiled: values within compiled code are not stored.")
        for name, tensor in framework.named_parameters(model):
            self.store(joined(prefix, name), framework.to_numpy(tensor), "parameters")
            if self.gradients and framework.has_history(tensor):
                framework.on_gradient(tensor, self.gradient_sink(framework, joined(prefix, name)))
        for name, tensor in framework.named_buffers(model):
            self.store(joined(prefix, name), framework.to_numpy(tensor), "buffers")

    def store(self, name: str, array: Any, group: Optional[str] = None) -> None:
        """Store a tensor that belongs to no call."""
        self.guarded(lambda: self.dump.add(name, array, group))

    def gradient_sink(self, framework: Framework, name: str) -> Callable[[Any], None]:
        """What stores the gradients of a parameter."""

        def store(gradient: Any) -> None:
            if self.open:
                self.store(f"{name}.grad", framework.to_numpy(gradient))

        return store

    def guarded(self, write: Callable[[], None]) -> None:
        """Write; the user's program goes on without a dump if the disk is full."""
        if not self.open:
            return
        try:
            write()
        except OSError as error:
            self.open = False
            say(f"{self.dump.folder} is incomplete: {error.strerror or error}.")

    def close(self) -> None:
        """End the recording and write the rest of the index."""
        atexit.unregister(self.close)
        self.stack.close()
        if self.open:
            self.guarded(self.dump.close)
            self.open = False

    def __enter__(self) -> "Capture":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ModelRecorder(recorders.Recorder):
    """Records the first calls of one model, or (None) of each outermost one, under the name of its class."""

    def __init__(self, capture: Capture, framework: Framework, model: Any) -> None:
        super().__init__(framework, {}, capture.sink, gradients=capture.gradients)
        self.capture = capture
        self.model = model
        self.stored: Dict[str, Any] = {}
        if model is not None:
            self.add(model, "")

    def add(self, model: Any, prefix: str) -> None:
        """Know the layers of a model; one that is known already keeps its name."""
        for name, layer in self.framework.named_layers(model):
            self.layers.setdefault(id(layer), (joined(prefix, name), layer))

    def call(self, layer: Any, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Record an outermost call unless it is one too many."""
        if self.depth or not self.active or not self.is_known(layer):
            return super().call(layer, run, *args, **kwargs)
        name, _ = self.layers[id(layer)]
        if self.capture.steps is None or self.counts.get(name, 0) < self.capture.steps:
            return super().call(layer, run, *args, **kwargs)
        self.active = False
        try:
            return run(*args, **kwargs)
        finally:
            self.active = True

    def is_known(self, layer: Any) -> bool:
        """Whether an outermost layer is to be recorded; its model is stored before its first call."""
        if self.model is None and id(layer) not in self.layers:
            kind, number = type(layer).__name__, sum(kind == type(layer).__name__ for kind in self.stored.values())
            prefix = f"{kind}{number + 1}" if number else kind
            self.add(layer, prefix)
            self.stored[prefix] = kind
            self.capture.store_model(self.framework, layer, prefix)
        if id(layer) in self.layers and not self.stored:
            self.stored[""] = type(self.model).__name__
            self.capture.store_model(self.framework, self.model, "")
        return id(layer) in self.layers


def joined(prefix: str, name: str) -> str:
    """A dotted name."""
    return f"{prefix}.{name}" if prefix and name else prefix or name


def rank_folder(environment: Mapping[str, str]) -> str:
    """The folder of this rank, "" where there is only one."""
    for rank, ranks in RANKS:
        if environment.get(ranks, "1") != "1" and environment.get(rank, "").isdigit():
            return f"rank{environment[rank]}"
    return ""


def say(message: str) -> None:
    """A line on stderr."""
    sys.stderr.write(f"parity.capture: {message}\n")
