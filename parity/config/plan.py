"""The Plan: a validated configuration, as the engine runs it.

Everything here is frozen, checked and independent of YAML: shapes, names and sweeps are resolved.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from parity.cases import OPS
from parity.cases.brought import Brought, op_of
from parity.cases.draw import TensorPlan
from parity.cases.op import Op
from parity.config.kinds import KINDS, OP
from parity.config.tolerances import ToleranceTable

ORACLE = "oracle"
"""The reserved name of the NumPy oracle (the exact answer) as `expected` of a comparison."""


@dataclass(frozen=True)
class WrittenAt:
    """A location in a configuration; `line` counts from 1."""

    file: str
    line: int


@dataclass(frozen=True)
class BackendSpec:
    """One backend as the user requested it, before its interpreter is resolved.

    `ranks` is the number of data-parallel processes of its trainings.
    """

    name: str
    adapter: str
    version: str | None = None
    mode: str = "eager"
    device: str = "cpu"
    python: Path | None = None
    ops: Path | None = None
    ranks: int = 1


def own_kernels(backends: Iterable[BackendSpec]) -> tuple[str, ...]:
    """The names of the backends that compute a user's ops."""
    return tuple(spec.name for spec in backends if spec.ops is not None)


@dataclass(frozen=True)
class CasePlan:
    """One case: an op with checked params (an instance of the op's own dataclass) and its input tensors, or a training.

    `tensors` holds every input and every gradient of an output (`grad.y`) in drawing order. `gradients`: whether
    gradients are computed and compared. `backends`, `baseline` and `subject` are empty if they are those of the plan;
    in a run of several configs each has its own. `brought`: a user's own op. `stress`: it is called many times, and on
    single rows.
    """

    id: str
    op: str
    params: Any
    dtypes: tuple[str, ...]
    tensors: tuple[TensorPlan, ...]
    tolerance: ToleranceTable
    source: WrittenAt
    gradients: bool = True
    backends: tuple[str, ...] = ()
    baseline: str = ""
    subject: tuple[str, ...] = ()
    brought: Brought | None = None
    stress: bool = False

    @property
    def layouts(self) -> tuple[str, ...]:
        """The tensors that are not contiguous, or share their memory."""
        return tuple(plan.name for plan in self.tensors if plan.layout or plan.alias)

    @property
    def is_laid_out(self) -> bool:
        """Whether `stress` has chosen the memory layout of its tensors."""
        return self.stress and bool(self.layouts)

    @property
    def definition(self) -> Op:
        """The op: one that parity knows, or the one that the case brings."""
        return OPS[self.op] if self.brought is None else op_of(self.brought)

    def runs_on(self, backend: str) -> bool:
        """Whether the case runs on the backend of this name."""
        return not self.backends or backend in self.backends

    @property
    def kind(self) -> str:
        """The kind of the case: `op`, or a key of `KINDS`, which `op` then repeats; it determines `params`."""
        return self.op if self.op in KINDS else OP

    @property
    def is_op(self) -> bool:
        """Whether this is a case of an op, not of a model, such as a training."""
        return self.kind == OP


ACCEPTED_DAYS = 182
"""Days until a `known` entry expires by default: half a year, about two releases of a framework."""

REASON_WANTED = "WHY IS IT ACCEPTED?"
"""Placeholder for the reason in the `known` entries that reports offer; the user must replace it."""


@dataclass(frozen=True)
class KnownDeviation:
    """A known deviation as parsed; parity.judge.known applies it.

    A field that is None matches anything. `case` and `tensor` are globs; `error_ratio` is the recorded size; a larger
    deviation is not accepted. `unsupported`: accepts that the backend cannot compute the case, instead of a difference.
    `config_cases`: the ids of the cases of its own config, if a run has several.
    """

    case: str
    reason: str
    backend: str | None = None
    tensor: str | None = None
    diagnosis: str | None = None
    until: datetime.date | None = None
    source: WrittenAt = field(default=WrittenAt("", 0))
    dtype: str | None = None
    error_ratio: float | None = None
    unsupported: bool = False
    config_cases: frozenset[str] | None = None


@dataclass(frozen=True)
class ConfigFile:
    """A configuration file of the plan."""

    path: str
    sha256: str


@dataclass(frozen=True)
class Asked:
    """Everything in the files, before the command line selected from it: case ids with their dtypes, and backends.

    `altered`: the command line also changed a tolerance, the baseline or the length of a training, so verdicts differ
    from those of the files. `narrower`: the backends of each case that does not run on all of them.
    """

    cases: tuple[tuple[str, tuple[str, ...]], ...]
    backends: tuple[str, ...]
    altered: bool = False
    narrower: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def backends_of(self, case: str) -> tuple[str, ...]:
        """The backends that run a case."""
        return self.narrower.get(case, self.backends)


@dataclass(frozen=True)
class Plan:
    """A whole run. `baseline` is a backend's name or `oracle`; `asked` is None if nothing is deselected.

    `subject`: the backends that the run judges; empty if it judges all. What others do wrong is a warning.
    """

    name: str
    configs: tuple[ConfigFile, ...]
    backends: tuple[BackendSpec, ...]
    baseline: str
    seed: int
    cases: tuple[CasePlan, ...]
    known: tuple[KnownDeviation, ...] = ()
    asked: Asked | None = None
    subject: tuple[str, ...] = ()

    @property
    def everything(self) -> Asked:
        """Everything in the files, selected or not."""
        own = tuple((case.id, case.dtypes) for case in self.cases)
        narrower = {case.id: case.backends for case in self.cases if case.backends}
        return self.asked or Asked(own, tuple(spec.name for spec in self.backends), narrower=narrower)

    def of(self, case: CasePlan) -> Plan:
        """The plan with the backends, the baseline and the subject of one of its cases."""
        if not case.backends and not case.baseline and not case.subject:
            return self
        backends = tuple(spec for spec in self.backends if case.runs_on(spec.name))
        subject = case.subject or self.subject
        return replace(self, backends=backends, baseline=case.baseline or self.baseline, subject=subject)

    def judges(self, backend: str) -> bool:
        """Whether the errors of a backend count."""
        return not self.subject or backend in self.subject

    def only(self, ids: Collection[str]) -> Plan:
        """The plan with only these cases and the backends that they need."""
        cases = tuple(case for case in self.cases if case.id in ids)
        backends = tuple(spec for spec in self.backends if any(case.runs_on(spec.name) for case in cases))
        return replace(self, cases=cases, backends=backends, asked=self.everything)


@dataclass(frozen=True)
class Overrides:
    """The overrides of the command line, as typed: `-b`, `-k`, `--dtype`, `--rtol`, `--atol`, `--baseline`,
    `--steps`, `--shard`, `--fail-on-others`."""

    backends: tuple[str, ...] = ()
    keyword: str | None = None
    dtypes: tuple[str, ...] = ()
    rtol: tuple[str, ...] = ()
    atol: tuple[str, ...] = ()
    baseline: str | None = None
    steps: int | None = None
    shard: str | None = None
    fail_on_others: bool = False
