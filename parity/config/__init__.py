"""YAML to a frozen, validated Plan, or to one error that lists every problem.

The modules that need pydantic and PyYAML load when a config is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from parity.config.errors import ConfigError, Problem
from parity.config.plan import BackendSpec, Overrides, Plan

__all__ = ["ConfigError", "Overrides", "Plan", "Problem", "json_schema", "load_backends", "load_plan"]


def load_plan(paths: Sequence[Path], overrides: Overrides | None = None) -> Plan:
    """The plan that the config files and the command line ask for; raises ConfigError with every problem."""
    from parity.config.loader import load_plan

    return load_plan(paths, overrides or Overrides())


def load_backends(texts: Sequence[str], config: Path | None = None) -> tuple[BackendSpec, ...]:
    """The backends that `-b` options name, by themselves or in a config; raises ConfigError with every problem."""
    from parity.config.backend_options import load_backends

    return load_backends(texts, config)


def json_schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of a config file."""
    from parity.config.schema import json_schema

    return json_schema()
