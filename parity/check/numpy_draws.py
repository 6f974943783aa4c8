"""How a user's function draws NumPy's arrays: what each call of `numpy.random` draws, also times and plus a number."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

UNIFORM, NORMAL, INTEGERS = "uniform", "normal", "integers"
FUNCTIONS: Mapping[str, str] = {
    **dict.fromkeys(("rand", "random", "random_sample", "uniform"), UNIFORM),
    **dict.fromkeys(("randn", "standard_normal", "normal"), NORMAL),
    **dict.fromkeys(("randint", "integers"), INTEGERS),
}
"""The functions of `numpy.random`, and methods of its generators, that draw; and what."""
SCALING = frozenset((np.add, np.subtract, np.multiply, np.divide))
"""Functions that, with a number, keep how an array is distributed, but for its mean and deviation."""
SEED = 0


class DrawnArray(np.ndarray):
    """An array that knows how it was drawn; what a function makes of it does not, but for the scaling ones."""

    drawn_as = ""

    def __array_finalize__(self, other: Any) -> None:
        self.drawn_as = getattr(other, "drawn_as", "")

    def __array_ufunc__(self, ufunc: Any, method: Any, *inputs: Any, **kwargs: Any) -> Any:
        given = [plain_array(value) for value in inputs]
        if "out" in kwargs:
            kwargs["out"] = tuple(map(plain_array, kwargs["out"]))
        result = getattr(ufunc, method)(*given, **kwargs)
        n_numbers = sum(np.ndim(value) == 0 for value in given)
        if method != "__call__" or ufunc not in SCALING or n_numbers != 1 or self.drawn_as == INTEGERS:
            return result
        return known_as(result, self.drawn_as)

    def __array_function__(self, function: Any, kinds: Any, args: Any, options: Any) -> Any:
        return function(*bare(args), **bare(options))


def plain_array(value: Any) -> Any:
    """An array without what it knows; anything else as it is."""
    return value.view(np.ndarray) if isinstance(value, DrawnArray) else value


def bare(value: Any) -> Any:
    """Nested arguments with plain arrays."""
    if isinstance(value, dict):
        return {name: bare(item) for name, item in value.items()}
    return type(value)(map(bare, value)) if type(value) in (tuple, list) else plain_array(value)


def known_as(value: Any, kind: str) -> Any:
    """An array with how it was drawn; a number as it is."""
    if not isinstance(value, np.ndarray) or not kind:
        return value
    known = value.view(DrawnArray)
    known.drawn_as = kind
    return known


def noting(function: Callable[..., Any], kind: str) -> Callable[..., Any]:
    """A function whose results know how they were drawn."""
    return lambda *args, **options: known_as(function(*args, **options), kind)


class NotingGenerator(np.random.Generator):
    """A generator whose arrays know how they were drawn."""

    def __getattribute__(self, name: str) -> Any:
        own = super().__getattribute__(name)
        return noting(own, FUNCTIONS[name]) if name in FUNCTIONS else own


def noting_generator(seed: Any = None) -> NotingGenerator:
    """As `numpy.random.default_rng`, and the same numbers each time without a seed."""
    return NotingGenerator(np.random.PCG64(SEED if seed is None else seed))


@contextmanager
def noting_draws() -> Iterator[None]:
    """Inside, arrays of `numpy.random` know how they were drawn, after the seed; afterwards its state is as before."""
    own = {name: getattr(np.random, name) for name in (*FUNCTIONS, "default_rng") if hasattr(np.random, name)}
    state = np.random.get_state()
    np.random.seed(SEED)
    for name, function in own.items():
        setattr(np.random, name, noting(function, FUNCTIONS[name]) if name in FUNCTIONS else noting_generator)
    try:
        yield
    finally:
        for name, function in own.items():
            setattr(np.random, name, function)
        np.random.set_state(state)
