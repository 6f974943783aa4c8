"""The ledger of accepted deviations, as written; whether an entry is stale is judged after a run."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass

from parity.config.fields import fill
from parity.config.nodes import Node, Report
from parity.config.plan import KnownDeviation, Source

DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


@dataclass(frozen=True)
class KnownEntry:
    """The keys of one entry."""

    case: str
    reason: str
    backend: str | None = None
    tensor: str | None = None
    diagnosis: str | None = None
    until: str | None = None


def parse_known(node: Node, report: Report) -> KnownDeviation | None:
    """One entry of `known`, or None after reporting what is wrong."""
    entry: KnownEntry | None = fill(KnownEntry, node, report, "a known deviation")
    if entry is None:
        return None
    if not entry.reason.strip():
        report.add(node.mapping["reason"], "a known deviation needs a reason")
    until = _date(node.mapping["until"], report) if entry.until is not None else None
    source = Source(node.file, node.line)
    return KnownDeviation(entry.case, entry.reason, entry.backend, entry.tensor, entry.diagnosis, until, source)


def _date(node: Node, report: Report) -> datetime.date | None:
    try:
        if DATE.fullmatch(node.text):
            return datetime.date.fromisoformat(node.text)
    except ValueError:
        pass
    report.add(node, "until must be a date such as 2027-06-30")
    return None
