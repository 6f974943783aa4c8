"""What depends on all cells of a run: what `known` entries accept, the numbers, and the exit code."""

from __future__ import annotations

import datetime
import json
from collections.abc import Collection, Sequence

from msgspec import structs

from parity import exit_codes
from parity.config.plan import Asked, KnownDeviation, Plan, WrittenAt
from parity.judge.failures import FAILURES
from parity.judge.known import AppliedEntry, apply, means
from parity.outcome import Outcome
from parity.reporting.results import record
from parity.reporting.results.resume import key
from parity.reporting.results.rows import KnownRow
from parity.reporting.results.store import (
    AMONG,
    BACKENDS,
    COMPARISONS,
    DIAGNOSES,
    KNOWN,
    OUTCOMES,
    RUN,
    SUMMARY,
    Store,
)

ACCEPT = """
    UPDATE comparisons SET known = ? WHERE case_id = ? AND dtype = ? AND tensor = ? AND actual = ? AND expected = ?"""
SEEN = "SELECT DISTINCT verdict, known IS NOT NULL FROM comparisons WHERE counted IS NOT '[]'"
JUDGE_FAILED = "SELECT 1 FROM diagnoses WHERE instr(evidence, ?) LIMIT 1"


def settle(
    store: Store, plan: Plan, fail_on: str, *, interrupted: bool = False, others: Sequence[KnownRow] = ()
) -> None:
    """Mark what the plan's `known` entries accept, and write their states, the numbers and the exit code.

    `others` are entries that match no case of the run; they are kept unchanged.
    """
    entries = accept(store, plan, [case for case, _ in plan.everything.cases])
    rows = [*map(record.known_row, entries), *others]
    store.put(KNOWN, rows)
    seen = {(verdict, bool(known)) for verdict, known in store.select(SEEN)}
    fails, judge_failed = any(row.fails for row in rows), any(store.select(JUDGE_FAILED, f'"{FAILURES}"'))
    code = exit_codes.code_of(seen, fail_on=fail_on, known_fails=fails, judge_failed=judge_failed)
    store.put(SUMMARY, [store.numbers(exit_codes.INTERRUPTED if interrupted else code)])
    store.flush()


def settle_again(store: Store, known: Sequence[KnownRow], *, interrupted: bool) -> None:
    """The same from stored rows alone, whose `known` entries are these."""
    run = store.one(RUN)
    rows = store.select("SELECT id, dtypes, backends FROM cases ORDER BY rowid")
    asked = [(case, tuple(json.loads(dtypes)), tuple(json.loads(backends))) for case, dtypes, backends in rows]
    entries = [(row, deviation(row)) for row in known]
    applicable = [entry for _, entry in entries if any(means(entry, case) for case, _, _ in asked)]
    names = tuple(row.name for row in store.rows(BACKENDS))
    cases = tuple((case, dtypes) for case, dtypes, _ in asked)
    everything = Asked(cases, names, narrower={case: backends for case, _, backends in asked if backends})
    plan = Plan("", (), (), run.baseline, 0, (), tuple(applicable), everything)
    others = [row for row, entry in entries if entry not in applicable]
    settle(store, plan, run.fail_on, interrupted=interrupted, others=others)


def deviation(row: KnownRow) -> KnownDeviation:
    """The entry of the config; raises ValueError for an invalid date."""
    return KnownDeviation(
        row.case,
        row.reason,
        row.backend,
        row.tensor,
        row.diagnosis,
        None if row.until is None else datetime.date.fromisoformat(row.until),
        WrittenAt(*((row.source.file, row.source.line) if row.source else ("", 0))),
        row.dtype,
        row.error_ratio,
        unsupported=row.outcome is not None,
    )


def accept(store: Store, plan: Plan, cases: Collection[str]) -> Sequence[AppliedEntry]:
    """Mark the accepted comparisons; only the cases that an entry names are read."""
    if not plan.known:
        return ()
    named = json.dumps([case for case in cases if any(means(entry, case) for entry in plan.known)])
    rows = list(store.rows(COMPARISONS, AMONG, named))
    diagnoses = list(store.rows(DIAGNOSES, AMONG, named))
    absent = list(store.rows(OUTCOMES, f"outcome = ? AND {AMONG}", Outcome.UNSUPPORTED.value, named))
    open_rows = [structs.replace(row, known=None) for row in rows]
    held = apply(plan, open_rows, diagnoses, datetime.date.today(), record.unsupported(absent))
    for row, now in zip(rows, held.comparisons, strict=True):
        if row.known != now.known:
            store.change(ACCEPT, now.known, *key(row))
    return held.entries
