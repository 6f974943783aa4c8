"""What can be fingerprinted: for each op its probes, its questions and its plot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from parity.fingerprint import clipping, linear, normalization
from parity.fingerprint.claims import Answers, Claim, Probe
from parity.fingerprint.norm_probes import N, norm_probes
from parity.fingerprint.precision import Precision

NORM_AXES = ("kappa = sqrt(1 + mean² / variance)", "relative error of the variance that was used")


@dataclass(frozen=True)
class Experiment:
    """One op. `drift` gives (x, error) for the plot, `theory(n, u, x)` the errors that are expected, by algorithm."""

    probes: Callable[[Precision], Iterable[Probe]]
    claims: Callable[[Answers], list[Claim]]
    drift: Callable[[Answers], list[tuple[float, float]]]
    theory: Callable[[int, float, float], Mapping[str, float]]
    axes: tuple[str, str]
    n: int = 0


def _norm(op: str) -> Experiment:
    claims = normalization.batch_norm_claims if op == "batch_norm" else normalization.norm_claims
    return Experiment(partial(norm_probes, op), claims, normalization.drift, normalization.theory, NORM_AXES, N)


EXPERIMENTS: Mapping[str, Experiment] = {
    "layer_norm": _norm("layer_norm"),
    "group_norm": _norm("group_norm"),
    "instance_norm": _norm("instance_norm"),
    "batch_norm": _norm("batch_norm"),
    "linear": Experiment(
        linear.linear_probes,
        linear.linear_claims,
        linear.drift,
        linear.theory,
        ("in_features", "relative error of y, positive operands"),
    ),
    "clip_grad_norm": Experiment(
        clipping.clip_probes,
        clipping.clip_claims,
        clipping.drift,
        clipping.theory,
        ("number of elements", "relative error of total_norm"),
    ),
}
"""Every op that can be fingerprinted, by name."""
