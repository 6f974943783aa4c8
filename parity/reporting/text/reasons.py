"""The verdicts of a case in words, with its numbers: the reason, whether it is aligned, and what to do next."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from parity.config.known_edit import entry_text, word
from parity.config.plan import ACCEPTED_DAYS, REASON_WANTED, Asked, Plan
from parity.judge.acceptance import JudgedRun, lacking, rounded_up
from parity.judge.bound.envelope import ERROR_BOUND, UNIT_ROUNDOFF
from parity.judge.compare.verdict import Comparison, Verdict
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.reporting.results.rows import FINDINGS, SEVERITY, CaseRow, Results
from parity.reporting.text.evidence import CHOICES
from parity.reporting.text.words import grouped, listed, number, plural

LARGEST_RTOL = 0.01
"""If a larger rtol is needed, the expected value is next to zero, and atol has to be larger instead."""


@dataclass(frozen=True)
class CaseRows:
    """The rows of one case in a stored run: `comparisons` are the requested ones, `every` has all."""

    case: CaseRow
    comparisons: Sequence[Comparison]
    diagnoses: Sequence[Diagnosis]
    every: Sequence[Comparison]
    started: str = ""

    def ratios(self, dtype: str, tensor: str) -> dict[str, float]:
        """Every backend's error ratio for one tensor, where it is known."""
        known: dict[str, float] = {}
        for row in self.every:
            if (row.dtype, row.tensor) == (dtype, tensor):
                known |= row.ratios
        return known

    def errors(self, backend: str, tensor: str) -> dict[str, float]:
        """A backend's largest error from the oracle for one tensor, by dtype."""
        return {
            row.dtype: row.max_abs_diff
            for row in self.every
            if row.with_oracle and (row.actual, row.tensor) == (backend, tensor) and row.max_abs_diff is not None
        }


def case_rows(results: Results) -> dict[str, CaseRows]:
    """The rows of each case of a run, by its id."""
    compared = grouped((row.case, row) for row in results.comparisons)
    diagnosed = grouped((row.case, row) for row in results.diagnoses)
    return {
        case.id: CaseRows(case, rows, diagnosed.get(case.id, ()), rows, results.run.started)
        for case in results.cases
        for rows in [compared.get(case.id, [])]
    }


def failing(rows: Iterable[Comparison]) -> list[Comparison]:
    """The comparisons that fail, the worst first."""
    return sorted((row for row in rows if row.fails), key=worst_first)


def worst_first(row: Comparison) -> tuple[float, float]:
    """Orders comparisons: by verdict, then by the largest error ratio."""
    return -SEVERITY[row.verdict], -row.largest_ratio


def aligned(rows: Sequence[Comparison]) -> str:
    """Whether the backends of these comparisons are aligned, in words; of those that the run judges."""
    others = [row for row in rows if row.is_of_others and row.verdict in FINDINGS]
    if others:
        return f"{aligned([row for row in rows if row.counts])}; not counted: {refusal(others).removeprefix('no: ')}"
    rows = [row for row in rows if row.counts]
    made = [row for row in rows if row.compared]
    if not made:
        return "unknown: nothing of it could be compared"
    total, n_missing = n_tensors(rows), n_tensors([row for row in rows if not row.compared])
    verb = "lacks" if n_missing == 1 else "lack"
    left_out = f" ({n_missing} of {plural(total, 'tensor')} {verb} the result of some backend)" if n_missing else ""
    failures = failing(made)
    if any(row.verdict in FINDINGS for row in failures):
        return refusal([row for row in failures if row.verdict in FINDINGS]) + left_out
    rounding = [row for row in failures if row.verdict != Verdict.CHOICE]
    if rounding:
        return f"yes, within rounding: needs {needs(rounding)}{left_out}"
    if failures:
        return f"yes, except where several results are right{left_out}"
    hidden = [row for row in made if row.suspect]
    verb = "is" if n_tensors(hidden) == 1 else "are"
    doubt = f", but {n_tensors(hidden)} of {plural(total, 'tensor')} {verb} suspect" if hidden else ""
    return f"yes (within tolerance){doubt}{left_out}"


def n_tensors(rows: Iterable[Comparison]) -> int:
    """The number of compared tensors; one in two cases or dtypes counts twice."""
    return len({row.tensor_key for row in rows})


def refusal(failures: Sequence[Comparison]) -> str:
    """`no: paddle exceeds the error bound in y and grad.x (float32)`, and the reasons if all is accepted."""
    culprits = dict.fromkeys(name for row in failures for name in row.culprit)
    tensors: dict[str, dict[str, None]] = {}
    for row in failures:
        tensors.setdefault(row.dtype, {}).setdefault(row.tensor)
    where = "; ".join(f"{listed(names)} ({dtype})" for dtype, names in tensors.items())
    text = (
        f"{listed(culprits)} {'exceeds' if len(culprits) == 1 else 'exceed'} the error bound in"
        if culprits
        else "different in"
    )
    text = f"no: {text} {where}"
    reasons = dict.fromkeys(row.known for row in failures)
    return text if None in reasons else f"{text}; accepted: {'; '.join(map(str, reasons))}"


def needs(comparisons: Sequence[Comparison]) -> str:
    """`rtol 2.1e-05 (float32 y)`: the tolerances that would let these pass, the largest of each tensor."""
    texts = []
    for (dtype, tensor), limits in needed(comparisons).items():
        changed = [f"{name} {value:.1e}" for name, value in limits.items() if name != "kept"]
        texts.append(f"{' '.join(changed)} ({dtype} {tensor})")
    return listed(texts)


def needed(comparisons: Sequence[Comparison]) -> dict[tuple[str, str], dict[str, float]]:
    """By dtype and tensor the rtol that would let all pass; atol, where the expected value is next to zero."""
    by_tensor = grouped(((row.dtype, row.tensor), row) for row in comparisons)
    return {key: limit(rows) for key, rows in by_tensor.items()}


def limit(rows: Sequence[Comparison]) -> dict[str, float]:
    """The rtol that lets these rows pass, or the atol."""
    rtol = max((row.required_rtol for row in rows if row.required_rtol is not None), default=math.inf)
    if rtol <= LARGEST_RTOL:
        return {"rtol": rounded_up(rtol)}
    differences = (row.max_abs_diff for row in rows if row.max_abs_diff is not None)
    return {"atol": rounded_up(max(differences, default=math.inf))}


def passing_reason(row: Comparison, rows: CaseRows) -> str:
    """A pass, and why it is suspect."""
    if row.hides:
        return f"it passes only because the tolerance is loose: {distance(row, rows)}"
    if row.suspect:
        return "it passes, but zeros, or a doubled or sign-flipped tensor, could pass too, or nothing is finite"
    agrees = "bit for bit equal" if row.verdict == Verdict.EQUAL else "within the tolerance"
    return f"{agrees}, but {row.message}" if row.agrees_in_part else agrees


def rounding_reason(row: Comparison, rows: CaseRows) -> str:
    """No backend exceeds the error bound; the tolerance is too tight."""
    ratios = rows.ratios(row.dtype, row.tensor)
    # 7.997 is less than 8 in print, too.
    below = {
        name: min(ratio, ERROR_BOUND - 0.01) for name, ratio in ratios.items() if name in (row.actual, row.expected)
    }
    shown = listed(f"{name}'s {number(ratio)}" for name, ratio in below.items())
    measured = f": the error is {shown} times that of a careful implementation, the error bound is {ERROR_BOUND:g}"
    return f"rounding alone: the tolerance is tighter than {row.dtype} allows{measured if shown else ''}"


def choice_reason(row: Comparison, rows: CaseRows) -> str:
    """A valid result that differs from the other backend's."""
    choices = [d for d in rows.diagnoses if d.dtype == row.dtype and row.tensor in d.tensors and "chosen" in d.evidence]
    chosen = {name: choice for d in choices for name, choice in d.evidence["chosen"].items()}
    takes = listed(f"{name} {chosen.get(name, chosen[ORACLES])}" for name in (row.actual, row.expected) if chosen)
    what = next((CHOICES[d.id] for d in choices if d.id in CHOICES), "results")
    return f"several {what} are right here: {takes}" if takes else "another result where several are right"


def degraded_reason(row: Comparison, rows: CaseRows) -> str:
    """A float64 result with float32 accuracy."""
    value, actual = row.expected_value, row.actual_value
    size = math.nan if actual is None or not value or not math.isfinite(value) else abs(actual - value) / abs(value)
    share = f", {number(size)} of the value where it is worst" if math.isfinite(size) else ""
    return (
        f"{distance(row, rows)}{share}: the {row.dtype} result has float32 accuracy (unit roundoff "
        f"{UNIT_ROUNDOFF['float32']:.1g}), so an attribute or an inner step is kept in a lower precision"
    )


def formula_reason(row: Comparison, rows: CaseRows) -> str:
    """An error of the arithmetic, which changes with the dtype, or of the formula, which does not."""
    several = across(row, rows)
    return f"{distance(row, rows)}{several}: {FORMULA[row.verdict][not several]}"


FORMULA: Mapping[str, tuple[str, str]] = {
    "unstable": (
        "the error changes with the precision, so the algorithm loses digits",
        "it looks like an algorithm that loses digits; a run in float64 would show it",
    ),
    "semantic": (
        "the error is the same in every precision, so the formula differs",
        "the formula differs, as far as one dtype shows",
    ),
}
"""For runs in several dtypes, and in one."""


def message_reason(row: Comparison, _: CaseRows) -> str:
    """Values were not compared."""
    if row.verdict == Verdict.NOT_COMPARED:
        return row.message or "a backend gave no result"
    if row.verdict == Verdict.STRUCTURE and row.tensor.startswith("input."):
        return f"{row.message}; later reads get other numbers"
    if row.verdict == Verdict.STRUCTURE:
        return f"{row.message or 'shape, dtype or set of outputs differs'}; the values were not compared"
    names = listed(row.culprit)
    detail = f": {names} is not finite where the exact answer is, or the reverse" if names else ""
    return f"NaN or infinity in one backend only{detail}; no tolerance accepts that"


ORACLES = "the oracle"


REASONS: Mapping[str, Callable[[Comparison, CaseRows], str]] = {
    "equal": passing_reason,
    "close": passing_reason,
    "not-compared": message_reason,
    "rounding": rounding_reason,
    "choice": choice_reason,
    "degraded": degraded_reason,
    "unstable": formula_reason,
    "semantic": formula_reason,
    "nonfinite": message_reason,
    "structure": message_reason,
}
"""The function that explains each verdict."""


ADVICE: Mapping[str, str] = {
    "degraded": "look for an attribute (eps, momentum, a decay) or an inner step that is float32 in the float64 kernel",
    "unstable": "look for a subtraction that cancels, E[x^2] - E[x]^2 above all; in float16 and bfloat16 for sums and "
    "statistics in the dtype itself",
    "semantic": "compare defaults, eps, ddof, axes, momentum and the order of steps; a wider tolerance would hide it",
    "nonfinite": "start at the element above, with its inputs; see whether the other backend clamps or checks",
    "structure": "fix the outputs first: names, shape and dtype as the op documents them",
}
"""By verdict."""


def distance(row: Comparison, rows: CaseRows) -> str:
    """`the error of paddle is 8.1e+04 times that of a careful implementation in float32`."""
    ratios = rows.ratios(row.dtype, row.tensor)
    texts = [f"the error of {name} is {number(ratios.get(name))} times" for name in row.culprit]
    return f"{listed(texts) or 'an error exceeds'} that of a careful implementation in {row.dtype}"


def across(row: Comparison, rows: CaseRows) -> str:
    """A culprit's largest error in every dtype, if there are several."""
    for backend in row.culprit:
        errors = rows.errors(backend, row.tensor)
        if len(errors) > 1:
            shown = ", ".join(f"{number(error)} in {dtype}" for dtype, error in errors.items())
            return f" (the largest: {shown})"
    return ""


def tolerance_entry(comparisons: Sequence[Comparison]) -> str:
    """A case's `tolerance:` under which these would pass, as one line of YAML."""
    tensors: dict[str, list[str]] = {}
    for (dtype, tensor), limits in needed(comparisons).items():
        row = next(row for row in comparisons if (row.dtype, row.tensor) == (dtype, tensor))
        both = {"rtol": row.rtol, "atol": row.atol} | limits
        texts = ", ".join(f"{name}: {value:.1e}" if value else f"{name}: 0" for name, value in both.items())
        tensors.setdefault(tensor, []).append(f"{dtype}: {{{texts}}}")
    rows = [f"{word(name)}: {{{', '.join(t)}}}" for name, t in tensors.items()]
    return f"tolerance: {{tensors: {{{', '.join(rows)}}}}}"


def known_entries(rows: CaseRows) -> Iterator[str]:
    """Entries of `known` that would accept the findings of a case, as lines of YAML; `parity accept` writes them."""
    asked = Asked(((rows.case.id, tuple(rows.case.dtypes)),), ())
    left = [row for row in rows.comparisons if row.known is None and row.counts]
    run = JudgedRun(Plan("", (), (), "", 0, (), asked=asked), left, rows.diagnoses, {}, datetime.date.today())
    for known in lacking(run, lambda *_: True, FINDINGS):
        entry = replace(known, reason=REASON_WANTED, until=some_day(rows.started))
        yield entry_text(entry).replace("\n  ", "")


def some_day(started: str) -> datetime.date | None:
    """A date for a review, counted from the start of the run."""
    try:
        return datetime.datetime.fromisoformat(started).date() + datetime.timedelta(ACCEPTED_DAYS)
    except (ValueError, OverflowError):
        return None
