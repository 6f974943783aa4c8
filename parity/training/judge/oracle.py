"""Computes what a step should be, stage by stage, from the backend's own state, with or without changes.

Every stage starts from the backend's own tensors: the forward pass and the gradient from its parameters and rows, the
loss from its output, clipping from its gradients, the update from its clipped gradients, rates and states. If a mode
does not expose these, the oracle's result of the stage before is used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from parity.cases.oracle import IN_PAIRS, Functions
from parity.judge.bound.envelope import WORK, perturbed
from parity.outcome import Array, Arrays
from parity.training.cost import LONGDOUBLE, cost
from parity.training.model import MODEL_IN_SEQUENCE, StepGradients, Variants, gradients, loss_of_output, unprefixed
from parity.training.records import Setting, StepRecord
from parity.training.spec import Training
from parity.training.steps import Clipping, Update, clipped, updated

MAX_CACHED_ELEMENTS = 1 << 23
SLOW_S = 10.0
"""If a step of the oracle takes longer than this in longdouble, float64 is judged by float64."""


class UnknownError(LookupError):
    """The records lack what a stage starts from."""


NOTHING: Variants = {}
"""No changes. Changes are the variants of `model`, and these keys: `update` has the fields of `Update` and arguments of
the optimizer's reference; `clip` has those of the clipping op, `scope` (of `Clip`), `without` (of `Clipping`) and
`ignored`; `loss` and `gradient` have a `factor`; `gradient` also has `earlier`, which gradients of the step before are
added (`grad` or `clipped`), `stale`, which takes them alone, and `of`, the only parameters that this applies to."""


def merged(one: Variants, other: Variants) -> Variants:
    """Both changes together; `other` wins."""
    return {name: {**one.get(name, {}), **other.get(name, {})} for name in {**one, **other}}


class StepOracle:
    """Computes the stages of steps in a dtype; caches passes through the model."""

    def __init__(self, case_id: str, training: Training, dtype: str, setting: Setting, wide: Any) -> None:
        self.case_id, self.training, self.dtype, self.setting = case_id, training, dtype, setting
        self.wide = np.dtype(wide)
        self._passes: dict[str, StepGradients] = {}
        self._cached = 0

    def answer(
        self, stage: str, probe: StepRecord, changes: Variants = NOTHING, run: int | None = None
    ) -> dict[str, Array]:
        """The tensors of a stage: in the wide dtype, or as `run` of the ensemble in the case's dtype.

        Raises UnknownError if the records lack what the stage starts from.
        """
        with np.errstate(all="ignore"):
            try:
                return STAGES[stage](self, probe, changes, run)
            except KeyError as error:
                raise UnknownError(str(error)) from error

    def cast(self, values: Array, name: str, run: int | None) -> Array:
        """A tensor that a stage starts from: in the wide dtype, or in the case's and perturbed by a unit roundoff."""
        if values.dtype.kind != "f":
            return values
        return values.astype(self.wide) if run is None else perturbed(values, self.dtype, self.case_id, name, run)

    def cast_all(self, tensors: Arrays, kind: str, run: int | None) -> dict[str, Array]:
        """Several tensors, cast."""
        return {name: self.cast(v, f"{kind}.{name}", run) for name, v in tensors.items()}

    def forward(self, probe: StepRecord, changes: Variants, run: int | None) -> dict[str, Array]:
        """`output`, and the buffers after the step."""
        step = self.passed(probe, changes, run, backward="program" in changes or not changes)
        return {"output": step.output, **{f"buffer.{n}": v for n, v in step.buffers.items()}}

    def loss(self, probe: StepRecord, changes: Variants, run: int | None) -> dict[str, Array]:
        """`loss`, from the backend's output."""
        output = probe.tensors.get("output")
        if output is None:
            loss = self.passed(probe, changes, run, backward=not changes).loss
        else:
            target = self.setting.target[probe.rows]
            output, functions = self.cast(output, "output", run), sums_of(run)
            loss = loss_of_output(self.training, output, target, variants=of_model(changes), functions=functions)
        return {"loss": times(loss, changes.get("loss", {}))}

    def gradient(self, probe: StepRecord, changes: Variants, run: int | None) -> dict[str, Array]:
        """`grad.<parameter>`; raises UnknownError if a change of them cannot be computed."""
        options = changes.get("gradient", {})
        grads = self.passed(probe, changes, run).grads
        changed = {n: times(g, options) for n, g in grads.items()}
        if "earlier" in options:
            changed = with_earlier(changed, probe, options["earlier"], stale=options.get("stale", False))
        of = options.get("of") or grads.keys()
        return {f"grad.{n}": changed[n] if n in of else grads[n] for n in grads}

    def clip(self, probe: StepRecord, changes: Variants, run: int | None) -> dict[str, Array]:
        """`clipped.<parameter>` and `norm`, from the backend's gradients."""
        own = unprefixed("grad", probe.tensors)
        grads = self.cast_all(own, "grad", run) if own else unprefixed("grad", self.gradient(probe, changes, run))
        if run is not None and run % 6 == 4:
            # The error of a sum in sequence depends on whether large numbers come first.
            grads = dict(reversed(grads.items()))
        after, norm = clipped(self.training, grads, clipping_of(self.training, changes), sums_of(run))
        return {**{f"clipped.{n}": v for n, v in after.items()}, "norm": norm}

    def update(self, probe: StepRecord, changes: Variants, run: int | None) -> dict[str, Array]:
        """`param.<parameter>` and `state.<state>.<parameter>`, from the backend's clipped gradients."""
        own = unprefixed("clipped", probe.tensors) or (
            unprefixed("grad", probe.tensors) if self.training.clip is None else {}
        )
        grads = self.cast_all(own, "clipped", run) if own else unprefixed("clipped", self.clip(probe, changes, run))
        before = {
            kind: self.cast_all(unprefixed(kind, probe.before), f"before.{kind}", run) for kind in ("param", "state")
        }
        lr = np.ravel(probe.tensors["lr"]).astype(np.float64)
        narrow = self.dtype if run is not None and run % 3 == 2 and self.dtype != "float64" else ""
        change = update_of(changes, narrow)
        return updated(self.training, probe.step, before, grads, lr, change, sums_of(run))

    def terms(self, probe: StepRecord) -> dict[str, Array]:
        """The difference between the gradients and those for other classes: the size of the terms that cancel in a
        well-trained model, whose softmax is close to the target. Empty for other losses."""
        if self.training.loss.name != "cross_entropy":
            return {}
        grads, other = (self.passed(probe, NOTHING, None, next_class=shift).grads for shift in (False, True))
        return {f"grad.{name}": other[name] - values for name, values in grads.items()}

    def passed(
        self, probe: StepRecord, changes: Variants, run: int | None, *, backward: bool = True, next_class: bool = False
    ) -> StepGradients:
        """A pass through the model from the backend's parameters, buffers and rows, cached by their bits."""
        own = {**unprefixed("param", probe.before), **unprefixed("buffer", probe.before)}
        model = of_model(changes)
        key = digest(own, probe.rows, repr((sorted(model.items()), next_class)), run)
        if key not in self._passes or (backward and not self._passes[key].grads):
            dtype = self.wide if run is None else self.dtype
            tensors, batches = self.cast_all(own, "", run), self._batches(probe, run, next_class)
            how: dict[str, Any] = {"variants": model, "backward": backward, "functions": sums_of(run)}
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


def oracle_of(case_id: str, training: Training, dtype: str, setting: Setting) -> StepOracle:
    """The oracle of a training in a dtype, in a wider one unless that is too slow."""
    slow = dtype == "float64" and LONGDOUBLE * cost(training) > SLOW_S
    return StepOracle(case_id, training, dtype, setting, np.float64 if slow else WORK[dtype])


STAGES: Mapping[str, Callable[[StepOracle, StepRecord, Variants, int | None], dict[str, Array]]] = {
    "forward": StepOracle.forward,
    "loss": StepOracle.loss,
    "gradient": StepOracle.gradient,
    "clip": StepOracle.clip,
    "update": StepOracle.update,
}
"""The stages that the oracle computes; data and schedule are known for every step without it."""

OF_STEPS = frozenset(("update", "clip", "gradient"))
"""The keys of changes outside the model."""


def of_model(changes: Variants) -> Variants:
    """The variants of the model and its loss."""
    model = {name: dict(options) for name, options in changes.items() if name not in OF_STEPS}
    if "loss" in model:
        model["loss"].pop("factor", None)
    return {name: options for name, options in model.items() if options}


def times(values: Array, options: Mapping[str, Any]) -> Array:
    """The tensor times the factor in the options, if there is one."""
    return values * values.dtype.type(options["factor"]) if "factor" in options else values


def with_earlier(grads: Arrays, probe: StepRecord, kind: str, *, stale: bool) -> dict[str, Array]:
    """These gradients plus those of the step before (`kind`: `grad` or `clipped`), or only the latter if `stale`.

    Step 1 has no step before; raises UnknownError if its gradients are unknown.
    """
    if not stale and probe.step == 1:
        return dict(grads)
    before = {} if probe.previous is None else probe.previous.tensors
    earlier = unprefixed(kind, before) or unprefixed("grad", before)
    if not earlier:
        raise UnknownError("the gradient of the step before")
    return {n: earlier[n].astype(g.dtype) + (0 if stale else g) if n in earlier else g for n, g in grads.items()}


def clipping_of(training: Training, changes: Variants) -> Clipping | None:
    """The changed clipping; None if the recipe's is unchanged."""
    options = dict(changes.get("clip", {}))
    recipe = training.clip
    if not options or recipe is None:
        return None
    if options.pop("ignored", False):
        return Clipping(None)
    recipe = replace(recipe, scope=options.pop("scope", recipe.scope))
    edits, without = options.pop("edits", None), options.pop("without", frozenset())
    return Clipping(recipe, options, edits, without)


def update_of(changes: Variants, narrow: str = "") -> Update:
    """The changed update; its options are rounded to `narrow`, unless the changes have their own rounding."""
    options = {"narrow": narrow, **changes.get("update", {})}
    known = {name: options.pop(name) for name in vars(Update()).keys() & options.keys()}
    return Update(options, **known)


def sums_of(run: int | None) -> Functions:
    """The functions for sums in a run: every third perturbed run sums in sequence."""
    return MODEL_IN_SEQUENCE if run is not None and run % 3 == 1 else IN_PAIRS


def digest(tensors: Arrays, rows: Array, variants: str, run: int | None) -> str:
    """A key that is equal for equal bits and equal changes."""
    hashed = hashlib.blake2b(f"{variants}\0{run}".encode(), digest_size=16)
    for name in sorted(tensors):
        hashed.update(name.encode())
        hashed.update(np.ascontiguousarray(tensors[name]).tobytes())
    hashed.update(np.ascontiguousarray(rows).tobytes())
    return hashed.hexdigest()
