"""`parity judge --rule`: other tools' rules on the tensors of a stored run, beside the error bound.

Each is computed from what every comparison keeps: the tolerance frontier, which decides any `allclose`, and the size of
the error from the oracle, which stands for their float64 reference. docs/rules.md has their sources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from parity.config.plan import ORACLE
from parity.config.tolerances import DEFAULT_TOLERANCES
from parity.judge.compare.frontier import accepts
from parity.judge.compare.verdict import Verdict
from parity.reporting.judge import FRONTIER, NOT_KEPT, JudgeError
from parity.reporting.kinds import report_of
from parity.reporting.results.resume import stored
from parity.reporting.results.store import BACKENDS, RUN, Store

ROWS = """
    SELECT case_id, dtype, tensor, actual, expected, verdict, culprit, n_elements, max_abs_diff, rmse, cosine, frontier,
        error_ratio_actual FROM comparisons ORDER BY case_id, dtype, tensor, rowid"""
DYNAMO_TOL = 1e-4
DYNAMO_SMALL = 1000
NARROW = ("float16", "bfloat16")
"""The dtypes with dynamo's larger factor."""
FLASH = 2.0
COSINES, DISTANCES = (0.99, 0.9), (1e-3, 1.0)
"""msprobe rejects a small cosine with a distance above the first, a smaller one, and a distance above the second."""


@dataclass(frozen=True)
class MeasuredPair:
    """The stored measurements of two tensors."""

    dtype: str
    tensor: str
    actual: str
    expected: str
    verdict: str
    culprit: str
    n_elements: int | None
    max_abs_diff: float | None
    rmse: float | None
    cosine: float | None
    frontier: str | None
    error_ratio: float | None

    def close(self, rtol: float, atol: float) -> bool:
        """Whether the tensors are within a tolerance; raises JudgeError if their frontier was not kept."""
        if self.frontier is None:
            raise JudgeError(NOT_KEPT)
        return accepts(FRONTIER.decode(self.frontier), rtol, atol)


@dataclass(frozen=True)
class TensorComparisons:
    """A backend's tensor: against the baseline, against the oracle, and the baseline's against the oracle."""

    key: tuple[str, str, str]
    pair: MeasuredPair
    own: MeasuredPair
    reference: MeasuredPair | None

    @property
    def is_wrong(self) -> bool:
        """Whether the backend exceeds parity's error bound."""
        return f'"{self.own.actual}"' in self.own.culprit


@dataclass(frozen=True)
class Rule:
    """A rule: whether it lets a tensor pass, and whether it needs the baseline's error from the exact values."""

    passes: Callable[[TensorComparisons], bool]
    needs_reference: bool = False


def assert_close(tensor: TensorComparisons) -> bool:
    """torch.testing.assert_close(backend, baseline), with its defaults by dtype; parity's are the same but for
    gradients."""
    tolerance = DEFAULT_TOLERANCES.lookup(tensor.pair.dtype, "y")
    return tensor.pair.close(tolerance.rtol, tolerance.atol)


def dynamo(tensor: TensorComparisons) -> bool:
    """torch._dynamo.utils.same(baseline, backend, oracle), at its default tolerance and without cosine."""
    if tensor.pair.close(DYNAMO_TOL, DYNAMO_TOL):
        return True
    own, reference = tensor.own, tensor.reference
    if reference is None or own.rmse is None or reference.rmse is None:
        return False
    is_loose = own.dtype in NARROW or (own.n_elements or 0) < DYNAMO_SMALL
    return own.rmse <= (3.0 if is_loose else 2.0) * reference.rmse + DYNAMO_TOL / 10


def flash_attention(tensor: TensorComparisons) -> bool:
    """FlashAttention's tests: the largest error at most twice the baseline's."""
    own, reference = tensor.own.max_abs_diff, tensor.reference
    if own is None or reference is None or reference.max_abs_diff is None:
        return False
    return own <= FLASH * reference.max_abs_diff


def msprobe(tensor: TensorComparisons) -> bool:
    """msprobe's check_accuracy on backend and baseline."""
    cosine, distance = tensor.pair.cosine, tensor.pair.max_abs_diff
    if cosine is None or distance is None:
        return False
    small = cosine < COSINES[0] and distance > DISTANCES[0]
    return not (small or cosine < COSINES[1] or distance > DISTANCES[1])


RULES: Mapping[str, Rule] = {
    "assert_close": Rule(assert_close),
    "dynamo": Rule(dynamo, needs_reference=True),
    "flash-attention": Rule(flash_attention, needs_reference=True),
    "msprobe": Rule(msprobe),
}


@dataclass(frozen=True)
class Disagreement:
    """A tensor on which the rule and the error bound disagree."""

    key: tuple[str, str, str]
    backend: str
    rejected: bool
    error_ratio: float | None


@dataclass(frozen=True)
class RuleAnswer:
    """How many tensors, by (whether the rule rejects, whether the backend exceeds the error bound), which of them
    disagree, and how many the rule could not judge."""

    counts: Mapping[tuple[bool, bool], int]
    disagreements: Sequence[Disagreement]
    n_unjudged: int


def apply_rule(run_dir: Path, name: str) -> RuleAnswer:
    """The answer of a rule to a run; raises JudgeError, and ResultsError if the run cannot be read."""
    rule, counts = RULES[name], {(a, b): 0 for a in (False, True) for b in (False, True)}
    disagreements, n_unjudged = [], 0
    with stored(run_dir) as store:
        for tensor in tensors(store):
            if tensor is None or (rule.needs_reference and tensor.reference is None):
                n_unjudged += 1
                continue
            rejected = tensor.pair.verdict in UNLIKE or tensor.own.verdict in UNLIKE or not rule.passes(tensor)
            counts[rejected, tensor.is_wrong] += 1
            if rejected != tensor.is_wrong:
                disagreements.append(Disagreement(tensor.key, tensor.own.actual, rejected, tensor.own.error_ratio))
    if not any(counts.values()):
        needs = ", which needs a baseline other than the oracle" if rule.needs_reference else ""
        raise JudgeError(f"{run_dir}: no tensor was compared to which {name} applies{needs}")
    return RuleAnswer(counts, disagreements, n_unjudged)


UNLIKE = (Verdict.STRUCTURE.value, Verdict.NONFINITE.value)
"""Verdicts that every rule rejects."""


def tensors(store: Store) -> Iterator[TensorComparisons | None]:
    """The tensors of every backend but the baseline; None for one that was not compared."""
    baseline = store.one(RUN).baseline
    baselines = {
        case: base or baseline
        for case, op, base in store.select("SELECT id, op, baseline FROM cases")
        if not report_of(op).resumes_by_dtype  # a training is judged by its envelope
    }
    names = [row.name for row in store.rows(BACKENDS)]
    for key, group in groupby(store.db.execute(ROWS), key=lambda row: row[:3]):
        rows = {(row[3], row[4]): MeasuredPair(*row[1:]) for row in group}
        base = baselines.get(key[0])
        for name in names if base else ():
            own, pair = rows.get((name, ORACLE)), rows.get((name, base))
            if name == base or own is None:
                continue
            if pair is None or not {own.verdict, pair.verdict}.isdisjoint({Verdict.NOT_COMPARED.value}):
                yield None
            else:
                yield TensorComparisons(key, pair, own, rows.get((base, ORACLE)))
