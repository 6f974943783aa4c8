"""The cases that a pair is asked: the inputs that its file gives, and others on which kernels fail."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product, takewhile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.cases.draw import DISTRIBUTIONS, Special, TensorPlan
from parity.cases.layout import LAYOUTS
from parity.check import CheckError
from parity.check.frameworks import TORCH
from parity.check.limit import (
    FAR_OFFSET,
    KEPT_NAN,
    NAN,
    NEW,
    OFFSET,
    OUTLIER,
    REFERENCE,
    SCALE,
    SINGLE,
    TIES,
    TINY,
    ZEROS,
)
from parity.check.literals import limits_in
from parity.check.meanings import HALVES, is_label, meaningful
from parity.check.problem import (
    GIVEN,
    INTEGERS,
    NORMAL,
    POSITIVE,
    Argument,
    ReferenceProblem,
    Size,
    Sized,
    Weight,
    alike,
    is_finite,
    same,
    varies,
)
from parity.check.sizes import largest
from parity.check.triton_code import mode_of
from parity.program.worker.user_module import INIT, NO_GRAD, TRAINING

DRAWN = "drawn"
"""The kind of the case with other inputs and weights than the file's."""
INFERENCE = "inference"
"""The kind of the case without gradients, in evaluation mode: code can ask for both."""
NUMBERS, MOST_OTHER_NUMBERS = "numbers", 4
"""The kind of cases with another number among the arguments, and how many there are."""
SIZE = "size"
"""The kind of cases at another size, or with another batch."""
SHIFT, FAR_SHIFT = 100.0, 10000.0
"""A mean of 100 deviations: E[x^2] - E[x]^2 loses four of float32's seven digits; of 10,000, all."""
LARGE, SMALL = 30.0, 1e-3
"""Scores beyond 88, where exp overflows in float32; variances near eps."""
ODD = (129, 33, 127, 31)
"""Sizes beside those of warps and blocks of kernels."""
MOST_KERNEL = 11
"""Odd numbers of the constructor up to this one may be sizes of kernels."""
MOST_ENLARGED = 4
"""Numbers of the constructor become at most so many times as large."""
JITTER = 0.3
"""The deviation of weights that are constants at first, such as a norm's ones and zeros."""
VALUES: Mapping[str, Mapping[str, Any]] = {
    ZEROS: {"constant": 0.0},
    TIES: {"constant": 1.0, "special": {"values": [-1.0, 2.0], "count": 2}},
    NAN: {"special": {"values": [float("nan")]}},
    TINY: {"scale": 1e-10},
    OUTLIER: {"special": {"values": [1.0e4, -1.0e4, 88.0], "count": 3}},
}
"""Unusual values of an input."""
SPEAKING_OF_NAN = re.compile(rb"nan|isfinite|isinf", re.IGNORECASE)
"""What a file has that gives a NaN among its inputs a meaning."""
MOST_LIMITS = 3
"""Numbers of the candidate beyond which a size is tried."""
MOST_RESIZED, MOST_BEYOND = 1 << 13, 4
"""Elements of a tensor with a longer axis, and cases with an axis beyond a limit that the candidate may have."""
MOST_CALLS = 1000
"""Calls of PyTorch's functions by a reference, as by one with a loop along an axis, with which that axis still gets
longer than by one."""
MOST_COUNTED = 4000
"""Calls of the reference at another size: with loops over pairs they are the product of two."""
MOST_PARTS = 3
MOST_LENGTHS = 8
"""Axes, of all or of the first ones, that get another length, but for those of few elements."""
MOST_APART = 4
"""Axes that get another length than those of the same length in other inputs."""
FAR_VALUE = 1000.0
"""One that no result which depends on it fails to show."""
MOST_MOVED = 8
"""Weights with one axis that get a mean."""
MOST_UNUSUAL = 4
"""Inputs that get unusual values."""
MOST_SIZED, MOST_OPERATIONS = 1 << 16, 1 << 24
"""Elements and operations of a call at another size."""
MOST_SIZES, FIRST_SIZES = 10, 3
"""Cases at other sizes, and how many of them come first: a batch of one shows what nothing else does."""
FAILED: Mapping[str, NDArray[Any]] = {"y": np.full(1, np.nan)}
"""Stands for the outputs of a call that fails."""
Case = dict[str, Any]


@dataclass(frozen=True)
class CheckCase:
    """A case of the config, and what it varies: `given`, `drawn`, `offset`, `size`, ..., the name of a layout."""

    kind: str
    case: Case

    @property
    def id(self) -> str:
        """The id of the case."""
        return str(self.case["id"])


@dataclass
class Designer:
    """Makes the cases of a pair; arrays go to `folder`, as files that the config names relative to its own."""

    problem: ReferenceProblem
    folder: Path
    forward_only: bool = False
    until: float = math.inf
    """The time of the monotonic clock at which no further sizes are tried."""

    def __post_init__(self) -> None:
        self.notes: list[str] = []
        self.options: dict[str, Any] = {}
        self.degenerate = False
        self.infinite = set[str]()
        self.returned: Collection[str] = ()
        pair = self.problem.pair
        self.limits = limits_in(pair.candidate.own_path, pair.reference.own_path)[:MOST_LIMITS]

    def all(self, sized: Sized) -> Iterator[CheckCase]:
        """The cases, those first that show most: as given, drawn with other weights, then what is unusual."""
        self.settle(sized)
        yield CheckCase("given", self.case("given", sized, self.files(sized, "given")))
        drawn = self.drawn(sized)
        self.degenerate = not varies(sized.outputs) and not varies(self.tried(sized, drawn))
        yield CheckCase(DRAWN, self.case(DRAWN, sized, drawn))
        if sized.modal and not self.options:
            yield CheckCase("eval", self.case("eval", sized, drawn, training=False))
        adapters = {self.problem.pair.reference.adapter, self.problem.pair.candidate.adapter}
        if adapters == {TORCH}:
            modes = {NO_GRAD: True, **({TRAINING: False} if self.problem.pair.reference.is_class else {})}
            without = self.case(INFERENCE, sized, drawn, **modes)
            yield CheckCase(INFERENCE, {**without, "gradients": False})
        sizes = self.of_sizes(sized)
        yield from islice(self.numbers(sized, drawn), MOST_OTHER_NUMBERS)
        yield from self.lengths(sized, drawn)
        yield from islice(self.apart(sized, drawn), MOST_APART)
        yield from self.meaningful(sized, drawn)
        yield from islice(sizes, FIRST_SIZES)
        yield from self.moved(sized, drawn)
        yield from self.unusual(sized, drawn)
        yield from sizes

    def settle(self, sized: Sized) -> None:
        """See in which mode the reference is asked. Raises CheckError where it returns something else when it is called
        again."""
        who, self.returned = self.problem.pair.reference.location, sized.outputs.keys()
        with self.problem.overflowing() as self.infinite:
            again = self.problem.call(sized)
        if not alike(sized.outputs, again):
            raise CheckError(f"{who} returns something else when it is called again with the same inputs and seed")
        if self.problem.is_random(sized, {}):
            if self.problem.is_random(sized, {TRAINING: False}):
                raise CheckError(f"{who} draws random numbers: what it returns depends on the seed")
            self.options = {TRAINING: False}
            self.notes.append(f"{who} is random in training mode, so it is asked in evaluation mode")
        if not varies(sized.outputs):
            self.notes.append("the reference returns a constant for its own inputs, so its own test shows nothing")

    def of_sizes(self, sized: Sized) -> Iterator[CheckCase]:
        """Cases at other sizes."""
        for other in self.sizes(sized):
            changed = {n: v for n, v in other.settings.items() if sized.settings.get(n) != v}
            name = ", ".join(f"{n}={v}" for n, v in changed.items())
            kind = SINGLE if any(last(v) == 1 for v in changed.values()) else SIZE
            drawn, before = self.drawn(other), {a.name: a.value.shape for a in sized.arguments if a.is_tensor}
            outputs = self.tried(other, drawn)
            is_taken = is_finite(outputs) or not is_finite(sized.outputs)
            is_taken &= kind != SINGLE or not broadcasts(sized, other)
            if is_taken and not self.ignores(other, drawn, outputs, before):
                yield CheckCase(kind, self.case(name, other, drawn))

    def ignores(
        self,
        sized: Sized,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, NDArray[Any]],
        before: Mapping[str, Sequence[int]],
    ) -> bool:
        """Whether the reference, with its `outputs`, does not look at what axes have that are longer than `before`: it
        may take three channels of however many, and is not made for more."""
        for name, item in inputs.items():
            if "shape" not in item or "integers" in item:
                continue
            for axis, (n, own) in enumerate(zip(item["shape"], before.get(name, ()), strict=False)):
                if n > own:
                    array = sample(name, item).astype(np.float32)
                    np.moveaxis(array, axis, 0)[own:] = FAR_VALUE
                    if same(outputs, self.tried(sized, inputs, {name: array})):
                        return True
        return False

    def case(self, name: str, sized: Sized, inputs: Mapping[str, Any], **options: Any) -> Case:
        """A case of the config."""
        reference = self.problem.pair.reference
        floats = [a.name for a in sized.arguments if a.is_tensor and a.value.dtype.kind == "f" and not is_label(a)]
        floats += [weight.name for weight in sized.weights if not weight.is_statistic]
        return {
            "op": reference.name,
            "id": f"{reference.name}-{name}".replace(", ", "-"),
            "reference": f"{self.problem.source.path}:{reference.name}",
            "params": {**sized.params, **self.options, **options},
            "inputs": dict(inputs),
            "differentiable": floats,
            **({"gradients": False} if self.forward_only else {}),
        }

    def files(self, sized: Sized, name: str) -> dict[str, Any]:
        """All inputs and weights as the files have them."""
        arrays = {a.name: a.value for a in sized.arguments if a.is_tensor}
        arrays |= {weight.name: weight.values for weight in sized.weights}
        return {key: self.stored(name, key, array) for key, array in arrays.items()}

    def stored(self, case: str, name: str, array: NDArray[Any]) -> Case:
        """An array as a file of the config."""
        folder = self.folder / case.replace(", ", "-")
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / f"{name}.npy", array)
        return {"file": f"{folder.relative_to(self.folder.parent)}/{name}.npy"}

    def drawn(self, sized: Sized) -> dict[str, Any]:
        """Inputs that have both signs where the reference stays finite, and other weights."""
        size = folder_of(sized)
        weights = {
            weight.name: self.stored(size, weight.name, weight.values)
            if weight.name in sized.state
            else weight_of(weight)
            for weight in sized.weights
        }
        ways: Sequence[Callable[[Argument], Case]] = (
            lambda a: self.input_of(sized, a, signed=True),
            lambda a: self.input_of(sized, a, signed=False),
            lambda a: self.stored(size, a.name, a.value),
        )
        taken = None
        for way in ways:
            given = {**{a.name: way(a) for a in sized.arguments if a.is_tensor}, **weights}
            outputs = self.tried(sized, given)
            if is_finite(outputs):
                return given
            taken = taken or (None if outputs is FAILED else given)
        return taken or given

    def input_of(self, sized: Sized, argument: Argument, *, signed: bool) -> Case:
        """An input: normal numbers, as in the file if it gives them with a structure or `signed` is False."""
        shape = list(argument.value.shape)
        if argument.kind == INTEGERS:
            low, high = argument.bounds
            return {"shape": shape, "integers": {"low": low, "high": high}}
        if argument.kind == GIVEN or not shape or (argument.kind == POSITIVE and not np.ptp(argument.value)):
            return self.stored(folder_of(sized), argument.name, argument.value)
        if argument.kind == POSITIVE:
            ends = {"low": argument.value.min(), "high": argument.value.max()}
            return {"shape": shape, "uniform": {key: float(f"{end:.4g}") for key, end in ends.items()}}
        if argument.kind == NORMAL or signed:
            return {"shape": shape}
        return {"shape": shape, "uniform": {"low": 0.0, "high": 1.0}}

    def tried(
        self, sized: Sized, inputs: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]] | None = None
    ) -> Mapping[str, NDArray[Any]]:
        """What the reference returns for such inputs, and `arrays` for some of them. NaN where it fails, where a step
        overflows that does not for the inputs of the file, since code may as well not survive that, and where a result
        has no elements."""
        free = {name: item for name, item in inputs.items() if "shape" in item and "integers" not in item}
        values = {name: sample(name, item).astype(np.float32) for name, item in free.items()}
        whole = {a.name: a.value for a in sized.arguments if "integers" in inputs.get(a.name, {})}
        values |= {name: np.resize(array, inputs[name]["shape"]) for name, array in whole.items()}
        try:
            with self.problem.overflowing() as functions:
                outputs = self.problem.call(sized, values={**values, **(arrays or {})})
        except CheckError:
            return FAILED
        return FAILED if functions - self.infinite or outputs.keys() != self.returned else outputs

    def moved(self, sized: Sized, drawn: Mapping[str, Any]) -> Iterator[CheckCase]:
        """Inputs and weights far from zero, large and small, each only where the reference stays finite."""
        free = [name for name, item in drawn.items() if "shape" in item and "integers" not in item]
        given = {a.name for a in sized.arguments}
        biases = [name for name in free if name not in given and len(drawn[name]["shape"]) == 1]
        positive = names_of(sized, POSITIVE)
        own = [name for name in free if name in given and name not in positive]
        moves = (
            (OFFSET, SHIFT, [*([name] for name in [*own, *biases[:MOST_MOVED]]), *([own] if len(own) > 1 else [])]),
            (OFFSET, -SHIFT, [[name] for name in own[:MOST_UNUSUAL]]),
            (FAR_OFFSET, FAR_SHIFT, [[name] for name in own]),
        )
        for kind, shift, groups in moves:
            for names in groups:
                changed = {n: {**item, "offset": shift} if n in names else item for n, item in drawn.items()}
                if is_finite(self.tried(sized, changed)):
                    word = names[0] if len(names) == 1 else "all"
                    yield CheckCase(kind, self.case(f"{word}-offset={shift:g}", sized, changed))
        for scale in (LARGE, SMALL):
            changed = {n: {**item, "scale": scale} if n in given and n in free else item for n, item in drawn.items()}
            if any(name in given for name in free) and is_finite(self.tried(sized, changed)):
                yield CheckCase(SCALE, self.case(f"scale={scale:g}", sized, changed))

    def unusual(self, sized: Sized, drawn: Mapping[str, Any]) -> Iterator[CheckCase]:
        """Inputs that may be any number with unusual values, one after the other; then all in other memory."""
        given = [a.name for a in sized.arguments if a.is_tensor and "integers" not in drawn[a.name]]
        free = [name for name in given if "shape" in drawn[name]]
        positive = names_of(sized, POSITIVE)
        for number, name in enumerate(free[:MOST_UNUSUAL]):
            for word, change in VALUES.items():
                if name in positive and word not in (NAN, TINY):
                    continue
                changed = {**drawn, name: {**without_draw(drawn[name], change), **change}}
                id_ = f"{name}-{word}" if number else word
                if word == NAN:
                    yield from self.with_nan(sized, changed, name, id_)
                elif is_finite(self.tried(sized, changed)):
                    yield CheckCase(word, self.case(id_, sized, changed))
        if len(free) > 1:
            changed = {n: {**item, **VALUES[TINY]} if n in free else item for n, item in drawn.items()}
            yield CheckCase(TINY, self.case("all-tiny", sized, changed))
        tensors = {a.name for a in sized.arguments if a.is_tensor}
        for layout, placement in LAYOUTS.items():
            movable = {n for n, item in drawn.items() if n in tensors and can_lie(item, placement)}
            laid = {n: {**item, "layout": layout} if n in movable else item for n, item in drawn.items()}
            if movable:
                yield CheckCase(layout, self.case(layout, sized, laid))

    def with_nan(self, sized: Sized, drawn: Mapping[str, Any], name: str, id_: str) -> Iterator[CheckCase]:
        """The case with the NaN in an input, as a file: at another element, it might spread otherwise. Of a NaN or its
        neighbours there is no gradient that all agree on."""
        if self.keeps_nan(sized, drawn, name):
            array = sample(name, drawn[name]).astype(np.float32)
            case = self.case(id_, sized, {**drawn, name: self.stored(f"{NAN}-{name}", name, array)})
            speaks = SPEAKING_OF_NAN.search(self.problem.source.text) is not None
            yield CheckCase(KEPT_NAN if speaks else NAN, {**case, "gradients": False})

    def keeps_nan(self, sized: Sized, drawn: Mapping[str, Any], name: str) -> bool:
        """Whether the NaN in an input reaches only results that depend on that element. Others get 0 times NaN, as from
        values that attention masks: code may as well not look at them."""
        array = sample(name, drawn[name]).astype(np.float32)
        arrays = (np.where(np.isnan(array), np.float32(value), array) for value in (np.nan, FAR_VALUE, -FAR_VALUE))
        with_nan, *others = (self.tried(sized, drawn, {name: values}) for values in arrays)
        one, other = others
        if not with_nan.keys() == one.keys() == other.keys():
            return False
        return not any((np.isnan(with_nan[n]) & (one[n] == other[n])).any() for n in with_nan)

    def sizes(self, sized: Sized) -> Iterator[Sized]:
        """The problem at odd sizes, one global changed at a time."""
        every = {**self.problem.numbers, **sized.settings}
        left_out = self.by_length(sized) | self.parts(sized)
        numbers = {name: size for name, size in every.items() if name not in left_out}
        own = {*self.problem.literals.init, *self.problem.of_constructor}
        sizes = sorted_sizes(numbers, self.limits)
        asked = ((of_constructor(value, numbers[n]) if n in own else value, n) for value, n in sizes)
        tried = takewhile(lambda _: time.monotonic() < self.until, asked)
        fitting = (self.fitting_with(sized.settings, every, n, value) for value, n in tried if value is not None)
        yield from islice((other for other in fitting if other is not None), MOST_SIZES)

    def fitting_with(
        self, settings: Mapping[str, Any], numbers: Mapping[str, Size], name: str, value: Size
    ) -> Sized | None:
        """The problem with another number, and with those that are one more or less in the file moved with it, as the
        T + 1 values of T steps; else with that number alone; None where neither works."""
        moved, own = {}, numbers[name]
        free = self.problem.literals.names.keys() - {*self.problem.literals.init, *self.problem.of_constructor}
        if isinstance(value, int) and isinstance(own, int) and name in free:
            others = {n: m for n, m in numbers.items() if isinstance(m, int) and n in free and m > MOST_PARTS}
            moved = {n: value + m - own for n, m in others.items() if abs(m - own) == 1}
        together = self.fitting({**settings, **moved, name: value}) if moved and min(moved.values()) > 0 else None
        return together or self.fitting({**settings, name: value})

    def by_length(self, sized: Sized) -> set[str]:
        """The numbers of the file that `lengths` changes: those that the constructor does not have and that are not
        smaller than in the file, where no input of this length is given with its structure."""
        given = {n for a in sized.arguments if a.is_tensor and a.kind == GIVEN for n in a.value.shape}
        literals = self.problem.literals
        free = literals.names.keys() - set(literals.init) - sized.settings.keys()
        return {name for name in free if literals.names[name] not in given}

    def parts(self, sized: Sized) -> set[str]:
        """The numbers of the file, of the size of pairs, coordinates or colours, that are not the batch's."""
        batch = next((a.value.shape[0] for a in sized.arguments if a.is_tensor and a.value.shape), 0)
        names = self.problem.literals.names
        return {name for name, size in names.items() if 1 < size <= MOST_PARTS and size != batch}

    def fitting(self, settings: Mapping[str, Any]) -> Sized | None:
        """The problem with these globals; None where a call is not cheap, or fails."""
        try:
            cost = self.problem.cost(settings)
            is_long = self.problem.n_counted > MOST_COUNTED
            if cost is None or cost[0] > MOST_SIZED or cost[1] > MOST_OPERATIONS or is_long:
                return None
            return self.problem.at(settings)
        except CheckError:
            return None

    def lengths(self, sized: Sized, drawn: Mapping[str, Any]) -> Iterator[CheckCase]:
        """Other lengths of axes, where no global says them: of all axes of the same length, or of the first ones. Only
        these become 1, where no other axis has their length, with which they would be broadcast."""
        tensors = {a.name: list(a.value.shape) for a in sized.arguments if a.is_tensor and a.value.shape}
        sizes = {**self.problem.numbers, **sized.settings}
        known = {largest(size) for name, size in sizes.items() if name not in self.problem.literals.names}
        free = {n: shape for n, shape in tensors.items() if "shape" in drawn[n]}
        batch = next(iter(tensors.values()), [0])[0]
        # Axes of two or three elements are pairs, coordinates, colours.
        lengths = dict.fromkeys(
            n for shape in free.values() for n in shape if n not in known and (n > MOST_PARTS or 1 < n == batch)
        )
        n_beyond = 0
        for length, first in islice(product(lengths, (True, False)), MOST_LENGTHS):
            every = {(n, i) for n, shape in tensors.items() for i, size in enumerate(shape) if size == length}
            axes = {(name, axis) for name, axis in every if not axis or not first}
            if not axes or not {name for name, _ in axes} <= free.keys():
                continue
            near = (1, length + 1) if axes == every and first else (length + 1,)
            beyond = self.beyond([tensors[name] for name, _ in axes], length)[: MOST_BEYOND - n_beyond]
            n_beyond += len(beyond)
            for other in (*near, *beyond):
                changed = {n: resized(item, n, axes, other) for n, item in drawn.items()}
                outputs = self.tried(sized, changed)
                is_cheap = other in near or self.problem.n_calls <= MOST_CALLS
                if is_cheap and is_finite(outputs) and not self.ignores(sized, changed, outputs, tensors):
                    word = "batch" if first and length == next(iter(tensors.values()))[0] else f"length-{length}"
                    name = f"{word}-first={other}" if first and word != "batch" else f"{word}={other}"
                    yield CheckCase(SINGLE if other == 1 else SIZE, self.case(name, sized, changed))

    def apart(self, sized: Sized, drawn: Mapping[str, Any]) -> Iterator[CheckCase]:
        """Another length of an axis that several inputs have, in one of them or in all but the first, where the
        reference takes that: queries and keys, a source and a target."""
        free = [a for a in sized.arguments if a.is_tensor and "shape" in drawn[a.name]]
        equal: dict[tuple[int, int], list[str]] = {}
        for argument in free:
            for axis, length in enumerate(argument.value.shape[1:], 1):
                equal.setdefault((axis, length), []).append(argument.name)
        before = {a.name: a.value.shape for a in free}
        for (axis, length), names in equal.items():
            groups = [[name] for name in names] + ([names[1:]] if len(names) > 2 else [])
            for group in groups if len(names) > 1 and length > MOST_PARTS else []:
                changed = dict(drawn)
                for name in group:
                    changed[name] = resized(drawn[name], name, [(name, axis)], length + 1)
                outputs = self.tried(sized, changed)
                if is_finite(outputs) and not self.ignores(sized, changed, outputs, before):
                    yield CheckCase(SIZE, self.case(f"{group[0]}-length-{length}={length + 1}", sized, changed))

    def beyond(self, shapes: Sequence[Sequence[int]], length: int) -> list[int]:
        """Lengths of an axis beyond the limits that the candidate's code may have, of the axis or of all elements, as
        far as tensors stay small; one beyond most blocks."""
        n = max(map(math.prod, shapes))
        first = ODD[0] if n // length * ODD[0] <= MOST_RESIZED else 2 * length + 1  # a third block of the same length
        wanted = [first, *(other for limit in self.limits for other in (limit + 1, limit // (n // length) + 1))]
        kept = (other for other in wanted if other > length + 1 and n // length * other <= MOST_RESIZED)
        return list(dict.fromkeys(kept))

    def numbers(self, sized: Sized, drawn: Mapping[str, Any]) -> Iterator[CheckCase]:
        """Other numbers for those among a call's arguments, and for floating-point ones of the constructor: code may
        have them written in."""
        for argument in sized.arguments:
            other = another_number(argument.value) if not argument.is_tensor else None
            if other is not None:
                known = [replace(a, value=other) if a is argument else a for a in sized.arguments]
                yield from self.with_number(replace(sized, arguments=known), drawn, argument.name, other)
        for name, value in sized.init.items():
            other = another_number(value) if isinstance(value, float) else None
            if other is not None:
                init = {**sized.init, name: other}
                yield from self.with_number(replace(sized, init=init), drawn, name.removeprefix(INIT), other)

    def with_number(self, sized: Sized, drawn: Mapping[str, Any], name: str, number: float) -> Iterator[CheckCase]:
        """The case with another number, if the reference takes it, and is not random with it as with a dropout."""
        if is_finite(self.tried(sized, drawn)) and not self.problem.is_random(sized, self.options):
            yield CheckCase(NUMBERS, self.case(f"{name}={number:g}", sized, drawn))

    def meaningful(self, sized: Sized, drawn: Mapping[str, Any]) -> Iterator[CheckCase]:
        """Cases with values that have a meaning, where the reference takes them."""
        for case in meaningful(self.problem, sized, drawn):
            if is_finite(self.tried(sized, drawn, case.arrays)):
                arrays = {name: self.stored(case.name, name, array) for name, array in case.arrays.items()}
                asked = self.case(case.name, sized, {**drawn, **arrays})
                yield CheckCase(case.kind, {**asked, "gradients": False} if case.kind == HALVES else asked)


def of_constructor(value: Size, own: Size) -> Size | None:
    """Another number of the constructor; None for one that makes another problem: a kernel, a window or a group of one
    element, or many times as large, or of an even size for an odd one, whose padding differs at either end."""
    if not 1 < last(value) <= MOST_ENLARGED * last(own):
        return None
    if isinstance(value, int) and isinstance(own, int) and own % 2 and own <= MOST_KERNEL:
        value += value == own + 1
        return value if value % 2 else None
    return value


def names_of(sized: Sized, kind: str) -> set[str]:
    """The arguments that are drawn so."""
    return {argument.name for argument in sized.arguments if argument.kind == kind}


def broadcasts(before: Sized, single: Sized) -> bool:
    """Whether a size has become 1 in some arguments, and other ones still have the length that these had."""
    pairs = [
        (a.value.shape, b.value.shape) for a, b in zip(before.arguments, single.arguments, strict=True) if a.is_tensor
    ]
    lengths = {n for one, other in pairs for n, own in zip(one, other, strict=False) if own == 1 < n}
    return any(lengths & set(one) for one, other in pairs if one == other)


def another_number(value: Any) -> float | None:
    """Another number for one: one more, three quarters of it, not 0; None for other values."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not value:
        return 3 if isinstance(value, int) else 0.25
    return value + 1 if isinstance(value, int) else 0.75 * value


def folder_of(sized: Sized) -> str:
    """The folder of the files of a size."""
    return "-".join(("size", *(f"{name}={value}" for name, value in sized.settings.items())))


def resized(item: Mapping[str, Any], name: str, axes: Collection[tuple[str, int]], length: int) -> dict[str, Any]:
    """An input with another length of some axes."""
    if "shape" not in item:
        return dict(item)
    return {**item, "shape": [length if (name, axis) in axes else n for axis, n in enumerate(item["shape"])]}


def without_draw(item: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """An input without its distribution, if a change brings another one."""
    return {"shape": item["shape"]} if "constant" in change else dict(item)


def can_lie(item: Mapping[str, Any], placement: Any) -> bool:
    """Whether an input can have a memory layout."""
    return "shape" in item and placement(tuple(item["shape"])) is not None


def sorted_sizes(numbers: Mapping[str, Size], limits: Sequence[int] = ()) -> list[tuple[Size, str]]:
    """Other values of globals that are tried: of each, 1, one beyond most blocks, one more, one beyond limits that a
    candidate may have, and others."""
    wanted = [1, ODD[0], None, *(limit + 1 for limit in limits), *ODD[1:]]
    tried = (
        (last(size) + 1 if value is None else value, size, name) for value in wanted for name, size in numbers.items()
    )
    others = [(with_last(size, value), name) for value, size, name in tried if value != last(size)]
    return list({(str(size), name): (size, name) for size, name in others}.values())


def last(size: Size) -> int:
    """A size, or the last of a shape."""
    return size if isinstance(size, int) else size[-1]


def with_last(size: Size, value: int) -> Size:
    """A size, or a shape with this last axis."""
    return value if isinstance(size, int) else type(size)((*size[:-1], value))


def weight_of(weight: Weight) -> Case:
    """Another weight than the initial one, as large as that."""
    shape, values = list(weight.values.shape), weight.values
    if weight.name.endswith("running_var"):
        return {"shape": shape, "uniform": {"low": 0.5, "high": 1.5}}
    if not shape:
        return {"shape": shape, "offset": float(values), "scale": JITTER}
    mean, deviation = float(values.mean()), float(values.std())
    if deviation <= 1e-3 * abs(mean) or deviation == 0:
        return {"shape": shape, "offset": mean, "scale": JITTER}
    return {"shape": shape, "scale": float(f"{deviation:.2g}")}


def sample(name: str, item: Mapping[str, Any]) -> NDArray[Any]:
    """Numbers as a config draws them."""
    draw = next((DISTRIBUTIONS[key], value) for key, value in [*item.items(), ("normal", {})] if key in DISTRIBUTIONS)
    options = draw[1] if isinstance(draw[1], dict) else {"value": draw[1]}
    special = Special(tuple(item["special"]["values"]), item["special"].get("count", 1)) if "special" in item else None
    numbers = item.get("scale", 1.0), item.get("offset", 0.0)
    return TensorPlan(name, tuple(item["shape"]), draw[0](**options), *numbers, special).sample(0, "check", "float32")


def config(problem: ReferenceProblem, asked: Sequence[CheckCase], dtypes: Sequence[str]) -> Case:
    """The config of a pair's cases."""
    reference, candidate = problem.pair.reference, problem.pair.candidate
    names = {REFERENCE: reference, NEW: candidate}
    modes = {REFERENCE: {}, NEW: mode_of(candidate)}
    return {
        "version": 1,
        "backends": [
            {"name": n, "adapter": item.adapter, **modes[n], "ops": str((item.run_path or item.path).absolute())}
            for n, item in names.items()
        ],
        "subject": NEW,
        "dtypes": list(dtypes),
        "cases": [item.case for item in asked],
    }
