"""Where to look next, by what was found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from parity.reporting.results.results import Row
from parity.reporting.text.reasons import FINDINGS, STAGE, CaseRows
from parity.training.spec import STAGES, TRAIN

ADVICE: Mapping[str, str] = {
    "degraded": "look for an attribute (eps, momentum, a decay) or an inner step that is float32 in the float64 kernel",
    "unstable": "look for a sum that cancels, E[x^2] - E[x]^2 above all; see whether it shows on your data",
    "semantic": "compare the conventions (defaults, eps, ddof, axes, momentum, order); no tolerance is right here",
    "nonfinite": "start at the element above, with its inputs; see whether the other side clamps or checks",
    "structure": "mend the outputs first: names, shape and dtype as the op documents them",
}
"""By verdict."""

STAGE_ADVICE: Mapping[str, str] = {
    "data": "compare the sampler: seed, shuffling in each epoch, the last batch, which rank gets which rows",
    "forward": "run the layers as op cases; compare eps, the form of the activation, training against evaluation mode",
    "loss": "compare the reduction, what is ignored, and the factor of an accumulated micro-batch",
    "gradient": "look for gradients that were not set to zero, a sum over micro-batches or ranks in place of a mean",
    "clip": "compare the scope of the norm, its type, the epsilon, and whether clipping comes before the step",
    "schedule": "compare from which number steps are counted, when the schedule moves on, and the end of the warm-up",
    "update": "run the optimizer as an op case; compare its options, the decay, the bias corrections, the first state",
}
"""By the stage of a step that is off."""

DRIFT = (
    "no stage of a probed step is off, so many small errors add up: run it in float64, where they should vanish, "
    "and compare the mode, the precision and the threads"
)


def advice(rows: CaseRows, found: Sequence[Row]) -> Iterator[str]:
    """A sentence for each kind of finding; `found` are the failing comparisons that nobody accepted."""
    findings = [row for row in found if row["verdict"] in FINDINGS]
    if rows.case["op"] == TRAIN and findings:
        off = {row["tensor"].removeprefix(STAGE) for row in findings if row["tensor"].startswith(STAGE)}
        stages = [stage for stage in STAGES if stage in off]
        yield from (f"{stage}: {STAGE_ADVICE[stage]}" for stage in stages) if stages else (DRIFT,)
        return
    yield from (f"{verdict}: {ADVICE[verdict]}" for verdict in dict.fromkeys(row["verdict"] for row in findings))
