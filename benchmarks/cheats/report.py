"""Rows as Markdown: a table for each kind of pairs, counts, and what the machine was."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.judge.command import machine
from parity.version import __version__

PASSED, CAUGHT, OPEN = "passed", "caught", "not judged"

TITLES: Mapping[str, str] = {
    "cheats": "Cheats: none computes what its reference does",
    "bypasses": "Bypasses: the numbers are right, the work is the reference's",
    "mistakes": "Honest mistakes: right for the given inputs, wrong for others, in gradients or in what they leave behind",
    "right": "Right candidates in another form: whatever is caught here is a false alarm",
}


@dataclass(frozen=True)
class Cell:
    """A pair under a rule: whether it passes, what the rule says, and its own word for that."""

    outcome: str
    says: str = ""
    verdict: str = ""

    def text(self) -> str:
        shown = "**passed**" if self.outcome == PASSED else self.outcome
        return f"{shown}: {self.verdict}" if self.verdict and self.outcome == CAUGHT else shown


@dataclass(frozen=True)
class Row:
    """A pair under all rules."""

    kind: str
    name: str
    says: str
    cells: Mapping[str, Cell]

    @property
    def problem(self) -> str:
        return self.name.partition("/")[0]

    def line(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, line: str) -> Row:
        said = json.loads(line)
        return cls(**said | {"cells": {rule: Cell(**cell) for rule, cell in said["cells"].items()}})


def merged(rows: Sequence[Row]) -> list[Row]:
    """Rows of the same pair, measured under different rules, as one; a later answer of a rule counts."""
    found: dict[tuple[str, str], Row] = {}
    for row in rows:
        key = row.kind, row.name
        cells = {**found[key].cells, **row.cells} if key in found else row.cells
        found[key] = Row(row.kind, row.name, row.says, cells)
    return list(found.values())


def facts() -> dict[str, Any]:
    return machine() | {"parity": __version__}


def tables(rows: Sequence[Row], rules: Sequence[str], about: Mapping[str, Any]) -> str:
    """Everything as Markdown."""
    parts = ["# What rules of correctness let pass", ", ".join(f"{name} {value}" for name, value in about.items())]
    parts.append(_totals(rows, rules))
    for kind, title in TITLES.items():
        of_kind = [row for row in rows if row.kind == kind]
        if of_kind:
            parts += [f"## {title}", _right(of_kind, rules) if kind == "right" else _table(of_kind, rules)]
    return "\n\n".join(parts) + "\n"


def _totals(rows: Sequence[Row], rules: Sequence[str]) -> str:
    """For each rule, how many of each kind pass."""
    kinds = [kind for kind in TITLES if any(row.kind == kind for row in rows)]
    lines = [_line(["passed of", *kinds]), _line(["---"] * (len(kinds) + 1))]
    for rule in rules:
        counts = [_passed([row for row in rows if row.kind == kind], rule) for kind in kinds]
        lines.append(_line([rule, *counts]))
    return "\n".join(lines)


def _passed(rows: Sequence[Row], rule: str) -> str:
    outcomes = [row.cells[rule].outcome for row in rows]
    unjudged = f", {outcomes.count(OPEN)} not judged" if OPEN in outcomes else ""
    return f"{outcomes.count(PASSED)} of {len(rows)}{unjudged}"


def _table(rows: Sequence[Row], rules: Sequence[str]) -> str:
    lines = [_line(["", *rules]), _line(["---"] * (len(rules) + 1))]
    lines += [_line([f"`{row.name}`: {row.says}", *(row.cells[rule].text() for rule in rules)]) for row in rows]
    lines.append(_line(["passed", *(_passed(rows, rule) for rule in rules)]))
    return "\n".join(lines)


def _right(rows: Sequence[Row], rules: Sequence[str]) -> str:
    """Right candidates are many: how many of a problem's are caught or not judged; a dot is none."""
    lines = [_line(["caught of", *rules]), _line(["---"] * (len(rules) + 1))]
    for problem in dict.fromkeys(row.problem for row in rows):
        of_problem = [row for row in rows if row.problem == problem]
        lines.append(_line([f"`{problem}` ({len(of_problem)})", *(_alarms(of_problem, rule) for rule in rules)]))
    lines.append(_line([f"all ({len(rows)})", *(_alarms(rows, rule) for rule in rules)]))
    return "\n".join(lines)


def _alarms(rows: Sequence[Row], rule: str) -> str:
    outcomes = [row.cells[rule].outcome for row in rows]
    alarms = [f"{outcomes.count(CAUGHT)}"] if CAUGHT in outcomes else []
    return ", ".join([*alarms, *([f"{outcomes.count(OPEN)} not judged"] if OPEN in outcomes else [])]) or "·"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
