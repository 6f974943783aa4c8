"""The diagnoses by id: what each is, how it shows, which frameworks are known for it, and the source."""

from __future__ import annotations

from collections.abc import Mapping

from parity.judge.conventions import CONVENTIONS
from parity.judge.entry import Entry
from parity.judge.observations import OBSERVATIONS
from parity.judge.training_catalogue import TRAININGS
from parity.judge.updates import UPDATES

__all__ = ["CATALOGUE", "Entry"]

CATALOGUE: Mapping[str, Entry] = {entry.id: entry for entry in (*OBSERVATIONS, *CONVENTIONS, *UPDATES, *TRAININGS)}
"""Every diagnosis that the judge can give, by id."""
