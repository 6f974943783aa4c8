"""The texts about dumps, in every output format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from parity.config.nodes import printable
from parity.judge.bound.envelope import ERROR_BOUND
from parity.judge.compare.verdict import Comparison
from parity.reporting.blocks import Listed
from parity.reporting.kinds import CaseReport
from parity.reporting.results.rows import FINDINGS, NOT_COMPARED, CaseRow, Results
from parity.reporting.text.evidence import called
from parity.reporting.text.words import factor, listed, plural

if TYPE_CHECKING:
    from parity.reporting.text.reasons import CaseRows

ORDINALS = {1: "st", 2: "nd", 3: "rd"}
HOWS = ("exact", "mapping", "name", "content", "order")
"""How tensors are paired, in the order in which it is tried."""
ADVICE = (
    "two dumps cannot distinguish a fault from rounding that grew through the layers; a third one in float64 can "
    "(`--truth DIR`); if the difference is acceptable, set --rtol and --atol"
)


class DumpReport(CaseReport):
    """Tensors in files: no op, and no exact answer unless a third dump is one."""

    no_script = "a dump has tensors and no calls, so there is nothing to reproduce"
    pictured = False

    def call(self, case: CaseRow) -> str:  # noqa: ARG002
        """What its tensors belong to."""
        return "tensors in files"

    def recipe(self, case: CaseRow) -> list[tuple[str, str]]:
        """The pairs that were not found by their whole names."""
        return [("paired", pair_text(name, pairing)) for name, pairing in pairs_of(case)] or [
            ("paired", "by exact names")
        ]

    def shows_oracle(self, row: Comparison) -> bool:
        """Whether there is a third dump."""
        return row.oracle_value is not None

    def reason(self, row: Comparison, rows: CaseRows) -> str:
        """The distance of two tensors, in roundings of the dtype."""
        if row.verdict in ("structure", NOT_COMPARED):
            return row.message or "the structure differs"
        if row.verdict == "nonfinite":
            return "NaN or infinity in one dump only; no tolerance accepts that"
        if not row.fails:
            return super().reason(row, rows)
        if row.culprit or row.error_ratio.expected is not None:
            ratios = listed(f"{name} is {factor(ratio)}" for name, ratio in row.ratios.items())
            return (
                f"from the truth, in units of what {row.dtype} can reach here: {ratios}; the bound is {ERROR_BOUND:g}"
            )
        ratio = row.error_ratio.actual
        times = "" if ratio is None else f" by {factor(ratio)} roundings of {row.dtype} in the root mean square"
        return f"the dumps differ{times}; {SIZES.get(row.verdict, '')}"

    def advice(self, findings: Sequence[Comparison]) -> Iterator[str]:
        """What would give more information."""
        if any(row.verdict in ("unstable", "semantic", "degraded") and not row.culprit for row in findings):
            yield ADVICE

    def lead(self, results: Results) -> list[Listed]:
        """The first tensor that differs beyond rounding, and how tensors were paired, with those not paired by name."""
        mine = [case for case in results.cases if case.op == "dump"]
        said = [Listed(first_text(results, mine))] if results.comparisons else []
        pairs = [(name, pairing) for case in mine for name, pairing in pairs_of(case)]
        n_paired = len(
            {r.tensor_key for r in results.comparisons if r.worst_index is not None or r.verdict != "structure"}
        )
        counts = Counter(pairing.get("how", "") for _, pairing in pairs)
        counts["exact"] = max(0, n_paired - len(pairs))
        ways = [f"{counts[how]} by {WORDS[how]}" for how in HOWS if counts[how]]
        if ways and not results.left_out:
            lines = [
                pair_text(name, pairing) for name, pairing in sorted(pairs, key=lambda pair: not pair[1].get("doubt"))
            ]
            said.append(Listed(f"{plural(n_paired, 'pair')} of tensors: {', '.join(ways)}", lines))
        culprits = Counter(name for row in results.comparisons if not row.with_oracle for name in row.culprit)
        if any(row.with_oracle for row in results.comparisons):
            texts = [f"{name} in {plural(n, 'tensor')}" for name, n in culprits.most_common()] or ["neither"]
            said.append(Listed(f"further from the truth than the dtype explains: {listed(texts)}"))
        options = [text for row in results.backends for text in row.flags.get("options", ())]
        if options:
            said.append(Listed(f"{plural(len(options), 'layer has', 'layers have')} other options", options))
        notes = [note for row in results.backends for note in row.flags.get("notes", ())]
        return [*said, *(Listed(f"no tensors, not compared: {note}") for note in notes)]


WORDS = {
    "exact": "exact name",
    "mapping": "the mapping",
    "name": "name",
    "content": "content",
    "order": "order and shape",
}
SIZES = {
    "rounding": "rounding alone: the tolerance is tighter",
    "degraded": "a float64 tensor with float32 accuracy",
    "unstable": "more than rounding, less than another formula would give",
    "semantic": "far more than rounding",
}


def pairs_of(case: CaseRow) -> Iterable[tuple[str, dict[str, Any]]]:
    """The pairs that were not found by exact names, with how they were."""
    pairs = case.params.get("pairs")
    items = pairs.items() if isinstance(pairs, dict) else ()
    return [(name, pairing) for name, pairing in items if isinstance(pairing, dict)]


def pair_text(name: str, pairing: dict[str, Any]) -> str:
    """`a.weight = a/kernel (name, transpose)`, with a doubt if there is one."""
    how = ", ".join(filter(None, (pairing.get("how"), pairing.get("transform"))))
    doubt = f"; {pairing['doubt']}" if pairing.get("doubt") else ""
    return printable(f"{name} = {pairing.get('right')} ({how}{doubt})")


def first_text(results: Results, cases: Sequence[CaseRow]) -> str:
    """`the first tensor that differs ...: fc1.weight (3rd of 12): left is 2 times right`."""
    ordered = all(case.params.get("ordered", True) for case in cases)
    order = "in the order of the dump" if ordered else "by name"
    positions = {key: i for i, key in enumerate(dict.fromkeys(row.tensor_key for row in results.comparisons), 1)}
    first = next((row for row in results.comparisons if row.verdict in FINDINGS and row.known is None), None)
    if first is None:
        return f"aligned: no tensor of {len(positions)} differs beyond rounding or its tolerance"
    why = next(
        (
            f"{row.title} ({called(row)})"
            for row in results.diagnoses
            if (row.case, row.dtype) == (first.case, first.dtype) and first.tensor in row.tensors
        ),
        first.message,
    )
    size = first.error_ratio.actual
    if not why and size is not None:
        who = f"{listed(first.culprit)} differ{'s' * (len(first.culprit) == 1)} from the truth"
        who = who if first.culprit else "the dumps differ"
        why = f"{who} by {factor(first.largest_ratio)} roundings of {first.dtype}"
    why = why or first.verdict
    position = "" if results.left_out else f" ({nth(positions[first.tensor_key])} of {len(positions)})"
    head = f"not aligned: the first tensor that differs beyond rounding, {order}, is"
    return printable(f"{head} {first.tensor}{position}: {why}")


def nth(n: int) -> str:
    """`1st`, `12th`."""
    return f"{n}{'th' if n % 100 in (11, 12, 13) else ORDINALS.get(n % 10, 'th')}"
