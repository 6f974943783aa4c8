"""A model's result for all formats: an answer, and a row for each part that is wrong."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parity.engine.inputs import slug
from parity.judge.compare.verdict import Comparison
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.models.spec import MODEL
from parity.reporting.blocks import GridColumn
from parity.reporting.results.rows import CaseRow, Results
from parity.reporting.text.words import cut, listed, number

COLUMNS: Sequence[GridColumn] = (
    GridColumn("where", prose=True),
    GridColumn("cause"),
    GridColumn("explains", number=True),
    GridColumn("error ratio", number=True),
)
PLACE = "place"
"""The key of a diagnosis's evidence that names the part of the model."""
LONGEST = 200
ALL = 0.9995
"""A share from here on is printed as `all`."""


@dataclass(frozen=True)
class CaseView(ABC):
    """A backend's result in a case and dtype as an answer and a table."""

    case: CaseRow
    dtype: str
    backend: str

    @property
    def anchor(self) -> str:
        """The id of its section in a page."""
        return f"{self.case.op}-{slug(self.case.id)}-{self.dtype}-{slug(self.backend)}"

    @property
    def title(self) -> str:
        """`model bert float32: paddle`."""
        return f"{self.case.op} {self.case.id} {self.dtype}: {self.backend}"

    @property
    @abstractmethod
    def fails(self) -> bool:
        """Whether anything exceeds the error bound."""

    @abstractmethod
    def answer(self) -> list[str]:
        """The answer in a few sentences."""

    @abstractmethod
    def table(self) -> list[tuple[str, ...]]:
        """The rows of the table."""


@dataclass(frozen=True)
class ModelView(CaseView):
    """A port of a model.

    `outputs` are the comparisons of its outputs, `parts` the diagnoses in the order of the run. `ended` says why there
    is no result, `lacking` what could not be compared.
    """

    baseline: str
    outputs: Sequence[Comparison]
    rows: Sequence[Comparison]
    parts: Sequence[Diagnosis]
    ended: str = ""
    lacking: Sequence[str] = ()

    @property
    def fails(self) -> bool:
        """Whether anything exceeds the error bound."""
        return bool(self.ended or self.parts) or any(row.fails for row in self.rows)

    def answer(self) -> list[str]:
        """The answer in a sentence or two."""
        if self.ended:
            return [self.ended]
        if not self.fails:
            silent = [f"{row.tensor}: {row.message}" for row in self.outputs if row.verdict == "not-compared"]
            if silent:
                return silent
            sizes = (f"{row.tensor}: {size(row)}" for row in self.outputs)
            aligned = f"aligned with {self.baseline}; the difference at the output is rounding ({'; '.join(sizes)})"
            return [aligned, *self.lacking]
        grouped: dict[str, list[Diagnosis]] = {}
        for part in self.parts:
            grouped.setdefault(part.title, []).append(part)
        lines = [f"{title}{formula(group[0])}{explains(group)}" for title, group in grouped.items()]
        return [*lines, *self.rest(), *self.lacking]

    def rest(self) -> list[str]:
        """What remains of the output's difference once all parts are fixed, and where it first exceeds the bound."""
        left = [part.evidence.get("left") for part in self.parts]
        lines = []
        known = [value for value in left if value is not None]
        if known and any(part.evidence.get("share") is not None for part in self.parts):
            rounding = known[-1] < 8.0
            lines.append(
                "once fixed, the difference at the output is rounding"
                if rounding
                else f"once fixed, the output still differs by {number(known[-1])} envelopes"
            )
        first = next((part.evidence.get("first_off") for part in self.parts), None)
        script = next((part.evidence["script"] for part in self.parts if part.evidence.get("script")), None)
        lines += [f"a script shows the layer alone: python {script}"] if script else []
        return [*lines, *([f"run on its own, the port first exceeds the error bound at {first}"] if first else [])]

    def table(self) -> list[tuple[str, ...]]:
        """A row for each part, in the order of `COLUMNS`."""
        return [
            (
                str(part.evidence.get(PLACE, "")),
                part.id,
                share_text(part.evidence.get("share")),
                number(part.residual_before),
            )
            for part in self.parts
        ]


def size(row: Comparison) -> str:
    """`1.2e-07, expected 3e-07`."""
    envelope = math.nan if row.envelope is None else row.envelope.max
    return f"{number(row.max_abs_diff)} at most, {number(envelope)} expected"


def formula(part: Diagnosis) -> str:
    """`: scores = matmul, where the reference has matmul / 8`."""
    text = str(part.evidence.get("expression") or "")
    return f": {cut(text, LONGEST)}" if text else ""


def explains(parts: Sequence[Diagnosis]) -> str:
    """`; it explains 99.8 % of the difference at the output, 97 % of accuracy's`."""
    texts = []
    for name, shares in shares_of(parts).items():
        whole = sum(shares)
        of = "the difference at the output" if name == "output" else f"that of {name}"
        if math.isfinite(whole) and (name == "output" or whole >= 0.005) and whole > -0.005:
            texts.append(f"{share_text(whole)} of {of}")
    return f"; it explains {listed(texts)}" if texts else ""


def shares_of(parts: Sequence[Diagnosis]) -> dict[str, list[float]]:
    """The shares of some parts by what they are shares of."""
    by_quantity: dict[str, list[float]] = {}
    for part in parts:
        shares: Mapping[str, Any] = {"output": part.evidence.get("share"), **(part.evidence.get("shares") or {})}
        for name, share in shares.items():
            if share is not None:
                by_quantity.setdefault(name, []).append(float(share))
    return by_quantity


def share_text(share: float | None) -> str:
    """`99.8 %`."""
    if share is None or not math.isfinite(share):
        return "-"
    return "all" if share >= ALL else f"{100 * share:.3g} %"


def views(results: Results) -> list[ModelView]:
    """Every port of every model in a run; those that fail first."""
    ports = []
    for case in results.cases:
        if case.op != MODEL:
            continue
        of = results.of(case)
        for dtype in case.dtypes:
            for backend in of.backend_names:
                if backend != of.run.baseline:
                    ports += view(results, case, dtype, backend, of.run.baseline)
    return sorted(ports, key=lambda one: not one.fails)


def view(results: Results, case: CaseRow, dtype: str, backend: str, baseline: str) -> list[ModelView]:
    """A port's view; empty if the run did not reach the port."""
    rows = [r for r in results.comparisons if (r.case, r.dtype) == (case.id, dtype) and r.actual == backend]
    mine = [r for r in results.diagnoses if (r.case, r.dtype, r.backend) == (case.id, dtype, backend)]
    outcomes = [
        r for r in results.outcomes if (r.case, r.dtype) == (case.id, dtype) and r.backend in (backend, baseline)
    ]
    ended = [r.message for r in outcomes if r.outcome != "ok"]
    lacking = [f"{r.backend} {r.message}" for r in outcomes if r.outcome == "ok" and r.message]
    outputs = [row for row in rows if row.tensor.partition(".")[0] == "output"]
    if not rows and not ended:
        return []
    return [ModelView(case, dtype, backend, baseline, outputs, rows, mine, "; ".join(dict.fromkeys(ended)), lacking)]
