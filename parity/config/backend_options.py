"""Backends as a command names them: `-b torch==2.4.1`, `-b mine=torch:./my_ops.py`, or those of a config."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from parity.config.backends import ADAPTERS, SHORT, parse_backends
from parity.config.documents import read_document
from parity.config.errors import COMMAND_LINE, ConfigError
from parity.config.nodes import Node, Problems
from parity.config.plan import BackendSpec

WITH_OPS = re.compile(r"(?P<name>[^=]+)=(?P<adapter>[^=:]+):(?P<ops>.+)")
"""A user's own ops: NAME=ADAPTER:FILE."""


def load_backends(texts: Sequence[str], config: Path | None = None) -> tuple[BackendSpec, ...]:
    """The backends that `-b` options name: backends of `config` by name, others as a config's short strings.

    If `texts` is empty, all backends of the config. Raises ConfigError with every problem.
    """
    report = Problems()
    known = _of_config(config, report) if config is not None else {}
    named = described([text for text in texts if text not in known], report)
    if len(report):
        raise ConfigError(report.problems)
    chosen = [known[text] for text in texts if text in known] + list(named)
    return tuple(dict.fromkeys(chosen if texts else known.values()))


def described(texts: Sequence[str], report: Problems) -> tuple[BackendSpec, ...]:
    """The backends that `-b` options describe as a config's short strings do, or with a file of the user's ops."""
    listed = Node(tuple(_node(text) for text in texts), COMMAND_LINE, 0, "--backend")
    return tuple(spec for spec, _ in parse_backends(listed, report)) if texts else ()


def describes(text: str) -> bool:
    """Whether a `-b` option describes a backend, beginning with the name of an adapter or `NAME=ADAPTER:`."""
    match = WITH_OPS.fullmatch(text) or SHORT.fullmatch(text)
    return match is not None and match.groupdict().get("adapter", match["name"]) in ADAPTERS


def _of_config(path: Path, report: Problems) -> dict[str, BackendSpec]:
    """The `backends` of a config by name; its other keys are ignored."""
    document = read_document(path, report)
    node = document.get("backends")
    if node is None:
        if document.complete:
            report.add_file(str(path), 'the config has no "backends"')
        return {}
    return {spec.name: spec for spec, _ in parse_backends(node, report)}


def _node(text: str) -> Node:
    """A `-b` option as an entry of a config."""
    match = WITH_OPS.fullmatch(text)
    if match is None:
        return _scalar(text)
    return Node({key: _scalar(value) for key, value in match.groupdict().items()}, COMMAND_LINE, 0, "--backend")


def _scalar(text: str) -> Node:
    return Node(text, COMMAND_LINE, 0, "--backend", text)
