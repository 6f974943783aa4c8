"""The ledger of accepted deviations, as written; whether an entry is stale is judged after a run."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from parity.cases.draw import COARSENESS
from parity.config.fields import fill
from parity.config.nodes import Node, Report
from parity.config.plan import REASON_WANTED, KnownDeviation, Source
from parity.diagnoses import DIAGNOSES

UNSUPPORTED = "unsupported"
"""The only outcome that can be accepted; an error, a crash or a timeout has to be mended."""

MEASURED = ("tensor", "diagnosis", "error_ratio")
"""The keys that speak of a difference, of which there is none where nothing was computed."""

DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


@dataclass(frozen=True)
class KnownEntry:
    """The keys of one entry."""

    case: str
    reason: str
    backend: str | None = None
    dtype: str | None = None
    tensor: str | None = None
    diagnosis: str | None = None
    error_ratio: float | None = None
    until: str | None = None
    outcome: str | None = None


def parse_known(node: Node, report: Report, backends: Iterable[str] = ()) -> KnownDeviation | None:
    """One entry of `known`, or None after reporting what is wrong; `backends`: those there are, empty for unchecked."""
    entry: KnownEntry | None = fill(KnownEntry, node, report, "a known deviation")
    if entry is None:
        return None
    if entry.reason.strip() in ("", REASON_WANTED):
        report.add(node.mapping["reason"], "a known deviation needs a reason; say why it is accepted")
    _check_word(node.get("backend"), entry.backend, "no backend is called", backends, report)
    _check_word(node.get("dtype"), entry.dtype, "there is no dtype", COARSENESS, report)
    _check_word(node.get("diagnosis"), entry.diagnosis, "there is no diagnosis", DIAGNOSES, report)
    _check_outcome(node, entry, report)
    if entry.error_ratio is not None and not 0 < entry.error_ratio < math.inf:
        report.add(node.mapping["error_ratio"], "error_ratio must be a finite number above 0")
    return KnownDeviation(
        case=entry.case,
        reason=entry.reason,
        backend=entry.backend,
        tensor=entry.tensor,
        diagnosis=entry.diagnosis,
        until=_date(node.mapping["until"], report) if entry.until is not None else None,
        source=Source(node.file, node.line),
        dtype=entry.dtype,
        error_ratio=entry.error_ratio,
        unsupported=entry.outcome == UNSUPPORTED,
    )


def _check_outcome(node: Node, entry: KnownEntry, report: Report) -> None:
    _check_word(node.get("outcome"), entry.outcome, "nothing accepts the outcome", (UNSUPPORTED,), report)
    if entry.outcome is not None:
        for key in MEASURED:
            if getattr(entry, key) is not None:
                report.add(node.mapping[key], f"{key} speaks of a difference; leave it out beside outcome")


def _check_word(node: Node | None, word: str | None, message: str, allowed: Iterable[str], report: Report) -> None:
    words = tuple(allowed)
    if node is not None and word is not None and words and word not in words:
        report.add(node, f'{message} "{word}"', allowed=words, near=word)


def _date(node: Node, report: Report) -> datetime.date | None:
    try:
        if DATE.fullmatch(node.text):
            return datetime.date.fromisoformat(node.text)
    except ValueError:
        pass
    report.add(node, "until must be a date such as 2027-06-30")
    return None
