"""Whether a port's results depend on its earlier calls: it is called with other inputs, then with the first again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from parity.judge.bound.envelope import ERROR_BOUND
from parity.judge.compare.verdict import Comparison, Verdict, comparison_of
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.models.comparisons import ComparedPorts, outputs_of
from parity.models.measure import TRUTH, ReferenceRuns
from parity.models.ports import Array, ModelError, RemotePort, write
from parity.models.worker.tape import Recorded

SECOND, THIRD, INPUT = "call2.", "call3.", "input."
"""The prefixes of tensors: of a call with other inputs, of one with the first again, of the batch."""
CHANGED, EARLIER = "changed.", "earlier."
"""The prefixes on a tape of a batch's tensors that a call has overwritten, and of an earlier call's results."""
MILDER = 0.875
"""The factor of other floats, which keeps signs and stays within any range around zero."""


@dataclass(frozen=True)
class OtherBatch:
    """Another batch of the same shapes, and the baseline's runs with it."""

    batch: Path
    free: ReferenceRuns


@dataclass(frozen=True)
class RepeatedCall:
    """What is wrong in a further call: `tensor` is the row's name, `id` and `title` are the cause's."""

    tensor: str
    id: str
    title: str
    ratio: float


def other_inputs(base: RemotePort, batch: Path, folder: Path, dtype: str) -> OtherBatch:
    """Another batch, stored in `folder`, and the baseline's runs with it. Raises ModelError."""
    rng, stored = np.random.default_rng(0), Recorded(str(batch))
    write({name: shuffled(stored.load(name), rng) for name in stored}, folder)
    plain, perturbed = (base.run(base.state, folder, seed=seed) for seed in (0, 1))
    try:
        truth = base.run(base.state, folder, dtype=TRUTH[dtype]) if dtype in TRUTH else plain
    except ModelError:
        truth = plain
    return OtherBatch(folder, ReferenceRuns(plain, truth, [perturbed], dtype))


def shuffled(values: Array, rng: np.random.Generator) -> Array:
    """The same values in another order, so that they stay in their range; floats are milder, too."""
    mixed = rng.permutation(values.ravel()).reshape(values.shape)
    return (mixed * MILDER).astype(values.dtype) if values.dtype.kind == "f" else mixed


def called_again(ports: ComparedPorts, others: OtherBatch) -> list[RepeatedCall]:
    """What a port does otherwise in further calls than in its first.

    A result is judged by the baseline's for the same inputs, unless the port is wrong in its first call already.
    """
    state, port = ports.own or ports.states[ports.other.name], ports.other
    wrong = list(overwritten(ports))
    try:
        second = port.run(state, others.batch, repeated=True)
        third = port.run(state, ports.batch, repeated=True)
    except ModelError as error:
        return [*wrong, RepeatedCall(f"{SECOND}output", "stateful", f"fails when it is called again: {error}", np.inf)]
    right = [name for name in outputs_of(ports.free.plain) if name in ports.run and not ports.is_wrong(name)]
    differing = [name for name in right if others.free.distance(name, second, name, whole=True).exceeds_bound]
    fresh = first_called(ports, others, state) if differing else None
    wrong += [of_second(ports, others, name, second, fresh) for name in differing]
    wrong += of_third(ports, third)
    later = [name for name in third if name.startswith(EARLIER)]
    return wrong + [RepeatedCall(f"{SECOND}{name[len(EARLIER) :]}", "stateful", KEPT, np.inf) for name in later]


KEPT = "a call overwrites what an earlier call has returned"


def overwritten(ports: ComparedPorts) -> Iterator[RepeatedCall]:
    """The inputs that the port overwrites and the baseline does not."""
    for name in ports.run:
        if name.startswith(CHANGED) and name not in ports.free.plain:
            own = name.removeprefix(CHANGED)
            yield RepeatedCall(f"{INPUT}{own}", "input-mutated", f"overwrites its input {own}", np.inf)


def first_called(ports: ComparedPorts, others: OtherBatch, state: Path) -> Recorded | None:
    """The run of a newly built port with the other inputs; None if it fails."""
    try:
        ports.other.build(None, ports.base.layers)
        return ports.other.run(state, others.batch)
    except ModelError:
        return None


def of_second(
    ports: ComparedPorts, others: OtherBatch, name: str, second: Recorded, fresh: Recorded | None
) -> RepeatedCall:
    """A result that is wrong with other inputs: in a first call, too, or only after another call."""
    tensor, ratio = f"{SECOND}{name}", others.free.distance(name, second, name, whole=True).ratio
    keeps = f"it keeps state between calls: with other inputs of the same shapes, {name}"
    if not ports.free.distance(name, second, name, whole=True).exceeds_bound:
        return RepeatedCall(tensor, "stateful", f"{keeps} is that of the first call", ratio)
    if fresh is None or others.free.distance(name, fresh, name, whole=True).exceeds_bound:
        title = f"{name} is wrong with other inputs of the same shapes, in a newly built model, too"
        return RepeatedCall(tensor, "unexplained", title, ratio)
    return RepeatedCall(tensor, "stateful", f"{keeps} is wrong after another call, and right in a first one", ratio)


def of_third(ports: ComparedPorts, third: Recorded) -> Iterator[RepeatedCall]:
    """Results that are not those of the first call, with the same inputs."""
    for name in outputs_of(ports.run):
        if name in ports.free.plain and name in third and (ratio := moved_by(ports, name, third)) >= ERROR_BOUND:
            title = f"it keeps state between calls: called again with its first inputs, {name} differs"
            yield RepeatedCall(f"{THIRD}{name}", "stateful", title, ratio)


def moved_by(ports: ComparedPorts, name: str, third: Recorded) -> float:
    """How far a result is from that of the first call, in envelopes."""
    one, other = ports.run.load(name), third.load(name)
    exact, _ = ports.free.envelope(name)
    if one.shape != other.shape or np.array_equal(one, other, equal_nan=one.dtype.kind == "f"):
        return 0.0 if one.shape == other.shape else np.inf
    if exact.dtype.kind != "f" or one.dtype.kind != "f" or one.size != exact.size:
        return np.inf
    apart = (other - one).reshape(exact.shape)
    return ports.free.distance(name, third, name, whole=True, moved=np.asarray(exact + apart, one.dtype)).ratio


def rows(ports: ComparedPorts, wrong: Sequence[RepeatedCall]) -> Iterator[Comparison]:
    """A failing comparison for each tensor of a further call that is wrong."""
    for tensor, call in {call.tensor: call for call in wrong}.items():
        yield comparison_of(
            ports.case.id, ports.dtype, tensor, ports.other.name, ports.base.name, Verdict.STRUCTURE, 0.0, 0.0,
            culprit=(ports.other.name,), message=call.title,
        )  # fmt: skip


def diagnoses(ports: ComparedPorts, wrong: Sequence[RepeatedCall]) -> Iterator[Diagnosis]:
    """One for each cause, with its tensors."""
    causes: dict[tuple[str, str], list[RepeatedCall]] = {}
    for call in wrong:
        causes.setdefault((call.id, call.title), []).append(call)
    for (name, title), calls in causes.items():
        tensors = tuple(dict.fromkeys(call.tensor for call in calls))
        ratio = max(call.ratio for call in calls)
        cell = ports.case.id, ports.dtype, ports.other.name
        yield Diagnosis(*cell, name, title, tensors, name != "unexplained", ratio, None, {"place": "a further call"})
