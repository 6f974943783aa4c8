"""The base of all frameworks, and the recording that they pass their layers and calls to.

Runs in the framework's own interpreter, on Python 3.8 and later, with the standard library and NumPy.
"""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, ClassVar, Iterator, List, Mapping, Optional, Tuple, Union

from parity.capture.calls import Call, CapturedLayer, joined
from parity.capture.dump import DumpWriter

RANKS = (("RANK", "WORLD_SIZE"), ("PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM"))
"""Environment variables of launchers: this process's rank, and how many there are."""


class Framework:
    """What `parity.capture` needs of a framework. A subclass imports its framework in its constructor."""

    name: ClassVar[str]
    framework: Any

    def version(self) -> str:
        """The framework's version."""
        return str(self.framework.__version__)

    def attach(self, capture: Capture, model: Any) -> Callable[[], None]:
        """Record the calls of a model, or (None) of each outermost one; returns a function that stops the recording."""
        raise NotImplementedError

    def layers(self, model: Any) -> List[CapturedLayer]:
        """All layers in definition order, the model itself first, as ""."""
        raise NotImplementedError

    def named_parameters(self, model: Any) -> Iterator[Tuple[str, Any]]:
        """Every parameter once, with its first name, as the framework's tensors."""
        raise NotImplementedError

    def named_buffers(self, model: Any) -> Iterator[Tuple[str, Any]]:  # noqa: ARG002 - where there are none
        """Every buffer once, with its first name, as the framework's tensors."""
        return iter(())

    def to_numpy(self, tensor: Any) -> Any:
        """A copy of a tensor's values."""
        raise NotImplementedError

    def pass_values(self, tensor: Any, function: Callable[[Any], None]) -> None:
        """Pass a tensor's values to `function`, now or when they are computed."""
        function(self.to_numpy(tensor))

    def compiled(self, model: Any) -> List[str]:  # noqa: ARG002 - a framework that compiles otherwise
        """The names of compiled layers, within which nothing is recorded."""
        return []

    def has_history(self, tensor: Any) -> bool:  # noqa: ARG002 - where gradients have no tape
        """Whether a gradient can flow through a tensor, and `watched` can record it."""
        return False

    def watched(self, tensor: Any, function: Callable[[Any], None]) -> Any:
        """The tensor to use from now on; its gradient is passed to `function` in each backward pass."""
        tensor.register_hook(function)
        return tensor


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

    def __enter__(self) -> Capture:
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
