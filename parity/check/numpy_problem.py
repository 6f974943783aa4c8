"""The problem that a reference in NumPy poses: a function, whose inputs `get_inputs()` returns as arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from warnings import catch_warnings

import numpy as np
from numpy.typing import NDArray

from parity.cases.brought import arguments, namespace
from parity.check import CheckError
from parity.check.frameworks import NUMPY
from parity.check.numpy_draws import noting_draws, plain_array
from parity.check.pair import FilePair
from parity.check.problem import (
    GIVEN,
    MOST_CALLED,
    NUMBER,
    Argument,
    ReferenceProblem,
    Settings,
    Sized,
    argument_names,
    common_dtype,
    dict_of,
    same,
)
from parity.program.worker.user_module import ARGUMENTS

USUAL_DTYPES = ("float32", "float64", "int64")
"""Dtypes that are not told apart: NumPy's own is float64, and a case's is float32 unless another one is asked for."""


class NumpySized(Sized):
    """The problem at one size; numbers are params as they are."""

    @property
    def params(self) -> dict[str, Any]:
        """The params of a case."""
        return {**{a.name: a.value for a in self.arguments if not a.is_tensor}, ARGUMENTS: self.spec}


class NumpyProblem(ReferenceProblem):
    """A file with a reference in NumPy, loaded in this process."""

    def __post_init__(self) -> None:
        with noting_draws():
            super().__post_init__()
        with self.telling():
            dict_of(namespace(self.source)).update(self.given)
            arguments(self.source, self.pair.reference.name)

    def loaded(self) -> dict[str, Any]:
        """The names that the file defines."""
        return dict_of(namespace(self.source, plain=True))

    @property
    def n_given(self) -> int:
        """The number of elements of the inputs as the file gives them; 0 where they cannot be made."""
        try:
            with self.running({}):
                return sum(np.size(value) for value in self.inputs())
        except CheckError:
            return 0

    @contextmanager
    def running(self, settings: Settings) -> Iterator[None]:
        """Inside, code of the user's file runs with these values of globals; what it raises is a CheckError."""
        with self.telling(), self.having(settings), np.errstate(all="ignore"), catch_warnings(action="ignore"):
            yield

    def cost(self, settings: Settings) -> tuple[int, int] | None:
        """The elements of all arrays, and no operations, which NumPy does not tell; None where the reference fails."""
        try:
            with self.running(settings):
                n_given = sum(np.size(value) for value in self.inputs())
            n_returned = 0 if n_given > MOST_CALLED else sum(map(np.size, self.at(settings).outputs.values()))
        except CheckError:
            return None
        return (n_given + n_returned, 0) if n_given else None

    def at(self, settings: Settings) -> Sized:
        """The problem with these values of globals, and its outputs. Raises CheckError where the reference fails."""
        sized = self.shaped(settings)
        outputs = self.call(sized)
        self.check_masks(sized, outputs)
        return replace(sized, outputs=outputs)

    def shaped(self, settings: Settings) -> Sized:
        """The problem with these values of globals, without outputs. Raises CheckError where the reference fails."""
        with self.running(settings), noting_draws():
            given = self.inputs()
        if isinstance(given, np.ndarray) or not isinstance(given, (list, tuple)):
            raise CheckError(f"{self.inputs.__name__}() returns {type(given).__name__}; return the list of arguments")
        names = argument_names(self.entry)
        if len(given) > len(names):
            raise CheckError(
                f"{self.inputs.__name__}() returns {len(given)} arguments; the reference takes {len(names)}"
            )
        drawn = [array_argument(name, value) for name, value in zip(names, given, strict=False)]
        if not any(a.is_tensor for a in drawn):
            raise CheckError(f"{self.inputs.__name__}() returns no array, so there is nothing to compare")
        dtype = common_dtype(drawn)
        kept = [Argument(a.name, a.kind, "" if a.dtype == dtype else a.dtype, a.value, a.bounds) for a in drawn]
        return NumpySized(dict(settings), {}, kept, [], {}, dtype=dtype)

    def check_masks(self, sized: Sized, outputs: Mapping[str, NDArray[Any]]) -> None:
        """Raise CheckError if the reference needs an array of bool: it is recorded with 0 and 1."""
        masks = {a.name: a.value.astype(bool) for a in sized.arguments if a.dtype == "bool"}
        if masks and not same(outputs, self.call(sized, values=masks)):
            name = next(iter(masks))
            raise CheckError(
                f"{self.pair.reference.location}: {name} is recorded as 0 and 1, for which the reference returns "
                f"something else; write {name} != 0 in it"
            )

    def is_random(self, sized: Sized, options: Mapping[str, Any]) -> bool:  # noqa: ARG002 - as that of PyTorch
        """A reference in NumPy that draws numbers returns something else each time, which is a problem of its own."""
        return False

    def call(
        self,
        sized: Sized,
        options: Mapping[str, Any] | None = None,
        values: Mapping[str, NDArray[Any]] | None = None,
        dtype: str = "",
    ) -> dict[str, NDArray[Any]]:
        """As that of a problem in PyTorch; there are no options."""
        del options
        given = {a.name: a.value for a in sized.arguments} | dict(values or {})
        copies = [np.array(v) if isinstance(v, np.ndarray) else v for v in given.values()]
        copies = [v.astype(dtype) if dtype and isinstance(v, np.ndarray) and v.dtype.kind == "f" else v for v in copies]
        with self.running(sized.settings):
            result = self.entry(*copies)
        outputs = result if isinstance(result, Mapping) else {"y": result}
        wrong = [value for value in outputs.values() if not isinstance(value, (np.ndarray, np.generic, int, float))]
        if wrong:
            raise CheckError(
                f"{self.pair.reference.location} returns {type(wrong[0]).__name__}; return an array, or a mapping of "
                "arrays by name"
            )
        return {name: np.asarray(value) for name, value in outputs.items()}


def array_argument(name: str, value: Any) -> Argument:
    """One argument, with how it was drawn. Raises CheckError for one that cannot be recorded."""
    kind = getattr(value, "drawn_as", "") or GIVEN
    value = plain_array(value)
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, np.ndarray):
        if hasattr(value, "shape"):
            raise CheckError(f"{name} is {type(value).__name__} of {type(value).__module__}; give NumPy's arrays")
        return Argument(name, NUMBER, "", value)
    if value.dtype.kind not in "fiub":
        raise CheckError(f"{name} is an array of {value.dtype}: not supported")
    dtype = "" if str(value.dtype) in USUAL_DTYPES else str(value.dtype)
    if value.dtype.kind == "f":
        return Argument(name, kind, dtype, value.astype(np.float32))
    array = value.astype(np.int64)
    return Argument(name, kind, dtype, array, (int(array.min(initial=0)), int(array.max(initial=0)) + 1))


def problem_of(pair: FilePair, given: Settings) -> ReferenceProblem:
    """The problem of a pair's reference. Raises CheckError."""
    return (NumpyProblem if pair.reference.adapter == NUMPY else ReferenceProblem)(pair, given)
