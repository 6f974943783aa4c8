"""Between which releases of a framework a finding came or went."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from operator import itemgetter

from packaging.version import InvalidVersion, Version

from parity.config.nodes import printable
from parity.reporting.results.rows import BackendRow
from parity.reporting.text.words import grouped, listed

Releases = Sequence[BackendRow]
"""Backends that are releases of one framework, the oldest first."""


def releases_of(backends: Sequence[BackendRow]) -> list[Releases]:
    """The frameworks of which the run has several releases, in the same mode and on the same device."""
    known = [(version, row) for row in backends if (version := version_of(row)) is not None]
    groups = grouped(
        ((row.framework, row.mode, row.device, row.ops), row) for _, row in sorted(known, key=itemgetter(0))
    )
    return [rows for rows in groups.values() if len(versions(rows)) > 1]


def version_of(row: BackendRow) -> Version | None:
    """The release, or None if the backend never answered or its version is not one that can be ordered (PEP 440)."""
    try:
        return Version(row.version)
    except InvalidVersion:
        return None


def versions(rows: Releases) -> list[str]:
    """Their versions, each once."""
    return list(dict.fromkeys(printable(row.version) for row in rows))


def history(groups: Sequence[Releases], having: Collection[str], right: Collection[str]) -> str:
    """`paddle: came between 2.6.2 and 3.0.0`, for each framework with several releases in the run.

    `having`: the backends with the finding; `right`: those that computed the same tensors and are right there.
    Of other releases nothing is known.
    """
    lines = []
    for group in groups:
        with_it = [row for row in group if row.name in having]
        if not with_it:
            continue
        known = [row for row in group if row.name in having or row.name in right]
        unknown = [row for row in group if row not in known]
        texts = list(changes(known, having)) or [f"in {listed(versions(with_it))}"]
        texts += [f"not known of {listed(versions(unknown))}"] if unknown else []
        lines.append(f"{printable(group[0].framework)}: {', '.join(texts)}")
    return "; ".join(lines)


def changes(known: Releases, having: Collection[str]) -> Iterator[str]:
    """The consecutive releases that differ."""
    for older, newer in pairwise(known):
        before, after = older.name in having, newer.name in having
        if before != after:
            yield f"{'came' if after else 'went'} between {printable(older.version)} and {printable(newer.version)}"
