"""Every op that can be fingerprinted, by name."""

from __future__ import annotations

from collections.abc import Mapping

from parity.fingerprint.claims import Experiment
from parity.fingerprint.clipping import CLIPPING
from parity.fingerprint.linear import LINEAR
from parity.fingerprint.norm_probes import NORM_LAYOUTS
from parity.fingerprint.normalization import norm_experiment

EXPERIMENTS: Mapping[str, Experiment] = {
    **{op: norm_experiment(op) for op in NORM_LAYOUTS},
    "linear": LINEAR,
    "clip_grad_norm": CLIPPING,
}
