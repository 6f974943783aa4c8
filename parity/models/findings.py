"""What is off in a port: the layer or the code, the cause, and how much of the difference at the output it explains."""

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
        """From its name on a tape; None of a name of another kind."""
        parts = name.split("|")
        return cls(parts[0], int(parts[1]), parts[2], int(parts[3])) if len(parts) == 4 else None

    def __str__(self) -> str:
        return f"{self.layer}|{self.call}|{self.role}|{self.index}"

    @property
    def state(self) -> str:
        """The layer's name of the buffer; empty of others."""
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
    """A part of a port that is off although it got its partner's inputs.

    `kind` is `layer`, `code` for the code of a layer between its children, or `weights` for `parameters` with other
    values or in another place; `boundaries` are its tensors that are off, by error ratio, of another shape if it is
    `resized`, `again` those of the layer's other calls; `called_otherwise` are the layers that code calls more or less
    often. `share` is the part of the output's difference that goes away once it is mended, after all that come before
    it; `shares` the same of the loss and of metrics, and `left` the output's error ratio after it.
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
        judged = [c.error_ratio[0] for c in self.comparisons if c.error_ratio[0] is not None]
        return max([*self.boundaries.values(), *judged], default=0.0)

    @property
    def said(self) -> tuple[str, str, Any]:
        """What is said of it."""
        return self.id, self.title, self.evidence.get("expression")

    @property
    def location(self) -> str:
        """`layer encoder.0.norm`, `the code of encoder.0`."""
        if self.kind == WEIGHTS:
            return " and ".join(self.parameters)
        if self.layer == LOSS:
            return "the loss"
        return f"layer {self.layer}" if self.kind == LAYER else f"the code of {self.layer or 'the model'}"
