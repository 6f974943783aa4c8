"""The cause of a stage that is outside, by the search that ops have: what other steps recorded are the further answers.

Causes that a training knows are tried first, then edits of the op that the stage is, of its forms and with fitted
numbers. One is accepted where it leaves rounding in every tensor of every step that is outside.
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
from parity.judge.bound.envelope import Array
from parity.judge.diagnose.causes import Cause
from parity.judge.diagnose.edits import edit_causes, fitted_causes
from parity.judge.diagnose.evaluator import Alteration, Evaluator, Observed
from parity.judge.diagnose.explanation import CLEAR, COST, KernelExplanation, unaltered
from parity.judge.diagnose.findings import summary
from parity.judge.diagnose.inquiry import Inquiry, Question, carried, complete
from parity.judge.diagnose.proposals import proposals
from parity.judge.diagnose.search import CLEARER, SearchResult, Sources, search
from parity.training.cost import cost
from parity.training.edits import ProgramEdits
from parity.training.judge.causes import NAMED, Stage, limited, standing
from parity.training.judge.evaluator import PartEvaluator, StageEvaluator, part_of, variants_of
from parity.training.judge.measured import MeasuredStage
from parity.training.judge.oracle import StepOracle, UnknownError, of_model
from parity.training.model import Variants

SEARCH_S = 60.0
"""About how many seconds of passes through the model are spent on the causes of a stage."""
PASSES = 16
"""So many times as many passes as there are causes are made where several are looked for together."""
MISSED = 1.0
"""The weight of assuming that a cause is absent in a step in which it would show."""
MOST_REFUTED = 12
MOST_STEPS = 128
"""Of a model's program, forward and backward: the edits of 100 steps take some seconds, those of 300 minutes."""
OPTION = "option-value"
TAKEN = (*OTHER, "joined", "derived", READ)
"""The kinds of edits that may put an option in the place of something else."""
FEW_DIGITS = 2
"""Of a number that a person writes, and that a fit has by chance in one of some ten thousand cases."""
PREFERRED = 0.05


@dataclass(frozen=True)
class StageFault:
    """A stage that exceeds the error bound, not as a consequence of an earlier one: where, by how much, and why.

    `tensors` are those outside at the first step, the worst first; `parts` are the parameters or ops that are wrong, if
    others of the stage are right. The `causes` together explain it and leave the error ratio `left`; `expressions` are
    what each of them computes.
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
    """Looks for the cause of one stage of one backend: `outside` and `inside` are its probes, measured where `known`
    causes are at work; `forward` says that the forward pass is right, so that its variants are those of gradients."""

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
    ) -> None:
        first = max(outside, key=lambda measured: (measured.probe.previous is not None, measured.probe.step))
        others = [question_of(oracle, stage, measured, known) for measured in outside if measured is not first]
        self.main = StageEvaluator(oracle, stage, first, known)
        super().__init__(Question(self.main, self.main.observed), None, no_other_inputs, others)
        self._inside = [(measured.probe.step, question_of(oracle, stage, measured, known)) for measured in inside]
        self._asked_about = Stage(oracle.training, ranks, oracle.dtype, first, forward)
        self._seconds = cost(oracle.training)
        self._results: dict[int, SearchResult] = {}
        self._ties = False

    @property
    def can_ask(self) -> bool:
        """Other steps and tensors have answered."""
        return True

    def explained(self, fault: StageFault) -> StageFault:
        """The fault with its causes, where some explain it."""
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
        """What takes no pass through the model comes first; of what does, as much as there is time for."""
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
        """The search without causes that other steps refute, which may hide others."""
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

    def _edits(self, origin: KernelExplanation) -> Sequence[Cause]:
        """Edits of the op that the stage is, or of a model of a few layers."""
        if origin.causes or (self._part is None and len(self.main.program(Alteration()).steps) > MOST_STEPS):
            return []
        edits = edit_causes(self._part or origin)
        return self._of_part([*edits, *(self._refitted(self._part, edits) if self._part is not None else ())])

    def _refitted(self, part: KernelExplanation, edits: Sequence[Cause]) -> Iterator[Cause]:
        """Where an edit takes an option from elsewhere, which may do so by the chance that its number is the right one:
        other numbers in the place of the reference's own, as a config would have them."""
        taken = {number for edit in edits if (number := borrowed(part, edit)) is not None}
        for fit in fitted_causes(part) if taken else ():
            number = fitted_number(part, fit)
            if number is not None and number not in taken and number == float(f"{number:.{FEW_DIGITS}g}"):
                self._ties = True
                yield replace(fit, weight=min(edit.weight for edit in edits) - PREFERRED)

    def _fits(self, origin: KernelExplanation) -> Sequence[Cause]:
        """The same with a fitted number; not of a whole model."""
        return [] if origin.causes or self._part is None else self._of_part(fitted_causes(self._part))

    @cached_property
    def _part(self) -> KernelExplanation | None:
        """The op that the stage is, unaltered; None of a pass through the model."""
        part = part_of(self.main)
        return None if part is None else unaltered(part, part.observed)

    def _of_part(self, causes: Sequence[Cause]) -> list[Cause]:
        """Causes of the part as causes of the stage."""
        if self._part is None:
            return list(causes)
        part = self._part.evaluator
        assert isinstance(part, PartEvaluator)  # noqa: S101 - see `_part`
        stated = (of_stage(self.main.stage, part, cause) for cause in causes)
        if self.main.stage != "update":
            return list(stated)
        return [alone for cause in stated for alone in limited(cause, self._asked_about)]

    def confirmed(self, explanations: Sequence[KernelExplanation]) -> list[KernelExplanation]:
        """Those that explain every step that is outside, with no exception; the easiest to believe first."""
        kept = [e for e in explanations if e.explains and e.causes and not e.exceptions and self._everywhere(e)]
        return sorted(kept, key=self._order)

    def confirmed_here(self, _explanations: Sequence[KernelExplanation]) -> list[KernelExplanation]:
        """None: a training's other steps have the same options."""
        return []

    def _order(self, explanation: KernelExplanation) -> tuple[float, float]:
        return (explanation.weight + MISSED * bool(self.missed(explanation)), explanation.rank[-1])

    def _everywhere(self, explanation: KernelExplanation) -> list[KernelExplanation]:
        """An explanation in every step that is outside and can tell; nothing where it fails in one."""
        explanations = [explanation]
        for question in self._same:
            try:
                other = carried(unaltered(question.evaluator, question.observed), explanation)
            except UnknownError:
                continue
            if other is None or other.exceptions:
                return []
            explanations.append(other)
        return explanations

    def missed(self, explanation: KernelExplanation) -> list[int]:
        """The steps in which an explanation would show, and the stage is right."""
        return [number for number, question in self._inside if spoils(explanation, question)]

    def concluded(self, first: SearchResult, kept: Sequence[KernelExplanation]) -> SearchResult:
        """The best, and who explains as much; one of each diagnosis."""
        best, *others = sorted(kept, key=self._order)
        rivals = {e.ids: e for e in reversed(others) if e.ids != best.ids and self._is_as_good(best, e)}
        tied = [e for e in others if self._ties and e.causes[0].parameters.get("kind") in TAKEN]
        rivals |= {frozenset(TAKEN): tied[0]} if tied else {}
        second = next((e for e in (first.best, *first.rivals) if e not in kept and e.causes), first.second)
        return SearchResult(best, tuple(reversed(rivals.values())), second)

    def _summary(self, explanation: KernelExplanation) -> dict[str, Any]:
        """An explanation in short, an edit by its expression."""
        expression = "; ".join(filter(None, map(explanation.expression, explanation.causes)))
        return {**summary(explanation), **({"expression": f"computes {expression}"} if expression else {})}

    def _is_as_good(self, best: KernelExplanation, other: KernelExplanation) -> bool:
        theirs, ours = (max(e.left.values()) for e in (other, best))
        return self._order(other)[0] <= self._order(best)[0] and not (theirs >= CLEAR and theirs >= CLEARER * ours)


def borrowed(part: KernelExplanation, cause: Cause) -> float | None:
    """The number of the option that an edit puts in the place of something else, NaN of one that is computed from
    options; None of other edits."""
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
    """The number that an edit fits in the place of an option's; None of other edits."""
    alteration = cause.alteration or Alteration()
    program = part.evaluator.program(Alteration(alteration.arguments))
    for edit in (edit for edit in alteration.edits if option_of(program, edit)):
        if edit.kind == "fitted" or (edit.kind == READ and edit.value[1] == "fitted"):
            return float(edit.value[2] if edit.kind == READ else edit.value)
    return None


def spoils(explanation: KernelExplanation, question: Question) -> bool:
    """Whether a right step would be wrong, if that can be computed."""
    try:
        other = unaltered(question.evaluator, question.observed).extended(*explanation.causes)
    except UnknownError:
        return False
    return other is not None and other.exceptions > 0


def question_of(oracle: StepOracle, stage: str, measured: MeasuredStage, known: Variants) -> Question:
    """A probe as a question that has been answered."""
    evaluator = StageEvaluator(oracle, stage, measured, known)
    return Question(evaluator, evaluator.observed)


def no_other_inputs(_case: CasePlan, _dtype: str, _inputs: Mapping[str, Array], _observed: Observed) -> Evaluator:
    """A training cannot be asked about other inputs."""
    raise NotImplementedError


def identity(cause: Cause) -> str:
    """The same for the same cause."""
    return repr((cause.id, sorted(cause.parameters.items(), key=str)))


def is_slow(stage: str, cause: Cause) -> bool:
    """Whether a cause takes a pass through the model; a loss is computed from its output."""
    changed = of_model(variants_of(cause.alteration or Alteration()))
    return bool(changed.keys() - {stage})


def beside(origin: KernelExplanation) -> Iterator[tuple[Cause, ...]]:
    """Changes that the tensors suggest, but for formats: less easy to believe than what a training knows."""
    for causes in proposals(origin):
        if all(cause.portable for cause in causes):
            yield tuple(replace(cause, weight=cause.weight + NAMED) for cause in causes)


def of_stage(stage: str, part: PartEvaluator, cause: Cause) -> Cause:
    """A cause of an op as one of the stage that it is: an option with another value is called so."""
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
    """The option to which an edit gives another value wherever it is read, with that and its own; None of others.

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
