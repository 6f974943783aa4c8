"""The benchmark's numbers, and their tables as text."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.judge.measure import DETECTABLE
from benchmarks.judge.score import Cell

RULES = ("allclose, oracle", "allclose, baseline", "dynamo")
MOST_LISTED = 60


@dataclass(frozen=True)
class Report:
    """All cells of a benchmark, and what they come to."""

    cells: Sequence[Cell]
    seconds: float = 0.0
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def clean(self) -> list[Cell]:
        """Cells of right kernels, and of faults that have no effect at all in them."""
        return [c for c in self.cells if c.clean]

    @property
    def planted(self) -> list[Cell]:
        """Cells with a fault that can be seen in them."""
        return [c for c in self.cells if c.planted]

    @property
    def false_alarms(self) -> list[Cell]:
        return [c for c in self.clean if c.named]

    @property
    def missed(self) -> list[Cell]:
        """Detectable, and not detected."""
        return [c for c in self.planted if not c.named]

    @property
    def confidently_wrong(self) -> list[Cell]:
        return [c for c in self.planted if c.confidently_wrong]

    @property
    def unnamed(self) -> list[Cell]:
        """Detected, but neither named right nor said to be undecidable."""
        return [c for c in self.planted if c.unexplained and not c.right]

    @property
    def half_named(self) -> list[Cell]:
        """Two faults of which one was named."""
        return [c for c in self.planted if c.combined and c.right and not c.both]

    @property
    def undecided_wrong(self) -> list[Cell]:
        """Said to be undecidable between causes of which none was planted."""
        return [c for c in self.planted if c.undecided and not c.undecided_right]

    @property
    def failed(self) -> list[Cell]:
        """Cells that did not run."""
        return [c for c in self.cells if c.outcome != "ok"]

    def document(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {
            "facts": dict(self.facts),
            "seconds": self.seconds,
            "totals": totals(self),
            "per": {key: breakdown(self.planted, of) for key, of in KEYS.items()},
            "confusion": {k: dict(v) for k, v in confusion(self.planted).items()},
            "misses": {title: [miss(c) for c in cells] for title, cells in lists(self).items()},
        }


KEYS: Mapping[str, Callable[[Cell], str]] = {
    "op": lambda cell: cell.op,
    "dtype": lambda cell: cell.dtype,
    "framework": lambda cell: cell.framework,
    "kind": lambda cell: cell.kind,
}


def totals(report: Report) -> dict[str, Any]:
    """The numbers of all cells together."""
    clean, planted = report.clean, report.planted
    return {
        "cells": len(report.cells),
        "did not run": len(report.failed),
        "clean": rate(report.false_alarms, clean),
        "planted": counts(planted),
        "grey": len([c for c in report.cells if c.outcome == "ok" and not c.clean and not c.planted]),
        "rules": {rule: {"detected": rate_of(planted, rule), "false alarms": rate_of(clean, rule)} for rule in RULES},
    }


def rate(hits: Sequence[Cell], of: Sequence[Cell]) -> dict[str, Any]:
    return {"n": len(of), "alarms": len(hits), "upper95": upper_bound(len(hits), len(of))}


def rate_of(cells: Sequence[Cell], rule: str) -> float | None:
    """The share of cells in which a simple rule gives alarm."""
    return sum(c.effect.alarms[rule] for c in cells) / len(cells) if cells else None


def counts(cells: Sequence[Cell]) -> dict[str, int]:
    """What became of detectable cells."""
    combined = [c for c in cells if c.combined]
    return {
        "n": len(cells),
        "detected": sum(c.named for c in cells),
        "right": sum(c.right for c in cells),
        "not-identifiable": sum(c.undecided for c in cells),
        "among them right": sum(c.undecided_right for c in cells),
        "confidently wrong": sum(c.confidently_wrong for c in cells),
        "unexplained": sum(c.unexplained for c in cells),
        "right verdict": sum(c.named and c.right_verdict for c in cells),
        "combined": len(combined),
        "both named": sum(c.both for c in combined),
    }


def breakdown(cells: Iterable[Cell], key: Callable[[Cell], str]) -> dict[str, dict[str, int]]:
    groups: dict[str, list[Cell]] = defaultdict(list)
    for cell in cells:
        groups[key(cell)].append(cell)
    return {name: counts(group) for name, group in sorted(groups.items())}


def confusion(cells: Iterable[Cell]) -> dict[str, Counter[str]]:
    """Planted kind to what was named first, `-` where nothing was detected."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for cell in cells:
        found[cell.kind][cell.first if cell.named else "-"] += 1
    return dict(sorted(found.items()))


def upper_bound(hits: int, n: int) -> float | None:
    """The 95 % upper confidence bound of a rate (Clopper, Pearson 1934; 3/n where there is no hit)."""
    if not n:
        return None
    if not hits:
        return min(1.0, 3.0 / n)
    low, high = hits / n, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if at_most(hits, n, middle) > 0.05 else (low, middle)
    return high


def at_most(hits: int, n: int, p: float) -> float:
    """The probability of `hits` or fewer in n, at rate p."""
    if p >= 1.0:
        return 0.0
    log = [math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) + k * math.log(p) + (n - k) * math.log1p(-p) for k in range(hits + 1)]  # fmt: skip
    return math.fsum(map(math.exp, log))


def miss(cell: Cell) -> dict[str, Any]:
    """A cell that the judge got wrong, as JSON values."""
    planted = "clean" if cell.clean else cell.kind
    return {
        "planted": planted,
        "kernel": cell.backend,
        "framework": cell.framework,
        "case": cell.case,
        "dtype": cell.dtype,
        "effects": {name: value if math.isfinite(value) else "inf" for name, value in cell.effect.effects.items()},
        "named": cell.named,
        "verdicts": list(cell.verdicts),
        "diagnoses": [list(said) for said in cell.said],
        "command": cell.command,
    }


# Text


def render(report: Report) -> str:
    """All tables."""
    parts = [header(report), overview(report)]
    parts += [counts_table(f"planted, by {key}", breakdown(report.planted, of)) for key, of in KEYS.items()]
    parts += [confusion_table(report)]
    parts += [listing(title, cells) for title, cells in lists(report).items()]
    return "\n\n".join(parts)


def lists(report: Report) -> dict[str, list[Cell]]:
    """What is listed one by one."""
    return {
        "false alarms": report.false_alarms,
        "detectable, not detected": report.missed,
        "confident wrong names": report.confidently_wrong,
        "unexplained": report.unnamed,
        "undecided between wrong names": report.undecided_wrong,
        "one of two named": report.half_named,
        "did not run": report.failed,
    }


def header(report: Report) -> str:
    facts = ", ".join(f"{key} {value}" for key, value in report.facts.items())
    return f"{facts}; {report.seconds:.0f} s"


def overview(report: Report) -> str:
    """The totals, beside the simple rules."""
    total = totals(report)
    clean, planted = total["clean"], total["planted"]
    lines = [
        f"{total['cells']} cells: {planted['n']} with a detectable fault, {clean['n']} clean, {total['grey']} with a "
        f"fault whose effect is below 8 yardsticks, {total['did not run']} did not run",
        f"{'':24}{'detected':>10}{'false alarms':>14}",
        f"{'parity':24}{share(planted['detected'], planted['n']):>10}{share(clean['alarms'], clean['n']):>14}",
    ]
    lines += [
        f"{rule:24}{percent(found['detected']):>10}{percent(found['false alarms']):>14}"
        for rule, found in total["rules"].items()
    ]
    lines.append(f"false alarms: {clean['alarms']} of {clean['n']}, at most {percent(clean['upper95'], 3)} (95 %)")
    lines.append(f"named right first: {share(planted['right'], planted['n'])} of the detectable")
    return "\n".join(lines)


def share(part: int, whole: int) -> str:
    return percent(part / whole if whole else None)


def percent(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{100 * value:.{digits}f} %"


COLUMNS = ("n", "detected", "right", "not-identifiable", "among them right", "confidently wrong", "unexplained", "right verdict", "combined", "both named")  # fmt: skip
HEADS = ("n", "detected", "right", "undecided", "(right)", "wrong", "unexplained", "verdict", "combined", "both")


def counts_table(title: str, rows: Mapping[str, Mapping[str, int]]) -> str:
    width = max([len(title), *map(len, rows)]) + 2
    lines = [f"{title:{width}}" + "".join(f"{head:>13}" for head in HEADS)]
    lines += [f"{name:{width}}" + "".join(f"{row[column]:>13}" for column in COLUMNS) for name, row in rows.items()]
    return "\n".join(lines)


def confusion_table(report: Report) -> str:
    """Planted kinds, and under which names they were found, the most frequent first."""
    rows = confusion(report.planted)
    width = max([8, *map(len, rows)]) + 2
    lines = [f"{'planted':{width}}named first"]
    lines += [
        f"{kind:{width}}" + ", ".join(f"{name} {n}" for name, n in found.most_common()) for kind, found in rows.items()
    ]
    return "\n".join(lines)


def listing(title: str, cells: Sequence[Cell]) -> str:
    """Cells one by one, the same kernel's together, with the command that shows them."""
    lines = [f"{title}: {len(cells)}" + (f", {far(cells)} with twice the effect that is needed" if cells else "")]
    lines += [line(cell) for cell in sorted(cells, key=lambda c: (c.backend, c.case))[:MOST_LISTED]]
    return "\n".join([*lines, "  ..."] if len(cells) > MOST_LISTED else lines)


def far(cells: Sequence[Cell]) -> int:
    """How many are not at the edge of what is called detectable."""
    return sum(cell.effect.largest >= 2 * DETECTABLE for cell in cells)


def line(cell: Cell) -> str:
    top = sorted(cell.effect.effects.items(), key=lambda item: -item[1])[:3]
    effects = ", ".join(f"{name} {value:.3g}" for name, value in top)
    said = ", ".join(name for name, _ in cell.said) or "nothing"
    return (
        f"  {cell.dtype} {cell.backend}: said {said} ({'/'.join(cell.verdicts)}); effect {effects}\n    {cell.command}"
    )
