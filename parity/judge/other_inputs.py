"""Calls of a backend on other inputs of its case, each judged on its own inputs.

A kernel that keeps a result, or a part of one, by shape or address is right in its first call only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from parity.cases.draw import File, Values
from parity.cases.oracle import evaluate
from parity.config.plan import CasePlan
from parity.judge.bound.envelope import ERROR_BOUND, FLOOR, Array, Arrays, Envelope, size
from parity.judge.compare.cell import Oracle, consult_oracle
from parity.judge.diagnose.behaviour import UNREPEATABLE, behaviours, beyond, equal, exceeds
from parity.judge.diagnose.kernel import Kernel
from parity.outcome import CellOutcome, Output

Evidence = Mapping[str, Any]
FIRST_OTHER = 2
"""The number of the first call on other inputs."""


@dataclass
class OtherInputs:
    """The other inputs of a case, with the oracle's answers."""

    case: CasePlan
    inputs: Sequence[Arrays]
    own: Oracle
    _answers: dict[int, Oracle | None] = field(default_factory=dict)

    def exact(self, number: int) -> Oracle | None:
        """The oracle's answer for these inputs; None where the reference rejects them, or overflows."""
        if number not in self._answers:
            self._answers[number] = self._consulted(number)
        return self._answers[number]

    def _consulted(self, number: int) -> Oracle | None:
        try:
            with np.errstate(all="ignore"):
                exact = consult_oracle(self.case, self.inputs[number])
        except (ArithmeticError, ValueError, IndexError, TypeError, np.linalg.LinAlgError):
            return None
        same = all(n in exact and exact[n].shape == values.shape for n, values in self.own.items())
        return exact if same and all(is_finite(exact[n]) or not is_finite(self.own[n]) for n in self.own) else None

    @property
    def drawn(self) -> bool:
        """Whether the other inputs come from the same distributions, so that the op must accept them."""
        return not any(isinstance(plan.draw, Values | File) for plan in self.case.tensors)

    def suspicious(
        self, outcome: CellOutcome, own: Callable[[str], Envelope], dtype: str
    ) -> Iterator[tuple[int, Mapping[str, Output]]]:
        """The calls whose results are not clearly right: further from the exact answer than a careful implementation is
        from that of the case's `own` inputs. Costs no run of the reference."""
        for number, given in enumerate(outcome.others[: len(self.inputs)]):
            exact = self.exact(number) if given else None
            if exact is not None and not all(is_close(given.get(n), exact[n], own, n, dtype) for n in exact):
                yield number, given


def is_finite(values: Array) -> bool:
    """Whether all values are finite."""
    return bool(np.isfinite(values).all())


def is_close(output: Output | None, exact: Array, own: Callable[[str], Envelope], name: str, dtype: str) -> bool:
    """Whether a tensor is right as a whole."""
    if output is None or output.values is None or output.shape != exact.shape:
        return False
    if exact.dtype.kind != "f":
        return bool(np.array_equal(output.values, exact))
    with np.errstate(invalid="ignore"):
        error, whole = size(output.values - exact), size(exact)
    if not np.array_equal(np.isfinite(output.values), np.isfinite(exact)):
        return False
    floor = ERROR_BOUND * FLOOR[dtype]
    if error.rms <= floor * whole.rms and error.max <= floor * whole.max:
        return True
    envelope = own(name)
    return error.rms <= ERROR_BOUND * envelope.rms and error.max <= ERROR_BOUND * envelope.max


def state_of(call: WrongCall, kernel: Kernel | None) -> tuple[str, Evidence] | None:
    """The behaviour, with its evidence, if the results of a call depend on more than its inputs.

    They are those of an earlier call, or those for a tensor of an earlier call, or the kernel gives others when asked
    again, or lacks what the first call returned. None if they are not clearly wrong: then nothing tells them from right
    ones.
    """
    if call.absent and kernel is not None and no_longer_returned(call, kernel):
        return "stateful", call.evidence(f"no {' or '.join(call.absent)}, which call 1 did")
    if not any(exceeds(values, call.exact[n], call.bound[n]) for n, values in call.wrong.items()):
        return None
    kept = returned_before(call) or of_an_earlier_tensor(call)
    if kept:
        return "stateful", call.evidence(kept)
    if kernel is None:
        return None
    at = call.case, call.dtype, call.inputs[-1]
    for name, evidence in behaviours(kernel, *at, call.wrong, call.bound):
        if name in UNREPEATABLE:
            return name, {**call.evidence("a wrong result"), **evidence}
    answer = kernel(*at) or {}
    right = all(n in answer and not exceeds(answer[n], call.exact[n], call.bound[n]) for n in call.wrong)
    return ("stateful", call.evidence("a wrong result, and a right one when asked again")) if right else None


def no_longer_returned(call: WrongCall, kernel: Kernel) -> bool:
    """Whether the kernel, asked again, returns what is absent, or lacks it for the inputs of the first call, too."""
    now, first = (kernel(call.case, call.dtype, inputs) for inputs in (call.inputs[-1], call.inputs[0]))
    returned_now = now is not None and all(name in now for name in call.absent)
    return returned_now or (first is not None and not any(name in first for name in call.absent))


def returned_before(call: WrongCall) -> str:
    """The earlier call that returned the same bits, in words."""
    for number, outputs in enumerate(call.earlier, 1):
        given = {n: o.values for n, o in outputs.items() if o.values is not None}
        if all(n in given and equal(given[n], values) for n, values in call.wrong.items()):
            return f"what call {number} returned"
    return ""


def of_an_earlier_tensor(call: WrongCall) -> str:
    """The tensor that is still that of an earlier call, in words."""
    now, gradients = call.inputs[-1], call.case.gradients
    for number, before in enumerate(call.inputs[:-1], 1):
        for name in (n for n, values in now.items() if not np.array_equal(values, before[n], equal_nan=True)):
            mixed = {**now, name: before[name]}
            predicted = evaluate(call.case.definition, call.case.params, mixed, dtype=np.float64, gradients=gradients)
            tells = all(exceeds(call.exact[n], predicted[n], call.bound[n]) for n in call.wrong)
            if tells and not any(exceeds(values, predicted[n], call.bound[n]) for n, values in call.wrong.items()):
                return f"the result for {name} of call {number}"
    return ""


@dataclass(frozen=True)
class WrongCall:
    """A call whose results in `wrong` are not right: the inputs of all calls up to it, the outputs of the `earlier`
    ones, the exact answer for its inputs and the bound of each tensor. It lacks what is `absent`, and the first call
    does not."""

    case: CasePlan
    dtype: str
    inputs: Sequence[Arrays]
    earlier: Sequence[Mapping[str, Output]]
    wrong: Arrays
    exact: Arrays
    bound: Mapping[str, Array | float]
    absent: Sequence[str] = ()

    def evidence(self, returned: str) -> dict[str, Any]:
        """Which call it was, and what it returned."""
        number = len(self.inputs)
        seen = f"call {number}, on other inputs in the memory of the first ones, returned {returned}"
        return {"seen": seen, "call": number, "tensors": [*self.wrong, *self.absent]}


def kept_results(
    outcome: CellOutcome, own: Oracle, others: OtherInputs, bound: Mapping[str, Array | float]
) -> list[str]:
    """The tensors that a call on other inputs returned as the first one did, bit for bit, although the exact answers
    differ."""
    kept = set()
    for number, given in enumerate(outcome.others[: len(others.inputs)]):
        exact = others.exact(number) if given else None
        for name, output in outcome.outputs.items():
            other = given.get(name)
            if exact is None or other is None or other.values is None or output.values is None or name not in exact:
                continue
            if equal(other.values, output.values) and beyond(exact[name], own[name], bound[name]).any():
                kept.add(name)
    return sorted(kept)


def on_others(outcome: CellOutcome, given: Mapping[str, Output]) -> CellOutcome:
    """The outcome with the results of the call on other inputs."""
    return replace(outcome, outputs=given, again={}, overwritten={}, changed={}, others=())
