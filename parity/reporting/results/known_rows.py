"""The ledger's entries as rows of results.json, and as lines on the console."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from parity.config.nodes import printable
from parity.judge.known import LedgerEntry, State
from parity.outcome import Outcome
from parity.reporting.results.results import Row

FAILING_STATES = frozenset(state.value for state in State if state.fails)
"""Of an entry that fails the run itself."""

STYLES = {
    State.MATCHED.value: "dim",
    State.NOT_CHECKED.value: "yellow",
    State.STALE.value: "bold red",
    State.EXPIRED.value: "bold red",
    State.WORSE.value: "bold red",
}


UNSUPPORTED = Outcome.UNSUPPORTED.value


def ledger_row(entry: LedgerEntry) -> Row:
    """A row of `known`; what the config leaves out is null."""
    known = entry.deviation
    return {
        "case": known.case,
        "backend": known.backend,
        "dtype": known.dtype,
        "tensor": known.tensor,
        "diagnosis": known.diagnosis,
        "error_ratio": known.error_ratio,
        "outcome": UNSUPPORTED if known.unsupported else None,
        "until": None if known.until is None else known.until.isoformat(),
        "reason": known.reason,
        "source": {"file": known.source.file, "line": known.source.line},
        "state": entry.state.value,
        "n_matched": entry.n_matched,
        "worst_ratio": entry.worst_ratio,
        "message": entry.message,
    }


def ledger_lines(rows: Sequence[Row]) -> Iterator[Text]:
    """A line for each entry: first those that fail, then what is accepted, last what was not checked."""
    order = (*(state.value for state in State if state.fails), State.MATCHED.value, State.NOT_CHECKED.value)
    for state in order:
        for row in rows:
            if row["state"] == state:
                yield Text.assemble(("known", STYLES[state]), " ", printable(row["message"]))
