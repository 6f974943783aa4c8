"""What a step should have given: the oracle in a backend's own place, stage by stage, with or without a hypothesis.

Every stage starts from what the backend itself had: the forward pass and the gradient from its parameters and rows, the
loss from its output, clipping from its gradients, the update from its clipped gradients, rates and states. What a mode
does not show is taken from the stage before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.cases.oracle import IN_PAIRS, Functions
from parity.judge.bound.envelope import perturbed
from parity.training.model import MODEL_IN_SEQUENCE, StepGradients, Variants, gradients, loss_of_output, unprefixed
from parity.training.records import Setting, StepRecord
from parity.training.spec import Training
from parity.training.steps import Clipping, Update, clipped, updated

Array = NDArray[Any]
Arrays = Mapping[str, Array]
MAX_CACHED_ELEMENTS = 1 << 23


class UnknownError(LookupError):
    """The records do not have what an answer starts from."""


Rework = Callable[[dict[str, Array], StepRecord], dict[str, Array] | None]
"""A change of the gradients of a step; None where they are not known."""


@dataclass(frozen=True)
class Changes:
    """What a hypothesis changes of a step: arguments of the model's reference, the loss, the gradient, the clipping and
    the update. Nothing of it: the recipe."""

    model: Variants = field(default_factory=dict)
    loss: Callable[[Array], Array] | None = None
    rework: tuple[Rework, ...] = ()
    clipping: Clipping | None = None
    update: Update = field(default_factory=Update)

    def with_(self, other: Changes) -> Changes:
        """Both together."""
        names = {*self.model, *other.model}
        model = {name: {**self.model.get(name, {}), **other.model.get(name, {})} for name in names}
        return Changes(
            model,
            other.loss or self.loss,
            self.rework + other.rework,
            other.clipping or self.clipping,
            self.update.with_(other.update),
        )


NOTHING = Changes()


class StepOracle:
    """Answers what a step gives, in a dtype; remembers the passes through the model."""

    def __init__(self, case_id: str, training: Training, dtype: str, setting: Setting, wide: Any) -> None:
        self.case_id, self.training, self.dtype, self.setting = case_id, training, dtype, setting
        self.wide = np.dtype(wide)
        self._passes: dict[str, StepGradients] = {}
        self._cached = 0

    def answer(
        self, stage: str, probe: StepRecord, changes: Changes = NOTHING, run: int | None = None
    ) -> dict[str, Array]:
        """What the tensors of a stage should be: in the wide dtype, or as `run` of the ensemble in the case's dtype.

        Raises UnknownError where the records lack what the stage starts from.
        """
        with np.errstate(all="ignore"):
            try:
                return STAGES[stage](self, probe, changes, run)
            except KeyError as error:
                raise UnknownError(str(error)) from error

    def cast(self, values: Array, name: str, run: int | None) -> Array:
        """A tensor as the stage starts from it: wide, or in the dtype and perturbed by a unit roundoff."""
        if values.dtype.kind != "f":
            return values
        return values.astype(self.wide) if run is None else perturbed(values, self.dtype, self.case_id, name, run)

    def cast_all(self, tensors: Arrays, kind: str, run: int | None) -> dict[str, Array]:
        """Several of them."""
        return {name: self.cast(v, f"{kind}.{name}", run) for name, v in tensors.items()}

    def forward(self, probe: StepRecord, changes: Changes, run: int | None) -> dict[str, Array]:
        """`output`, and the buffers after the step."""
        step = self.passed(probe, changes, run, backward=changes is NOTHING)
        return {"output": step.output, **{f"buffer.{n}": v for n, v in step.buffers.items()}}

    def loss(self, probe: StepRecord, changes: Changes, run: int | None) -> dict[str, Array]:
        """`loss`, from the backend's own output."""
        output = probe.tensors.get("output")
        if output is None:
            loss = self.passed(probe, changes, run, backward=changes is NOTHING).loss
        else:
            target = self.setting.target[probe.rows]
            output, functions = self.cast(output, "output", run), sums_of(run)
            loss = loss_of_output(self.training, output, target, variants=changes.model, functions=functions)
        return {"loss": changes.loss(loss) if changes.loss else loss}

    def gradient(self, probe: StepRecord, changes: Changes, run: int | None) -> dict[str, Array]:
        """`grad.<parameter>`; raises UnknownError where a change of them cannot be computed."""
        grads: dict[str, Array] | None = dict(self.passed(probe, changes, run).grads)
        for rework in changes.rework:
            grads = None if grads is None else rework(grads, probe)
        if grads is None:
            raise UnknownError("the gradient of the step before")
        return {f"grad.{n}": v for n, v in grads.items()}

    def clip(self, probe: StepRecord, changes: Changes, run: int | None) -> dict[str, Array]:
        """`clipped.<parameter>` and `norm`, from the backend's own gradients."""
        own = unprefixed("grad", probe.tensors)
        grads = self.cast_all(own, "grad", run) if own else unprefixed("grad", self.gradient(probe, changes, run))
        if run is not None and run % 6 == 4:
            # What a sum in sequence loses depends on whether the large numbers come first.
            grads = dict(reversed(grads.items()))
        after, norm = clipped(self.training, grads, changes.clipping, sums_of(run))
        return {**{f"clipped.{n}": v for n, v in after.items()}, "norm": norm}

    def update(self, probe: StepRecord, changes: Changes, run: int | None) -> dict[str, Array]:
        """`param.<parameter>` and `state.<state>.<parameter>`, from the backend's own clipped gradients."""
        own = unprefixed("clipped", probe.tensors) or (
            unprefixed("grad", probe.tensors) if self.training.clip is None else {}
        )
        grads = self.cast_all(own, "clipped", run) if own else unprefixed("clipped", self.clip(probe, changes, run))
        before = {
            kind: self.cast_all(unprefixed(kind, probe.before), f"before.{kind}", run) for kind in ("param", "state")
        }
        lr = np.ravel(probe.tensors["lr"]).astype(np.float64)
        narrow = self.dtype if run is not None and run % 3 == 2 and self.dtype != "float64" else ""
        change = replace(changes.update, narrow=changes.update.narrow or narrow)
        return updated(self.training, probe.step, before, grads, lr, change, sums_of(run))

    def terms(self, probe: StepRecord) -> dict[str, Array]:
        """How far the gradients are from those for other classes: the size of what cancels in a well-trained model,
        where a softmax is almost its target. Nothing of other losses."""
        if self.training.loss.name != "cross_entropy":
            return {}
        grads, other = (self.passed(probe, NOTHING, None, next_class=shift).grads for shift in (False, True))
        return {f"grad.{name}": other[name] - values for name, values in grads.items()}

    def passed(
        self, probe: StepRecord, changes: Changes, run: int | None, *, backward: bool = True, next_class: bool = False
    ) -> StepGradients:
        """A pass through the model from the backend's own parameters, buffers and rows, remembered by their bits."""
        own = {**unprefixed("param", probe.before), **unprefixed("buffer", probe.before)}
        key = digest(own, probe.rows, repr((sorted(changes.model.items()), next_class)), run)
        if key not in self._passes or (backward and not self._passes[key].grads):
            dtype = self.wide if run is None else self.dtype
            tensors, batches = self.cast_all(own, "", run), self._batches(probe, run, next_class)
            how: dict[str, Any] = {"variants": changes.model, "backward": backward, "functions": sums_of(run)}
            step = gradients(self.training, tensors, batches, dtype=dtype, **how)
            self._cached += step.output.size + sum(v.size for v in step.grads.values())
            if self._cached > MAX_CACHED_ELEMENTS:
                self._passes.clear()
                self._cached = 0
            self._passes[key] = step
        return self._passes[key]

    def _batches(self, probe: StepRecord, run: int | None, next_class: bool) -> list[tuple[Array, Array]]:
        """The micro-batches of a step."""
        x = self.cast(self.setting.x[probe.rows], "x", run)
        target = self.setting.target[probe.rows]
        if next_class:
            target = np.where(target < 0, target, (target + 1) % (1 + self.setting.target.max()))
        n = self.training.accumulation
        return list(zip(np.array_split(x, n), np.array_split(target, n), strict=True))


STAGES: Mapping[str, Callable[[StepOracle, StepRecord, Changes, int | None], dict[str, Array]]] = {
    "forward": StepOracle.forward,
    "loss": StepOracle.loss,
    "gradient": StepOracle.gradient,
    "clip": StepOracle.clip,
    "update": StepOracle.update,
}
"""The stages that the oracle computes; data and schedule are known for every step without it."""


def sums_of(run: int | None) -> Functions:
    """The order of sums in a perturbed run: every third one sums in sequence."""
    return MODEL_IN_SEQUENCE if run is not None and run % 3 == 1 else IN_PAIRS


def digest(tensors: Arrays, rows: Array, variants: str, run: int | None) -> str:
    """The same for the same bits and the same question."""
    hashed = hashlib.blake2b(f"{variants}\0{run}".encode(), digest_size=16)
    for name in sorted(tensors):
        hashed.update(name.encode())
        hashed.update(np.ascontiguousarray(tensors[name]).tobytes())
    hashed.update(np.ascontiguousarray(rows).tobytes())
    return hashed.hexdigest()
