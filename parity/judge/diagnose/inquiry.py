"""Diagnoses a backend by calling it again.

A search on its results gives explanations; edits of the reference give more. Each explanation must also predict the
backend's results for other inputs, drawn so that explanations differ. Those that fail are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain, islice, product
from typing import Any

import numpy as np

from parity.cases import OPS
from parity.cases.candidates import MAX_STEPS
from parity.cases.dtypes import COMPUTED_IN, as_dtype
from parity.cases.oracle import program_of
from parity.cases.trial import Trial
from parity.config.plan import CasePlan
from parity.judge.bound.envelope import ERROR_BOUND, UNIT_ROUNDOFF, Array, size
from parity.judge.diagnose.approximation import APPROXIMATED, approximated
from parity.judge.diagnose.behaviour import BY_ROW, behaviours, relative_error
from parity.judge.diagnose.causes import Cause, standing_causes
from parity.judge.diagnose.edits import Match, WorkBudget, edit_causes, fitted_causes
from parity.judge.diagnose.evaluator import Alteration, Evaluator, Observed, Predicted, Prediction, ratio
from parity.judge.diagnose.explanation import KernelExplanation, predicted, together, unaltered
from parity.judge.diagnose.growth import growing, resized
from parity.judge.diagnose.kernel import Kernel
from parity.judge.diagnose.locality import wrong_elements
from parity.judge.diagnose.milder_inputs import lost, milder_inputs
from parity.judge.diagnose.probes import KEEPS_ALL, generic, varied
from parity.judge.diagnose.proposals import absent, computed_in, lies_on, proposals, recounted
from parity.judge.diagnose.reduction import reduced
from parity.judge.diagnose.search import DEPTH, SearchResult, applied, conclude, portable, search
from parity.judge.diagnose.statistics import statistics_causes
from parity.judge.diagnose.synthesis import Observation, formulas_of
from parity.judge.diagnose.weights import copied, differences_first, edit_of, n_results, summed
from parity.judge.failures import Failures, explainer

FEW_ELEMENTS = 32
N_PROBES, N_DRAWN = 2, 6
"""Other inputs to try; some are useless, since their options choose another branch."""
SMALL = 2048
"""Up to this many input elements, a case is searched as it is: thousands of edits take seconds."""
MOST_CALLS = 30
MAX_TRANSFERRED = 8
TIED = 0.3
MOST_ALONE = 6
"""With more wrong tensors, they are not searched one by one: each takes as long as all together."""
FAR = 8.0
"""The factor for larger numbers, which show the limits of a formula."""
SAME = 0.25
"""Two errors are the same if they differ by at most a quarter."""
DIGITS_LOST = 2.0**-4
"""The most that steps in a narrow dtype lose, relative to the values: 16 unit roundoffs of bfloat16."""
FINER = 2.0**8
"""An error from rounding to float16 (13 digits fewer) or bfloat16 shrinks in float32 by at least this factor."""
STORED = "attribute-precision"
"""The id for options stored in float32: such a kernel differs only for options that float32 does not represent, as the
user's."""
MOST_SAMPLED = 4096
"""The most elements of inputs for which a function is sampled."""
N_COPIES = 6
"""How many results distinguish the elements of a tensor from each other."""
FEW_STEPS, MOST_TWO = 80, 8
"""The longest program in which parity searches for two mistakes that hide each other, and how many first ones it
tries."""
N_ORIGINS = 3
"""The number of partial explanations to which edits are added."""

Prepare = Callable[[CasePlan, str, Mapping[str, Array], Observed], Evaluator]


@dataclass(frozen=True)
class Measurement:
    """A backend's results for some inputs, and their evaluator."""

    evaluator: Evaluator
    observed: Observed

    @property
    def is_narrow(self) -> bool:
        """Whether a float64 result has only the digits of float32: another dtype's errors are no finer there."""
        if self.evaluator.dtype != "float64":
            return False
        start = unaltered(self.evaluator, self.observed)
        return bool(start.wrong) and set(start.wrong) <= set(computed_in(start, "float32"))


class Inquiry:
    """A backend that is wrong in one dtype of a case; `kernel` calls it again, `prepare` makes an evaluator.

    `same` are its results for the same inputs in other dtypes with the same error. An explainer that fails is left out,
    and noted in `failures`.
    """

    def __init__(
        self,
        measurement: Measurement,
        kernel: Kernel | None,
        prepare: Prepare,
        same: Sequence[Measurement] = (),
        budget: WorkBudget | None = None,
        failures: Failures | None = None,
    ) -> None:
        self._measurement, self._kernel, self._prepare, self._same = measurement, kernel, prepare, same
        self._budget = budget or WorkBudget()
        self.failures = Failures() if failures is None else failures

    def result(self, exact: Sequence[str] = ()) -> SearchResult:
        """The best explanation; tensors in `exact` have not lost precision.

        The search uses the smallest case that shows the error; the explanation must hold for the user's tensors too.
        """
        with np.errstate(all="ignore"):
            narrow = self._measurement.is_narrow
            result = (self._in_float32() if narrow else None) or self._in_its_dtype(exact)
            is_open = not (narrow or result.settled or result.behaviours)
            return (self._in_float32() if is_open else None) or result

    def _in_its_dtype(self, exact: Sequence[str]) -> SearchResult:
        same = exact or self._same_in_float64()
        return (self._named(same) if self._is_long else None) or self._result(same)

    @explainer("comparing the error with that in float64")
    def _same_in_float64(self) -> Sequence[str]:
        """The wrong tensors whose error is the same in float64; no algorithm that loses digits explains them."""
        evaluator, observed = self._measurement.evaluator, self._measurement.observed
        ask = self._kernel if evaluator.dtype != "float64" else None
        answer = None if ask is None else ask(evaluator.case, "float64", evaluator.inputs)
        same = []
        for name in unaltered(evaluator, observed).wrong if answer else ():
            values, wide, exact = observed.get(name), (answer or {}).get(name), evaluator.base[name].values
            if values is None or wide is None or exact is None or not values.shape == wide.shape == exact.shape:
                continue
            if lies_on(wide, evaluator.base[name], "float32"):  # it computes in float32 there, too
                continue
            error = size(wide - exact).rms
            if error > 0 and size(wide - values).rms <= max(SAME * error, evaluator.base[name].envelope.rms):
                same.append(name)
        return same

    def _result(self, exact: Sequence[str]) -> SearchResult:
        small = self._reduced()
        if small is not None:
            result = self._carried(self._about(small)._in_its_dtype(exact))
            if result is not None:
                return result
        result = SearchResult(unaltered(self._measurement.evaluator, self._measurement.observed))
        with self.failures.contained("searching for the cause"):
            result = self._searched(exact)
        if result.best.explains and result.best.ids == {"reduced-precision"} and not result.best.is_exact:
            # A running total in the format explains more than a result rounded to it.
            grown = self._grown(small)
            whole = any(set(result.start.wrong) <= set(evidence["tensors"]) for _, evidence in grown)
            return replace(result, best=result.start, behaviours=grown) if whole else result
        if result.best.explains and "localized" not in result.best.ids:
            return result
        with self.failures.contained("searching each wrong tensor alone"):
            result = self._divided(exact, result)
        if result.best.explains and "localized" not in result.best.ids:
            return result
        if grown := self._grown(small) if self._measurement.evaluator.dtype in COMPUTED_IN else ():
            # Where the sums lose most is only a consequence.
            return replace(
                result, best=result.start if "localized" in result.best.ids else result.best, behaviours=grown
            )
        if result.best.explains:
            return result
        if lost := self._lost_when_narrow():
            return replace(result, best=result.start, behaviours=lost)
        if approximated := self._approximated(small):
            return replace(result, best=result.start, behaviours=approximated)
        same = set(result.start.wrong) <= set(exact)
        return (None if same else self._milder()) or replace(result, behaviours=self._behaviours(small, result.best))

    @property
    def _is_long(self) -> bool:
        """Whether the program is too long for edits, and the case too large to be searched as it is."""
        evaluator = self._measurement.evaluator
        return evaluator.n_elements > SMALL and len(structure(evaluator)) > MAX_STEPS

    @explainer("trying named causes", lambda: None)
    def _named(self, exact: Sequence[str]) -> SearchResult | None:
        """The named cause that explains the user's tensors, if there is one, without looking for a smaller case."""
        first = self._search(exact, 1)
        kept = self.confirmed(complete(first)) or self.confirmed_here(complete(first))
        return self.concluded(first, kept) if kept else None

    @explainer("asking in float32", lambda: None)
    def _in_float32(self) -> SearchResult | None:
        """The explanation of the float32 result, if it explains the float64 result up to float32's rounding: a kernel
        may compute in float32 in part or throughout. None if it does not, or nobody can be asked."""
        evaluator, observed = self._measurement.evaluator, self._measurement.observed
        answer = self._kernel(evaluator.case, "float32", evaluator.inputs) if self._kernel is not None else None
        if answer is None or evaluator.dtype != "float64":
            return None
        given = {name: answer.get(name) for name in observed}
        choosing = given if evaluator.chosen is not None else {}
        narrow = Measurement(self._prepare(evaluator.case, "float32", evaluator.inputs, choosing), given)
        if unaltered(narrow.evaluator, given).explains:
            return None
        result = Inquiry(narrow, self._kernel, self._prepare, failures=self.failures)._in_its_dtype(())
        best = applied(unaltered(evaluator, observed), portable(result.best))
        return SearchResult(best, n_predicted=result.n_predicted) if best is not None and best.explains else None

    @explainer("asking about milder inputs", lambda: None)
    def _milder(self) -> SearchResult | None:
        """The lossy algorithm that milder inputs identify, if the user's inputs leave no correct digit."""
        evaluator = self._measurement.evaluator
        start = unaltered(evaluator, self._measurement.observed)
        for part, inputs in milder_inputs(evaluator.case, evaluator.inputs) if self._kernel is not None else ():
            measurement = self._ask(evaluator.case, inputs)
            if measurement is None or unaltered(measurement.evaluator, measurement.observed).explains:
                continue
            result = self._about(measurement)._searched(())
            best = lost(start, result.best, part) if result.best.explains and result.best.causes else None
            if best is not None and best.explains:
                return SearchResult(best, n_predicted=result.n_predicted)
        return None

    def _searched(self, exact: Sequence[str]) -> SearchResult:
        """One named cause, else one edit, else several causes, else one fitted number."""
        first = self._search(exact, 1)
        named = complete(first)
        if self._kernel is not None and first.second is not None and first.second.explains:
            named.append(first.second)  # less simple, but other inputs decide
        kept = self.confirmed(named)
        if kept and self._settles(kept[0]):
            return self.concluded(first, kept)
        single = self._extended(first.start, self._edits(first.start))
        kept = sorted([*kept, *self.confirmed(single)], key=lambda e: e.rank)
        kept = kept or self.confirmed_here([*named, *single]) or self._overflowing(single)
        if not kept:
            first = self._search(exact, DEPTH)
            origins = parts(first, single)
            several = [e for o in origins for e in self._extended(o, [*self._edits(o), *absent(o)])]
            kept = self.confirmed(complete(first)) or self.confirmed(several)
            kept = kept or self.confirmed_here([*complete(first), *several])
            if not kept and self.can_ask:
                fits = [e for origin in (first.start, *origins) for e in self._extended(origin, self._fits(origin))]
                kept = self.confirmed(fits) or self.confirmed_here(fits) or self._two_mistakes(first, origins)
            for causes_of in (self._formulas, self._measured):
                here = [] if kept else self.confirmed_here(self._extended(first.start, causes_of(first.start)))
                kept = kept or [e for e in here if all(self._holds(e, measurement) for measurement in self._far)]
        return self.concluded(first, kept) if kept else replace(self._withdrawn(first), untried=self._budget.untried)

    @explainer("searching for two mistakes that hide each other", list)
    def _two_mistakes(self, first: SearchResult, origins: Sequence[KernelExplanation]) -> list[KernelExplanation]:
        """An edit together with a named cause that alone does not reduce the error: two mistakes in one formula may
        hide each other. Skipped where a search of edits is expensive."""
        start, tried = first.start, [origin.ids for origin in origins]
        if self._kernel is None or not self.can_ask or len(structure(start.evaluator)) > FEW_STEPS:
            return []
        standing = standing_causes(start.evaluator)
        explanations = (start.extended(cause) for cause in standing if not cause.weight and cause.id != STORED)
        changed = [e for e in explanations if e is not None and any(e.left[n] != start.left[n] for n in start.wrong)]
        for origin in sorted((e for e in changed if e.ids not in tried), key=lambda e: e.score)[:MOST_TWO]:
            both = self._extended(origin, self._edits(origin))
            if kept := self.confirmed(both) or self.confirmed_here(both):
                return kept
        return []

    def _overflowing(self, explanations: Sequence[KernelExplanation]) -> list[KernelExplanation]:
        """The explanations by an overflow in float16, the best first: a kernel that is narrow throughout has other
        errors where nothing overflows. None if the backend cannot be called, since it may be narrow throughout."""
        if self._measurement.evaluator.dtype != "float16" or not self.can_ask:
            return []
        overflows = (e for e in explanations if e.explains and all(c.id == "narrow-overflow" for c in e.causes))
        return sorted(overflows, key=lambda e: e.rank)

    def _divided(self, exact: Sequence[str], whole: SearchResult) -> SearchResult:
        """The causes of each wrong tensor alone, if they explain more than those of all together do."""
        start = whole.start
        one = len(start.wrong) < 2 or self._kernel is None or not self.probes or self._budget.untried
        if one or len(start.wrong) > MOST_ALONE or len(structure(start.evaluator)) > MAX_STEPS:
            return whole
        owners: dict[str, tuple[Cause, set[str]]] = {}
        for name in start.wrong:
            alone = self._alone(name)._searched(exact).best
            # For one tensor alone, many lossy algorithms explain an error's size that other tensors would refute.
            for cause in alone.causes if alone.explains and alone.is_exact and "localized" not in alone.ids else ():
                key = repr((cause.id, cause.parameters, cause.alteration and cause.alteration.key))
                owners.setdefault(key, (cause, set()))[1].add(name)
        best = start.extended(*(replace(cause, only=frozenset(names)) for cause, names in owners.values()))
        if best is None or not best.causes or not (best.explains or set(best.wrong) < set(whole.best.wrong)):
            return whole
        return SearchResult(best, n_predicted=len(self.probes), untried=self._budget.untried)

    def _about(self, measurement: Measurement, same: Sequence[Measurement] = ()) -> Inquiry:
        """The inquiry about other results of the same backend."""
        return Inquiry(measurement, self._kernel, self._prepare, same, self._budget, self.failures)

    def _alone(self, name: str) -> Inquiry:
        """The inquiry about one tensor; it reuses the answers so far."""

        def about(measurements: Sequence[Measurement]) -> list[Measurement]:
            return [replace(q, observed={name: q.observed.get(name)}) for q in measurements]

        (measurement,) = about([self._measurement])
        alone = self._about(measurement, about(self._same))
        alone.probes, alone.alike = about(self.probes), about(self.alike)
        return alone

    def _withdrawn(self, first: SearchResult) -> SearchResult:
        """The result without its explanation by values, if that contradicts the backend's results for other inputs with
        the same options; the location of the error remains."""
        if not (first.best.is_exact and first.best.causes and first.best.explains and self.alike):
            return first
        return replace(conclude(first.start, ()), second=first.best)

    def _settles(self, explanation: KernelExplanation) -> bool:
        """Whether no other explanation can be simpler."""
        return explanation.plain

    def _search(self, exact: Sequence[str], depth: int) -> SearchResult:
        """The causes that are known in advance, or that the tensors suggest."""
        evaluator, observed = self._measurement.evaluator, self._measurement.observed
        with self.failures.contained("searching the known causes"):
            return search(evaluator, observed, exact=exact, depth=depth)
        return SearchResult(unaltered(evaluator, observed))

    def _extended(self, origin: KernelExplanation, causes: Iterable[Cause]) -> list[KernelExplanation]:
        """`origin` with each cause that reduces the error."""
        return [e for cause in causes for e in self._with_cause(origin, cause)]

    @explainer("computing what a cause predicts")
    def _with_cause(self, origin: KernelExplanation, cause: Cause) -> Sequence[KernelExplanation]:
        return extended(origin, [cause])

    @explainer("confirming an explanation", bool)
    def _holds(self, explanation: KernelExplanation, probe: Measurement) -> bool:
        return holds(explanation, probe)

    @explainer("trying edits of the reference")
    def _edits(self, origin: KernelExplanation) -> Sequence[Cause]:
        """The edits that explain what an explanation leaves."""
        return edit_causes(origin, self._budget)

    @explainer("fitting numbers")
    def _fits(self, origin: KernelExplanation) -> Sequence[Cause]:
        """The same with a fitted number."""
        return fitted_causes(origin, self._budget)

    @explainer("looking for a formula of the reference's values", list)
    def _formulas(self, start: KernelExplanation) -> list[Cause]:
        """The formulas of the reference's values for a single wrong tensor."""
        if self._kernel is None or len(start.wrong) != 1 or start.evaluator.n_elements > SMALL:
            return []
        name, measurements = start.wrong[0], [self._measurement, *self.alike]
        answers = [self._kernel(q.evaluator.case, "float64", q.evaluator.inputs) for q in measurements]
        wide = [(answer or {}).get(name) for answer in answers]
        given = [q.observed[name] for q in measurements] if any(values is None for values in wide) else wide
        data = [data_of(q.evaluator, name, values) for q, values in zip(measurements, given, strict=True)]
        if any(one is None for one in data):
            return []
        unit = UNIT_ROUNDOFF[start.evaluator.dtype if given is not wide else "float64"]
        edits = formulas_of(name, [one for one in data if one is not None], unit)
        return [Match(edit, frozenset((name,)), {}).cause for edit in edits]

    @explainer("measuring which elements are copied or added up", list)
    def _measured(self, start: KernelExplanation) -> list[Cause]:
        """The elements of an input that a single wrong tensor copies or adds up."""
        if self._kernel is None or len(start.wrong) != 1 or start.evaluator.n_elements > SMALL:
            return []
        name, case = start.wrong[0], start.evaluator.case
        shape = start.evaluator.shape_of(name)
        for source, values in start.evaluator.inputs.items():
            for measure, n in ((copied, N_COPIES), (summed, n_results(values.shape, shape))):
                drawn = [generic(case, number)[1] for number in range(N_DRAWN * 3 + KEEPS_ALL, 3 * (N_DRAWN + n), 3)]
                answers = [(self._kernel(case, "float64", inputs) or {}).get(name) for inputs in drawn]
                given = [answer for answer in answers if answer is not None and answer.shape == shape]
                if values.dtype.kind != "f" or not given or len(given) < len(drawn):
                    continue
                sources = [inputs[source] for inputs in drawn]
                weights = measure(sources, given)
                if weights is not None:
                    exact = [self._prepare(case, "float64", inputs, {}).base[name].values for inputs in drawn]
                    known = [values for values in exact if values is not None]
                    reference = measure(sources, known) if len(known) == len(exact) else None
                    edit = edit_of(name, source, differences_first(weights, reference))
                    return [Match(edit, frozenset((name,)), {}).cause]
        return []

    @explainer("looking for a smaller case", lambda: None)
    def _reduced(self) -> Measurement | None:
        """The smallest case with the same wrong tensors; None if the user's is already small, or the backend cannot be
        called."""
        evaluator, kernel = self._measurement.evaluator, self._kernel
        if kernel is None or evaluator.n_elements <= SMALL:
            return None
        wrong = set(unaltered(evaluator, self._measurement.observed).wrong)
        steps = structure(evaluator)
        measurements: dict[int, Measurement] = {}

        def shows_error(case: CasePlan, inputs: Mapping[str, Array]) -> bool:
            if not is_traced_as(case, inputs):
                return False
            measurement = self._ask(case, inputs)
            if measurement is None or structure(measurement.evaluator) != steps:
                return False
            measurements[sum(values.size for values in inputs.values())] = measurement
            return wrong <= set(unaltered(measurement.evaluator, measurement.observed).wrong)

        _, inputs = reduced(evaluator.case, evaluator.inputs, shows_error, MOST_CALLS)
        n_elements = sum(values.size for values in inputs.values())
        return measurements.get(n_elements) if n_elements < evaluator.n_elements else None

    @explainer("carrying the cause of a smaller case over", lambda: None)
    def _carried(self, small: SearchResult) -> SearchResult | None:
        """The explanation of the smallest case, if it explains the user's tensors; else None."""
        start = unaltered(self._measurement.evaluator, self._measurement.observed)
        explanations = [e for e in map(partial(carried, start), (small.best, *small.rivals)) if e is not None]
        if not explanations or not small.best.explains:
            return None
        return replace(small, best=explanations[0], rivals=tuple(explanations[1:]), second=None, partial=())

    @explainer("testing whether results repeat")
    def _behaviours(
        self, small: Measurement | None, best: KernelExplanation
    ) -> tuple[tuple[str, Mapping[str, Any]], ...]:
        """The backend's behaviours that are not formulas, without those that may follow from a formula which explains
        a part."""
        measurement, kernel = small or self._measurement, self._kernel
        if kernel is None:
            return ()
        evaluator = measurement.evaluator
        bound = {name: ERROR_BOUND * envelope.max for name, envelope in evaluator.envelopes.items()}
        case, inputs, observed = evaluator.case, evaluator.inputs, measurement.observed
        shown = behaviours(kernel, case, evaluator.dtype, inputs, observed, bound)
        formula = any(cause.alteration is not None for cause in best.causes)
        return tuple((name, evidence) for name, evidence in shown if not (formula and name == BY_ROW))

    @explainer("sampling functions")
    def _approximated(self, small: Measurement | None) -> tuple[tuple[str, Mapping[str, Any]], ...]:
        """The functions that a backend approximates, if they explain all wrong tensors."""
        measurement = self._measurement if self._measurement.evaluator.n_elements <= MOST_SAMPLED else small
        if self._kernel is None or measurement is None:
            return ()
        evaluator = measurement.evaluator
        wrong = unaltered(evaluator, measurement.observed).wrong
        evidence = approximated(self._kernel, evaluator.case, evaluator.dtype, evaluator.inputs, wrong)
        return () if evidence is None else ((APPROXIMATED, evidence),)

    @explainer("measuring how the error grows")
    def _grown(self, small: Measurement | None) -> tuple[tuple[str, Mapping[str, Any]], ...]:
        """Sums in a narrow dtype whose error grows with the number of terms."""
        evaluator = (small or self._measurement).evaluator
        if self._kernel is None:
            return ()
        grown = growing(evaluator.case, evaluator.inputs, self._ratios)
        return () if grown is None else (("narrow-accumulation", grown),)

    @explainer("comparing the error with that in a wider dtype")
    def _lost_when_narrow(self) -> tuple[tuple[str, Mapping[str, Any]], ...]:
        """The digits that steps in a narrow dtype lose: with the same inputs, the backend is right in a wider one."""
        evaluator, observed = self._measurement.evaluator, self._measurement.observed
        dtype = COMPUTED_IN.get(evaluator.dtype)
        answer = self._kernel(evaluator.case, dtype, evaluator.inputs) if self._kernel and dtype else None
        if answer is None or dtype is None:
            return ()
        wide = self._prepare(evaluator.case, dtype, evaluator.inputs, {})
        wrong = unaltered(evaluator, observed).wrong
        lost = {name: relative_error(observed[name], wide.base[name].values) for name in wrong}
        left = {name: relative_error(answer.get(name), wide.base[name].values) for name in wrong}
        if any(lost[n] > DIGITS_LOST or FINER * left[n] > lost[n] for n in wrong):
            return ()
        evidence = {"parameters": {"format": evaluator.dtype}, "error": lost, f"error_in_{dtype}": left}
        return (("reduced-precision", evidence),)

    def _ratios(self, case: CasePlan, inputs: Mapping[str, Array]) -> Mapping[str, float] | None:
        """The ratios of root mean squares for other inputs; None without a result. The worst element would grow with
        the number of elements."""
        measurement = self._ask(case, inputs)
        if measurement is None:
            return None
        pairs = {n: (v, measurement.evaluator.base[n]) for n, v in measurement.observed.items() if v is not None}
        return {n: size(v - p.values).rms / p.envelope.rms for n, (v, p) in pairs.items() if p.envelope.rms}

    @property
    def can_ask(self) -> bool:
        """Whether the backend answered calls."""
        return bool(self.probes)

    @cached_property
    def probes(self) -> Sequence[Measurement]:
        """The backend's results for other inputs and options."""
        return self._some(range(self._n_drawn))

    @cached_property
    def alike(self) -> Sequence[Measurement]:
        """The backend's results for other inputs and the user's options, some of which it may have hard-coded."""
        return self._some(range(KEEPS_ALL, 3 * self._n_drawn, 3))

    @cached_property
    def _far(self) -> Sequence[Measurement]:
        """The backend's result for larger numbers, where a formula may have a limit that others do not show."""
        data = self._measurement.evaluator.case.definition.data
        return self._scaled(FAR, () if data is None else (data,))

    @cached_property
    def _farther(self) -> Sequence[Measurement]:
        """The backend's results for inputs that are all larger or all smaller, where clipping differs, and for inputs
        with other magnitudes than the user's that reach the same branches."""
        evaluator = self._measurement.evaluator
        names = [name for name, values in evaluator.inputs.items() if values.dtype.kind == "f"]
        near = self._ask(evaluator.case, varied(evaluator.case, evaluator.inputs))
        scaled = [measurement for factor in (FAR, 1 / FAR) for measurement in self._scaled(factor, names)]
        return scaled if near is None else [near, *scaled]

    def _scaled(self, factor: float, names: Iterable[str]) -> Sequence[Measurement]:
        """The backend's result for other inputs, with `names` multiplied; none if the reference is not finite there."""
        case, inputs = generic(self._measurement.evaluator.case, KEEPS_ALL)
        fixed = {plan.name for plan in case.tensors if plan.fixed}
        scaled = {name: inputs[name] * factor for name in names if name in inputs and name not in fixed}
        measurement = self._ask(case, {**inputs, **scaled}) if scaled else None
        values = [] if measurement is None else [p.values for p in measurement.evaluator.base.values()]
        finite = all(v is not None and np.isfinite(v).all() for v in values)
        return (measurement,) if measurement is not None and finite else ()

    @property
    def _n_drawn(self) -> int:
        """How many other inputs may be tried: more if the case has few numbers, which distinguish little."""
        return N_DRAWN if self._measurement.evaluator.n_elements >= FEW_ELEMENTS else 2 * N_DRAWN

    def _some(self, numbers: Iterable[int]) -> list[Measurement]:
        """A third of the results that were asked for, or as many as there are."""
        return list(islice(self._asked(numbers), N_PROBES * self._n_drawn // N_DRAWN))

    def _asked(self, numbers: Iterable[int]) -> Iterator[Measurement]:
        evaluator = self._measurement.evaluator
        for number in numbers if self._kernel is not None else ():
            measurement = self._ask(*generic(evaluator.case, number, evaluator.inputs))
            if measurement is not None and structure(measurement.evaluator) == structure(evaluator):
                yield measurement

    @explainer("judging the result for other inputs", lambda: None)
    def _ask(self, case: CasePlan, inputs: Mapping[str, Array]) -> Measurement | None:
        """The backend's result for other inputs; None if there is none."""
        dtype = self._measurement.evaluator.dtype
        answer = None if self._kernel is None else self._kernel(case, dtype, inputs)
        if answer is None:
            return None
        observed = {name: answer.get(name) for name in self._measurement.observed}
        choosing = observed if self._measurement.evaluator.chosen is not None else {}
        return Measurement(self._prepare(case, dtype, inputs, choosing), observed)

    def confirmed(self, explanations: Sequence[KernelExplanation]) -> list[KernelExplanation]:
        """The explanations that also predict the results for other inputs and options, the best first."""
        return self._confirmed(explanations, self.probes)

    def confirmed_here(self, explanations: Sequence[KernelExplanation]) -> list[KernelExplanation]:
        """The explanations that also predict the results for other inputs with these options, the best first."""
        return self._confirmed(explanations, self.alike) if self.can_ask and self.alike else []

    def _confirmed(
        self, explanations: Sequence[KernelExplanation], answers: Sequence[Measurement]
    ) -> list[KernelExplanation]:
        ranked = sorted(explanations, key=lambda e: e.rank)
        kept = [e for e in ranked if e.explains and all(self._holds(e, q) for q in (*self._further(e), *answers))]
        if len(kept) < 2 or not self._is_of_this_size(kept[0]):
            return kept
        return sorted(kept, key=self._is_of_this_size)

    def _is_of_this_size(self, explanation: KernelExplanation) -> bool:
        """Whether an edit fails to predict the result for other sizes: several block sizes give the same for one
        length."""
        edits = any(cause.alteration is not None and cause.alteration.edits for cause in explanation.causes)
        return edits and not all(self._holds(explanation, measurement) for measurement in self.resized)

    def _further(self, explanation: KernelExplanation) -> Sequence[Measurement]:
        """The results in other dtypes, of other sizes or with the user's options that an explanation must predict."""
        counted = any(cause.counted for cause in explanation.causes)
        stored = self.can_ask and any(cause.id == STORED for cause in explanation.causes)
        further = [*(self.resized if counted else ()), *(self.alike if stored else ())]
        return [*self._in_other_dtypes(explanation), *further]

    def _recounted(self, best: KernelExplanation) -> KernelExplanation:
        """The explanation, with only those meanings of factors that fit the result for other sizes."""
        if not any(cause.counted for cause in best.causes) or not self.resized:
            return best
        start = unaltered(self.resized[0].evaluator, self.resized[0].observed)
        seen = {label for causes in proposals(start) for cause in causes for label in cause.counted}
        causes = (recounted(cause, best.evaluator, seen) for cause in best.causes)
        return replace(best, causes=tuple(causes))

    @cached_property
    def resized(self) -> Sequence[Measurement]:
        """The backend's result for other sizes, all different: they show which size a factor comes from."""
        evaluator = self._measurement.evaluator
        other = resized(evaluator.case, evaluator.inputs)
        measurement = None if other is None else self._ask(*other)
        return () if measurement is None else (measurement,)

    def _in_other_dtypes(self, explanation: KernelExplanation) -> Sequence[Measurement]:
        """The results in other dtypes, if an explanation must predict them too: one with an edit or a fitted number
        must."""
        has_edits = any(cause.alteration is not None and cause.alteration.edits for cause in explanation.causes)
        return self._same if has_edits or (explanation.is_exact and not explanation.plain) else ()

    def is_rival(self, best: KernelExplanation, other: KernelExplanation) -> bool:
        """Whether another explanation is equally simple, and differs from the best on other inputs."""
        if other.weight > best.weight + TIED or not best.is_exact or not other.is_exact:
            return False
        return not all(agree(evaluator, best, other) for evaluator in self._others)

    @cached_property
    def _others(self) -> list[Evaluator]:
        """Evaluators for other inputs, if the backend cannot be called."""
        evaluator = self._measurement.evaluator
        drawn = (generic(evaluator.case, number) for number in range(N_PROBES))
        return [self._prepare(case, evaluator.dtype, inputs, {}) for case, inputs in drawn]

    def concluded(self, first: SearchResult, kept: Sequence[KernelExplanation]) -> SearchResult:
        """The search result with the best remaining explanation; the others are rivals if the backend could not be
        called."""
        exact = [e for e in kept if e.is_exact]
        if kept[0].is_exact and len(exact) > 1 and self.can_ask:
            # A range of error sizes holds nearly everywhere, so it never replaces values that fit.
            kept = [e for e in exact if all(self._holds(e, measurement) for measurement in self._farther)] or kept
        best = kept[0]
        rivals = [] if self.can_ask else [e for e in kept[1:] if e in first.rivals or self.is_rival(best, e)]
        second = next((e for e in (first.best, *first.rivals) if e not in kept and e.causes), first.second)
        return SearchResult(self._recounted(best), tuple(rivals), second, n_predicted=len(self.probes))


def data_of(evaluator: Evaluator, name: str, values: Array | None) -> Observation | None:
    """A returned tensor with all values of the reference; None if its shape differs."""
    exact, program = evaluator.base[name].values, evaluator.program(Alteration())
    if values is None or exact is None or values.shape != exact.shape or values.dtype.kind != "f":
        return None
    trial = Trial(program, evaluator.tensors(Alteration()))
    return Observation(trial, values, ~wrong_elements(values, evaluator.base[name]))


def is_traced_as(case: CasePlan, inputs: Mapping[str, Array]) -> bool:
    """Whether a user's reference has a program for these shapes: code that runs may not be recorded at each size."""
    if case.definition.name in OPS:
        return True
    try:
        program_of(case.definition, case.params, inputs, gradients=case.gradients)
    except Exception:  # Whatever a user's code raises at a size that nobody has asked for.
        return False
    return True


def structure(evaluator: Evaluator) -> list[str]:
    """The names of a program's steps; an edit fits programs with equal names."""
    return [step.name for step in evaluator.program(Alteration()).steps]


def carried(start: KernelExplanation, small: KernelExplanation) -> KernelExplanation | None:
    """An explanation of a smaller case for the tensors of `start`; None if it does not explain them."""
    options = [list(islice(transferred(cause, start), MAX_TRANSFERRED)) for cause in small.causes]
    explanations = (start.extended(*causes) for causes in islice(product(*options), MAX_TRANSFERRED))
    complete = [e for e in explanations if e is not None and e.explains]
    return min(complete, key=lambda e: e.rank, default=None)


def agree(evaluator: Evaluator, one: KernelExplanation, other: KernelExplanation) -> bool:
    """Whether two explanations predict the same."""
    first, second = predicted(evaluator, one.causes), predicted(evaluator, other.causes)
    if first is None or second is None:
        return False
    values = {name: prediction.values for name, prediction in first.items() if name in second}
    narrow = {name: None if v is None else as_dtype(v, evaluator.dtype) for name, v in values.items()}
    return all(ratio(given, second[name]) < ERROR_BOUND for name, given in narrow.items())


def complete(result: SearchResult) -> list[KernelExplanation]:
    """The complete explanations of a search that do more than locate the error."""
    return [e for e in (result.best, *result.rivals) if e.causes and e.explains and "localized" not in e.ids]


def parts(first: SearchResult, single: Sequence[KernelExplanation]) -> list[KernelExplanation]:
    """The best partial explanations."""
    partial = [e for e in (first.best, *first.partial, *single) if e.causes and e.improves(first.start)]
    return sorted(partial, key=lambda e: (len(e.wrong), e.rank))[:N_ORIGINS]


def extended(origin: KernelExplanation, causes: Iterable[Cause]) -> list[KernelExplanation]:
    """`origin` with each cause that reduces the error."""
    steps = (origin.extended(cause) for cause in causes)
    return [step.refined() for step in steps if step is not None and step.improves(origin)]


def holds(explanation: KernelExplanation, probe: Measurement) -> bool:
    """Whether an explanation predicts a result: exactly in the tensors it explains, in others with or without its
    causes."""
    wrong = unaltered(explanation.evaluator, explanation.observed).wrong
    start = unaltered(probe.evaluator, probe.observed)
    if start.explains and not explanation.is_exact:
        return True
    options = [list(islice(transferred(cause, start), MAX_TRANSFERRED)) for cause in explanation.causes]
    for causes in islice(product(*options), MAX_TRANSFERRED):
        prediction = predicted(probe.evaluator, causes)
        if prediction is None:
            continue
        if fits(prediction, start, probe, wrong) or fits(widened(prediction, causes, probe), start, probe, wrong):
            return True
    return False


def fits(prediction: Prediction, start: KernelExplanation, probe: Measurement, wrong: Sequence[str]) -> bool:
    """Whether a result agrees: with the causes in the `wrong` tensors, with or without them in others."""
    left = {n: ratio(probe.observed[n], defined(p)) for n, p in prediction.items() if n in start.left}
    return all(left.get(n, start.left[n]) < ERROR_BOUND for n in wrong if n in start.left) and all(
        min(value, left.get(n, value)) < ERROR_BOUND for n, value in start.left.items()
    )


def widened(prediction: Prediction, causes: Sequence[Cause], probe: Measurement) -> Prediction:
    """A prediction with the error bound of a careful implementation of the causes, which may be wider than the
    reference's."""
    alteration = together(causes)
    if not alteration.edits and not (alteration.arguments and is_near(prediction, probe)):
        return prediction
    own = probe.evaluator.own_envelopes(alteration)
    return {n: replace(p, envelope=p.envelope.joined(own.get(n, p.envelope))) for n, p in prediction.items()}


NEARLY = 1e3
"""Up to this error ratio, a variant's own rounding may explain what it leaves: that of a recurrence grows with its
turns (an LSTM of 16 steps with its gates exchanged left 258)."""


def is_near(prediction: Prediction, probe: Measurement) -> bool:
    """Whether a prediction leaves little of a result."""
    return all(ratio(probe.observed[n], defined(p)) < NEARLY for n, p in prediction.items() if n in probe.observed)


def defined(predicted: Predicted) -> Predicted:
    """A prediction that is compared only where it is finite, if it is anywhere: a kernel may guard against overflow."""
    if predicted.values is None or not (undefined := ~np.isfinite(predicted.values)).any() or undefined.all():
        return predicted
    excused = undefined if predicted.envelope.excused is None else undefined | predicted.envelope.excused
    values = np.where(undefined, 0, predicted.values)
    return replace(predicted, values=values, envelope=replace(predicted.envelope, excused=excused))


def transferred(cause: Cause, start: KernelExplanation) -> Iterator[Cause]:
    """The same cause for other inputs: edits, changes and fitted numbers stay, other causes take those inputs'
    numbers."""
    if start.evaluator.universal or (cause.alteration is not None and cause.alteration.edits):
        yield cause
        return
    alike = [replace(c, only=cause.only) for c in pool(start, cause) if similar(c, cause)]
    same = [c for c in alike if c.parameters == cause.parameters]
    if cause.change is not None and not cause.counted:
        yield from (cause, *same)
        return
    if cause.id == STORED:
        alike = [c for c in alike if c.shown_by == cause.shown_by]
        # If float32 represents the options, nothing differs.
        yield from alike or [replace(cause, alteration=Alteration())]
        return
    if cause.counted:
        same, alike = [], [c for c in alike if not cause.counted.isdisjoint(c.counted)]
    yield from same or alike or ([cause] if cause.alteration is not None and cause.portable else [])


def pool(start: KernelExplanation, like: Cause) -> Iterator[Cause]:
    """The causes that a search has from the same source: the observed tensors, the op, or the implied statistics."""
    if like.alteration is None:
        yield from chain.from_iterable(proposals(start))
    elif like.portable:
        yield from standing_causes(start.evaluator)
    else:
        yield from statistics_causes(start)


def similar(one: Cause, other: Cause) -> bool:
    """Whether two causes differ in their numbers only."""
    return one.id == other.id and one.parameters.keys() == other.parameters.keys()
