"""Inputs whose values have a meaning: labels, indices, lengths, masks, numbers that are rounded."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.check.problem import GIVEN, INTEGERS, POSITIVE, Argument, ReferenceProblem, Sized

MASK = "mask"
"""The kind of cases in which a mask hides nothing, a row, or everything."""
IGNORED, LARGE_INTEGERS = "ignored", "large-integers"
IGNORING = re.compile(rb"-100\b|ignore|cross_entropy|CrossEntropy|nll_loss|NLLLoss")
"""What a file has that gives the label that is ignored a meaning; as an index, it is one from the end."""
UNUSUAL_INTEGERS: Mapping[str, int] = {IGNORED: -100, LARGE_INTEGERS: 100_000}
"""Unusual values of an input of integers: the label that PyTorch's losses ignore by default, and one whose square is
beyond int32."""
NOTHING = "nothing"
"""The kind of cases in which a length or count is 0."""
GUARDING = re.compile(rb"(?:==|>|<=|!=)\s*0(?![\w.])|>=\s*1(?![\w.])|\bmax\([^)\n]*\b1\)|clamp(?:_min)?\(|nan_to_num")
"""What a file has that gives nothing a meaning: a mean over no elements is NaN where nobody thought of it."""
HIDING = re.compile(rb"inf|nan|\.any\(|" + GUARDING.pattern, re.IGNORECASE)
"""What a file has whose result is a number where everything is hidden because it was meant to be: others hide by adding
-1e9, for example, and nobody relies on what is left of that."""
REPEATED = "repeated-integers"
OVERWRITING = frozenset(("scatter", "index_copy", "index_put", "setitem", "put"))
"""Functions whose results are not defined where an index is given twice."""
BOXES = "boxes"
"""The kind of the case with boxes that are apart from each other, and equal ones."""
HALVES = "halves"
"""The kind of the case whose numbers lie between two that they are rounded to."""
ROUNDING = re.compile(rb"\bround_?\(")
FEW_INTEGERS = 2
"""Integers of so few values are true or false."""
MOST_INPUTS = 4
"""Inputs that get unusual values."""
Array = NDArray[Any]


@dataclass(frozen=True)
class MeaningfulCase:
    """Arrays for some inputs, the name of the case, and the `kind` that it is one of."""

    kind: str
    name: str
    arrays: Mapping[str, Array]


def meaningful(problem: ReferenceProblem, sized: Sized, drawn: Mapping[str, Any]) -> Iterator[MeaningfulCase]:
    """Cases that a reference may take, those first that show most; `drawn` are inputs as the config has them."""
    yield from integers(problem, sized)
    yield from no_lengths(problem, sized)
    yield from masks(problem, sized)
    yield from repeated(problem, sized)
    yield from boxes(sized)
    yield from halves(problem, sized, drawn)


def integers(problem: ReferenceProblem, sized: Sized) -> Iterator[MeaningfulCase]:
    """Labels that PyTorch ignores, and integers whose squares overflow."""
    names = [a.name for a in sized.arguments if a.kind == INTEGERS and a.bounds[1] - a.bounds[0] > FEW_INTEGERS]
    values = {a.name: a.value for a in sized.arguments}
    ignores = IGNORING.search(problem.source.text) is not None
    asked = {word: number for word, number in UNUSUAL_INTEGERS.items() if word != IGNORED or ignores}
    for name, (word, number) in product(names[:MOST_INPUTS], asked.items()):
        array = values[name].copy()
        array.reshape(-1)[:: max(2, array.size // 8)] = number
        yield MeaningfulCase(word, f"{name}-{word}", {name: array})


def no_lengths(problem: ReferenceProblem, sized: Sized) -> Iterator[MeaningfulCase]:
    """Some zeros among integers that are 1 at least, lengths or counts, where the reference's file thinks of that."""
    if GUARDING.search(problem.source.text) is None:
        return
    counts = [a for a in sized.arguments if a.kind == INTEGERS and a.bounds[0] == 1 and a.value.size > 1]
    for argument in counts[:MOST_INPUTS]:
        array = argument.value.copy()
        array.reshape(-1)[1::3] = 0
        yield MeaningfulCase(NOTHING, f"{argument.name}-{NOTHING}", {argument.name: array})


def masks(problem: ReferenceProblem, sized: Sized) -> Iterator[MeaningfulCase]:
    """Masks that hide nothing, one row, and everything, where the reference is made for that."""
    hides = HIDING.search(problem.source.text) is not None
    for argument in filter(is_mask, sized.arguments):
        row, values = argument.value.copy(), argument.value
        row.reshape(-1, row.shape[-1])[0] = 0
        arrays = {"full": np.ones_like(values), **({"row": row, "empty": np.zeros_like(values)} if hides else {})}
        for word, array in arrays.items():
            yield MeaningfulCase(MASK, f"{argument.name}-{word}", {argument.name: array})


def repeated(problem: ReferenceProblem, sized: Sized) -> Iterator[MeaningfulCase]:
    """Integers that the file gives once each, some of them twice: elements that are added up do not overwrite each
    other."""
    whole = {a.name: a.value for a in sized.arguments if a.is_tensor and a.value.dtype.kind in "iu"}
    names = [n for n, values in whole.items() if values.size > FEW_INTEGERS and np.unique(values).size == values.size]
    if not names or not (made := problem.functions(sized)) or made & OVERWRITING:
        return
    for name in names[:MOST_INPUTS]:
        array = whole[name].copy()
        array.reshape(-1)[1::2] = array.reshape(-1)[: array.size // 2 * 2 : 2]
        yield MeaningfulCase(REPEATED, f"{name}-repeated", {name: array})


def boxes(sized: Sized) -> Iterator[MeaningfulCase]:
    """Boxes (x0, y0, x1, y1), moved by several times their sizes along one axis or both; the first two are equal."""
    given = [a for a in sized.arguments if a.is_tensor and a.value.dtype.kind == "f" and a.value.shape[-1:] == (4,)]
    for argument in [a for a in given if a.value.ndim > 1 and are_boxes(a.value)][:MOST_INPUTS]:
        rows = argument.value.reshape(-1, 4).copy()
        far = 4 * (rows[:, 2:] - rows[:, :2])
        far[::4], far[2::4, 1], far[3::4, 0] = 0, 0, 0
        rows += np.tile(far, 2)
        rows[1:2] = rows[:1]
        yield MeaningfulCase(BOXES, f"{argument.name}-apart", {argument.name: rows.reshape(argument.value.shape)})


def are_boxes(values: Array) -> bool:
    """Whether rows of four numbers are two corners each, the second one beyond the first."""
    return bool((values[..., :2] < values[..., 2:]).all()) and values.size > 4 * FEW_INTEGERS


def halves(problem: ReferenceProblem, sized: Sized, drawn: Mapping[str, Any]) -> Iterator[MeaningfulCase]:
    """0.5, 1.5, 2.5, ... times a step, which is 1 or a power of 2 among the numbers, where the reference rounds: to
    even numbers, as PyTorch does."""
    if ROUNDING.search(problem.source.text) is None:
        return
    free = [a for a in sized.arguments if "shape" in drawn.get(a.name, {}) and "integers" not in drawn[a.name]]
    numbers = [*sized.init.values(), *(a.value for a in sized.arguments if not a.is_tensor)]
    step = next((n for n in numbers if type(n) is float and 0 < n < 1 and math.frexp(n)[0] == 0.5), 1.0)
    arrays = {a.name: between(a, step) for a in free}
    if any(a.kind != POSITIVE for a in free):
        yield MeaningfulCase(HALVES, HALVES, arrays)


def between(argument: Argument, step: float) -> Array:
    """Numbers between two multiples of a step, of both signs; 1 for what is positive."""
    if argument.kind == POSITIVE:
        return np.ones(argument.value.shape, np.float32)
    numbers: Array = (np.arange(argument.value.size, dtype=np.float32) % 12 - 5.5) * np.float32(step)
    return numbers.reshape(argument.value.shape)


def is_mask(argument: Argument) -> bool:
    """Whether an argument says of each element whether it counts: booleans, or numbers that are 0 or 1."""
    if not argument.is_tensor or not argument.value.shape or argument.value.size <= FEW_INTEGERS:
        return False
    return argument.dtype == "bool" or set(np.unique(argument.value)) == {0, 1}


def is_label(argument: Argument) -> bool:
    """Whether an argument is a mask, or whole numbers that the file makes in its own way, in a floating-point dtype:
    labels, which have no gradient."""
    if is_mask(argument):
        return True
    values = argument.value if argument.is_tensor and argument.kind == GIVEN else np.zeros(1)
    is_whole = values.dtype.kind == "f" and bool((values == np.rint(values)).all())
    return is_whole and np.unique(values).size > FEW_INTEGERS
