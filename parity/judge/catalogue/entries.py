"""The diagnoses by id: what each is, how it shows, which frameworks are known for it, and the source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module

from parity.judge.catalogue.conventions import CONVENTIONS
from parity.judge.catalogue.entry import Entry
from parity.judge.catalogue.observations import OBSERVATIONS
from parity.judge.catalogue.updates import UPDATES

__all__ = ["CATALOGUE", "Entry"]

CLIENTS_ENTRIES = (
    "parity.training.judge.catalogue:TRAININGS",
    "parity.models.catalogue:MODELS",
    "parity.models.decode.catalogue:DECODINGS",
)
"""Entries that clients of the judge bring along, as module:name."""


def of_clients() -> Iterator[Entry]:
    """The entries that clients bring along."""
    for path in CLIENTS_ENTRIES:
        module, _, name = path.partition(":")
        yield from getattr(import_module(module), name)


CATALOGUE: Mapping[str, Entry] = {entry.id: entry for entry in (*OBSERVATIONS, *CONVENTIONS, *UPDATES, *of_clients())}
"""Every diagnosis that the judge can give, by id."""
