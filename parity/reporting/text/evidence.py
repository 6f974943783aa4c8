"""Diagnoses and their evidence in readable form."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text

from parity.config.nodes import printable
from parity.diagnoses import catalogue
from parity.judge.bound.envelope import ERROR_BOUND
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.judge.failures import FAILED, FAILURES, LOG
from parity.reporting.text.words import listed, number

MAX_ITEMS = 8
CHOICES: Mapping[str, str] = {"gradient-choice": "gradients", "index-choice": "indices"}
"""Diagnoses of choices among several right results, and what the results are."""
HARMLESS = frozenset(("rounding", "degenerate-gradient", *CHOICES))
"""Diagnoses of differences in which no backend exceeds the error bound."""
BEHAVIOURS = (
    "nondeterministic",
    "stateful",
    "input-mutated",
    "batch-variant",
    "layout-dependent",
    "approximated-function",
)
NO_FORMULA = frozenset(("unexplained", FAILED, "not-identifiable", *BEHAVIOURS))
"""Diagnoses that explain no tensor as a formula would."""


FITS = "fits"
"""The evidence of a hint about dumps, instead of error ratios."""


def diagnosis_lines(row: Diagnosis, *, brief: bool = False) -> Iterator[Text]:
    """A diagnosis: backend, cause and tensors; then how much of the error it explains, and its evidence.

    `brief` leaves out the paragraph of the catalogue.
    """
    title = printable(f": {row.title} ({', '.join(row.tensors)})")
    who = printable(f"{row.backend} {row.dtype}: ")
    yield Text.assemble(who, (printable(row.id), "bold"), title)
    yield Text(residual_text(row))
    for key, value in row.evidence.items():
        if text := evidence_text(str(key), value):
            yield Text(printable(text))
    entry = catalogue().get(row.id)
    if entry is not None and entry.what and not brief:
        yield Text(f"{entry.what} (parity explain {entry.id})", style="dim")


def called(row: Diagnosis) -> str:
    """The id of a diagnosis; `norm-type in part` where it leaves more than rounding."""
    whole = row.explained or row.id in NO_FORMULA or row.residual_after is None
    return row.id if whole else f"{row.id} in part"


def residual_text(row: Diagnosis) -> str:
    """`explains it: error ratio 8.1e+04 before, 0.9 with it taken into account`."""
    before, after = row.residual_before, row.residual_after
    if row.id == FAILED:
        return f"not explained: error ratio {number(before)}" if before is not None else "without an answer"
    if before is None:
        return f"fits {row.evidence[FITS]}" if FITS in row.evidence else "a finding of its own, beside the op's results"
    if row.id in HARMLESS:
        return f"error ratio {number(after)}, within the error bound"
    if after is None and row.explained:
        return f"error ratio {number(before)}"
    if after is None or row.id == "unexplained" or (not row.explained and after == before):
        return f"not explained: error ratio {number(before)}"
    if row.id == "not-identifiable":
        return f"each of them explains it: error ratio {number(before)} before, {number(after)} with one of them"
    word = "explains it" if row.explained else "explains a part of it"
    return f"{word}: error ratio {number(before)} before, {number(after)} with it taken into account"


def evidence_text(key: str, value: Any) -> str:
    """One piece of evidence; a key that has no words of its own is shown as it is. Empty where it supports nothing."""
    if key in TEXTS:
        try:
            return TEXTS[key](value)
        except (AttributeError, KeyError, TypeError):
            pass  # an older format; shown as it is
    return f"{key.replace('_', ' ')}: {plain(value)}"


def plain(value: Any, digits: int = 6) -> str:
    """Any JSON value in one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={plain(item, digits)}" for key, item in list(value.items())[:MAX_ITEMS])
    if isinstance(value, (list, tuple)):
        more = [f"... {len(value) - MAX_ITEMS} more"] if len(value) > MAX_ITEMS else []
        return f"[{', '.join([*(plain(item, digits) for item in value[:MAX_ITEMS]), *more])}]"
    return number(value, digits) if isinstance(value, (int, float)) else str(value)


def sizes_text(value: Mapping[str, Mapping[str, Any]]) -> str:
    """The sizes of the errors, beside those of the suspected algorithm and of a careful implementation.

    A tensor whose error is far larger than the algorithm's is left out; empty if none is left.
    """
    texts = []
    for tensor, item in value.items():
        if falls_short(item):
            continue
        beside = f"this algorithm loses {number(item['this_algorithm'])}, a careful one {number(item['careful_code'])}"
        texts.append(f"{tensor} {number(item['error'])} ({beside})")
    return f"size of the error: {'; '.join(texts)}" if texts else ""


def falls_short(item: Mapping[str, Any]) -> bool:
    """Whether the suspected algorithm loses so much less than observed that it cannot be the cause."""
    error, lost = item["error"], item["this_algorithm"]
    measured = all(isinstance(size, (int, float)) for size in (error, lost))
    return measured and bool(lost < error / ERROR_BOUND)


def candidate_text(value: Mapping[str, Any]) -> str:
    """`eps-value (eps=0.001) leaves 0.9`."""
    parameters = f" ({plain(value['parameters'], 9)})" if value.get("parameters") else ""
    parameters = f" ({value['expression']})" if value.get("expression") else parameters
    return f"{value['id']}{parameters} leaves {number(value.get('residual_after'))}"


def failures_text(value: Sequence[Mapping[str, str]]) -> str:
    """What parity was doing when it failed, the first error, and what to do."""
    doing = listed(dict.fromkeys(failure["doing"] for failure in value))
    return f"parity failed {doing}: {value[0]['error']}; {LOG} has the traceback: please report it"


def rates_text(steps: Sequence[int], mine: Sequence[float], exact: Sequence[float]) -> str:
    """`the rates of steps 2 and 3 are 0.0466516 and 0.0435275, exactly 0.05 and 0.05`."""
    rates, right = (listed(number(value, 6) for value in values) for values in (mine, exact))
    several = "rates of steps" if len(steps) > 1 else "rate of step"
    return f"the {several} {listed(map(str, steps))} {'are' if len(steps) > 1 else 'is'} {rates}, exactly {right}"


TEXTS: Mapping[str, Callable[[Any], str]] = {
    FITS: lambda _: "",
    FAILURES: failures_text,
    "expression": lambda value: f"computes {value}",
    "further_inputs_predicted": lambda value: f"predicts the backend on {value} further inputs too",
    "parameters": lambda value: f"with {plain(value, 9)}",
    "chosen": lambda value: "; ".join(f"{name} takes {choice}" for name, choice in value.items()),
    "second": lambda value: f"second best: {candidate_text(value)}",
    "candidates": lambda value: f"equally good: {listed(map(candidate_text, value))}",
    "not_told_from": lambda value: f"cannot be distinguished from: {listed(map(candidate_text, value))}",
    "sizes": sizes_text,
    "stage": lambda value: f"stage: {value}" if value else "",
    "told_apart_by": lambda value: f"to distinguish them: {plain(value)}",
    "where": lambda value: f"where: {plain(value)}",
    "only": lambda _: "",
    "alone": str,
    "seen": str,
    "rates": lambda value: rates_text(**value),
    "off": lambda value: f"wrong: {', '.join(value)}",
    "worst_tensor": lambda value: f"largest error in: {value}",
    "required_rtol": lambda value: f"rtol that would pass: {plain(value)}",
}
"""The words for the evidence that the judge gives most often."""
