"""The diagnoses by id: what each is, how it shows, which frameworks are known for it, and the source."""

from __future__ import annotations

from collections.abc import Mapping

from parity.judge.catalogue.conventions import CONVENTIONS
from parity.judge.catalogue.entry import Entry
from parity.judge.catalogue.observations import OBSERVATIONS
from parity.judge.catalogue.updates import UPDATES
from parity.training.judge.catalogue import TRAININGS

__all__ = ["CATALOGUE", "Entry"]

CATALOGUE: Mapping[str, Entry] = {entry.id: entry for entry in (*OBSERVATIONS, *CONVENTIONS, *UPDATES, *TRAININGS)}
"""Every diagnosis that the judge can give, by id."""
