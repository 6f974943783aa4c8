"""The order of the search: the interpreter that the backend names, this one, a managed environment."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from parity.environments import managed, store
from parity.environments.interpreter import EnvironmentUnavailable, Interpreter, Progress, silent
from parity.environments.pins import Pin, check_version, is_release, pin_of
from parity.environments.probe import (
    OLDEST_PYTHON,
    Contents,
    ProbeError,
    contents_of,
    host_contents,
    identify,
)

if TYPE_CHECKING:
    from parity.config.plan import BackendSpec


def resolve(spec: BackendSpec, *, provision: bool = True, progress: Progress = silent) -> Interpreter:
    """The interpreter that runs this backend; with `provision` a managed environment is made where it needs one."""
    pin = pin_of(spec.adapter)
    if pin.bare and spec.ops is not None:
        pin = replace(pin, modules=())
    check_version(spec.version)
    if spec.python is not None:
        return _named(spec.python.expanduser().absolute(), spec.version, pin)
    host = _host(spec.version, pin)
    return host or _managed(spec.adapter, spec.version, pin, provision, progress)


def create_environment(
    adapter: str, version: str | None = None, progress: Progress = silent
) -> store.ManagedEnvironment:
    """The managed environment of `adapter` in `version` (None: the pinned release), made if it is not there."""
    check_version(version)
    order = _order(adapter, version, pin_of(adapter))
    folder = managed.find_ready(order)
    if folder is None:
        folder = managed.create(order, progress)
    else:
        progress(f"environment {folder.name} is there")
    return store.describe(folder)


def _named(python: Path, version: str | None, pin: Pin) -> Interpreter:
    _check_named(python)
    try:
        found = contents_of(python, pin)
    except ProbeError as error:
        raise EnvironmentUnavailable(f"{python} cannot be asked what it has: {error}.") from None
    remedy = f"`{shlex.join([str(python), '-m', 'pip', 'install', *pin.requirements(version)])}`"
    if found.missing:
        raise EnvironmentUnavailable(
            f"{python} (Python {found.python_version}) has no {' and no '.join(found.missing)}: {remedy}."
        )
    if version is not None and not is_release(found.framework_version, version):
        has = found.framework_version or "of unknown version"
        raise EnvironmentUnavailable(
            f"{python} has {pin.distributions[0]} {has}, and {version} is asked for: {remedy}, or leave out `python:`."
        )
    return _interpreter(python, "named", found)


def _check_named(python: Path) -> None:
    """Say what is wrong with an interpreter in the words of the mistake that was made."""
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
            f"{python} does not run as a Python interpreter: {error}; correct `python:` or leave it out."
        ) from None
    if identity.version < OLDEST_PYTHON:
        raise EnvironmentUnavailable(
            f"{python} is Python {identity.version_text}, and a worker needs 3.8 or newer; name a newer one."
        )


def _host(version: str | None, pin: Pin) -> Interpreter | None:
    found = host_contents(pin)
    is_wanted = version is None or is_release(found.framework_version, version)
    return _interpreter(Path(sys.executable), "host", found) if is_wanted and not found.missing else None


def _interpreter(python: Path, kind: str, found: Contents) -> Interpreter:
    return Interpreter(
        python=python,
        kind=kind,
        python_version=found.python_version,
        numpy_version=found.numpy_version or "unknown",
        framework_version=found.framework_version,
    )


def _managed(adapter: str, version: str | None, pin: Pin, provision: bool, progress: Progress) -> Interpreter:
    order = _order(adapter, version, pin)
    folder = managed.find_ready(order)
    if folder is None and not provision:
        request = adapter if version is None else f"{adapter}=={version}"
        raise EnvironmentUnavailable(
            f"{pin.distributions[0]} {order.version} is not in this interpreter and has no environment yet:"
            f" `parity env create {request}`, or run without --no-provision."
        )
    return managed.interpreter_of(folder or managed.create(order, progress))


def _order(adapter: str, version: str | None, pin: Pin) -> managed.Order:
    wanted = version or pin.version
    if wanted is None:
        raise EnvironmentUnavailable(
            f"adapter {adapter} runs in parity's own interpreter and needs {' and '.join(pin.modules)} there;"
            " name a release to give it an environment of its own."
        )
    return managed.Order(adapter, wanted, pin)
