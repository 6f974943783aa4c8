"""The command line: parse, call, exit code. Everything but click is imported where it is used, so --help is quick."""

from __future__ import annotations

from parity.cli import accept, capture, compare, diff, hunt, init, inspect, repro, run, store, stored, survey
from parity.cli.group import main

__all__ = [
    "accept",
    "capture",
    "compare",
    "diff",
    "hunt",
    "init",
    "inspect",
    "main",
    "repro",
    "run",
    "store",
    "stored",
    "survey",
]
