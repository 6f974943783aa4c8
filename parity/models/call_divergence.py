"""The calls of a layer's code in two ports, given the same tensors: where they diverge (`call_traces.py`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from parity.models import steps
from parity.models.call_traces import EQUAL_VALUES, ROUGHLY, Trail, TrailComparison, same
from parity.models.code import Cut, children_of, given_to, inverted, own_inputs, placed
from parity.models.findings import Boundary
from parity.models.measure import TRUTH
from parity.models.orders import AxesConverter
from parity.models.ports import Array, ModelError, RemotePort
from parity.models.worker.tape import Recorded
from parity.program.recorded import WHOLE, written

MOST_LEFT_OUT = 40
"""Steps of a layer that are left out, one at a time."""


@dataclass
class ClosedLayer:
    """A port's layer that is called with its children closed: it gets the tensors `given`, by location, and its
    children are not entered. `converter` converts between its tensors and the baseline's."""

    port: RemotePort
    state: Path
    layer: str
    call: int
    children: Sequence[str]
    given: Mapping[str, Array]
    converter: AxesConverter
    dtype: str = ""
    locations: dict[str, str] = field(default_factory=dict)

    def trail(self, dtype: str, *, gradients: bool = False) -> Trail:
        """The trail of its calls. Raises ModelError."""
        self.dtype = dtype
        reply, values = self.port.calls(
            self.state, self.layer, self.call, self.given, self.children, dtype, gradients=gradients
        )
        trail = Trail.of(reply, values)
        self.locations = dict(trail.inputs)
        numbers = {step.mark: f"step:{i}" for i, step in enumerate(trail.steps)}
        self.locations |= numbers
        return trail

    def again(self, others: Mapping[str, Array]) -> Trail | None:
        """The trail of a run with some values replaced, by mark; None if that fails."""
        given = {**self.given, **{self.locations[mark]: array for mark, array in others.items()}}
        try:
            reply, values = self.port.calls(self.state, self.layer, self.call, given, self.children, self.dtype)
        except ModelError:
            return None
        return self.seen(Trail.of(reply, values))

    def seen(self, trail: Trail) -> Trail:
        """A trail with its outputs in the baseline's layout."""
        outputs = {mark: self.converter.to_baseline(key, trail.values[mark]) for key, mark in trail.outputs.items()}
        return replace(trail, values={**trail.values, **outputs})


def closed_layers(
    ports: tuple[RemotePort, RemotePort],
    states: Mapping[str, Path],
    partners: Mapping[str, str],
    layer: str,
    call: int,
    plain: Recorded,
    converter: AxesConverter,
    keys: Mapping[str, str],
    rows: int | None,
    behind: Collection[str] = (),
) -> tuple[ClosedLayer, ClosedLayer]:
    """The baseline's layer and the other port's, given the tensors of the baseline's run (`rows` of the batch).

    `behind` are layers of the baseline that the other port has folded into those before them.
    """
    base, other = ports
    ours = partners[layer]
    partners = closing(partners, layer, plain, converter.run)
    theirs = {there: here for here, there in partners.items()}
    children = children_of(ours, [*partners.values(), *behind])
    cut = Cut(rows)
    given = cut.all(given_to(ours, call, children, [name for name in plain if Boundary.of(name) is not None], plain))
    names = inverted(keys)
    closed = [theirs[child] for child in children if child in theirs]
    other_given = cut.all(dict(own_inputs(converter.run, layer, call)))
    for location, array in given.items():
        for mine in placed(location, layer, (ours, call), names, {}):
            kind, _, own = mine.partition(":")
            other_given[mine] = converter.to_port(own if kind == "child" else f"{layer}|{call}|in|{own}", array)
    return (
        ClosedLayer(base, states[base.name], ours, call, children, given, AxesConverter(plain)),
        ClosedLayer(other, states[other.name], layer, call, closed, other_given, converter),
    )


def cutting(one: ClosedLayer, other: ClosedLayer, dtype: str) -> list[str]:
    """The calls that change only gradients and that the second layer's code has, but not the first's.

    Raises ModelError.
    """
    ours, theirs = (Counter(closed.trail(dtype, gradients=True).cuts()) for closed in (one, other))
    return list(theirs - ours)


def closing(partners: Mapping[str, str], layer: str, base: Recorded, other: Recorded) -> dict[str, str]:
    """The partners without layers that the two ports call a different number of times: these count as code.

    Where that follows from a layer within, only the inner one is left out.
    """
    ours = steps.calls(base, {partner: name for name, partner in partners.items()})
    theirs = steps.calls(other, {name: name for name in partners})
    apart = {name for name in partners if ours[name] != theirs[name]}
    opened = {name for name in apart if not any(steps.inside(inner, name) for inner in apart - {name})}
    return {name: partner for name, partner in partners.items() if name not in opened or name == layer}


def diverging(
    one: ClosedLayer, other: ClosedLayer, keys: Mapping[str, str], dtype: str, folder: Path
) -> tuple[list[str], bool]:
    """Texts for where the code of two layers diverges, and whether the first is more than the call of one function.

    The calls run in a wide dtype; if nothing diverges there, in the layers' own. Both lists of calls are stored in
    `folder`. Raises ModelError.
    """
    wide = TRUTH.get(dtype, dtype)
    try:
        comparison = compared_trails(one, other, keys, wide, EQUAL_VALUES)
    except ModelError:
        wide, comparison = dtype, compared_trails(one, other, keys, dtype, ROUGHLY)
    texts = comparison.divergences() if comparison.wrong_outputs else []
    if wide != dtype and not comparison.wrong_outputs:
        comparison = compared_trails(one, other, keys, dtype, ROUGHLY)
        texts = [f"in {dtype} alone: {text}" for text in comparison.divergences()]
    folder.mkdir(parents=True, exist_ok=True)
    for closed, trail in ((one, comparison.ours), (other, comparison.theirs)):
        (folder / f"calls-{closed.port.name}.txt").write_text(trail.text, encoding="utf-8")
    steps_of_ours = comparison.ours.steps
    return texts, len(steps_of_ours) != 1 or written(steps_of_ours[0], comparison.ours.named)[1] < WHOLE


def spelled_out(
    closed: ClosedLayer, key: str, goal: Array, dtype: str, base: str, *, leave_out: bool
) -> tuple[str, bool]:
    """A layer of several calls as an expression, and whether that is the cause.

    It is if the right result, `y`, is changed further, or (`leave_out`) if the result is right without one step; then
    the expression is that of the extra step. Empty for a single call. Raises ModelError.
    """
    trail = closed.seen(closed.trail(dtype))
    root = trail.outputs[key]
    if len(trail.steps) < 2:
        return "", False
    given = [mark for mark, location in trail.inputs.items() if location.startswith("in:")]
    known = {mark: f"x{i or ''}" for i, mark in enumerate(given)}
    inner = [step for step in trail.steps if step.mark != root]
    right = next((step.mark for step in inner if same(trail.values[step.mark], goal, ROUGHLY)), None)
    if right is not None:
        return f"{trail.expressed(root, {**known, right: 'y'})[0]}, where {base} has y", True
    for mark, before in [(one.mark, mark) for one in inner[: MOST_LEFT_OUT * leave_out] for mark in one.reads]:
        value = trail.values[before]
        repaired = closed.again({mark: value}) if value.shape == trail.values[mark].shape else None
        if repaired is not None and same(repaired.values[repaired.outputs[key]], goal, ROUGHLY):
            return f"{trail.expressed(mark, known)[0]}, where {base} has {trail.expressed(before, known)[0]}", True
    return trail.expressed(root, known)[0], False


def compared_trails(
    one: ClosedLayer, other: ClosedLayer, keys: Mapping[str, str], dtype: str, near: float
) -> TrailComparison:
    """The comparison of both trails in a dtype. Raises ModelError."""
    ours, theirs = one.trail(dtype), other.trail(dtype)
    return TrailComparison(ours, other.seen(theirs), keys, other.again, one.port.name, other.layer, near)
