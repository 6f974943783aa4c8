"""The verdicts of a case in words, with its own numbers: why, may it be called aligned, and what to do next."""

from __future__ import annotations

import datetime
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parity.config.plan import ORACLE, REASON_WANTED
from parity.judge.bound.envelope import OFF, UNIT_ROUNDOFF
from parity.judge.compare.verdict import Verdict
from parity.reporting.results.results import Row
from parity.training.spec import TRAIN

SEVERITY = {verdict.value: i for i, verdict in enumerate(Verdict)}
"""Worse verdicts are higher."""

FAILING = frozenset(verdict.value for verdict in Verdict if verdict.fails)
FINDINGS = FAILING - {Verdict.ROUNDING.value}
"""Verdicts for which somebody has to be off."""

PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
STAGE = "stage."
"""What the tensors of a training begin with that are a stage of a step, and no curve."""
CURVES = ("loss", "grad_norm")
"""The tensors of a training with a number for each step; the others are norms after the last step."""
STAGE_WORDS: Mapping[str, str] = {
    "data": "order of the data",
    "forward": "forward pass",
    "loss": "loss",
    "gradient": "gradient",
    "clip": "clipping",
    "schedule": "learning rate's schedule",
    "update": "update",
}
"""The stages of a step in a sentence, after `in the`."""

HEADROOM = 2.0
LARGEST_RTOL = 0.01
"""Where more than that is needed, the expected value is next to zero, and it is atol that has to be larger."""
ACCEPTED_DAYS = 365
UNMEASURED = frozenset((Verdict.NOT_COMPARED.value, Verdict.NONFINITE.value, Verdict.STRUCTURE.value))
"""Verdicts without a distance."""
UNSAID = frozenset((Verdict.ROUNDING.value, "unexplained", "not-identifiable"))
"""Diagnoses that name no cause, so that an entry of the ledger gains nothing by them."""


@dataclass(frozen=True)
class CaseRows:
    """What a stored run says about one case: `comparisons` are those asked for, of `every` one there is."""

    case: Row
    comparisons: Sequence[Row]
    diagnoses: Sequence[Row]
    every: Sequence[Row]
    started: str = ""

    def ratios(self, dtype: str, tensor: str) -> dict[str, float]:
        """Every side's error ratio for one tensor, where it is known."""
        found: dict[str, float] = {}
        for row in self.every:
            if (row["dtype"], row["tensor"]) == (dtype, tensor):
                pairs = ((row[side], row["error_ratio"].get(side)) for side in ("actual", "expected"))
                found |= {name: ratio for name, ratio in pairs if isinstance(ratio, (int, float))}
        return found

    def errors(self, backend: str, tensor: str) -> dict[str, float]:
        """A backend's largest error from the oracle for one tensor, by dtype."""
        return {
            row["dtype"]: row["max_abs_diff"]
            for row in self.every
            if (row["actual"], row["expected"], row["tensor"]) == (backend, ORACLE, tensor)
            and isinstance(row["max_abs_diff"], (int, float))
        }


def number(value: Any, digits: int = 3) -> str:
    """A number for reading; what is none as it is."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return "?" if value is None else str(value)
    return f"{value:.{digits}g}"


def factor(value: float) -> str:
    """A factor for reading: `0.02`, `7.1`, `340`, `1.2e+06`, `∞`."""
    if math.isinf(value):
        return "∞"
    return f"{value:.2g}" if value < 100 or value >= 1e5 else f"{value:.0f}"


def listed(words: Iterable[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    names = list(words)
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def failing(rows: Iterable[Row]) -> list[Row]:
    """The comparisons that fail, the worst first."""
    return sorted((row for row in rows if row["verdict"] in FAILING), key=worst_first)


def worst_first(row: Row) -> tuple[float, float]:
    """Orders comparisons: by verdict, then by the largest error ratio."""
    ratios = [r for r in row["error_ratio"].values() if isinstance(r, (int, float)) and not math.isnan(r)]
    return -SEVERITY[row["verdict"]], -max(ratios, default=0.0)


def aligned(rows: Sequence[Row]) -> str:
    """May the sides of these comparisons be called aligned?"""
    made = [row for row in rows if row["verdict"] != Verdict.NOT_COMPARED.value]
    if not made:
        return "unknown: nothing of it could be compared"
    left_out = f" ({len(rows) - len(made)} of {len(rows)} comparisons could not be made)" if made != list(rows) else ""
    found = failing(made)
    if any(row["verdict"] in FINDINGS for row in found):
        return refusal([row for row in found if row["verdict"] in FINDINGS]) + left_out
    if found:
        return f"yes, within rounding: needs {needs(found)}{left_out}"
    hidden = [row for row in made if row["suspect"]]
    doubt = f", but {len(hidden)} of {len(made)} passes are suspect" if hidden else ""
    return f"yes (within tolerance){doubt}{left_out}"


def refusal(found: Sequence[Row]) -> str:
    """`no: paddle is off in y and grad.x (float32)`, with the reason where all of it is accepted."""
    sides = dict.fromkeys(side for row in found for side in row["culprit"])
    tensors: dict[str, dict[str, None]] = {}
    for row in found:
        tensors.setdefault(row["dtype"], {}).setdefault(row["tensor"])
    places = "; ".join(f"{listed(names)} ({dtype})" for dtype, names in tensors.items())
    text = f"{listed(sides)} {'is' if len(sides) == 1 else 'are'} off in" if sides else "the sides differ in"
    text = f"no: {text} {places}"
    reasons = dict.fromkeys(row["known"] for row in found)
    return text if None in reasons else f"{text}; accepted: {'; '.join(map(str, reasons))}"


def needs(found: Sequence[Row]) -> str:
    """`rtol 2.1e-05 (float32 y)`: the tolerances that would let these pass, the largest of each tensor."""
    texts = []
    for (dtype, tensor), limits in needed(found).items():
        changed = [f"{name} {value:.1e}" for name, value in limits.items() if name != "kept"]
        texts.append(f"{' '.join(changed)} ({dtype} {tensor})")
    return listed(texts)


def needed(found: Sequence[Row]) -> dict[tuple[str, str], dict[str, float]]:
    """By dtype and tensor the rtol that would let all pass; atol, where the expected value is next to zero."""
    by_tensor: dict[tuple[str, str], list[Row]] = {}
    for row in found:
        by_tensor.setdefault((row["dtype"], row["tensor"]), []).append(row)
    return {key: limit(rows) for key, rows in by_tensor.items()}


def limit(rows: Sequence[Row]) -> dict[str, float]:
    """The rtol that lets these rows pass, or the atol."""
    rtol = max((r for row in rows if isinstance(r := row["required_rtol"], (int, float))), default=math.inf)
    if rtol <= LARGEST_RTOL:
        return {"rtol": rounded_up(rtol)}
    differences = (d for row in rows if isinstance(d := row["max_abs_diff"], (int, float)))
    return {"atol": rounded_up(max(differences, default=math.inf))}


def rounded_up(value: float) -> float:
    """The least number of two digits that is not below `value`."""
    if not value or not math.isfinite(value):
        return value
    near = float(f"{value:.1e}")
    return near if near >= value else float(f"{near + 10.0 ** (math.floor(math.log10(value)) - 1):.1e}")


def reason(row: Row, rows: CaseRows) -> str:
    """Why a comparison has its verdict, in its own numbers."""
    if rows.case["op"] == TRAIN and row["verdict"] not in UNMEASURED:
        return training_reason(row, rows)
    return REASONS[row["verdict"]](row, rows)


def place_text(row: Row, op: str) -> str:
    """Where the worst element of a comparison is: an index, or of a training's curve the step."""
    index = row["worst_index"]
    if op != TRAIN or row["tensor"].startswith(STAGE):
        return f"[{', '.join(map(str, index))}]" if isinstance(index, list) else str(index)
    if row["tensor"] in CURVES and isinstance(index, list) and index and isinstance(index[0], int):
        return f"step {index[0] + 1}"
    return "the last step"


def enveloped(row: Row, op: str) -> bool:
    """Whether a comparison of a training is judged by its envelope and by no tolerance."""
    return op == TRAIN and not row["rtol"] and not row["atol"]


def training_reason(row: Row, rows: CaseRows) -> str:
    """How far a stage is from what the oracle makes of its input, or a curve from the baseline's."""
    sides = row["culprit"] or [row["actual"]]
    known = rows.ratios(row["dtype"], row["tensor"])
    sizes = listed(f"{number(known.get(side))}" for side in sides)
    who = listed(sides)
    if row["tensor"].startswith(STAGE):
        stage = STAGE_WORDS.get(row["tensor"].removeprefix(STAGE), row["tensor"])
        if row["verdict"] not in FAILING and row["suspect"] and row["culprit"]:
            why = f": {row['message']}" if row["message"] else ""
            return f"it passes, though the {stage} of {who} is {sizes} times as far off as rounding explains{why}"
        if row["verdict"] not in FAILING:
            return f"{who} makes of the input of the {stage} what the oracle makes of it, within rounding"
        return (
            f"the {stage} of {who} is {sizes} times as far from what the oracle makes of the same input as rounding "
            f"explains; {OFF:g} is off"
        )
    if row["verdict"] not in FAILING and row["suspect"]:
        return f"the curve of {who} passes, though it {row['message'] or 'leaves the ensemble'}: {sizes} envelopes"
    if row["verdict"] not in FAILING:
        return f"the curve of {who} stays within {OFF:g} envelopes of that of {row['expected']}"
    whom = ORACLE if isinstance(row["error_ratio"].get("expected"), (int, float)) else row["expected"]
    return (
        f"the curve of {who} goes {sizes} envelopes away from that of {whom}; runs whose start is moved by "
        f"an ulp stay within 1, and {OFF:g} is off"
    )


def passing_reason(row: Row, rows: CaseRows) -> str:
    """A pass, and what is suspicious about it."""
    if row["suspect"] and row["culprit"]:
        return f"it passes, but the tolerance hides that {distance(row, rows)}"
    if row["suspect"]:
        return "it passes, but zeros, a doubled or a sign-flipped tensor could have passed too, or nothing is finite"
    return "bit for bit equal" if row["verdict"] == Verdict.EQUAL.value else "within the tolerance"


def rounding_reason(row: Row, rows: CaseRows) -> str:
    """Nobody is off; the tolerance asks too much."""
    ratios = {side: ratio for side, ratio in rows.ratios(row["dtype"], row["tensor"]).items() if side in sides_of(row)}
    shown = ", ".join(f"{side} {number(ratio)}" for side, ratio in ratios.items())
    measured = f" ({shown} times its error; {OFF:g} would be a finding)" if shown else ""
    return (
        f"both sides are as near to the exact answer as careful {row['dtype']} code gets{measured}: "
        "the tolerance asks for more digits than there are"
    )


def degraded_reason(row: Row, rows: CaseRows) -> str:
    """A float64 result with float32 accuracy."""
    value = row["expected_value"]
    size = abs(row["actual_value"] - value) / abs(value) if value and math.isfinite(value) else math.nan
    share = f", {number(size)} of the value where it is worst" if math.isfinite(size) else ""
    return (
        f"{distance(row, rows)}{share}: a {row['dtype']} result that carries float32 accuracy (its unit roundoff is "
        f"{UNIT_ROUNDOFF['float32']:.1g}), so an attribute or an inner step is kept in a lower precision"
    )


def unstable_reason(row: Row, rows: CaseRows) -> str:
    """The error belongs to the arithmetic."""
    cause = "the error changes with the precision, so it is an algorithm that loses digits"
    alone = "only this dtype was run, and what was found looks like an algorithm that loses digits; float64 would tell"
    return f"{distance(row, rows)}{across(row, rows)}: {cause if across(row, rows) else alone}"


def semantic_reason(row: Row, rows: CaseRows) -> str:
    """It computes something else."""
    cause = "more digits do not help, so something else is computed"
    alone = "something else is computed, as far as this dtype alone can tell"
    return f"{distance(row, rows)}{across(row, rows)}: {cause if across(row, rows) else alone}"


def nonfinite_reason(row: Row, _: CaseRows) -> str:
    """NaN or infinity where the other side has a number."""
    off = (
        f": {listed(row['culprit'])} is not finite where the exact answer is, or the reverse" if row["culprit"] else ""
    )
    return f"NaN or infinity on one side only{off}; no tolerance lets that pass"


def structure_reason(row: Row, _: CaseRows) -> str:
    """Shape, dtype or set of outputs."""
    return f"{row['message'] or 'shape, dtype or set of outputs differs'}; values were not looked at"


def missing_reason(row: Row, _: CaseRows) -> str:
    """There was nothing to compare."""
    return row["message"] or "one side gave no result"


REASONS: Mapping[str, Callable[[Row, CaseRows], str]] = {
    "equal": passing_reason,
    "close": passing_reason,
    "not-compared": missing_reason,
    "rounding": rounding_reason,
    "degraded": degraded_reason,
    "unstable": unstable_reason,
    "semantic": semantic_reason,
    "nonfinite": nonfinite_reason,
    "structure": structure_reason,
}
"""How each verdict is told."""


def sides_of(row: Row) -> tuple[str, str]:
    """The two sides of a comparison."""
    return row["actual"], row["expected"]


def distance(row: Row, rows: CaseRows) -> str:
    """`paddle is 8.1e+04 times further from the exact answer than careful float32 code gets`."""
    ratios = rows.ratios(row["dtype"], row["tensor"])
    texts = [f"{side} is {number(ratios.get(side))} times as far from the exact answer" for side in row["culprit"]]
    return f"{listed(texts) or 'a side is further from the exact answer'} as careful {row['dtype']} code gets"


def across(row: Row, rows: CaseRows) -> str:
    """A culprit's largest error in every dtype, where there are several."""
    for side in row["culprit"]:
        errors = rows.errors(side, row["tensor"])
        if len(errors) > 1:
            shown = ", ".join(f"{number(error)} in {dtype}" for dtype, error in errors.items())
            return f" (its largest error: {shown})"
    return ""


def tolerance_entry(found: Sequence[Row]) -> str:
    """A case's `tolerance:` under which these would pass, as one line of YAML."""
    tensors: dict[str, list[str]] = {}
    for (dtype, tensor), limits in needed(found).items():
        row = next(row for row in found if (row["dtype"], row["tensor"]) == (dtype, tensor))
        both = {"rtol": row["rtol"], "atol": row["atol"]} | limits
        texts = ", ".join(f"{name}: {value:.1e}" if value else f"{name}: 0" for name, value in both.items())
        tensors.setdefault(tensor, []).append(f"{dtype}: {{{texts}}}")
    rows = [f"{name if PLAIN.fullmatch(name) else quoted(name)}: {{{', '.join(t)}}}" for name, t in tensors.items()]
    return f"tolerance: {{tensors: {{{', '.join(rows)}}}}}"


def known_entries(rows: CaseRows) -> Iterator[str]:
    """Entries of `known` that would accept the findings of a case, as lines of YAML."""
    told: dict[str, None] = {}
    for row in failing(rows.comparisons):
        if row["verdict"] in FINDINGS and row["known"] is None:
            for side in row["culprit"] or [row["actual"]]:
                for cause in all_causes(row, side, rows) or (None,):
                    told.setdefault(known_entry(side, row["dtype"], cause, rows))
    yield from told


def all_causes(row: Row, side: str, rows: CaseRows) -> tuple[str, ...]:
    """The diagnoses of one side of a comparison that name a cause."""
    wanted = (row["dtype"], side)
    ids = [d["id"] for d in rows.diagnoses if (d["dtype"], d["backend"]) == wanted and row["tensor"] in d["tensors"]]
    return tuple(dict.fromkeys(name for name in ids if name not in UNSAID))


def known_entry(side: str, dtype: str, diagnosis: str | None, rows: CaseRows) -> str:
    """One entry: who, in which dtype, why and how large, with room for another machine's rounding."""
    deviating = [*failing(rows.comparisons), *(row for row in rows.comparisons if row["suspect"] and row["culprit"])]
    meant = [row for row in deviating if row["dtype"] == dtype and side in (row["culprit"] or sides_of(row))]
    meant = [row for row in meant if diagnosis in (all_causes(row, side, rows) or (None,))]
    ratios = [rows.ratios(dtype, row["tensor"]).get(side, math.inf) for row in meant]
    worst = rounded_up(HEADROOM * max(ratios, default=math.inf))
    keys = {"case": quoted(rows.case["id"]), "backend": quoted(side), "dtype": dtype}
    keys |= {"diagnosis": diagnosis} if diagnosis else {}
    keys |= {"error_ratio": f"{worst:.1e}"} if math.isfinite(worst) else {}
    keys["reason"] = quoted(REASON_WANTED)
    keys |= {"until": until} if (until := some_day(rows.started)) else {}
    return f"- {{{', '.join(f'{key}: {value}' for key, value in keys.items())}}}"


def quoted(text: str) -> str:
    """A text as YAML spells it inside braces, whatever is in it."""
    return json.dumps(text, ensure_ascii=False)


def some_day(started: str) -> str:
    """A date to look again, counted from when the run was started."""
    try:
        day = datetime.datetime.fromisoformat(started).date()
        return (day + datetime.timedelta(ACCEPTED_DAYS)).isoformat()
    except (ValueError, OverflowError):
        return ""
