"""The kinds of cases besides cases of an op, by name: their packages are imported when a config has one."""

from __future__ import annotations

from collections.abc import Mapping

KIND = "kind"
"""The key that names a case's kind."""

OP = "op"
"""The kind of all other cases."""

KINDS: Mapping[str, str] = {
    "train": "parity.training.config.case:TRAININGS",
    "model": "parity.models.config:MODELS",
    "decode": "parity.models.decode.config:DECODINGS",
}
