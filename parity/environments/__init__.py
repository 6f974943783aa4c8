"""Finds, probes and creates the interpreter of a backend.

`resolve` takes the interpreter that the backend names, else this one if the framework is importable, else a managed
environment, which uv creates when it is first needed. This package prints nothing: a `progress` callback gets lines
about long work, and failures raise `EnvironmentUnavailable` with a remedy.
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
