"""A claim about a kernel, and the probes and numbers behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.cases.draw import TensorPlan, Values
from parity.config.plan import CasePlan, WrittenAt
from parity.config.tolerances import DEFAULT_TOLERANCES
from parity.fingerprint.precision import PRECISIONS, Long, Precision

UNDECIDED = "cannot tell"


@dataclass(frozen=True)
class KernelClaim:
    """The answer for one `aspect`, or `cannot tell` with the reason; `evidence` holds the numbers.

    `measured` is false if a backend returned nothing, so that there are no data. The experiment fills in `aspect`.
    """

    answer: str
    reason: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    measured: bool = True
    aspect: str = ""

    @property
    def decided(self) -> bool:
        """Whether the data decide."""
        return self.answer != UNDECIDED


def undecided(reason: str, evidence: Mapping[str, Any] | None = None) -> KernelClaim:
    """The claim that the data do not decide."""
    return KernelClaim(UNDECIDED, reason, evidence or {})


class NotMeasuredError(Exception):
    """A probe has no usable result; the message says why."""


class UnusableError(NotMeasuredError):
    """A probe's result has no meaningful numbers."""


@dataclass(frozen=True)
class KernelProbe:
    """One input for one op, in one dtype; `tensors` holds inputs and grad_outputs by name."""

    id: str
    op: str
    params: Any
    tensors: Mapping[str, NDArray[Any]]

    def case(self, dtype: str) -> CasePlan:
        """The probe as a case that the engine runs."""
        tensors = tuple(TensorPlan(n, np.shape(v), Values(np.asarray(v, np.float64))) for n, v in self.tensors.items())
        return CasePlan(
            id=f"{self.id}-{dtype}",
            op=self.op,
            params=self.params,
            dtypes=(dtype,),
            tensors=tensors,
            tolerance=DEFAULT_TOLERANCES,
            source=WrittenAt("fingerprint", 0),
            gradients=any(name.startswith("grad.") for name in self.tensors),
        )


@dataclass(frozen=True)
class ProbeAnswer:
    """What one backend returned for a probe; if nothing, `outputs` is empty and `problem` says why."""

    probe: KernelProbe
    outputs: Mapping[str, NDArray[Any]]
    problem: str = ""


@dataclass(frozen=True)
class ProbeAnswers:
    """All results of one backend in one dtype, by probe id."""

    dtype: str
    by_probe: Mapping[str, ProbeAnswer]

    @property
    def precision(self) -> Precision:
        """The dtype under test."""
        return PRECISIONS[self.dtype]

    def probe(self, probe: str) -> KernelProbe:
        """A probe; raises NotMeasuredError if it never ran."""
        if probe not in self.by_probe:
            raise NotMeasuredError(f"{probe} was not run")
        return self.by_probe[probe].probe

    def output(self, probe: str, tensor: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """An output in the dtype under test and of the right shape; raises NotMeasuredError if there is none."""
        problem = self.by_probe[probe].problem if probe in self.by_probe else "was not run"
        if problem:
            raise NotMeasuredError(f"{probe}: {problem}")
        values = self.by_probe[probe].outputs.get(tensor)
        if values is None:
            raise NotMeasuredError(f"{probe}: {tensor} is missing")
        if values.shape != shape or values.dtype != np.dtype(self.dtype):
            raise NotMeasuredError(f"{probe}: {tensor} is {values.dtype} of shape {list(values.shape)}")
        return values

    def wide_output(self, probe: str, tensor: str, like: str = "") -> Long:
        """An output in longdouble; it has the shape of the probe's tensor `like`, which by default has its name."""
        shape = np.shape(self.probe(probe).tensors[like or tensor])
        return self.output(probe, tensor, shape).astype(np.longdouble)


Question = Callable[[ProbeAnswers], KernelClaim]


@dataclass(frozen=True)
class Experiment:
    """One op: its probes, the function for each aspect, and its plot.

    `drift` gives (x, error) for the plot, `theory(n, u, x)` the expected errors by algorithm.
    """

    probes: Callable[[Precision], Iterable[KernelProbe]]
    questions: Mapping[str, Question]
    drift: Callable[[ProbeAnswers], list[tuple[float, float]]]
    theory: Callable[[int, float, float], Mapping[str, float]]
    axes: tuple[str, str]
    n: int = 0

    def claims(self, answers: ProbeAnswers) -> list[KernelClaim]:
        """The claims about all aspects."""
        return [replace(attempt(question, answers), aspect=aspect) for aspect, question in self.questions.items()]


def attempt(question: Question, answers: ProbeAnswers) -> KernelClaim:
    """The claim of one aspect; `cannot tell` with the reason if a probe has no result."""
    try:
        with np.errstate(all="ignore"):
            return question(answers)
    except UnusableError as error:
        return undecided(str(error))
    except NotMeasuredError as error:
        return KernelClaim(UNDECIDED, str(error), measured=False)
