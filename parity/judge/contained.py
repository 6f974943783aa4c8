"""A case's judge whose own failure costs that case only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from parity.config.plan import ORACLE, CasePlan
from parity.judge.bound.envelope import Array
from parity.judge.case import CaseJudge, Cell, Judged, OtherCall
from parity.judge.compare.cell import Oracle, consult_oracle
from parity.judge.compare.verdict import Comparison, Verdict, comparison_of
from parity.judge.diagnose.kernel import Ask
from parity.judge.diagnose.memory import Memory
from parity.judge.failures import Failure, Failures, unjudged, with_failures
from parity.outcome import CellOutcome, Outcome


class ContainedJudge:
    """A `CaseJudge` that never raises an Exception: where it fails as a whole, what it measured stays, without
    verdicts."""

    def __init__(
        self,
        case: CasePlan,
        inputs: Mapping[str, Array],
        baseline: str,
        memory: Memory | None = None,
        ask: Ask | None = None,
        others: Sequence[Mapping[str, Array]] = (),
        ask_new: Ask | None = None,
    ) -> None:
        self.case, self.failures = case, Failures()
        self._outcomes: dict[str, Sequence[CellOutcome]] = {}
        self._judge: CaseJudge | None = None
        with self.failures.contained("computing the exact answer"):
            oracle = consult_oracle(case, inputs)
            self._judge = CaseJudge(case, inputs, oracle, baseline, memory, ask, others, ask_new)

    @property
    def oracle(self) -> Oracle:
        """The exact answer; empty if it cannot be computed."""
        return {} if self._judge is None else self._judge.oracle

    @property
    def cells(self) -> Mapping[str, Cell]:
        """The cells that could be compared, by dtype."""
        return {} if self._judge is None else self._judge.cells

    @property
    def other_calls(self) -> Mapping[tuple[str, str], OtherCall]:
        """The calls on other inputs that are wrong, by dtype and backend."""
        return {} if self._judge is None else self._judge.other_calls

    def inputs_of_call(self, ordinal: int) -> Mapping[str, Array]:
        """The inputs of a call on other inputs."""
        return {} if self._judge is None else self._judge.inputs_of_call(ordinal)

    @property
    def began(self) -> bool:
        """Whether it has outcomes."""
        return bool(self._outcomes)

    def take(self, dtype: str, outcomes: Sequence[CellOutcome]) -> None:
        """The outcomes of one cell; their arrays must stay valid until the case is judged."""
        self._outcomes[dtype] = outcomes
        with self.failures.contained(f"comparing the results in {dtype}"):
            if self._judge is not None:
                self._judge.take(dtype, outcomes)

    def judged(self, *, diagnose: bool = True) -> Judged:
        """Verdicts and diagnoses from all cells so far; `diagnose=False` skips the searches."""
        if self._judge is not None and not self.failures:
            with self.failures.contained("judging the case"):
                return self._judge.judged(diagnose=diagnose)
        comparisons = [row for dtype in self._outcomes for row in self._unjudged(dtype, self.failures[-1])]
        rows = [
            row
            for dtype, outcomes in self._outcomes.items()
            for o in outcomes
            for row in with_failures(
                (self.case.id, dtype, o.backend),
                (),
                self.failures,
                tuple(dict.fromkeys(c.tensor for c in comparisons if (c.dtype, c.actual) == (dtype, o.backend))),
            )
        ]
        return Judged(tuple(comparisons), tuple(rows))

    def _unjudged(self, dtype: str, failure: Failure) -> Iterator[Comparison]:
        """What was compared in a cell; if nothing was, a row for each tensor that a backend returned."""
        if dtype in self.cells:
            yield from (unjudged(row, failure) for row in self.cells[dtype].comparisons)
            return
        for outcome in self._outcomes[dtype]:
            names = tuple(outcome.outputs) or tuple(self.case.definition.grad_outputs) or ("output",)
            failed = f"{outcome.backend}: {outcome.outcome.value}: {outcome.message}"
            message = failure.message if outcome.outcome is Outcome.OK else failed
            for name in names:
                of = (self.case.id, dtype, name, outcome.backend, ORACLE)
                yield comparison_of(*of, Verdict.NOT_COMPARED, 0.0, 0.0, message=message)
