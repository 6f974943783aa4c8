"""The smallest case that still shows an error: fewer rows, channels, columns, elements, tensors of a list.

Corners are tried first, the smallest first: an error everywhere shows there, and a call with a few elements is cheap.
Else sizes are bisected, the largest first, so that rows and columns stay about equal. A dimension is cut to a window at
its start or its end, so an error at any location is followed by halving. Sizes keep their parity, and stay off the
multiples of 32 if they were, until a size less by one is tried last: kernels handle the tails of blocks separately.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations, islice
from typing import Any

from parity.cases.draw import Shape
from parity.cases.op import TensorShapes
from parity.config.plan import CasePlan
from parity.judge.bound.envelope import Array
from parity.judge.diagnose.patience import is_late

FEW_ELEMENTS = 64
"""Below this many elements of the largest tensor nothing is gained: evaluations take microseconds, and with fewer rows
and columns explanations become indistinguishable."""
MOST_CALLS = 60
"""A [8192, 1024] tensor takes 1 call if everything is wrong, 34 if one element is, 52 if no smaller case shows it."""
FEW_TENSORS = 3
"""The fewest tensors of a list: one does not distinguish a norm over all from a norm of each."""
CORNERS = (FEW_ELEMENTS, FEW_ELEMENTS**2, FEW_ELEMENTS**3)
BLOCK = 32
NEAR_MIDDLE = 256
"""How far from the middle to look for a size that the op's params (groups, heads) allow."""

ShowsError = Callable[[CasePlan, Mapping[str, Array]], bool]
Small = tuple[CasePlan, dict[str, Array]]


def reduced(
    case: CasePlan,
    inputs: Mapping[str, Array],
    shows_error: ShowsError,
    most_calls: int = MOST_CALLS,
    few: int = FEW_ELEMENTS,
) -> Small:
    """The smallest case found in `most_calls` calls of `shows_error`, which says whether a case shows the same
    error; from `few` elements on it is small enough.

    `inputs` by tensor name, grad_outputs as `grad.<output>`; `case` with them is assumed to show it. The inputs of the
    result are views of these; its tensors have its shapes, but their draws do not describe them.
    """
    small: Small = (case, dict(inputs))
    left = most_calls
    for corner in islice(corners(small, few), left):
        left -= 1
        if shows_error(*corner):
            small = corner
            break
    for dims_of in (lists_of, sizes_of):
        dims = list(dims_of(*small))
        while (dim := largest(dims)) is not None and left > 0 and n_elements(small) > few:
            size = dim.fitting(small)
            windows = () if size is None else dim.windows(small, size)
            for cut in islice(windows, left):
                left -= 1
                if shows_error(*cut):
                    small, dim.size = cut, size or dim.size
                    break
            else:
                dim.low = size or dim.size
    return small


def corners(small: Small, few: int) -> Iterator[Small]:
    """The start and the end of all dimensions, of each of the sizes in `CORNERS` that is smaller, and of `few`."""
    for most in dict.fromkeys((few, *CORNERS)):
        if n_elements(small) > most:
            yield from (corner(small, most, last=last) for last in (False, True))


def corner(small: Small, most: int, *, last: bool) -> Small:
    """The start, or the end, of all dimensions, halved until no tensor has more elements than `most`."""
    for dims_of in (lists_of, sizes_of):
        dims = list(dims_of(*small))
        while (dim := largest(dims)) is not None and n_elements(small) > most:
            size = dim.fitting(small)
            if size is None:
                dim.low = dim.size
            else:
                small, dim.size = dim.cut(small, size, dim.size - size if last else 0), size
    return small


def largest(dims: Iterable[Dim]) -> Dim | None:
    """The largest dimension that can shrink further."""
    return max((dim for dim in dims if dim.size - dim.low > 1), key=lambda dim: dim.size, default=None)


def n_elements(small: Small) -> int:
    """The number of elements of the largest tensor."""
    return max((array.size for array in small[1].values()), default=0)


MOST_TOGETHER = 256
"""Axes of one size, or pairs of them, of which it is seen whether they can change alone: a model has many weights."""


@dataclass
class Dim:
    """A size shared by several axes and possibly params; `low` is the largest size known to be too small.

    `axes` are those of inputs, `params` are params by name, with a position where they are tuples. A dimension without
    axes is the length of the list `listed`.
    """

    size: int
    axes: tuple[tuple[str, int], ...] = ()
    params: tuple[tuple[str, int | None], ...] = ()
    listed: str = ""
    low: int = 0

    def sizes(self) -> list[int]:
        """The sizes to try, the best one first."""
        middle = (self.low + self.size) // 2
        middle += (self.size - middle) % 2
        is_tail = self.size % BLOCK != 0
        sizes = range(max(self.low + 1, middle - NEAR_MIDDLE), min(self.size, middle + NEAR_MIDDLE))
        return sorted(sizes, key=lambda size: (is_tail and size % BLOCK == 0, abs(size - middle)))

    def fitting(self, small: Small) -> int | None:
        """The best size with which there is a case; None if there is none, or the time of the search is over."""
        return next((size for size in self.sizes() if not is_late() and self.shapes(small, size) is not None), None)

    def shapes(self, small: Small, size: int) -> tuple[Any, TensorShapes] | None:
        """Params and shapes of the case with another size here; None if there is no such case.

        A param that happens to have the same value keeps it if there is such a case.
        """
        case, inputs = small
        op = case.definition
        given = {name: array.shape for name, array in self.kept(inputs, size, 0).items() if op.input(name) is not None}
        for name, axis in self.axes:
            given[name] = (*given[name][:axis], size, *given[name][axis + 1 :])
        for params in (case.params, self.with_params(case.params, size)):
            try:
                shapes = op.infer_shapes(params, given)
            except (ValueError, TimeoutError):
                continue
            if all(shapes.inputs.get(name) == shape for name, shape in given.items()) and is_within(shapes, inputs):
                return params, shapes
        return None

    def with_params(self, params: Any, size: int) -> Any:
        """The params with another size where they hold this one."""
        for name, position in self.params:
            value = getattr(params, name)
            changed = size if position is None else (*value[:position], size, *value[position + 1 :])
            params = replace(params, **{name: changed})
        return params

    def kept(self, inputs: Mapping[str, Array], size: int, start: int) -> dict[str, Array]:
        """The inputs without the list's tensors that are cut off; the others are renumbered."""
        if not self.listed:
            return dict(inputs)
        prefix = f"{self.listed}."
        others = {name: array for name, array in inputs.items() if not name.startswith(prefix)}
        return {**{f"{prefix}{i}": inputs[f"{prefix}{start + i}"] for i in range(size)}, **others}

    def windows(self, small: Small, size: int) -> Iterator[Small]:
        """The cases with this size, if any: with the first part of this dimension, and with the last."""
        yield self.cut(small, size, 0)
        yield self.cut(small, size, self.size - size)

    def cut(self, small: Small, size: int, start: int) -> Small:
        """The case with a window of `size` from `start` here."""
        case, inputs = small
        op, before = case.definition, case.definition.infer_shapes(case.params, shapes_of(case, inputs))
        params, after = self.shapes(small, size) or (case.params, before)
        arrays = self.kept(inputs, size, start)
        for name, axis in self.axes:
            arrays[name] = arrays[name][(slice(None),) * axis + (slice(start, start + size),)]
        for name, (low, high) in after.integers.items():
            moved = start if before.integers[name][1] - low == self.size else 0
            arrays[name] = in_range(arrays[name], before.integers[name], (low, high), moved)
        for output in op.grad_outputs:
            if f"grad.{output}" in arrays and output in after.outputs:
                arrays[f"grad.{output}"] = self.window(arrays[f"grad.{output}"], after.outputs[output], start)
        plans = {plan.name: plan for plan in case.tensors}
        tensors = tuple(replace(plans[name], shape=array.shape) for name, array in arrays.items() if name in plans)
        return replace(case, params=params, tensors=tensors), arrays

    def window(self, array: Array, shape: Shape, start: int) -> Array:
        """A part of a grad_output: the same window along axes of this dimension, else from the start."""
        pairs = zip(array.shape, shape, strict=True)
        return array[tuple(slice(start, start + new) if old == self.size != new else slice(new) for old, new in pairs)]


def is_within(shapes: TensorShapes, inputs: Mapping[str, Array]) -> bool:
    """Whether the grad_outputs are large enough for every output: with a smaller kernel, outputs may be larger."""
    pairs = [
        (shape, inputs[f"grad.{name}"].shape) for name, shape in shapes.outputs.items() if f"grad.{name}" in inputs
    ]
    return all(new <= old for shape, given in pairs for new, old in zip(shape, given, strict=True))


def shapes_of(case: CasePlan, inputs: Mapping[str, Array]) -> dict[str, Shape]:
    """The shapes of the op's inputs."""
    return {name: array.shape for name, array in inputs.items() if case.definition.input(name) is not None}


def lists_of(case: CasePlan, inputs: Mapping[str, Array]) -> Iterator[Dim]:
    """The lengths of the lists."""
    for item in case.definition.inputs:
        if item.listed:
            yield Dim(sum(name.startswith(f"{item.name}.") for name in inputs), listed=item.name, low=FEW_TENSORS - 1)


def sizes_of(case: CasePlan, inputs: Mapping[str, Array]) -> Iterator[Dim]:
    """The sizes of the inputs' axes: one axis or two if these can change alone, else all of the same size."""
    shapes = shapes_of(case, inputs)
    for size in sorted({size for shape in shapes.values() for size in shape if size > 1}):
        axes = [(name, axis) for name, shape in shapes.items() for axis, n in enumerate(shape) if n == size]
        for together in (1, 2):
            for chosen in islice(combinations(axes, together), MOST_TOGETHER):
                if is_late():
                    return
                dim = Dim(size, chosen)
                if set(chosen) <= set(axes) and any(
                    dim.shapes((case, dict(inputs)), s) for s in (size // 2, size - 1, 1)
                ):
                    axes = [axis for axis in axes if axis not in chosen]
                    yield dim
        if axes:
            yield Dim(size, tuple(axes), tuple(params_of(case.params, size)))


def params_of(params: Any, size: int) -> Iterator[tuple[str, int | None]]:
    """The params that hold an integer, and where in a tuple."""
    for name, value in vars(params).items():
        if isinstance(value, tuple):
            yield from ((name, i) for i, item in enumerate(value) if type(item) is int and item == size)
        elif type(value) is int and value == size:
            yield name, None


def in_range(values: Array, bounds: tuple[int, int], new: tuple[int, int], moved: int) -> Array:
    """Integers within `bounds`, mapped to the `new` bounds, those from `moved` on first; integers outside, which are
    ignored, stay."""
    (low, high), (least, end) = bounds, new
    if bounds == new:
        return values
    inside = (low <= values) & (values < high)
    changed = values.copy()
    changed[inside] = least + (values[inside] - low - moved) % (end - least)
    return changed
