"""Orders of equal elements: a sort, or a search for an extreme, may return any of them.

The reference runs with other orders of equal elements. Where a value changes as an index of a step does, the backend's
value tells which index it took, and with all of these the reference gives the exact answer for the backend's order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from parity.cases.dtypes import as_dtype
from parity.cases.oracle import evaluate, program_of
from parity.config.plan import CasePlan
from parity.judge.bound.envelope import Array, Arrays

EXTREMES: Mapping[Callable[..., Any], Callable[..., Any]] = {np.argmax: np.max, np.argmin: np.min}
SORTS = (np.argsort, np.argpartition)
LARGEST = 1 << 14
"""Up to this many elements of the inputs, other orders are tried."""
ROUNDS = 3
"""Turns of all groups by amounts of their own, so that unrelated indices do not stay alike."""
MOST_EQUAL = 64
"""So many equal elements are known apart."""


@dataclass
class Orders:
    """Runs an op's reference with the equal elements of each group turned by a drawn amount, or in a `given` order.

    `taken` are the indices of every step of the latest run.
    """

    turn: int = 0
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    given: Mapping[int, Array] = field(default_factory=dict)
    taken: list[Array] = field(default_factory=list)
    equal: int = 1

    @property
    def functions(self) -> dict[Callable[..., Any], Callable[..., Any]]:
        """Replacements of the functions that return indices."""
        sorts = {function: self._step(function, self._turned) for function in SORTS}
        return {**sorts, **{function: self._step(function, self._other) for function in EXTREMES}}

    def _step(self, function: Callable[..., Any], change: Callable[..., Array]) -> Callable[..., Array]:
        def result(values: Any, *rest: Any, **keywords: Any) -> Array:
            indices = np.asarray(function(values, *rest, **keywords))
            if len(self.taken) in self.given:
                indices = self.given[len(self.taken)]
            elif np.ndim(values):
                indices = change(function, np.asarray(values), indices, rest, keywords)
            self.taken.append(indices)
            return indices

        return result

    def _turned(self, function: Any, values: Array, indices: Array, rest: Any, keywords: Any) -> Array:
        """The indices of a sort, those of equal elements turned."""
        axis = axis_of(rest[function is np.argpartition :], keywords, -1)
        if axis is None or indices.shape != values.shape:
            return indices
        ordered = np.moveaxis(np.take_along_axis(values, indices, axis), axis, -1)
        moved = np.moveaxis(indices, axis, -1).copy()
        for row in np.ndindex(moved.shape[:-1]):
            _, group, counts = np.unique(ordered[row], return_inverse=True, return_counts=True)
            for number in np.flatnonzero(counts > 1):
                positions = np.flatnonzero(group == number)
                moved[row][positions] = np.roll(moved[row][positions], self._amount(positions.size))
        return np.moveaxis(moved, -1, axis)

    def _other(self, function: Any, values: Array, indices: Array, rest: Any, keywords: Any) -> Array:
        """The index of another extreme element."""
        axis = axis_of(rest, keywords, None)
        flat = values.reshape(-1) if axis is None else np.moveaxis(values, axis, -1)
        best = EXTREMES[function](flat, axis=-1, keepdims=True)
        result = np.empty(flat.shape[:-1], np.int64)
        for row in np.ndindex(flat.shape[:-1]):
            positions = np.flatnonzero(flat[row] == best[row])
            result[row] = np.roll(positions, self._amount(positions.size))[0] if positions.size else 0
        return result.reshape(indices.shape)

    def _amount(self, size: int) -> int:
        self.equal = max(self.equal, size)
        return int(self.turn + self.rng.integers(size)) if self.turn else 0


def axis_of(rest: Any, keywords: Mapping[str, Any], default: int | None) -> int | None:
    """The axis of a call."""
    axis = keywords.get("axis", rest[0] if rest else default)
    return None if axis is None else int(axis)


def has_orders(case: CasePlan, inputs: Arrays) -> bool:
    """Whether the reference has steps that return indices by size."""
    if sum(values.size for values in inputs.values()) > LARGEST:
        return False
    program = program_of(case.definition, case.params, inputs, gradients=case.gradients, labelled=False)
    return any(step.function in (*SORTS, *EXTREMES) for step in program.steps)


def in_order_of(case: CasePlan, inputs: Arrays, oracle: Arrays, observed: Arrays, dtype: str) -> Arrays | None:
    """The exact answer with equal elements in the order of the `observed` values, in the reference's own where they
    name none; None if no elements are equal."""

    wide = next((v.dtype for v in oracle.values() if v.dtype.kind == "f"), np.dtype(np.float64))
    run = partial(run_in, case, inputs, wide)
    runs = list(other_orders(run))
    if len(runs) < 2:
        return None
    signs = {name: signatures([answers[name] for answers, _ in runs]) for name in observed}
    given = {}
    for step, indices in enumerate(runs[0][1]):
        taken = signatures([steps[step] for _, steps in runs])
        known = dict(decoded(taken, signs, runs, step, observed, dtype))
        order = completed(indices, known, np.stack([steps[step].ravel() for _, steps in runs]))
        given[step] = indices if order is None else order
    return run(Orders(given=given))


def run_in(case: CasePlan, inputs: Arrays, dtype: np.dtype[Any], orders: Orders) -> Arrays:
    """The outputs with other orders of equal elements."""
    functions, gradients = orders.functions, case.gradients
    return evaluate(case.definition, case.params, inputs, dtype=dtype, gradients=gradients, functions=functions)


def index_tensors(case: CasePlan, inputs: Arrays) -> frozenset[str]:
    """The outputs that hold indices of equal elements: they change with the order, and are integers in all of them."""

    runs = [answers for answers, _ in other_orders(partial(run_in, case, inputs, np.dtype(np.float64)))]
    stacked = {name: np.stack([answers[name] for answers in runs]) for name in runs[0]}
    return frozenset(
        name for name, values in stacked.items() if (values != values[0]).any() and (values == np.rint(values)).all()
    )


def other_orders(run: Callable[[Orders], Arrays]) -> Iterator[tuple[Arrays, list[Array]]]:
    """The reference's own answer and indices, then those of other orders; only the first if no elements are equal."""
    own = Orders()
    yield run(own), own.taken
    for number in range(1, ROUNDS + 1):
        for turn in range(min(own.equal, MOST_EQUAL) if own.equal > 1 else 0):
            orders = Orders(turn + MOST_EQUAL * number, np.random.default_rng(number))
            yield run(orders), orders.taken


def signatures(runs: list[Array]) -> dict[bytes, list[int]]:
    """The elements that change from run to run, by the runs in which they are the same."""
    stacked = np.stack([values.ravel() for values in runs])
    by_runs: dict[bytes, list[int]] = {}
    for element in np.flatnonzero((stacked != stacked[0]).any(axis=0)):
        _, first, which = np.unique(stacked[:, element], return_index=True, return_inverse=True)
        by_runs.setdefault(first[which].tobytes(), []).append(int(element))
    return by_runs


def decoded(
    taken: Mapping[bytes, list[int]],
    signs: Mapping[str, Mapping[bytes, list[int]]],
    runs: list[tuple[Arrays, list[Array]]],
    step: int,
    observed: Arrays,
    dtype: str,
) -> Iterator[tuple[int, Any]]:
    """The elements of a step's indices that the observed values tell, each with the index."""
    indices = np.stack([steps[step].ravel() for _, steps in runs])
    for sign, positions in taken.items():
        for name, elements in signs.items():
            alike = elements.get(sign, [])
            outputs = np.stack([answers[name].ravel() for answers, _ in runs])
            for rank, element in enumerate(alike):
                values, value = outputs[:, element], observed[name].ravel()[element]
                own = positions[rank] if len(positions) == len(alike) else positions[0]
                position = next((p for p in (own, *positions) if np.ptp(values - indices[:, p]) == 0), own)
                same = np.flatnonzero((values if values.dtype.kind != "f" else as_dtype(values, dtype)) == value)
                if same.size:
                    yield position, indices[same[0], position]


def completed(indices: Array, known: Mapping[int, Any], taken: Array) -> Array | None:
    """The indices with those that are `known`; the others are what is left of their equals. None if one comes twice."""
    order = indices.ravel().copy()
    changing = {int(position) for position in np.flatnonzero((taken != taken[0]).any(axis=0))}
    groups: dict[tuple[int, ...], list[int]] = {}
    for position in sorted(changing):
        groups.setdefault(tuple(np.unique(taken[:, position]).tolist()), []).append(position)
    for members, positions in groups.items():
        rows = [positions] if len(positions) <= len(members) else split_rows(positions, len(members))
        for row in rows:
            mine = {position: int(known[position]) for position in row if position in known}
            if len(set(mine.values())) < len(mine):
                return None
            left = iter(sorted(set(members) - set(mine.values())))
            for position in row:
                order[position] = mine[position] if position in mine else next(left)
    return order.reshape(indices.shape)


def split_rows(positions: list[int], size: int) -> list[list[int]]:
    """Places of several rows with the same equal elements, row by row."""
    return [positions[start : start + size] for start in range(0, len(positions), size)]
