"""The schema of results.json (format 1), by which it is written, read and resumed.

A field with a default may be missing in a file; fields that are not named here are left out when a file is read. A
number that is not finite is the text "nan", "inf" or "-inf" in the file, and a float here. Rows of
`comparisons` and `diagnoses` are a `Comparison` and a `Diagnosis` as the judge made them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta, Struct, to_builtins
from msgspec.structs import force_setattr, replace

from parity.errors import UserError
from parity.judge.compare.verdict import Comparison, Verdict
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.judge.known import EntryState

if TYPE_CHECKING:
    import pandas as pd

FILE_NAME = "results.json"
FORMAT: Literal[1] = 1
MAX_STEPS = 1_000_000

SEVERITY = {verdict.value: i for i, verdict in enumerate(Verdict)}
"""Worse verdicts are higher."""
FAILING = frozenset(verdict.value for verdict in Verdict if verdict.fails)
PASSING = frozenset(verdict.value for verdict in Verdict if verdict.passes)
FINDINGS = FAILING - {Verdict.ROUNDING.value, Verdict.CHOICE.value}
"""Verdicts that require a backend beyond its error bound."""
FAILING_STATES = frozenset(state.value for state in EntryState if state.fails)
"""The states of a `known` entry that fail the run."""
NOT_COMPARED = Verdict.NOT_COMPARED.value

CellKey = tuple[str, str, str]
"""Case, dtype and backend."""

Name = Annotated[str, Meta(max_length=2_000)]
Count = Annotated[int, Meta(ge=0, le=MAX_STEPS)]
Values = Annotated[list[float], Meta(max_length=MAX_STEPS)]
Stage = Literal["data", "forward", "loss", "gradient", "clip", "schedule", "update"]


class ResultsError(UserError):
    """A run directory that cannot be read; the message says which file and why."""


class SourceLocation(Struct, frozen=True):
    """File and line of a config."""

    file: str
    line: int


class ConfigRow(Struct, frozen=True):
    """A config file."""

    path: str
    sha256: str = "?"


class RunRow(Struct, frozen=True, kw_only=True):
    """The run itself; `host` is what is known of the machine. `stopped`: it ended at its first finding.

    `subject`: the backends that it judges, empty if it judges all.
    """

    id: str = ""
    started: str = ""
    parity: str = ""
    command: list[str] = []
    configs: list[ConfigRow] = []
    seed: float | int | None = None
    baseline: str
    timeout_s: float | None = None
    host: dict[str, Any] = {}
    fail_on: str = ""
    stopped: bool = False
    seconds: float | None = None
    judge_seconds: float | None = None
    subject: list[str] = []


class BackendRow(Struct, frozen=True, kw_only=True):
    """A backend; empty texts if it never answered. `ops` is the copy of the user's file in the run
    directory, `library` the versions that the file states of what it is made with."""

    name: str
    framework: str
    version: str
    python: str = ""
    mode: str = ""
    device: str = ""
    numpy: str = ""
    flags: dict[str, Any] = {}
    executable: str = ""
    ops: str | None = None
    library: dict[str, str] = {}


class InputRow(Struct, frozen=True):
    """A stored input; `file` is relative to the run directory, None if the input was not drawn.

    `layout` and `alias` say how the workers' tensors lay in memory, empty if contiguous and on their own; `storage`
    is the dtype in which an operand was stored, if narrower than the case's.
    """

    shape: list[int]
    draw: str
    file: str | None
    layout: str = ""
    alias: str = ""
    storage: str = ""


class BroughtRow(Struct, frozen=True):
    """A user's own op: the file and the text of its reference, the inputs with a gradient, the params at a default."""

    file: str
    text: str
    differentiable: list[str]
    droppable: list[str]


class CaseRow(Struct, frozen=True):
    """A case: what was computed, and from what; `backends`, `baseline` and `subject` are empty if they are those of the
    run."""

    id: str
    op: str
    params: dict[str, Any]
    dtypes: list[str]
    inputs: dict[str, InputRow]
    source: SourceLocation
    backends: list[str] = []
    baseline: str = ""
    brought: BroughtRow | None = None
    subject: list[str] = []

    @property
    def files(self) -> list[str]:
        """The stored inputs, relative to the run directory."""
        return [item.file for item in self.inputs.values() if item.file]


class OutcomeRow(Struct, frozen=True, kw_only=True):
    """The outcome of a cell; `composed` if it was parity's own composition of the framework's calls."""

    case: str
    dtype: str
    backend: str
    outcome: str
    seconds: float = 0.0
    message: str
    composed: bool = False

    @property
    def key(self) -> CellKey:
        """Case, dtype and backend."""
        return self.case, self.dtype, self.backend


class KnownRow(Struct, frozen=True, kw_only=True):
    """An entry of `known` after a run; keys that the config leaves out are None."""

    case: str
    backend: str | None = None
    dtype: str | None = None
    tensor: str | None = None
    diagnosis: str | None = None
    error_ratio: float | None = None
    outcome: str | None = None
    until: str | None = None
    reason: str
    source: SourceLocation | None = None
    state: str
    n_matched: int = 0
    worst_ratio: float | None = None
    message: str

    @property
    def fails(self) -> bool:
        """Whether it fails the run itself."""
        return self.state in FAILING_STATES


class EnsembleRow(Struct, frozen=True):
    """The perturbed runs behind the envelope of the curves: their backend and number."""

    of: Name | None
    members: Count


class DivergenceRow(Struct, frozen=True):
    """The first divergence of a backend: the first step that exceeds the envelope."""

    step: Count
    stage: Stage | None
    tensor: Name | None
    ratio: float | None
    diagnosis: Name | None
    seen: Literal["probe", "curve"]


class ProbeRow(Struct, frozen=True):
    """A step that the oracle recomputed: the error ratio of each observed stage."""

    step: Count
    ratios: dict[str, float]

    def __post_init__(self) -> None:
        force_setattr(self, "ratios", chosen(self.ratios, Stage.__args__))  # type: ignore[attr-defined]


class CurveRows(Struct, frozen=True):
    """The values of each step, their error ratios, and the envelope of a curve."""

    loss: Values
    grad_norm: Values
    lr: Values
    ratio: dict[str, Values]
    envelope: dict[str, Values]

    def __post_init__(self) -> None:
        force_setattr(self, "ratio", chosen(self.ratio, ("loss", "grad_norm", "param", "state", "buffer")))
        force_setattr(self, "envelope", chosen(self.envelope, ("loss", "grad_norm")))


class TrainingRow(Struct, frozen=True):
    """A backend in a training: its progress, first divergence, probed steps and curves."""

    case: Name
    dtype: Name
    backend: Name
    expected: Name
    steps: Count
    planned: Count
    ensemble: EnsembleRow
    parting: DivergenceRow | None
    probes: Annotated[list[ProbeRow], Meta(max_length=10_000)]
    curves: CurveRows
    norms: Name | None = None

    @property
    def key(self) -> CellKey:
        """Case, dtype and backend."""
        return self.case, self.dtype, self.backend


class Summary(Struct, frozen=True, kw_only=True):
    """Number of each outcome and verdict, number of cells and of tensors per status, and the exit code."""

    outcomes: dict[str, int]
    verdicts: dict[str, int]
    cells: dict[str, int] = {}
    tensors: dict[str, int] = {}
    exit_code: int


REFERENCED = ("model", "decode")
"""The ops of cases whose baseline is not compared itself."""


class MatrixRow(Struct, frozen=True):
    """How many cells of an op on a backend in a dtype have a status, with their worst verdict."""

    op: str
    backend: str
    dtype: str
    status: str
    verdict: str
    n_cells: int


class Results(Struct, frozen=True, kw_only=True):
    """The whole document.

    `left_out` is the number of a large run's cells whose rows are only in results.sqlite; `matrix` then counts all.
    """

    format: Literal[1] = FORMAT
    run: RunRow
    backends: Sequence[BackendRow]
    cases: Sequence[CaseRow]
    outcomes: Sequence[OutcomeRow]
    comparisons: Sequence[Comparison]
    diagnoses: Sequence[Diagnosis] = ()
    known: Sequence[KnownRow] = ()
    trainings: Annotated[Sequence[TrainingRow], Meta(max_length=20_000)] = ()
    summary: Summary
    left_out: int = 0
    matrix: Sequence[MatrixRow] = ()

    def __post_init__(self) -> None:
        cases = {case.id for case in self.cases}
        for name in ("comparisons", "trainings"):
            strange = next((row.case for row in getattr(self, name) if row.case not in cases), None)
            if strange is not None:
                raise ValueError(f"{name}: unknown case {strange[:200]!r}")

    @property
    def backend_names(self) -> list[str]:
        """The backends in the order of the run."""
        return [row.name for row in self.backends]

    def frame(self) -> pd.DataFrame:
        """The comparisons as a table, with the op of each case."""
        import pandas as pd

        ops = {case.id: case.op for case in self.cases}
        return pd.DataFrame.from_records([{**to_builtins(row), "op": ops[row.case]} for row in self.comparisons])

    def judging_all(self) -> Results:
        """The results of a run that judges every backend."""
        return replace(
            self,
            run=replace(self.run, subject=[]),
            cases=[replace(row, subject=[]) for row in self.cases],
            comparisons=[replace(row, counted=None) for row in self.comparisons],
        )

    def of(self, case: CaseRow) -> Results:
        """The results with the backends, the baseline and the subject of one case."""
        names = case.backends or self.backend_names
        subject = case.subject or self.run.subject
        run = replace(self.run, baseline=case.baseline or self.run.baseline, subject=subject)
        return replace(self, run=run, backends=[row for row in self.backends if row.name in names])


def chosen(given: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The items with these names, in their order."""
    return {name: given[name] for name in names if name in given}
