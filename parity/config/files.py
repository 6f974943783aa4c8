"""Paths in a config: relative to the file that names them."""

from __future__ import annotations

from pathlib import Path

from parity.config.nodes import Node, Problems


def beside(node: Node) -> Path:
    """The path that a node's text names. Symlinks are kept, since a venv's python is one."""
    return Path(node.file).parent / Path(node.text).expanduser()


def existing_file(node: Node, report: Problems, what: str) -> Path | None:
    """The file that a node names; None and a report if there is none."""
    if not isinstance(node.value, str) or not node.value:
        report.add(node, f"{what} must be a path")
        return None
    try:
        path = beside(node)
        is_file, exists = path.is_file(), path.exists()
    except (OSError, RuntimeError):  # a name too long, an unreadable folder, ~nobody
        report.add(node, f"{what} is not a usable path")
        return None
    if is_file:
        return path
    state = "this is not a file" if exists else "no such file"
    report.add(node, f"{state}: {path} (a path is relative to the config that names it)")
    return None
