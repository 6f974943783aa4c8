"""Layers in step: every layer, and the code between layers, gets its partner's inputs.

In one run of a port, each tensor that crosses a layer's boundary is compared with the partner's, then replaced by it.
So every layer, and every piece of code between layers, is tested on its own with the right inputs: a fault in layer 3
does not hide one in layer 9. The envelope is that of the baseline's runs in step, in float64 and with perturbed inputs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from parity.models.findings import CODE, LAYER, Boundary, ModelFinding
from parity.models.measure import Distance, ReferenceRuns, difference
from parity.models.orders import Axes, AxesConverter, permuted
from parity.models.ports import RemotePort
from parity.models.worker.crossing import LOSS, STATE
from parity.models.worker.tape import Recorded, regrouped, squeezed


def resized(partners: Mapping[str, str], base: Recorded, other: Recorded) -> int | None:
    """The position in another port's run from which tensors have other sizes than the partner's; None if there is none.

    It is that of the outputs of the first layer that returns another size, or the one before the layer's inputs if
    these differ already. A layer that gets larger inputs and returns the partner's size was padded before.
    """
    ours, theirs = grouped(base), grouped(other)
    for position, (layer, call, role) in enumerate(theirs):
        if not layer or layer == LOSS or layer not in partners or role not in ("in", "out"):
            continue
        mine, returned, given, got = (
            lengths(run, groups.get((owner_of, call, where), []))
            for run, groups, owner_of, where in (
                (base, ours, partners[layer], "out"),
                (other, theirs, layer, "out"),
                (base, ours, partners[layer], "in"),
                (other, theirs, layer, "in"),
            )
        )
        if not mine or not returned or mine[0] == returned[0]:
            continue
        if role == "in":
            if len(given) == len(got) and given and given[0] != got[0]:
                return position - 1
        elif sorted(given) == sorted(got):
            return position
    return None


def lengths(run: Recorded, names: Sequence[str]) -> list[int]:
    """The numbers of elements of some tensors."""
    return [math.prod(run.shape(name)) for name in names]


def fitting(
    port: RemotePort, partners: Mapping[str, str], base: Recorded, other: Recorded, after: int | None
) -> dict[str, str]:
    """The partners without lists of layers, which are never called, and without layers that have no parameters and
    return tensors of other sizes, except `after` the position from which sizes differ."""
    kept = {}
    positions = {key: position for position, key in enumerate(grouped(other))}
    for layer, partner in partners.items():
        theirs, ours = (
            [run.shape(name) for name in grouped(run).get((owner_of, 0, "out"), [])]
            for run, owner_of in ((other, layer), (base, partner))
        )
        if layer and not theirs and not ours:
            continue
        bare = not any(name.startswith(f"{layer}.") for name in port.tensors)
        fits = not (bare and layer and layer != LOSS and theirs and ours and not same_sizes(theirs, ours))
        if fits or (after is not None and positions[layer, 0, "out"] >= after):
            kept[layer] = partner
    return kept


def same_sizes(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Whether tensors may be equal up to the order of axes, and to axes that are merged or split."""
    return len(a) == len(b) and all(map(alike, a, b))


def alike(a: Any, b: Any) -> bool:
    """The same for two shapes."""
    return regrouped(a, b) or permuted(a, b)


def aligned(
    base: Recorded,
    other: Recorded,
    partners: Mapping[str, str],
    buffers: Mapping[str, str],
    after: int | None = None,
    behind: Mapping[str, str] | None = None,
    by_content: bool = False,
) -> dict[str, str]:
    """The baseline's name for each tensor at a boundary of another port, from both ports' own runs.

    The i-th input or output of a call corresponds to the partner's i-th. If shapes contradict that, each tensor
    corresponds to the first remaining one of its shape, else to the first of its shape; `after` the position from which
    sizes differ, shapes are ignored. `behind` maps a layer to the baseline's layer whose output it returns.
    `by_content`: a call's tensors are matched by their values. A boolean mask has no partner with other numbers than 0
    and 1.
    """
    ours = grouped(base)
    keys: dict[str, str] = {}
    for position, ((layer, call, role), names) in enumerate(grouped(other).items()):
        if role.startswith(STATE):
            owner_of, _, own = buffers.get(f"{layer}.{role.removeprefix(STATE)}".removeprefix("."), "").rpartition(".")
            name = str(Boundary(owner_of, 0, f"{STATE}{own}", 0))
            keys |= {names[0]: name} if name in base else {}
            continue
        partner = (behind or {}).get(layer, partners.get(layer)) if role == "out" else partners.get(layer)
        theirs = ours.get((partner, call, role), []) if partner is not None else []
        if by_content and len(theirs) > 1:
            keys |= nearest(other, names, base, theirs)
            continue
        blind = after is not None and position > after and len(names) == len(theirs)
        if role == "out" or blind or same_sizes([other.shape(n) for n in names], [base.shape(n) for n in theirs]):
            keys |= dict(zip(names, theirs, strict=False))
            continue
        left = list(theirs)
        for name in names:
            same = [n for n in (*left, *theirs) if alike(base.shape(n), other.shape(name))]
            if same:
                keys[name] = same[0]
                left = [n for n in left if n != same[0]]
    return {theirs: ours for theirs, ours in keys.items() if same_kind(base, ours, other, theirs)}


def same_kind(base: Recorded, ours: str, other: Recorded, theirs: str) -> bool:
    """Whether both tensors may have the same values; booleans are 0 and 1."""
    held = (base, ours), (other, theirs)
    flags = [run.entries[name]["dtype"] == "bool" for run, name in held]
    if flags[0] == flags[1]:
        return True
    run, name = held[flags.index(False)]
    return set(np.unique(run.load(name)).tolist()) <= {0, 1}


def nearest(other: Recorded, names: Sequence[str], base: Recorded, theirs: Sequence[str]) -> dict[str, str]:
    """The baseline's name for each of a call's tensors: the one of its shape and kind with the closest values."""
    apart = []
    for name in names:
        mine = other.load(name)
        for there in theirs:
            if squeezed(base.shape(there)) != squeezed(mine.shape):
                continue
            ours = base.load(there).reshape(mine.shape)
            if (ours.dtype.kind == "f") == (mine.dtype.kind == "f"):
                apart.append((difference(mine, ours), name, there))
    pairs: dict[str, str] = {}
    for _, name, there in sorted(apart, key=lambda row: row[0]):
        if name not in pairs and there not in pairs.values():
            pairs[name] = there
    return pairs


def grouped(run: Recorded) -> dict[tuple[str, int, str], list[str]]:
    """The names of tensors at boundaries by layer, call and role."""
    groups: dict[tuple[str, int, str], list[str]] = {}
    for name in run:
        at = Boundary.of(name)
        if at is not None:
            groups.setdefault((at.layer, at.call, at.role), []).append(name)
    return groups


def distances(
    reference: ReferenceRuns, run: Recorded, keys: Mapping[str, str], axes: Mapping[str, Axes], *, whole: bool = False
) -> Iterator[tuple[Boundary, Distance]]:
    """The distance at every boundary that both runs have, in the order of the port's run."""
    for name in run:
        at = Boundary.of(name)
        if at is not None and keys.get(name) in reference.plain:
            moved = AxesConverter(run, axes).to_baseline(name, run.load(name)) if name in axes else None
            yield at, reference.distance(keys[name], run, name, whole=whole, moved=moved)


def wrong_in_step(
    port: RemotePort,
    reference: ReferenceRuns,
    run: Recorded,
    partners: Mapping[str, str],
    keys: Mapping[str, str],
    axes: Mapping[str, Axes],
) -> list[ModelFinding]:
    """The findings of a run in step, in the order of the run.

    The output of a layer without children belongs to the layer; any other tensor belongs to the code of the innermost
    layer with a partner around it.
    """
    wrong: dict[tuple[str, str, int], dict[Boundary, float]] = {}
    resized = set()
    for at, distance in distances(reference, run, keys, axes):
        if not distance.exceeds_bound:
            continue
        kind, layer = owner(port, at, partners)
        call = at.call if layer == at.layer else 0
        wrong.setdefault((kind, layer, call), {})[at] = distance.ratio
        if distance.shapes:
            resized.add((kind, layer, call))
    findings = [
        ModelFinding(*key, partners.get(key[1], ""), boundaries, resized=key in resized)
        for key, boundaries in wrong.items()
    ]
    return one_each(findings)


def owner(port: RemotePort, at: Boundary, partners: Mapping[str, str]) -> tuple[str, str]:
    """What computes a tensor at a boundary: a layer, or the code of a layer."""
    if at.state:
        return LAYER, at.layer
    if at.role == "out":
        inner = any(name != at.layer and inside(name, at.layer) for name in partners)
        return (CODE if inner or port.layers[at.layer].own else LAYER), at.layer
    around = [name for name in partners if name != at.layer and inside(at.layer, name)]
    return CODE, max(around, key=len, default="")


def calls(run: Recorded, layers: Mapping[str, str]) -> Counter[str]:
    """The number of calls of each layer in `layers`, which maps the run's names to those of the result."""
    made = {(at.layer, at.call) for name in run if (at := Boundary.of(name)) is not None and not at.state}
    return Counter(layers[layer] for layer, _ in made if layer in layers)


def inside(layer: str, outer: str) -> bool:
    """Whether a layer is within another one."""
    return not outer or layer.startswith(f"{outer}.")


def one_each(findings: Sequence[ModelFinding]) -> list[ModelFinding]:
    """One finding per layer: its worst call, with the boundaries of the others."""
    calls: dict[tuple[str, str], list[ModelFinding]] = {}
    for finding in findings:
        calls.setdefault((finding.kind, finding.layer), []).append(finding)
    best = []
    for alike in calls.values():
        worst = max(alike, key=lambda finding: finding.ratio)
        worst.again = [at for finding in alike if finding is not worst for at in finding.boundaries]
        best.append(worst)
    return best
