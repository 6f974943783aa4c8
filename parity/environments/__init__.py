"""Which interpreter runs a backend: find it, probe it, create it.

`resolve` takes the interpreter that the backend names; else this one, where the framework is importable; else a managed
environment, created by uv on first need. Nothing here knows cases or numbers, and nothing here prints: a `progress`
callback gets lines about long work, and failures are an `EnvironmentUnavailable` with a remedy.
"""

from __future__ import annotations

from parity.environments.interpreter import EnvironmentUnavailable, Interpreter, Progress, worker_environment
from parity.environments.resolution import create_environment, resolve
from parity.environments.store import ManagedEnvironment, list_environments, remove_environment

__all__ = [
    "EnvironmentUnavailable",
    "Interpreter",
    "ManagedEnvironment",
    "Progress",
    "create_environment",
    "list_environments",
    "remove_environment",
    "resolve",
    "worker_environment",
]
