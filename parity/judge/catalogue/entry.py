"""An entry of the catalogue of diagnoses."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """A diagnosis as `parity explain ID` prints it. `title` is one line, the others are sentences; `known_in` may be
    empty."""

    id: str
    title: str
    what: str
    shows: str
    known_in: str = ""
    source: str = ""
