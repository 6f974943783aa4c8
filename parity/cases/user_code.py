"""Runs code of a user in this process: for a limited time, with its output on stderr, and so that it ends nothing else.

Whatever it raises is an error of its file; only a signal, such as Ctrl-C, still ends the command.
"""

from __future__ import annotations

import builtins
import faulthandler
import fcntl
import json
import math
import operator
import os
import re
import resource
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from parity.cases.user_settings import same_settings

LIMIT_S = 30.0
"""A reference that takes longer hangs: it computes on small tensors, or on stand-ins."""
AGAIN_S = 5.0
"""After so much more time it is told again: code may have caught the first error."""
GRACE_S = 90.0
"""After so much more time, the process ends with the line that runs: code in C does not let Python raise an error. A
large product may take longer than LIMIT_S in one call, and ends."""
GUARDED = (builtins, json, math, np, operator, os, threading, time)
"""Modules of which a file may not replace anything: parity uses them in the same process."""
HOOKS = ("displayhook", "excepthook", "stderr", "stdin", "stdout", "unraisablehook")
"""What may be set in `sys`."""
LIMITS = tuple(sorted({number for name, number in vars(resource).items() if name.startswith("RLIMIT_")}))
"""The limits of a process's resources."""
SPARE = 64
"""So many files a run may have to open at once after a user's code."""
INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals whose handlers raise KeyboardInterrupt."""


class BroughtError(ValueError):
    """A user's reference cannot be used; the message has its file and line."""


@contextmanager
def user_code(path: Path) -> Iterator[None]:
    """Inside, code of the user's file runs: as `contained` says, and for LIMIT_S at most."""
    with contained(path), limited():
        yield


@contextmanager
def contained(path: Path) -> Iterator[None]:
    """Inside, code of the user's file may run. Raises BroughtError for what is no Exception, such as SystemExit."""
    process = os.getpid()
    with (
        files_left(path), same_limits(), same_folder(), on_stderr(), same_settings(alone=is_interruptible()), marked(),
        warned_once(), neighbours(path.parent), noted_interrupts() as interrupts, unending(), same_interpreter(),
    ):  # fmt: skip
        try:
            yield
        except Exception:
            raise
        except BaseException as error:
            if interrupts:
                raise
            raise BroughtError(placed(error, path)) from error
        finally:
            if os.getpid() != process:  # The code has forked; this is the child.
                os._exit(0)


def is_interruptible() -> bool:
    """Whether this thread gets the signals, and shares its streams with no other one that runs a user's code."""
    return threading.current_thread() is threading.main_thread()


@contextmanager
def limited() -> Iterator[None]:
    """Raise TimeoutError in the user's code after `LIMIT_S`; only the main thread can be interrupted this way."""
    if not is_interruptible() or signal.getitimer(signal.ITIMER_REAL)[0]:
        yield
        return

    def interrupt(*_: Any) -> None:
        raise TimeoutError(f"no result after {LIMIT_S:g} s")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S, AGAIN_S)
    process = os.getpid()
    faulthandler.dump_traceback_later(LIMIT_S + GRACE_S, file=2, exit=True)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        if os.getpid() == process:  # A child has no thread that could be cancelled, and would wait for it.
            faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)


MARK = "PARITY_REFERENCE"
"""The name of a cookie in the environment of what a user's code starts."""
MARKS: list[str] = []
"""The cookie of this process, once it has run a user's code."""
THREADS: list[threading.Thread] = []
"""The threads that a user's code has started and that the end of the interpreter would wait for."""


@contextmanager
def marked() -> Iterator[None]:
    """Processes that the code starts have a cookie in their environment, by which they are found at the end; its
    threads are in THREADS."""
    if not is_interruptible():
        yield
        return
    if not MARKS:
        MARKS.append(uuid4().hex)
    before, os.environ[MARK] = os.environ.get(MARK), MARKS[0]
    running = threading.enumerate()
    try:
        yield
    finally:
        THREADS.extend(t for t in threading.enumerate() if t not in running and not t.daemon)
        if before is None:
            os.environ.pop(MARK, None)
        else:
            os.environ[MARK] = before


ENDING = ("_exit", "abort", "execv", "execve")
"""Functions of `os` that end a process, or replace its program, without a word to anybody."""


@contextmanager
def unending() -> Iterator[None]:
    """Functions that would end this process raise SystemExit instead; those of its children end them."""
    process, before = os.getpid(), {name: getattr(os, name) for name in ENDING}

    def ended(name: str, *given: Any) -> Any:
        if os.getpid() != process:
            return before[name](*given)
        raise SystemExit(f"os.{name} would end parity, too")

    for name in ENDING:
        setattr(os, name, partial(ended, name))
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(os, name, function)


@contextmanager
def noted_interrupts() -> Iterator[list[int]]:
    """The signals that come while the code runs, besides what their handlers do."""
    came: list[int] = []

    def noting(handler: Callable[..., Any]) -> Callable[..., Any]:
        def note(number: int, frame: Any) -> Any:
            came.append(number)
            return handler(number, frame)

        return note

    handlers = {number: signal.getsignal(number) for number in INTERRUPTS} if is_interruptible() else {}
    noted = {number: noting(handler) for number, handler in handlers.items() if callable(handler)}
    for number, note in noted.items():
        signal.signal(number, note)
    try:
        yield came
    finally:
        # A handler that was called may have replaced itself, so that a second signal interrupts no end.
        for number in () if came else noted:
            signal.signal(number, handlers[number])


@contextmanager
def same_interpreter() -> Iterator[None]:
    """Whatever the code sets, hooks, the recursion limit, modules, and what those of GUARDED define, are as before."""
    hooks = {name: getattr(sys, name) for name in HOOKS}
    limit, profile = sys.getrecursionlimit(), threading.getprofile()
    modules, defined = dict(sys.modules), [(module, dict(vars(module))) for module in GUARDED]
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)
        threading.setprofile(profile)
        sys.modules.update({name: module for name, module in modules.items() if sys.modules.get(name) is not module})
        for module, names in [*defined, (sys, hooks)]:
            vars(module).update({n: value for n, value in names.items() if vars(module).get(n, sys) is not value})


@contextmanager
def files_left(path: Path) -> Iterator[None]:
    """Raise BroughtError if the code leaves so many files open that others cannot be opened."""
    try:
        yield
    finally:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if limit != resource.RLIM_INFINITY and not is_free_above(max(limit - SPARE, 0)):
            raise BroughtError(f"{path.name} leaves too many files open: a process may have {limit}")


def is_free_above(number: int) -> bool:
    """Whether most descriptors from this number on, up to the limit, can be opened."""
    try:
        with Path(os.devnull).open("rb") as file:
            copy = fcntl.fcntl(file, fcntl.F_DUPFD, number)
    except (OSError, ValueError):
        return False
    os.close(copy)
    return copy < number + SPARE // 2


@contextmanager
def same_limits() -> Iterator[None]:
    """Whatever limits of resources the code sets, those before are back, unless the system refuses."""
    before = {number: resource.getrlimit(number) for number in LIMITS}
    try:
        yield
    finally:
        for number, limits in before.items():
            if resource.getrlimit(number) != limits:
                with suppress(OSError, ValueError):
                    resource.setrlimit(number, limits)


@contextmanager
def same_folder() -> Iterator[None]:
    """Whatever working directory the code leaves, the one before is back."""
    before = Path()
    with suppress(OSError):
        before = Path.cwd()
    try:
        yield
    finally:
        with suppress(OSError):
            os.chdir(before)


@contextmanager
def neighbours(folder: Path) -> Iterator[None]:
    """The code can import files of its folder, which come last, as those of a kernel do: one named like a module
    of the standard library must not take its place in parity. Another folder's of the same name are others."""
    if not is_interruptible():
        yield
        return
    before, entry = set(sys.modules), str(folder)
    sys.path.append(entry)
    try:
        yield
    finally:
        if sys.path[-1:] == [entry]:
            sys.path.pop()
        for name in [name for name in sys.modules if name not in before]:
            file = getattr(sys.modules[name], "__file__", None)
            if file is not None and folder in Path(file).parents and "site-packages" not in file:
                del sys.modules[name]


@contextmanager
def on_stderr() -> Iterator[None]:
    """What the code prints to stdout, or writes to its descriptor, goes to stderr."""
    if not is_interruptible():
        yield
        return
    with redirect_stdout(sys.stderr), moved_descriptor(1, 2):
        yield


WARNED: set[tuple[str, type[Warning], str, int]] = set()
"""The warnings that code of users has shown in this process: text, category, file and line."""


@contextmanager
def warned_once() -> Iterator[None]:
    """A warning of the code is shown once for each place, however often the code runs."""
    before = warnings.showwarning
    if not is_interruptible() or getattr(before, "func", None) is show_once:
        yield
        return
    warnings.showwarning = partial(show_once, before)
    try:
        yield
    finally:
        warnings.showwarning = before


def show_once(show: Callable[..., None], text: Any, category: type[Warning], file: str, line: int, *rest: Any) -> None:
    """Show a warning unless one of the same text was shown for this place."""
    shown = str(text), category, file, line
    if shown not in WARNED:
        WARNED.add(shown)
        show(text, category, file, line, *rest)


@contextmanager
def moved_descriptor(number: int, target: int) -> Iterator[None]:
    """A descriptor is a copy of another one; nothing changes if one of them is closed."""
    flushed()
    try:
        kept = os.dup(number)
        os.dup2(target, number)
    except OSError:
        yield
        return
    try:
        yield
    finally:
        flushed()
        os.dup2(kept, number)
        os.close(kept)


def flushed() -> None:
    """Write what the interpreter's stdout has buffered."""
    for stream in {sys.stdout, sys.__stdout__}:
        with suppress(AttributeError, OSError, ValueError):
            stream.flush()  # type: ignore[union-attr]


def placed(error: BaseException, path: Path) -> str:
    """`my_reference.py:12: ValueError: ...`, the last line of the file that an error passed through."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    if isinstance(error, SyntaxError) and error.filename == str(path):
        lines = [error.lineno or 1]
    text = str(error) if isinstance(error, BroughtError) else described(error)
    return f"{path.name}:{lines[-1] if lines else 1}: {text}{shadow(error, path.parent)}"


ELSEWHERE = re.compile(r"cannot import name .* from '(\w+)'|module '(\w+)' has no attribute")


def shadow(error: BaseException, folder: Path) -> str:
    """If an import found another module than the file of its name in the folder: how to have that file; else empty."""
    match = ELSEWHERE.search(described(error)) if isinstance(error, (ImportError, AttributeError)) else None
    name = match and (match[1] or match[2])
    if not name or not (folder / f"{name}.py").exists():
        return ""
    given = getattr(sys.modules.get(name), "__file__", None)
    if given is not None and Path(given).parent == folder:
        return ""
    return f"; this is another module than the {name}.py beside it, and comes first: give that file another name"


def described(error: BaseException) -> str:
    """`ValueError: ...`, whatever the error's own `__str__` does."""
    try:
        text = str(error)
    except BaseException:  # It is the user's code, too.
        text = ""
    return f"{type(error).__name__}: {text or 'no message'}"
