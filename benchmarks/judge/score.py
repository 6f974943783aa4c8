"""What the judge said about every cell, beside what was planted there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from benchmarks.judge.faults import Fault, Healthy
from benchmarks.judge.measure import Effect
from benchmarks.judge.runs import Run
from parity.judge.compare.verdict import Comparison
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.reporting.results.rows import Results

NOT_IDENTIFIABLE = "not-identifiable"
HARMLESS = ("rounding", "degenerate-gradient")
UNEXPLAINED = ("unexplained", "none", "reference-edit")
"""First diagnoses that name no cause; an edit of the reference says a formula, and no name."""

Key = tuple[str, str, str]

R = TypeVar("R", Comparison, Diagnosis)


@dataclass(frozen=True)
class Cell:
    """One kernel in one case and dtype. `named`: the judge calls it a culprit; `said`: its diagnoses, in their order."""

    framework: str
    seed: int
    op: str
    case: str
    dtype: str
    backend: str
    fault: Fault | None
    outcome: str
    effect: Effect
    named: bool
    verdicts: tuple[str, ...]
    said: tuple[tuple[str, bool], ...]
    candidates: tuple[str, ...]

    @property
    def clean(self) -> bool:
        """A right kernel, or a faulty one that gives the right kernel's bits here."""
        return self.outcome == "ok" and (self.fault is None or self.effect.same)

    @property
    def planted(self) -> bool:
        """A fault that can be seen here."""
        return self.outcome == "ok" and self.fault is not None and self.effect.detectable and not self.effect.same

    @property
    def first(self) -> str:
        """The first diagnosis, `none` where there is none."""
        return self.said[0][0] if self.said else "none"

    @property
    def parts(self) -> tuple[tuple[str, ...], ...]:
        """The names of each planted part that can be seen here."""
        if self.fault is None:
            return ()
        seen = self.effect.visible or (True,) * len(self.fault.parts)
        return tuple(part for part, visible in zip(self.fault.parts, seen, strict=True) if visible) or self.fault.parts

    @property
    def kind(self) -> str:
        """What was planted and can be seen, by its usual names."""
        return " + ".join(part[0] for part in self.parts)

    @property
    def combined(self) -> bool:
        """Whether two faults can be seen at once."""
        return len(self.parts) > 1

    @property
    def names(self) -> frozenset[str]:
        """The ids by which the fault may be called."""
        return frozenset(name for part in self.parts for name in part)

    @property
    def right(self) -> bool:
        """Detected, and the first diagnosis is (one of) the planted."""
        return self.named and self.first in self.names

    @property
    def both(self) -> bool:
        """Whether every planted part is among the diagnoses."""
        ids = {name for name, _ in self.said}
        return self.named and all(ids & set(part) for part in self.parts)

    @property
    def undecided(self) -> bool:
        """Whether the judge says that the data do not tell; `undecided_right` where the planted is a candidate."""
        return self.named and self.first == NOT_IDENTIFIABLE

    @property
    def undecided_right(self) -> bool:
        return self.undecided and bool(self.names & set(self.candidates))

    @property
    def unexplained(self) -> bool:
        """Detected, but no cause was named."""
        return self.named and not self.undecided and (self.first in UNEXPLAINED or not self.said[0][1])

    @property
    def confidently_wrong(self) -> bool:
        """A cause was named as explained, and it is another one."""
        return self.named and not (self.right or self.undecided or self.unexplained)

    @property
    def right_verdict(self) -> bool:
        """Whether all tensors for which it is the culprit have a verdict that fits."""
        return self.fault is not None and set(self.verdicts) <= {*self.fault.verdicts, "close"}

    @property
    def command(self) -> str:
        """How to see it again."""
        number = int(self.case.split("-")[1]) + 1
        kernels = "--healthy" if self.fault is None else f"--only '{self.backend}'"
        where = f"--frameworks {self.framework} --seed {self.seed} --cases {number}"
        return f"python benchmarks/judge/run.py {where} {kernels} -k '{self.case}'"


def score(run: Run, results: Results, measured: Mapping[Key, Effect]) -> list[Cell]:
    """One Cell for each outcome of a run."""
    ops = {case.id: case.op for case in results.cases}
    comparisons, diagnoses = by_cell(results.comparisons), by_cell(results.diagnoses)
    cells = []
    for row in results.outcomes:
        key, cell = (row.case, row.dtype, row.backend), (row.case, row.dtype)
        accused = [c for c in comparisons[cell] if row.backend in c.culprit]
        mine = causes_of(diagnoses[cell], row.backend)
        kernel = run.kernels[row.backend]
        cells.append(
            Cell(
                framework=run.framework,
                seed=run.seed,
                op=ops[row.case],
                case=row.case,
                dtype=row.dtype,
                backend=row.backend,
                fault=None if isinstance(kernel, Healthy) else kernel,
                outcome=row.outcome,
                effect=measured[key],
                named=bool(accused),
                verdicts=tuple(
                    sorted({c.verdict for c in accused if c.actual == row.backend and c.expected == "oracle"})
                ),
                said=tuple((d.id, bool(d.explained)) for d in mine),
                candidates=candidates(mine[:1]),
            )
        )
    return cells


def causes_of(diagnoses: Sequence[Diagnosis], backend: str) -> list[Diagnosis]:
    """What was said about a backend, but for the tensors in which it only rounds."""
    return [d for d in diagnoses if d.backend == backend and d.id not in HARMLESS]


def verdicts(accused: Sequence[Comparison], backend: str) -> tuple[str, ...]:
    """The verdicts of the tensors of which a backend is the culprit, against the oracle."""
    return tuple(sorted({c.verdict for c in accused if (c.actual, c.expected) == (backend, "oracle")}))


def by_cell(rows: Sequence[R]) -> Mapping[tuple[str, str], list[R]]:
    """Rows by case and dtype."""
    grouped: dict[tuple[str, str], list[R]] = defaultdict(list)
    for row in rows:
        grouped[row.case, row.dtype].append(row)
    return grouped


def candidates(rows: Sequence[Diagnosis]) -> tuple[str, ...]:
    """The ids between which the first diagnosis does not decide; `a + b` are two causes together."""
    found = [item["id"] for row in rows for item in row.evidence.get("candidates", ())]
    return tuple(name for text in found for name in text.split(" + "))
