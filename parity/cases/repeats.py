"""The steps of a recurrence that a program unrolls: those that come from one call in the reference's source, once a
turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from parity.cases.program import Program

LEAST_TURNS = 3
Repeats = Mapping[int, tuple[int, ...]]
"""For the position of each step of a loop, the positions of the same step in all turns."""


def repeats(program: Program) -> Repeats:
    """The steps that a program repeats, if at least half of them depend on the same step of the turn before: other
    loops, as over the tensors of a list or the corners of a cell, may be wrong in one turn only.

    A call in the source that runs several times in a turn, as for each gate of a layer, counts as several steps: the
    number of turns is how often most calls run. A step of the backward pass belongs to the step whose gradient it
    comes from.
    """
    forward = grouped(program, {p: s.site for p, s in enumerate(program.steps) if not s.backward})
    counts = Counter(len(positions) for positions in forward.values() if len(positions) >= LEAST_TURNS)
    turns = max(counts, key=lambda n: (counts[n], n), default=0)
    if not turns:
        return {}
    in_loop = in_turns(forward, turns)
    if 2 * sum(follows(program, *positions[:2]) for positions in set(in_loop.values())) < len(set(in_loop.values())):
        return {}
    same = {program.steps[p].index: positions for p, positions in in_loop.items()}
    backward = {p: (same.get(s.of, s.of), s.site) for p, s in enumerate(program.steps) if s.backward}
    return in_loop | in_turns(grouped(program, backward), turns, least=LEAST_TURNS - 1)


def turns_of(program: Program, same: Repeats) -> Mapping[int, int]:
    """The turn of each step of a loop: in the backward pass, that of the step whose gradient it belongs to."""
    forward = {p: same[p].index(p) for p in same if not program.steps[p].backward}
    by_value = {program.steps[p].index: turn for p, turn in forward.items()}
    backward = {p: len(same[p]) - 1 - same[p].index(p) for p in same if program.steps[p].backward}
    return forward | {p: by_value.get(program.steps[p].of, turn) for p, turn in backward.items()}


def grouped(program: Program, keys: Mapping[int, Any]) -> dict[Any, list[int]]:
    """The positions of the steps with the same key and function."""
    groups: dict[Any, list[int]] = {}
    for position, key in keys.items():
        groups.setdefault((key, program.steps[position].name), []).append(position)
    return groups


def in_turns(groups: Mapping[Any, list[int]], turns: int, least: int = LEAST_TURNS) -> dict[int, tuple[int, ...]]:
    """The groups, split into as many parts as a turn has calls, by position; parts with fewer than `least` turns are
    left out. A gradient is not carried back beyond the first turn, which has fewer steps."""
    parts = []
    for positions in groups.values():
        n_calls = len(positions) // turns if len(positions) % turns == 0 else 1
        parts += [tuple(positions[i::n_calls]) for i in range(n_calls)]
    return {position: part for part in parts if len(part) >= least for position in part}


def follows(program: Program, first: int, second: int) -> bool:
    """Whether a later step depends on an earlier one."""
    reached = {program.steps[first].index}
    for step in program.steps[first + 1 : second + 1]:
        if not reached.isdisjoint(step.refs):
            reached.add(step.index)
    return program.steps[second].index in reached


def in_all_turns(program: Program, names: Collection[str] | None = None) -> Program:
    """The program with the names of a loop's last turn in all turns, and without those that are not in `names`."""
    labels, same = [step.label for step in program.steps], repeats(program)
    named = [labels[same[position][-1]] if position in same else label for position, label in enumerate(labels)]
    kept = [label if names is None or label in names else "" for label in named]
    return replace(program, steps=tuple(replace(s, label=name) for s, name in zip(program.steps, kept, strict=True)))
