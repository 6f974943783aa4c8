"""Runs for the tests of what CI is shown: one with a cell of every status, and texts that want to be more than text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from parity import exit_codes
from parity.reporting.results.cells import cells, counts
from parity.reporting.results.results import results_of
from parity.reporting.results.rows import Results
from parity.reporting.results.store import store_of
from tests.reporting.stored_runs import Row, case_row, changed, comparison, diagnosis, plain, unstable

EXPRESSION = "var = mean(x * x), where the reference has mean(square(x - mean))"
"""What paddle computes in `every_status`."""

HOSTILE = (
    "a|b",
    "``` ` `` x",
    "`",
    "</details><script>alert(1)</script>",
    "<!-- x --> --> ]]> &amp; &#0;",
    "@octocat #1 GH-1 octo/repo#2 https://evil.example/x www.evil.example",
    "x\n::error::forged\r\n::add-mask::y",
    "::set-output name=a::b",
    "##[add-mask]y and ##[error]z",
    "%0A::error::a%25",
    "\x1b[31mred\x1b]0;title\x07\x00\x08\x85\u2028\ufffe\ud800",
    "[red]markup[/red] [/] \\|",
    "\u202eright to left",
    "# heading",
    "| --- |",
    "![x](https://evil.example/p.png) [y](javascript:1)",
    "$(touch /tmp/x) '; rm -rf x; '",
    "x" * 300,
)
"""Ids, names and messages as somebody could plant them in a stored run."""


def outcome(case: str, backend: str, kind: str = "ok", message: str = "", dtype: str = "float32") -> Row:
    return {"case": case, "dtype": dtype, "backend": backend, "outcome": kind, "seconds": 0.25, "message": message}


def entry(case: str, state: str = "matched", **other: Any) -> Row:
    """An entry of the ledger."""
    row = {"case": case, "backend": "paddle", "dtype": None, "tensor": None, "diagnosis": None, "error_ratio": None}
    row |= {"until": "2027-06-30", "reason": "naive variance", "source": {"file": "configs/a.yaml", "line": 90}}
    message = f"configs/a.yaml:90: {state}: {case}; remove it"
    return {**row, "state": state, "n_matched": 1, "worst_ratio": 9.0, "message": message, **other}


def run_of(
    cases: Sequence[Row],
    comparisons: Sequence[Row],
    outcomes: Sequence[Row],
    diagnoses: Sequence[Row] = (),
    known: Sequence[Row] = (),
    **run: Any,
) -> Results:
    """A run of torch and paddle with these rows, and the exit code that they give."""
    backends = [
        {"name": n, "framework": n, "version": "1.2.3", "python": "3.11.7", "mode": "eager", "device": "cpu"}
        for n in ("torch", "paddle")
    ]
    host = {"cpu": "some cpu", "os": "Linux", "threads": 1}
    about = {"id": "r", "baseline": "torch", "started": "2027-01-31T10:00:00+00:00", "seed": 7, "parity": "0.1.0"}
    about |= {"host": host, "seconds": 3.5, "fail_on": "mismatch", "command": ["parity", "run", "--out", "out dir"]}
    document = {
        "format": 1, "run": {**about, **run}, "backends": backends, "cases": cases, "outcomes": outcomes,
        "comparisons": comparisons, "diagnoses": diagnoses, "known": known,
        "summary": {"outcomes": {}, "verdicts": {}, "exit_code": 0},
    }  # fmt: skip
    results = results_of(document)
    summary = plain(store_of(results).numbers(code_of(results)))
    return changed(results, summary={**summary, "cells": counts(cells(results))})


def code_of(results: Results) -> int:
    """The exit code, as `parity.exit_codes` defines it."""
    level = exit_codes.FAILING[results.run.fail_on]
    failing = any(row.verdict in level and row.known is None for row in results.comparisons)
    if failing or any(row.state in ("stale", "expired", "worse") for row in results.known):
        return exit_codes.MISMATCH
    wanted = {(row.verdict == "not-compared", row.known is not None) for row in results.comparisons}
    made = any(not missing for missing, _ in wanted)
    return exit_codes.PASSED if made and (True, False) not in wanted else exit_codes.INCOMPLETE


def case(name: str, line: int = 3, file: str = "configs/a.yaml", **other: Any) -> Row:
    """A case in float32."""
    return case_row(name, dtypes=["float32"], source={"file": file, "line": line}, **other)


def compared(name: str, *rows: Row) -> list[Row]:
    """Both backends agree with each other and with the oracle, but for these rows."""
    found = [comparison(case=name, actual=a, expected=e) for a, e in (("paddle", "torch"), ("paddle", "oracle"))]
    found += [comparison(case=name, actual="torch", expected="oracle")]
    for row in rows:
        found = [row if (r["actual"], r["expected"]) == (row["actual"], row["expected"]) else r for r in found]
    return found


def missing(name: str, message: str = "crash") -> list[Row]:
    """Paddle gave nothing."""
    blank = {"worst_index": None, "message": message}
    return compared(name, *(comparison("not-compared", case=name, expected=e, **blank) for e in ("torch", "oracle")))


def every_status() -> Results:
    """A run with a cell of every status, in two configs, and a ledger with every state."""
    cases = [case("differs", 3), case("crashes", 9), case("cannot", 12), case("accepted", 15)]
    cases += [
        case("hides", 2, "configs/b.yaml"),
        case("agrees", 7, "configs/b.yaml"),
        case("never", 8, "configs/b.yaml"),
    ]
    comparisons = [
        *compared("differs", unstable(case="differs"), unstable(case="differs", expected="oracle")),
        *missing("crashes"),
        *missing("cannot"),
        *compared("accepted", unstable(case="accepted", known="naive variance")),
        *compared("hides", comparison(case="hides", suspect=True, culprit=["paddle"])),
        *compared("agrees"),
    ]
    outcomes = [outcome(c["id"], b) for c in cases[:-1] for b in ("torch", "paddle")]
    outcomes = [o for o in outcomes if (o["case"], o["backend"]) not in (("crashes", "paddle"), ("cannot", "paddle"))]
    outcomes.append(outcome("crashes", "paddle", "crash", "killed by SIGSEGV\nsecond line"))
    outcomes.append(outcome("cannot", "paddle", "unsupported", "no such op"))
    ledger = [entry("accepted"), entry("gone", "stale"), entry("worse", "worse"), entry("old", "expired")]
    ledger = [{**row, "source": {"file": "configs/a.yaml", "line": 90 + i}} for i, row in enumerate(ledger)]
    return run_of(
        cases, comparisons, outcomes, [diagnosis(case="differs", evidence={"expression": EXPRESSION})], ledger
    )


def healthy() -> Results:
    """A run in which everything agrees."""
    return run_of([case("fine")], compared("fine"), [outcome("fine", "torch"), outcome("fine", "paddle")])


def only_unsupported() -> Results:
    """A run that misses nothing but what a backend cannot do."""
    outcomes = [outcome("fine", "torch"), outcome("fine", "paddle", "unsupported", "no such op")]
    return run_of([case("fine")], missing("fine", "unsupported"), outcomes)


def accepted_unsupported() -> Results:
    """A run in which a backend cannot compute one case, which is accepted; with the baseline in another one."""
    cases = [case("fine"), case("cannot", 9), case("no-baseline", 12)]
    comparisons = [*compared("fine"), *missing("cannot", "unsupported")]
    blank = {"worst_index": None, "message": "unsupported", "case": "no-baseline"}
    lost = [("paddle", "torch"), ("torch", "oracle")]
    comparisons += compared(
        "no-baseline", *(comparison("not-compared", actual=a, expected=e, **blank) for a, e in lost)
    )
    accepted = [{**row, "known": "no kernel"} if row["verdict"] == "not-compared" else row for row in comparisons]
    outcomes = [outcome(c["id"], b) for c in cases for b in ("torch", "paddle")]
    absent = (("cannot", "paddle"), ("no-baseline", "torch"))
    outcomes = [o for o in outcomes if (o["case"], o["backend"]) not in absent]
    outcomes += [outcome(*cell, "unsupported", "no such op") for cell in absent]
    return run_of(cases, accepted, outcomes, known=[entry("cannot", reason="no kernel"), entry("no-baseline")])


def only_ledger() -> Results:
    """A run that fails for a stale entry alone."""
    return replace_known(healthy(), [entry("gone", "stale")])


def below() -> Results:
    """A run with a difference below the level that fails it."""
    rows = compared("small", comparison("rounding", case="small"))
    return run_of([case("small")], rows, [outcome("small", b) for b in ("torch", "paddle")], fail_on="degraded")


def interrupted() -> Results:
    """A run that was stopped after its last cell: nothing in it is red."""
    results = healthy()
    return changed(results, summary={**plain(results.summary), "exit_code": exit_codes.INTERRUPTED})


def replace_known(results: Results, known: Sequence[Row]) -> Results:
    """The run with another ledger."""
    other = changed(results, known=known)
    return changed(other, summary={**plain(other.summary), "exit_code": code_of(other)})


def hostile() -> Results:
    """A run in which every text is hostile: ids, backends' names, tensors, messages, titles, reasons, files."""
    n = len(HOSTILE)
    cases = [case(f"{i} {text}", i + 1, file=text, op="layer_norm") for i, text in enumerate(HOSTILE)]
    comparisons: list[Row] = []
    diagnoses: list[Row] = []
    outcomes: list[Row] = []
    for i, row in enumerate(cases):
        name, text = row["id"], HOSTILE[(i + 1) % n]
        if i % 3 == 2:
            comparisons += missing(name, text)
            outcomes += [outcome(name, "torch"), outcome(name, "paddle", "error", text)]
            continue
        known = text if i % 3 == 1 else None
        comparisons += compared(name, unstable(case=name, tensor=text, known=known))
        diagnoses.append(diagnosis(text, case=name, title=text, tensors=[text], evidence={text: text, "where": [text]}))
        outcomes += [outcome(name, "torch", message=text), outcome(name, "paddle")]
    known_rows = [entry(text, "stale", message=text, reason=text, source={"file": text, "line": 1}) for text in HOSTILE]
    return run_of(cases, comparisons, outcomes, diagnoses, known_rows, command=["parity", "--out", HOSTILE[0]])


def many(n: int) -> Results:
    """A run with `n` cases that all differ."""
    names = [f"case-{i}" for i in range(n)]
    comparisons = [row for name in names for row in compared(name, unstable(case=name))]
    outcomes = [outcome(name, b) for name in names for b in ("torch", "paddle")]
    return run_of([case(name, i + 1) for i, name in enumerate(names)], comparisons, outcomes)


def cannot_in(n: int) -> Results:
    """A run with `n` cases that paddle cannot compute, for the same reason."""
    names = [f"case-{i}" for i in range(n)]
    comparisons = [row for name in names for row in missing(name, "unsupported")]
    outcomes = [outcome(name, "torch") for name in names]
    outcomes += [outcome(name, "paddle", "unsupported", "no such op") for name in names]
    return run_of([case(name, i + 1) for i, name in enumerate(names)], comparisons, outcomes)
