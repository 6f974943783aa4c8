"""Searches for the cause of a wrong stage like that of an op; the records of other steps are the further answers.

Known causes of trainings are tried first, then edits of the stage's op and its forms, also with fitted numbers. A cause
is accepted if it leaves only rounding in every tensor of every wrong step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from parity.cases.edit_functions import NUMBERS
from parity.cases.edits import OTHER, READ, Edit, option_of
from parity.cases.program import Program
from parity.config.plan import CasePlan
from parity.judge.diagnose.causes import Cause
from parity.judge.diagnose.edits import edit_causes, fitted_causes
from parity.judge.diagnose.evaluator import Alteration, Evaluator, Observed
from parity.judge.diagnose.explanation import CLEAR, COST, KernelExplanation, unaltered
from parity.judge.diagnose.findings import summary
from parity.judge.diagnose.inquiry import Inquiry, Measurement, carried, complete
from parity.judge.diagnose.proposals import proposals
from parity.judge.diagnose.search import CLEARER, SearchResult, Sources, search
from parity.judge.failures import Failures, explainer
from parity.outcome import Array
from parity.training.cost import cost
from parity.training.edits import ProgramEdits
from parity.training.judge.causes import NAMED, Stage, limited, standing
from parity.training.judge.evaluator import PartEvaluator, StageEvaluator, part_of, variants_of
from parity.training.judge.measured import MeasuredStage
from parity.training.judge.oracle import StepOracle, UnknownError, of_model
from parity.training.model import Variants

SEARCH_S = 60.0
"""Approximate limit, in seconds, on passes through the model for the causes of a stage."""
PASSES = 16
"""Estimated passes per cause in a search for combinations of causes."""
MISSED = 1.0
"""The weight of assuming that a cause is absent in a step in which it would show."""
MOST_REFUTED = 12
MOST_STEPS = 128
"""Limit on the steps of a model's program whose edits are tried: 100 steps take seconds, 300 take minutes."""
OPTION = "option-value"
TAKEN = (*OTHER, "joined", "derived", READ)
"""The kinds of edits that may replace something by an option."""
FEW_DIGITS = 2
"""Significant digits of a number that a person would write; a fit has such a number by chance once in 10,000."""
PREFERRED = 0.05


@dataclass(frozen=True)
class StageFault:
    """A stage that exceeds the error bound, not as a consequence of an earlier one: where, by how much, and why.

    `tensors` are those outside at the first step, the worst first; `parts` are the parameters or ops that are wrong, if
    others of the stage are right. The `causes` together explain it and leave the error ratio `left`; `expressions` are
    what each of them computes, and `evidence` is what else is known.
    """

    stage: str
    steps: tuple[int, ...]
    tensors: tuple[str, ...]
    ratio: float
    causes: tuple[Cause, ...] = ()
    left: float | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    expressions: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()

    @property
    def first(self) -> int:
        """The first step beyond the error bound."""
        return self.steps[0]


class StageInquiry(Inquiry):
    """Searches for the cause of one wrong stage of a backend: `outside` and `inside` are its wrong and right probes,
    measured with the `known` causes. If the `forward` pass is right, its variants change only gradients."""

    def __init__(
        self,
        oracle: StepOracle,
        stage: str,
        outside: Sequence[MeasuredStage],
        inside: Sequence[MeasuredStage],
        known: Variants,
        ranks: int,
        *,
        forward: bool,
        failures: Failures | None = None,
    ) -> None:
        first = max(outside, key=lambda measured: (measured.probe.previous is not None, measured.probe.step))
        others = [measurement_of(oracle, stage, measured, known) for measured in outside if measured is not first]
        self.main = StageEvaluator(oracle, stage, first, known)
        super().__init__(Measurement(self.main, self.main.observed), None, no_other_inputs, others, failures=failures)
        self._inside = [(measured.probe.step, measurement_of(oracle, stage, measured, known)) for measured in inside]
        self._asked_about = Stage(oracle.training, ranks, oracle.dtype, first, forward)
        self._seconds = cost(oracle.training)
        self._results: dict[int, SearchResult] = {}
        self._ties = False

    @property
    def can_ask(self) -> bool:
        """The records of other steps are the answers."""
        return True

    def explained(self, fault: StageFault) -> StageFault:
        """The fault with the causes that explain it, if any."""
        result = self.result()
        best, second = result.best, result.second
        evidence: dict[str, Any] = {"tried": self.main.n_tried, "second": second and summary(second)}
        if not self.confirmed([best]):
            return replace(fault, evidence=evidence)
        evidence |= {"not_at_work_in": self.missed(best), "not_told_from": [self._summary(e) for e in result.rivals]}
        left = max(max(e.left.values()) for e in self._everywhere(best))
        expressions = tuple(map(best.expression, best.causes))
        return replace(fault, causes=best.causes, left=left, evidence=evidence, expressions=expressions)

    def _settles(self, explanation: KernelExplanation) -> bool:
        """Whether no other explanation can be simpler."""
        return self._order(explanation)[0] <= COST + NAMED

    def _search(self, exact: Sequence[str], depth: int) -> SearchResult:
        """The causes of the stage, or none where that fails."""
        with self.failures.contained("trying the causes of the stage"):
            return self._of_stage(exact, depth)
        return SearchResult(unaltered(self.main, self.main.observed))

    def _of_stage(self, exact: Sequence[str], depth: int) -> SearchResult:
        """Tries causes without a pass through the model first, then as many others as there is time for."""
        every = standing(self.main.stage, self._asked_about)
        quick = [one for one in every if not is_slow(self.main.stage, one)]
        result = self._unrefuted(quick, exact, depth)
        if len(quick) == len(every) or any(map(self._settles, self.confirmed(complete(result)))):
            return result
        n_affordable = max(1, int(SEARCH_S / self._seconds))
        slow = sorted((one for one in every if one not in quick), key=lambda one: one.weight)[:n_affordable]
        depth = depth if len(slow) * PASSES <= n_affordable else 1
        if depth not in self._results:
            self._results[depth] = self._unrefuted([*quick, *slow], exact, depth)
        return self._results[depth]

    def _unrefuted(self, causes: Sequence[Cause], exact: Sequence[str], depth: int) -> SearchResult:
        """The search, repeated without causes that other steps refute, since these may hide others."""
        refuted: set[str] = set()
        sources = Sources(
            lambda _: [c for c in causes if identity(c) not in refuted],
            lambda origin: (c for c in beside(origin) if refuted.isdisjoint(map(identity, c))),
        )
        while True:
            result = search(self.main, self.main.observed, exact=exact, depth=depth, sources=sources)
            explanations = complete(result)
            single = {identity(e.causes[0]) for e in explanations if len(e.causes) == 1}
            if not single or len(refuted) >= MOST_REFUTED or self.confirmed(explanations):
                return result
            refuted |= single

    @explainer("trying edits of the stage")
    def _edits(self, origin: KernelExplanation) -> Sequence[Cause]:
        """Edits of the stage's op, or of a small model's program."""
        if origin.causes or (self._part is None and len(self.main.program(Alteration()).steps) > MOST_STEPS):
            return []
        edits = edit_causes(self._part or origin)
        return self._of_part([*edits, *(self._refitted(self._part, edits) if self._part is not None else ())])

    def _refitted(self, part: KernelExplanation, edits: Sequence[Cause]) -> Iterator[Cause]:
        """Fitted numbers with few digits as alternatives to edits that use another option: an option may have the right
        number by chance."""
        taken = {number for edit in edits if (number := borrowed(part, edit)) is not None}
        for fit in fitted_causes(part) if taken else ():
            number = fitted_number(part, fit)
            if number is not None and number not in taken and number == float(f"{number:.{FEW_DIGITS}g}"):
                self._ties = True
                yield replace(fit, weight=min(edit.weight for edit in edits) - PREFERRED)

    @explainer("fitting numbers of the stage")
    def _fits(self, origin: KernelExplanation) -> Sequence[Cause]:
        """Edits of the stage's op with a fitted number; none of a whole model."""
        return [] if origin.causes or self._part is None else self._of_part(fitted_causes(self._part))

    @cached_property
    def _part(self) -> KernelExplanation | None:
        """The stage's op, unaltered; None if the stage is a pass through the model."""
        part = part_of(self.main)
        return None if part is None else unaltered(part, part.observed)

    def _of_part(self, causes: Sequence[Cause]) -> list[Cause]:
        """Causes of the op as causes of the stage."""
        if self._part is None:
            return list(causes)
        part = self._part.evaluator
        assert isinstance(part, PartEvaluator)  # noqa: S101 - see `_part`
        stated = (of_stage(self.main.stage, part, cause) for cause in causes)
        if self.main.stage != "update":
            return list(stated)
        return [alone for cause in stated for alone in limited(cause, self._asked_about)]

    def confirmed(self, explanations: Sequence[KernelExplanation]) -> list[KernelExplanation]:
        """The explanations that hold in every wrong step without exceptions, the most plausible first."""
        kept = [e for e in explanations if e.explains and e.causes and not e.exceptions and self._everywhere(e)]
        return sorted(kept, key=self._order)

    def confirmed_here(self, _explanations: Sequence[KernelExplanation]) -> list[KernelExplanation]:
        """None, since all steps of a training have the same options."""
        return []

    def _order(self, explanation: KernelExplanation) -> tuple[float, float]:
        return (explanation.weight + MISSED * bool(self.missed(explanation)), explanation.rank[-1])

    def _everywhere(self, explanation: KernelExplanation) -> list[KernelExplanation]:
        """The explanation in every wrong step in which it can be computed; empty if it fails in one."""
        explanations = [explanation]
        for measurement in self._same:
            try:
                other = carried(unaltered(measurement.evaluator, measurement.observed), explanation)
            except UnknownError:
                continue
            if other is None or other.exceptions:
                return []
            explanations.append(other)
        return explanations

    def missed(self, explanation: KernelExplanation) -> list[int]:
        """The steps in which the stage is right, although this explanation would make it wrong."""
        return [number for number, measurement in self._inside if spoils(explanation, measurement)]

    def concluded(self, first: SearchResult, kept: Sequence[KernelExplanation]) -> SearchResult:
        """The best explanation, and its rivals: equally good ones, one of each diagnosis."""
        best, *others = sorted(kept, key=self._order)
        rivals = {e.ids: e for e in reversed(others) if e.ids != best.ids and self._is_as_good(best, e)}
        tied = [e for e in others if self._ties and e.causes[0].parameters.get("kind") in TAKEN]
        rivals |= {frozenset(TAKEN): tied[0]} if tied else {}
        second = next((e for e in (first.best, *first.rivals) if e not in kept and e.causes), first.second)
        return SearchResult(best, tuple(reversed(rivals.values())), second)

    def _summary(self, explanation: KernelExplanation) -> dict[str, Any]:
        """A summary of an explanation, with the expressions that it computes."""
        expression = "; ".join(filter(None, map(explanation.expression, explanation.causes)))
        return {**summary(explanation), **({"expression": f"computes {expression}"} if expression else {})}

    def _is_as_good(self, best: KernelExplanation, other: KernelExplanation) -> bool:
        theirs, ours = (max(e.left.values()) for e in (other, best))
        return self._order(other)[0] <= self._order(best)[0] and not (theirs >= CLEAR and theirs >= CLEARER * ours)


def borrowed(part: KernelExplanation, cause: Cause) -> float | None:
    """The number of the option by which an edit replaces something, NaN for a number computed from options; None for
    other edits."""
    alteration = cause.alteration or Alteration()
    program = part.evaluator.program(Alteration(alteration.arguments))
    for edit in alteration.edits:
        key = edit.value if edit.kind in OTHER else edit.value[-1] if edit.kind in ("joined", "derived") else None
        key = edit.value[2] if edit.kind == READ and edit.value[1] == "replaced" else key
        if isinstance(key, tuple) and key[0] == "option":
            return program.options[str(key[1])][1]
        if isinstance(key, tuple) and key[0] == "step" and is_of_options(program, int(key[1])):
            return math.nan
    return None


def is_of_options(program: Program, position: int) -> bool:
    """Whether a step computes a number from options alone."""
    needed = replace(program, outputs={"": program.steps[position].index}).needed()
    return {ref for step in needed.steps for ref in step.refs}.isdisjoint(program.inputs.values())


def fitted_number(part: KernelExplanation, cause: Cause) -> float | None:
    """The number that an edit fits to replace an option; None for other edits."""
    alteration = cause.alteration or Alteration()
    program = part.evaluator.program(Alteration(alteration.arguments))
    for edit in (edit for edit in alteration.edits if option_of(program, edit)):
        if edit.kind == "fitted" or (edit.kind == READ and edit.value[1] == "fitted"):
            return float(edit.value[2] if edit.kind == READ else edit.value)
    return None


def spoils(explanation: KernelExplanation, measurement: Measurement) -> bool:
    """Whether an explanation makes a right step wrong; False if that cannot be computed."""
    try:
        other = unaltered(measurement.evaluator, measurement.observed).extended(*explanation.causes)
    except UnknownError:
        return False
    return other is not None and other.exceptions > 0


def measurement_of(oracle: StepOracle, stage: str, measured: MeasuredStage, known: Variants) -> Measurement:
    """The measurement that a probe gives."""
    evaluator = StageEvaluator(oracle, stage, measured, known)
    return Measurement(evaluator, evaluator.observed)


def no_other_inputs(_case: CasePlan, _dtype: str, _inputs: Mapping[str, Array], _observed: Observed) -> Evaluator:
    """A training cannot be asked about other inputs."""
    raise NotImplementedError


def identity(cause: Cause) -> str:
    """A key that is equal for equal causes."""
    return repr((cause.id, sorted(cause.parameters.items(), key=str)))


def is_slow(stage: str, cause: Cause) -> bool:
    """Whether predicting a cause takes a pass through the model, unlike that of a loss from the output."""
    changed = of_model(variants_of(cause.alteration or Alteration()))
    return bool(changed.keys() - {stage})


def beside(origin: KernelExplanation) -> Iterator[tuple[Cause, ...]]:
    """Changes that the tensors suggest, except formats; they are less plausible than known causes of trainings."""
    for causes in proposals(origin):
        if all(cause.portable for cause in causes):
            yield tuple(replace(cause, weight=cause.weight + NAMED) for cause in causes)


def of_stage(stage: str, part: PartEvaluator, cause: Cause) -> Cause:
    """A cause of the stage's op as one of the stage; one that changes only an option's value gets that name."""
    alteration = cause.alteration or Alteration()
    form = Alteration(alteration.arguments)
    edits = ProgramEdits(part.program(form), alteration.edits)
    arguments = {f"{stage}.{name}": value for name, value in {**alteration.arguments, "edits": edits}.items()}
    named = replace(cause, alteration=Alteration(arguments))
    other = other_value(edits.program, alteration.edits[0])
    if other is None:
        return named
    option, value, asked = other
    name = OPTION if cause.id == "reference-edit" else cause.id
    return replace(named, id=name, parameters={option: value, "asked": asked}, weight=NAMED)


def other_value(program: Program, edit: Edit) -> tuple[str, float, float] | None:
    """The option that an edit changes wherever it is read, with the new and the old value; None for other edits.

    No option of an optimizer is negative.
    """
    name = option_of(program, edit)
    if not name or (edit.kind != READ and sum(program.options[name][0] in step.refs for step in program.steps) > 1):
        return None
    asked = program.options[name][1]
    kind, value = edit.value[1:] if edit.kind == READ else (edit.kind, edit.value)
    if kind not in ("fitted", "number"):
        return None
    other = NUMBERS[value](asked) if kind == "number" else value
    return (name, other, asked) if other >= 0 else None
