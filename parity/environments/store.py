"""Manages the folder of environments: names, markers, locks, listing, and cleaning up after interruptions.

An environment is a folder `<adapter>-<version>-py<minor>` with a marker that is written last; a folder without one is
never used. Folders that are being created or removed have a name that starts with PARTIAL, and are never used.
"""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity.environments.interpreter import EnvironmentUnavailable, Progress, silent

MARKER = "parity-environment.json"
MARKER_FORMAT = 1
PARTIAL = ".partial-"


@dataclass(frozen=True)
class Marker:
    """The requirements and the detected versions of an environment; it is complete if it has a marker."""

    adapter: str
    version: str
    requirements: tuple[str, ...]
    python_version: str
    numpy_version: str
    framework_version: str | None
    size_bytes: int
    created: str
    format: int = MARKER_FORMAT


@dataclass(frozen=True)
class ManagedEnvironment:
    """One managed environment as `parity env list` shows it; `python` is a version, `created` an ISO time.

    An environment that is not `ready` (its marker or the Python that it links to is missing) is never used; it is
    created again on request.
    """

    name: str
    adapter: str
    version: str
    python: str
    path: Path
    size_bytes: int
    created: str
    ready: bool


def environments_folder() -> Path:
    """$PARITY_HOME/envs, else `envs` in the user's cache folder for parity."""
    home = os.environ.get("PARITY_HOME")
    if home:
        return Path(home).expanduser().absolute() / "envs"
    import platformdirs

    return Path(platformdirs.user_cache_dir("parity", appauthor=False)) / "envs"


def python_of(folder: Path) -> Path:
    """The interpreter of the environment in `folder`."""
    return folder / "Scripts" / "python.exe" if os.name == "nt" else folder / "bin" / "python"


def write_marker(folder: Path, marker: Marker) -> None:
    """Mark the environment in `folder` as complete."""
    (folder / MARKER).write_text(json.dumps(dataclasses.asdict(marker), indent=1) + "\n", encoding="utf-8")


def ready_marker(folder: Path) -> Marker | None:
    """The marker of a complete environment whose Python still exists (its link may point to a removed one)."""
    try:
        data: dict[str, Any] = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        marker = Marker(**(data | {"requirements": tuple(data["requirements"])}))
    except (OSError, ValueError, TypeError, KeyError):
        return None
    is_usable = marker.format == MARKER_FORMAT and os.access(python_of(folder), os.X_OK)
    return marker if is_usable else None


def list_environments() -> list[ManagedEnvironment]:
    """The managed environments by name, ready or not."""
    root = environments_folder()
    folders = sorted(root.iterdir()) if root.is_dir() else []
    return [describe(folder) for folder in folders if folder.is_dir() and not folder.name.startswith(".")]


def describe(folder: Path) -> ManagedEnvironment:
    """The environment in `folder`, ready or not."""
    marker = ready_marker(folder)
    if marker is None:
        named, _, minor = folder.name.rpartition("-py")
        adapter, _, version = named.partition("-")
        return ManagedEnvironment(folder.name, adapter, version, minor, folder, size_of(folder), "", ready=False)
    return ManagedEnvironment(
        name=folder.name,
        adapter=marker.adapter,
        version=marker.version,
        python=marker.python_version,
        path=folder,
        size_bytes=marker.size_bytes,
        created=marker.created,
        ready=True,
    )


def size_of(folder: Path) -> int:
    """The size of the files in `folder` in bytes (they may be hard links into uv's cache)."""
    return sum((Path(parent) / name).lstat().st_size for parent, _, names in os.walk(folder) for name in names)


def remove_environment(name: str) -> None:
    """Remove a managed environment, ready or not, and its leftovers of interruptions."""
    folder = environments_folder() / name
    if name not in [environment.name for environment in list_environments()]:
        known = ", ".join(environment.name for environment in list_environments()) or "none"
        raise EnvironmentUnavailable(f"there is no managed environment {name!r}; there are: {known}.")
    with locked(name):
        discard(folder)
        sweep(name)


def partial_folder(name: str) -> Path:
    """A new folder name for an environment that is being created or removed."""
    return environments_folder() / f"{PARTIAL}{name}.{secrets.token_hex(4)}"


def discard(folder: Path) -> None:
    """Remove an environment atomically: rename it first."""
    if folder.exists():
        trash = partial_folder(folder.name)
        folder.rename(trash)
        shutil.rmtree(trash, ignore_errors=True)


def sweep(name: str) -> None:
    """Remove leftovers of interruptions; the caller holds the lock of `name`, other locks are tried."""
    for leftover in environments_folder().glob(f"{PARTIAL}*"):
        owner = leftover.name.removeprefix(PARTIAL).rpartition(".")[0]
        if owner == name:
            shutil.rmtree(leftover, ignore_errors=True)
            continue
        with _lock_if_free(owner) as is_free:
            if is_free:
                shutil.rmtree(leftover, ignore_errors=True)


@contextmanager
def locked(name: str, progress: Progress = silent) -> Iterator[None]:
    """Hold the lock of the environment `name`; it is released when its process ends."""
    import filelock

    lock = filelock.FileLock(_lock_file(name))
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        progress(f"waiting for another process that is changing environment {name}")
        lock.acquire(poll_interval=0.2)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _lock_if_free(name: str) -> Iterator[bool]:
    import filelock

    try:
        with filelock.FileLock(_lock_file(name), timeout=0):
            yield True
    except filelock.Timeout:
        yield False


def _lock_file(name: str) -> Path:
    folder = environments_folder() / ".locks"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}.lock"
