"""Managed environments: an existing one, or a new one that uv creates under a temporary name and then renames."""

from __future__ import annotations

import datetime
import os
import shutil
import time
from pathlib import Path

from parity.environments import installer, store
from parity.environments.discover import find_python
from parity.environments.interpreter import EnvironmentUnavailable, Interpreter, Progress, isolated_environment
from parity.environments.pins import Pin
from parity.environments.probe import Contents, ProbeError, contents_of

_NO_PYTHON = "Install that Python, or name an interpreter with `python:`."
_NO_NETWORK = "Check the network, or set PIP_INDEX_URL or PIP_FIND_LINKS to a reachable mirror."
# Messages of uv (0.13) in lower case, and their remedies; the first match counts.
REMEDIES = (
    ("no interpreter found", _NO_PYTHON),
    ("cpython-3.", _NO_PYTHON),  # the name of the file when the download of a Python fails
    ("no space left", "Free some disk space, or set PARITY_HOME to a folder on a larger disk."),
    ("permission denied", "Set PARITY_HOME to a folder that you may write to."),
    ("`--find-links`", "Correct UV_FIND_LINKS or PIP_FIND_LINKS."),
    ("error sending request", _NO_NETWORK),
    ("failed to fetch", _NO_NETWORK),
    ("failed to download", _NO_NETWORK),
    ("network was disabled", _NO_NETWORK),
    ("not found in the provided package locations", _NO_NETWORK),
    ("no solution found", "Ask for a release that exists for this platform, or name an interpreter with `python:`."),
    ("does not load", "Ask for another release, or name an interpreter with `python:`."),
)
_OTHERWISE = "Try again, or name an interpreter with `python:`."
_STEPS = ("Resolved", "Prepared", "Installed", "Downloading", "Building")


def find_ready(pin: Pin) -> Path | None:
    """The folder of an environment that is ready to use; needs no network, uv or process."""
    folders = [store.environments_folder() / pin.environment_name(minor) for minor in pin.pythons]
    return next((folder for folder in folders if _fulfils(folder, pin)), None)


def create(pin: Pin, progress: Progress) -> Path:
    """Create the environment unless it exists or another process creates it first; returns its folder."""
    minor, python = _choose_python(pin)
    name = pin.environment_name(minor)
    folder = store.environments_folder() / name
    try:
        with store.locked(name, progress):
            if not _fulfils(folder, pin):
                store.sweep(name)
                _build(pin, folder, python, progress)
    except OSError as error:
        raise EnvironmentUnavailable(
            f"environment {name} cannot be written ({error}). Set PARITY_HOME to a folder that you may write to."
        ) from error
    return folder


def interpreter_of(folder: Path) -> Interpreter:
    """The interpreter of a ready environment; its packages were recorded when it was created."""
    marker = store.ready_marker(folder)
    if marker is None:
        raise EnvironmentUnavailable(f"environment {folder.name} has just been removed; run again.")
    return Interpreter(
        python=store.python_of(folder),
        kind="managed",
        python_version=marker.python_version,
        numpy_version=marker.numpy_version,
        framework_version=marker.framework_version,
    )


def _fulfils(folder: Path, pin: Pin) -> bool:
    """Whether a ready environment has these requirements; another release of parity may have had other pins."""
    marker = store.ready_marker(folder)
    return marker is not None and marker.requirements == pin.requirements


def _choose_python(pin: Pin) -> tuple[str, str]:
    """A minor release and uv's argument for it: the path of an installed one, else a release to download."""
    here = find_python(pin.pythons)
    return (here[0], str(here[1])) if here else (pin.pythons[0], pin.pythons[0])


def _build(pin: Pin, folder: Path, python: str, progress: Progress) -> None:
    progress(f"creating environment {folder.name} ({pin.size}, once)")
    started = time.monotonic()
    partial = store.partial_folder(folder.name)
    log = _fresh_log(folder.name)
    try:
        _install(pin, partial, python, log, progress)
        store.write_marker(partial, _marker(pin, partial, log))
        store.discard(folder)
        partial.rename(folder)
    except (installer.UvError, ProbeError) as error:
        raise EnvironmentUnavailable(_failure(folder.name, str(error), log)) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    progress(f"created environment {folder.name} in {time.monotonic() - started:.0f} s")


def _install(pin: Pin, partial: Path, python: str, log: Path, progress: Progress) -> None:
    def relay(line: str) -> None:
        if line.startswith(_STEPS):
            progress(f"  {line}")

    installer.run_uv(["venv", "--relocatable", "--no-project", "--python", python, partial], log, relay)
    settings = installer.pip_arguments(os.environ)
    target = str(store.python_of(partial))
    installer.run_uv(["pip", "install", "--python", target, *settings, *pin.requirements], log, relay)


def _marker(pin: Pin, partial: Path, log: Path) -> store.Marker:
    contents = _loaded(pin, partial, log)
    return store.Marker(
        adapter=pin.adapter,
        version=str(pin.version),
        requirements=pin.requirements,
        python_version=contents.python_version,
        numpy_version=contents.numpy_version,
        framework_version=contents.framework_version,
        size_bytes=store.size_of(partial),
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )


def _loaded(pin: Pin, partial: Path, log: Path) -> Contents:
    """Import the framework; raises ProbeError if it does not load."""
    try:
        contents = contents_of(store.python_of(partial), pin, isolated_environment(os.environ), importing=True)
        if contents.missing:
            raise ProbeError(f"it lacks {', '.join(contents.missing)}")
    except ProbeError as error:
        with log.open("a", encoding="utf-8") as sink:
            sink.write(f"{error}\n{error.output}")
        raise ProbeError(f"{pin.requirements[0]} is installed but does not load: {error}") from error
    return contents


def _fresh_log(name: str) -> Path:
    folder = store.environments_folder() / ".logs"
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{name}.log"
    log.unlink(missing_ok=True)
    return log


def _failure(name: str, reason: str, log: Path) -> str:
    lowered = reason.lower()
    remedy = next((remedy for sign, remedy in REMEDIES if sign in lowered), _OTHERWISE)
    return f"environment {name} could not be created: {reason.rstrip('.')}. {remedy} The full log is {log}"
