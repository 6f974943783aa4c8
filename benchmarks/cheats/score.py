"""A pair under each rule: one row."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.cheats.apart import judged
from benchmarks.cheats.check import OBJECTIONS, PARITY, RIGHT, checked
from benchmarks.cheats.listing import Pair
from benchmarks.cheats.report import CAUGHT, OPEN, PASSED, Cell, Row


def scored(pair: Pair, rules: Sequence[str], seconds: float) -> Row:
    return Row(pair.kind, pair.name, pair.says, {rule: _cell(rule, pair, seconds) for rule in rules})


def _cell(rule: str, pair: Pair, seconds: float) -> Cell:
    if rule == PARITY:
        answer = checked(pair.reference, pair.new, seconds)
        outcome = PASSED if answer.verdict == RIGHT else CAUGHT if answer.verdict in OBJECTIONS else OPEN
        return Cell(outcome, answer.says, answer.verdict)
    said = judged(rule, pair.reference, pair.new, seconds)
    return Cell(CAUGHT if said else PASSED, said)
