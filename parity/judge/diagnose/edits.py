"""Which single edits of the reference give what a backend returned? Thousands are tried, on small tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from parity.cases.edits import Edit, Trial, edits_of
from parity.cases.op import IncompatibleError
from parity.judge.bound.envelope import OFF, Array
from parity.judge.diagnose.causes import Cause
from parity.judge.diagnose.evaluator import Alteration, ratio
from parity.judge.diagnose.explanation import KernelExplanation

MAX_ELEMENTS = 1 << 14
"""Of all inputs; thousands of edits of larger ones take minutes."""
MAX_KEPT = 24
GRADIENT = "grad."
BELIEF = 0.3
"""Believing an edit of cost 1 beside a variant that has a name (0): named ones come first where both explain."""
NEAR = 4.0
"""The trial computes in float64, whose own rounding may add to the difference."""


@dataclass(frozen=True)
class Match:
    """An edit, and the wrong tensors that it explains."""

    edit: Edit
    tensors: frozenset[str]
    form: Mapping[str, Any]

    @property
    def cause(self) -> Cause:
        """The hypothesis that a kernel differs by the edit."""
        alteration = Alteration(arguments=self.form, edits=(self.edit,))
        return Cause("reference-edit", {"kind": self.edit.kind}, alteration, weight=BELIEF * self.edit.cost)


def edit_causes(origin: KernelExplanation) -> list[Cause]:
    """The edits that explain some tensors which `origin` leaves wrong: those that explain most, the simplest first."""
    if any(cause.change is not None for cause in origin.causes) or origin.evaluator.n_elements > MAX_ELEMENTS:
        return []
    matches: list[Match] = []
    for form in forms(origin):
        matches += Scan(origin, form).matches()
        if any(match.tensors >= set(origin.wrong) for match in matches):
            break
    matches.sort(key=lambda m: (-len(m.tensors), m.edit.cost))
    most = len(matches[0].tensors) if matches else 0
    return [match.cause for match in matches if len(match.tensors) == most][:MAX_KEPT]


def forms(origin: KernelExplanation) -> Iterator[Mapping[str, Any]]:
    """The ways to write the reference, as options; only the first where something has already been altered."""
    yield {}
    if not origin.causes:
        yield from origin.evaluator.op.forms


class Scan:
    """All edits of one form of the reference, altered as an explanation says, against what that leaves wrong."""

    def __init__(self, origin: KernelExplanation, form: Mapping[str, Any]) -> None:
        self._evaluator, self._form = origin.evaluator, form
        self._alteration = origin.alteration.with_(Alteration(arguments=form))
        self._wrong = {
            name: values
            for name in origin.wrong
            if (values := origin.observed.get(name)) is not None
            and (exact := origin.prediction[name].values) is not None
            and values.shape == exact.shape
        }
        self._forward = frozenset(n for n in self._wrong if not n.startswith(GRADIENT))

    def matches(self) -> Iterator[Match]:
        """The edits that explain a wrong tensor."""
        program = self._evaluator.program(self._alteration)
        trial = Trial(program, self._evaluator.tensors(self._alteration))
        for edit in edits_of(program, trial.shapes, self._wrong):
            outputs = trial.outputs(edit)
            tensors = frozenset(n for n in self._wrong if outputs and n in outputs and self._fits(n, outputs[n]))
            if tensors:
                yield Match(edit, tensors, self._form)
            if tensors and tensors >= self._forward and len(tensors) < len(self._wrong):
                yield from self._again(edit)

    def _again(self, edit: Edit) -> Iterator[Match]:
        """The edit of the outputs, with the gradients that follow from them."""
        again = replace(edit, again=True)
        try:
            values = self._evaluator.values_of(self._alteration.with_(Alteration(edits=(again,))))
        except IncompatibleError:
            return
        tensors = frozenset(n for n in self._wrong if n in values and self._fits(n, values[n]))
        if tensors:
            yield Match(again, tensors, self._form)

    def _fits(self, name: str, values: Array) -> bool:
        """Whether a tensor is what was observed: roughly, then by the error bound."""
        observed, envelope = self._wrong[name], self._evaluator.base[name].envelope
        if values.shape != observed.shape:
            return False
        size = float(np.max(np.abs(values), initial=0.0, where=np.isfinite(values)))
        limit = NEAR * OFF * max(envelope.max, size * float(np.finfo(observed.dtype).eps))
        with np.errstate(invalid="ignore", over="ignore"):
            if (np.abs(values - observed) > limit).any():
                return False
        return ratio(observed, self._evaluator.predicted(name, values)) < OFF
