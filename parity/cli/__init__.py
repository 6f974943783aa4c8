"""The command line: parse, call, exit code. Everything but click is imported where it is used, so --help is quick."""

from __future__ import annotations

from parity.cli import (
    accept,
    capture,
    check,
    compare,
    diff,
    hunt,
    init,
    inspect,
    mcp,
    repro,
    run,
    store,
    stored,
    survey,
)
from parity.cli.group import main

__all__ = [
    "accept",
    "capture",
    "check",
    "compare",
    "diff",
    "hunt",
    "init",
    "inspect",
    "main",
    "mcp",
    "repro",
    "run",
    "store",
    "stored",
    "survey",
]
