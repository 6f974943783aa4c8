"""Findings in a port: the layer or the code, the cause, and how much of the difference at the output it explains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from parity.judge.compare.metrics import Metrics
from parity.judge.compare.verdict import Comparison
from parity.models.worker.crossing import LOSS, STATE

LAYER, CODE, WEIGHTS = "layer", "code", "weights"


@dataclass(frozen=True)
class Boundary:
    """A tensor at a layer's boundary: `layer|call|in or out|index`, or one of its buffers: `layer|0|state:name|0`."""

    layer: str
    call: int
    role: str
    index: int

    @classmethod
    def of(cls, name: str) -> Boundary | None:
        """The boundary of a tensor's name on a tape; None if it is not at a boundary."""
        parts = name.split("|")
        return cls(parts[0], int(parts[1]), parts[2], int(parts[3])) if len(parts) == 4 else None

    def __str__(self) -> str:
        return f"{self.layer}|{self.call}|{self.role}|{self.index}"

    @property
    def state(self) -> str:
        """The buffer's name in the layer; empty for an input or output."""
        return self.role.removeprefix(STATE) if self.role.startswith(STATE) else ""

    def words(self) -> str:
        """`the input of fc`, `the output 1 of rnn in call 2`."""
        if self.state:
            return f"{self.state} of {self.layer or 'the model'}"
        put = {"in": "input", "out": "output"}[self.role]
        number = f" {self.index}" if self.index else ""
        again = f" in call {self.call + 1}" if self.call else ""
        return f"the {put}{number} of {'the loss' if self.layer == LOSS else self.layer or 'the model'}{again}"


@dataclass
class ModelFinding:
    """A part of a port that is wrong although it got its partner's inputs.

    `kind` is `layer`, `code` for the code of a layer between its children, or `weights` for `parameters` whose values
    differ or that are no longer shared. `boundaries` are its wrong tensors with their error ratios, `again` those of
    the layer's other calls; they have other shapes if it is `resized`. `called_otherwise` are the layers that the code
    calls a different number of times. `share` is the part of the output's difference that vanishes once it is fixed,
    after all findings before it, `shares` the same for the loss and metrics, and `left` the output's error ratio then.
    """

    kind: str
    layer: str
    call: int
    partner: str
    boundaries: Mapping[Boundary, float]
    again: Sequence[Boundary] = ()
    parameters: Sequence[str] = ()
    resized: bool = False
    called_otherwise: Sequence[str] = ()
    values: Mapping[Boundary, Any] = field(default_factory=dict)
    metrics: Mapping[Boundary, Metrics | None] = field(default_factory=dict)
    options: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    title: str = ""
    id: str = ""
    explained: bool = False
    share: float | None = None
    shares: dict[str, float] = field(default_factory=dict)
    left: float | None = None
    comparisons: Sequence[Comparison] = ()
    evidence: dict[str, Any] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """The largest error ratio."""
        judged = [c.error_ratio.actual for c in self.comparisons if c.error_ratio.actual is not None]
        return max([*self.boundaries.values(), *judged], default=0.0)

    @property
    def description(self) -> tuple[str, str, Any]:
        """What is equal in findings that are reported together."""
        return self.id, self.title, self.evidence.get("expression")

    @property
    def location(self) -> str:
        """`layer encoder.0.norm`, `the code of encoder.0`."""
        if self.kind == WEIGHTS:
            return " and ".join(self.parameters)
        if self.layer == LOSS:
            return "the loss"
        return f"layer {self.layer}" if self.kind == LAYER else f"the code of {self.layer or 'the model'}"
