"""The diagnoses by id: what each is, how it shows, which frameworks are known for it, and the source."""

from __future__ import annotations

from collections.abc import Mapping

from parity.judge.conventions import CONVENTIONS
from parity.judge.entry import Entry
from parity.judge.transforms import TRANSFORMS

__all__ = ["CATALOGUE", "Entry"]

CATALOGUE: Mapping[str, Entry] = {entry.id: entry for entry in (*TRANSFORMS, *CONVENTIONS)}
"""Every diagnosis that the judge can give, by id."""
