"""What a difference looks like: cheap experiments, each accepted only if it explains the whole tensor.

The rules for permutations, and the words for the location of an error, are the judge's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.cases.exact.formats import FORMATS
from parity.config.tolerances import Tolerance
from parity.judge.diagnose.evaluator import Predicted
from parity.judge.diagnose.locality import contents, describe
from parity.judge.diagnose.permutations import arrangements
from parity.judge.diagnose.proposals import EXACT, EXTREME, SAME_FACTOR, best_factor, lies_on
from parity.library.distance import excess, widened
from parity.library.measure import MAX_ELEMENTS, Judge
from parity.library.pairs import TensorPair
from parity.library.report import Hint

Array = NDArray[Any]

FEW_LEVELS = 4
"""A hypothesis needs at least this many predicted values that the tolerance can distinguish: a constant is its own
transpose, and any factor fits a tensor of one value."""
N_SAMPLED = 64


@dataclass(frozen=True)
class Scene:
    """One tensor that differs, as arrays; `peers` are the other tensors of the same comparison, by path."""

    path: str
    actual: Array
    expected: Array
    tolerance: Tolerance
    names: tuple[str, str]
    peers: Sequence[TensorPair] = ()

    @property
    def same_shape(self) -> bool:
        """Whether both tensors have the same shape."""
        return self.actual.shape == self.expected.shape

    def explains(self, hypothesis: Array, tolerance: Tolerance | None = None) -> bool:
        """Whether a hypothesis predicts every element of `actual` within the tolerance, and not by chance."""
        if hypothesis.shape != self.actual.shape:
            return False
        limit = tolerance or self.tolerance
        sample = np.linspace(0, hypothesis.size - 1, min(N_SAMPLED, hypothesis.size)).astype(np.intp)
        near = excess(self.actual.flat[sample], hypothesis.flat[sample], limit) <= 1
        return bool(near.all() and (excess(self.actual, hypothesis, limit) <= 1).all()) and self.distinguishes(
            hypothesis
        )

    def same_values(self) -> bool:
        """Whether both tensors hold the same numbers, in any order."""
        ordered = replace(self, actual=np.sort(self.actual, axis=None), expected=np.sort(self.expected, axis=None))
        return ordered.explains(ordered.expected)

    def distinguishes(self, hypothesis: Array) -> bool:
        """Whether a hypothesis predicts enough numbers that the tolerance can distinguish."""
        finite = hypothesis[np.isfinite(hypothesis)]
        line = np.sort(finite.real.astype(widened(finite.real).dtype), axis=None)
        allowed = self.tolerance.atol + self.tolerance.rtol * np.abs(line[1:])
        return int(np.count_nonzero(np.diff(line) > 2 * allowed)) + 1 >= FEW_LEVELS


def hints(pair: TensorPair, pairs: Sequence[TensorPair], judge: Judge) -> tuple[Hint, ...]:
    """What a tensor that differs looks like: the first experiment that explains it, else the location of the error."""
    actual, expected = (tensor.values for tensor in pair.both)
    if actual.size != expected.size or not 1 < actual.size <= MAX_ELEMENTS:
        return ()
    scene = Scene(pair.path, actual, expected, judge.tolerance(pair), judge.names, pairs)
    for experiment in EXPERIMENTS:
        with np.errstate(all="ignore"):
            hint = next(experiment(scene), None)
        if hint is not None:
            return (hint,)
    return ()


def zeros(scene: Scene) -> Iterator[Hint]:
    """One tensor is all zeros."""
    for values, other, name in zip(
        (scene.actual, scene.expected), (scene.expected, scene.actual), scene.names, strict=True
    ):
        if scene.same_shape and not values.any() and other.any():
            missing = "missing-gradient" if scene.path.startswith("grad") else "missing-output"
            yield Hint(f"{name} is all zeros", missing if name == scene.names[0] else "")


def scaled(scene: Scene) -> Iterator[Hint]:
    """One factor for all elements, a simple number if one fits."""
    if not scene.same_shape or "c" in (scene.actual.dtype.kind, scene.expected.dtype.kind):
        return
    exact = widened(scene.expected)
    factor = best_factor(widened(scene.actual), Predicted(exact, EXACT))
    if factor is None or not 1 / EXTREME < abs(factor) < EXTREME:
        return
    for value, text in (*plain_factors(factor), (factor, f"{factor:.6g} times")):
        if scene.explains(exact * value):
            same, other = scene.names
            if value == -1:
                yield Hint(f"{same} is {other} with the opposite sign", "sign-flipped")
            else:
                yield Hint(f"{same} is {text} {other}{meaning(value, scene.expected.shape)}", "scaled")


def plain_factors(factor: float) -> Iterator[tuple[float, str]]:
    """The nearest integer, or its inverse."""
    n, part = round(factor), round(1 / factor)
    if n and abs(factor - n) <= SAME_FACTOR * abs(factor):
        yield float(n), f"{n} times"
    if part and abs(1 / factor - part) <= SAME_FACTOR * abs(1 / factor):
        yield 1.0 / part, f"1/{part} of"


def meaning(factor: float, shape: tuple[int, ...]) -> str:
    """What a factor counts, if it is a length of the tensor."""
    n = round(max(abs(factor), 1 / abs(factor)))
    if n <= 2:
        return ""
    meanings = {
        math.prod(shape): "the number of its elements",
        **{length: f"axis {i}" for i, length in enumerate(shape)},
    }
    where = meanings.get(n, "")
    return f" ({n} is {'the length of ' if where.startswith('axis') else ''}{where})" if where else ""


def taken(scene: Scene) -> Iterator[Hint]:
    """The values of another tensor of the same comparison; the two are exchanged if that one holds this one's."""
    for peer in scene.peers:
        if peer.path == scene.path or not scene.explains(peer.expected.values):
            continue
        mine, other = scene.path, peer.path
        gradients = mine.startswith("grad") and other.startswith("grad")
        back = replace(scene, actual=peer.actual.values).explains(scene.expected)
        both = f"; `{mine}` and `{other}` are exchanged" if back else ""
        yield Hint(f"{scene.names[0]} holds the values of `{other}`{both}", "swapped-gradients" if gradients else "")


def rearranged(scene: Scene) -> Iterator[Hint]:
    """The right values at other locations, by a known permutation or not."""
    actual, expected = scene.actual, scene.expected
    same, other = scene.names
    if not scene.same_shape and scene.explains(expected.reshape(actual.shape)):
        yield Hint(f"{same} holds the values of {other} in the same order; only the shape differs")
    mixed = "c" in (actual.dtype.kind, expected.dtype.kind)
    sorts = not mixed and scene.same_values()
    for kind, shown, moved in arrangements(expected, actual.shape, actual if sorts and scene.same_shape else None):
        if scene.explains(moved):
            yield Hint(f"{same} is {other} {moved_words(kind, shown)}", kind)
    if sorts and scene.same_shape:
        yield Hint(f"{same} holds the values of {other} in another order", "permuted-elements")


def moved_words(kind: str, shown: dict[str, Any]) -> str:
    """A permutation of `arrangements` in words."""
    for key, words in MOVED.items():
        if key in shown:
            return words(shown, kind)
    raise KeyError(f"{kind} {shown}")


MOVED: dict[str, Callable[[dict[str, Any], str], str]] = {
    "axes": lambda shown, kind: "transposed" if kind == "transposed" else f"with its axes in the order {shown['axes']}",
    "read_in_order": lambda shown, _: (
        f"with its axes in the order {shown['read_in_order']}, written into its old shape"
    ),
    "flipped": lambda shown, _: (
        "in reverse along " + ("all axes" if shown["flipped"] == "all" else f"axis {shown['flipped']}")
    ),
    "axis": lambda shown, _: f"shifted by {shown['by']} along axis {shown['axis']}",
    "in_memory_by": lambda shown, _: f"shifted by {shown['in_memory_by']} in memory",
}
"""The words for each permutation."""


def coarse(scene: Scene) -> Iterator[Hint]:
    """Every actual value is a number of a lower precision, no further away than rounding to it."""
    if not scene.same_shape or scene.actual.dtype.kind != "f" or scene.expected.dtype.kind != "f":
        return
    for target in FORMATS.values():
        unit = target.unit_roundoff
        if unit <= float(np.finfo(scene.actual.dtype).eps):
            continue
        wider = Tolerance(scene.tolerance.rtol + 2 * unit, scene.tolerance.atol)
        values, predicted = widened(scene.actual), Predicted(widened(scene.expected), EXACT)
        if lies_on(values, predicted, target.name) and scene.explains(scene.expected, wider):
            yield Hint(f"every value of {scene.names[0]} is exact in {target.name}", "reduced-precision")


def localized(scene: Scene) -> Iterator[Hint]:
    """The error lies in one part of the tensor."""
    if not scene.same_shape:
        return
    wrong = excess(scene.actual, scene.expected, scene.tolerance) > 1
    if compact(wrong) and (where := describe(wrong)):
        there = contents(scene.actual[wrong])
        content = f"; {scene.names[0]} has {there} there" if there != "other numbers" else ""
        yield Hint(f"confined to {where}{content}", "localized")


def compact(wrong: NDArray[np.bool_]) -> bool:
    """Whether several wrong elements fill most of a block, of a row, or of two."""
    axes = range(wrong.ndim)
    hit = [np.flatnonzero(wrong.any(axis=tuple(other for other in axes if other != axis))) for axis in axes]
    whole = all(indices.size <= 2 or indices[-1] - indices[0] == indices.size - 1 for indices in hit)
    n_wrong = int(np.count_nonzero(wrong))
    return whole and n_wrong > 1 and 2 * n_wrong > math.prod(indices.size for indices in hit)


EXPERIMENTS = (zeros, scaled, taken, rearranged, coarse, localized)
"""In this order; the first that explains the tensor is reported."""
