"""Chooses an interpreter: the one that the backend names, else this one, else a managed environment."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from parity.environments import managed, store
from parity.environments.interpreter import EnvironmentUnavailable, Interpreter, Progress, silent
from parity.environments.pins import Pin, is_release, pin_of
from parity.environments.probe import OLDEST_PYTHON, ProbeError, contents_of, host_contents, identify

if TYPE_CHECKING:
    from parity.config.plan import BackendSpec


def resolve(spec: BackendSpec, *, provision: bool = True, progress: Progress = silent) -> Interpreter:
    """The interpreter that runs this backend; `provision` allows creating a managed environment for it."""
    pin = pin_of(spec.adapter, spec.version)
    if pin.bare and spec.ops is not None:
        pin = replace(pin, modules=())
    if spec.python is not None:
        return _named(spec.python.expanduser().absolute(), spec.version, pin)
    host = _host(spec.version, pin)
    if host is not None:
        return host
    folder = managed.find_ready(_exact(pin))
    if folder is None and not provision:
        request = spec.adapter if spec.version is None else f"{spec.adapter}=={spec.version}"
        raise EnvironmentUnavailable(
            f"{pin.distributions[0]} {pin.version} is not installed here and has no environment yet:"
            f" run `parity env create {request}`, or leave out --no-provision."
        )
    return managed.interpreter_of(folder or managed.create(pin, progress))


def create_environment(
    adapter: str, version: str | None = None, progress: Progress = silent
) -> store.ManagedEnvironment:
    """The managed environment of `adapter` in `version` (None: the pinned release), created if it does not exist."""
    pin = _exact(pin_of(adapter, version))
    folder = managed.find_ready(pin)
    if folder is None:
        folder = managed.create(pin, progress)
    else:
        progress(f"environment {folder.name} already exists")
    return store.describe(folder)


def _named(python: Path, version: str | None, pin: Pin) -> Interpreter:
    _check_named(python)
    try:
        contents = contents_of(python, pin)
    except ProbeError as error:
        raise EnvironmentUnavailable(f"{python} cannot list its packages: {error}.") from None
    remedy = f"`{shlex.join([str(python), '-m', 'pip', 'install', *pin.requirements])}`"
    if contents.missing:
        raise EnvironmentUnavailable(
            f"{python} (Python {contents.python_version}) lacks {' and '.join(contents.missing)}: run {remedy}."
        )
    if version is not None and not is_release(contents.framework_version, version):
        has = contents.framework_version or "of unknown version"
        raise EnvironmentUnavailable(
            f"{python} has {pin.distributions[0]} {has}, but {version} is required:"
            f" run {remedy}, or leave out `python:`."
        )
    return contents.interpreter(python, "named")


def _check_named(python: Path) -> None:
    """Raise EnvironmentUnavailable with the mistake if `python` is not a usable interpreter."""
    if not python.exists():
        raise EnvironmentUnavailable(f"the interpreter {python} does not exist; correct `python:` or leave it out.")
    if python.is_dir():
        raise EnvironmentUnavailable(f"{python} is a folder; name the interpreter in it, such as bin/python.")
    if not os.access(python, os.X_OK):
        raise EnvironmentUnavailable(f"{python} is not executable; `python:` must name a Python interpreter.")
    try:
        identity = identify(python)
    except ProbeError as error:
        raise EnvironmentUnavailable(
            f"{python} is not a working Python interpreter: {error}; correct `python:` or leave it out."
        ) from None
    if identity.version < OLDEST_PYTHON:
        raise EnvironmentUnavailable(
            f"{python} is Python {identity.version_text}, but a worker needs 3.8 or newer; name a newer one."
        )


def _host(version: str | None, pin: Pin) -> Interpreter | None:
    contents = host_contents(pin)
    is_wanted = version is None or is_release(contents.framework_version, version)
    return contents.interpreter(Path(sys.executable), "host") if is_wanted and not contents.missing else None


def _exact(pin: Pin) -> Pin:
    """The pin, if it names a release; raises EnvironmentUnavailable otherwise."""
    if pin.version is None:
        raise EnvironmentUnavailable(
            f"adapter {pin.adapter} runs in parity's own interpreter and needs {' and '.join(pin.modules)} there;"
            " name a release to create an environment for it."
        )
    return pin
