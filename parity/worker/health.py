"""Checks that this interpreter still works after a user's code has run in it."""

from __future__ import annotations

import builtins
import faulthandler
import json
import os
import signal
import sys
import time
from os import _exit, getpid
from types import ModuleType
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from parity.adapters.base import Adapter
from parity.worker.arrays import read_array, to_arrays
from parity.worker.buffer import map_file

VALUES = np.array([1.0, -2.5, 3e-5], np.float32)
REQUEST = {"dtype": "float32", "max_elements": VALUES.size}
MODULES = (builtins, json, os, sys, time, np)
"""The modules that a reply needs; builtins come first, since checking the others needs them."""
MAX_NAMED = 3
TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
SIGNALS = tuple(
    getattr(signal, f"SIG{name}")
    for name in ("ALRM", "VTALRM", "PROF", "HUP", "INT", "TERM", "PIPE", "CHLD", "USR1", "USR2")
)
UNSETTABLE = ("__class__", "__dict__", "__weakref__")
"""Names in a class that cannot be set."""
SEARCHED = ("path", "meta_path", "path_hooks")
"""The lists in `sys` by which Python finds what is imported later."""


class InterpreterGuard:
    """Remembers the interpreter's state before a user's code ran, and checks it with a test tensor.

    A check takes 0.3 ms with NumPy and PyTorch.
    """

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self._pid = getpid()
        self._scratch = os.memfd_create("results")
        self._stored, self._results = (f"/proc/self/fd/{fd}" for fd in (os.memfd_create("stored"), self._scratch))
        with open(self._stored, "wb") as file:
            np.save(file, VALUES, allow_pickle=False)
        framework = getattr(adapter, "framework", None)
        self._modules = {module.__name__: vars(module) for module in (*MODULES, framework) if module is not None}
        self._classes = type(adapter.leaf(VALUES.copy(), adapter.differentiable)).__mro__
        self.remember()

    def remember(self) -> None:
        """Remember the current state as the intact one."""
        self._folder, self._recursion, self._settings = os.getcwd(), sys.getrecursionlimit(), self._adapter.settings()
        self._modes, self._environment = self._adapter.open_modes(), dict(os.environ)
        self._handlers = {number: signal.getsignal(number) for number in SIGNALS}
        self._searched = {name: list(getattr(sys, name)) for name in SEARCHED}
        packages = {name.partition(".")[0] for name in (*self._modules, "parity")}
        self._imported = {name: item for name, item in sys.modules.items() if name.partition(".")[0] in packages}
        self._known = {name: dict(now) for name, now in self._modules.items()}
        self._methods = {cls: dict(vars(cls)) for cls in self._classes}
        self._own = [(holder, name, code_of(holder)) for holder, name in own_holders(self._adapter)]

    def damage(self) -> str:
        """Why this process cannot continue, as the end of a sentence; empty if it can.

        Settings are restored, and so is what a reply needs. A child that the user's code has forked ends here.
        """
        self.end_twin()
        problem: Optional[BaseException] = None
        lost: Tuple[str, ...] = ()
        try:
            self._stop_timers()
            lost = self._lost_modules()
            self._restore()
            modes = [mode for mode in dict.fromkeys(self._adapter.open_modes()) if mode not in self._modes]
            if modes:
                return f"it leaves {listed(modes)} active"
            replaced = self._put_back_own()
            if replaced:
                return f"it replaces {listed(replaced)}"
            if self._is_sound() and not lost:
                return ""
        except BaseException as error:
            problem = error
        names = self._put_back()
        if lost:
            return (
                f"it removes {', '.join(lost[:MAX_NAMED])}{', ...' if len(lost) > MAX_NAMED else ''} from sys.modules"
            )
        if names:
            return f"it replaces {listed(names)}"
        return f"a tensor does not come through it unchanged{'' if problem is None else f' ({problem!r})'}"

    def end_twin(self) -> None:
        """End this process if it is a child that the user's code has forked: only the worker itself answers."""
        if getpid() != self._pid:
            _exit(1)

    def _stop_timers(self) -> None:
        """Stop what would interrupt the next op, and restore the handlers of signals."""
        for timer in TIMERS:
            signal.setitimer(timer, 0)
        faulthandler.cancel_dump_traceback_later()
        for number, handler in self._handlers.items():
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)

    def _lost_modules(self) -> Tuple[str, ...]:
        """The modules of parity, NumPy and the framework that are gone, or others; they are back afterwards."""
        lost = tuple(name for name, module in self._imported.items() if sys.modules.get(name) is not module)
        sys.modules.update({name: self._imported[name] for name in lost})
        return lost

    def _restore(self) -> None:
        """Restore settings of the interpreter and the framework; what is added to lists and environment stays."""
        for name, known in self._searched.items():
            now = getattr(sys, name)
            if any(entry not in now for entry in known):
                now[:] = known
        for name, value in self._environment.items():
            if os.environ.get(name) != value:
                os.environ[name] = value
        os.chdir(self._folder)
        sys.setrecursionlimit(self._recursion)
        self._adapter.restore(self._settings)

    def _is_sound(self) -> bool:
        """Whether a tensor is unchanged after it is read, passed to the framework, fetched and written."""
        tensor = self._adapter.leaf(read_array(self._stored, "float32"), self._adapter.differentiable)
        result = to_arrays(self._adapter, {"y": tensor}, REQUEST)["y"]
        os.truncate(self._results, 0)
        with map_file(self._results, VALUES.nbytes) as memory:
            np.ndarray(result.shape, result.dtype, memory)[...] = result
            same: bool = memory[: VALUES.nbytes] == VALUES.tobytes()
        parsed: Dict[str, Any] = json.loads(json.dumps({"y": [1.5]}))
        is_written = os.write(self._scratch, b"\n") == 1
        return same and is_written and parsed == {"y": [1.5]} and isinstance(time.perf_counter(), float)

    def _put_back_own(self) -> List[str]:
        """Restore the functions, classes and modules that parity's code uses; returns the names of those replaced."""
        names: List[str] = []
        for holder, prefix, known in self._own:
            now = vars(holder)
            names += [f"{prefix}.{name}" for name, value in known if now.get(name) is not value]
        if names:
            for holder, _, known in self._own:
                for name, value in known:
                    setattr(holder, name, value)
        return names

    def _put_back(self) -> List[str]:
        """Restore what was replaced in modules; returns the names of that, and of replaced methods of tensors."""
        names: List[str] = []
        for module, known in self._known.items():
            now = {**self._modules[module]}
            self._modules[module].update(known)
            names += [f"{module}.{n}" for n in known if now.get(n, self) is not known[n] and callable(known[n])]
        for cls, methods in self._methods.items():
            now = {**vars(cls)}
            names += [f"{cls.__name__}.{n}" for n in {**methods, **now} if now.get(n, self) is not methods.get(n, self)]
        return names


def own_holders(adapter: Adapter) -> List[Tuple[Any, str]]:
    """What holds parity's code, with its name: its modules, their classes, and the adapter."""
    modules = [item for name, item in sys.modules.items() if name.partition(".")[0] == "parity" and item is not None]
    held = [(item, module) for module in modules for item in vars(module).values() if isinstance(item, type)]
    classes = [(item, f"{m.__name__}.{item.__name__}") for item, m in held if item.__module__ == m.__name__]
    return [*((module, module.__name__) for module in modules), *classes, (adapter, type(adapter).__name__)]


def code_of(holder: Any) -> List[Tuple[str, Any]]:
    """The functions, descriptors, classes and modules in a module, a class or an object, by name."""
    kinds = (ModuleType, staticmethod, classmethod, property)
    return [(n, v) for n, v in vars(holder).items() if (callable(v) or isinstance(v, kinds)) and n not in UNSETTABLE]


def listed(names: Sequence[str]) -> str:
    """The first names: `numpy, json, sys, ...`."""
    return ", ".join([*names[:MAX_NAMED], *(["..."] if len(names) > MAX_NAMED else [])])
