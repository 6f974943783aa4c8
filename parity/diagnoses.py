"""The diagnoses by id, as `diagnoses.yaml` describes them: a mapping of ids to texts for each group of diagnoses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_suffix(".yaml")


@dataclass(frozen=True)
class Entry:
    """A diagnosis as `parity explain ID` prints it. `title` is one line, the other texts are sentences: what it is, how
    it shows in the data, which frameworks are known for it. With `framework_choice` no answer is wrong, and the exact
    answer follows PyTorch's."""

    id: str
    title: str
    what: str
    shows: str
    known_in: str = ""
    source: str = ""
    framework_choice: bool = False


@cache
def catalogue() -> Mapping[str, Entry]:
    """Every diagnosis by id, in the order of the file."""
    return {name: Entry(name, **texts) for rows in _groups().values() for name, texts in rows.items()}


@cache
def observations() -> frozenset[str]:
    """The diagnoses that describe a tensor but not which formula is wrong."""
    return frozenset(_groups()["observations"])


@cache
def _groups() -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    groups: Mapping[str, Mapping[str, Mapping[str, Any]]] = yaml.load(FILE.read_bytes(), Loader=loader)  # noqa: S506
    return groups
