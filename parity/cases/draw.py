"""How input tensors are drawn: each distribution is a frozen dataclass whose fields are its YAML keys.

A tensor depends on the run's seed, the case's id and the tensor's own name, and on nothing else: neither the order
of the cases nor a `-k` filter changes a single bit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from parity.cases.dtypes import as_stored, held_by_all

Shape = tuple[int, ...]
Float64 = NDArray[np.float64]


class Draw(Protocol):
    """A distribution: `sample` returns float64 values of the wanted shape."""

    def sample(self, rng: np.random.Generator, shape: Shape) -> Float64:
        """Values of `shape` in float64."""
        ...


@dataclass(frozen=True)
class Normal:
    """Gaussian with `mean` and standard deviation `std`."""

    mean: float = 0.0
    std: float = 1.0

    def sample(self, rng: np.random.Generator, shape: Shape) -> Float64:
        """Values of `shape` in float64."""
        return rng.normal(self.mean, self.std, shape)


@dataclass(frozen=True)
class Uniform:
    """Uniform on [low, high)."""

    low: float = 0.0
    high: float = 1.0

    def sample(self, rng: np.random.Generator, shape: Shape) -> Float64:
        """Values of `shape` in float64."""
        return rng.uniform(self.low, self.high, shape)


@dataclass(frozen=True)
class LogUniform:
    """Positive, with a uniform logarithm between `low` and `high`; `signed` gives each value a random sign."""

    low: float = 1e-3
    high: float = 1e3
    signed: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high:
            raise ValueError("log_uniform needs 0 < low < high")

    def sample(self, rng: np.random.Generator, shape: Shape) -> Float64:
        """Values of `shape` in float64."""
        values = np.exp(rng.uniform(np.log(self.low), np.log(self.high), shape))
        return values * rng.choice((-1.0, 1.0), shape) if self.signed else values


@dataclass(frozen=True)
class Constant:
    """The same `value` everywhere."""

    value: float

    def sample(self, rng: np.random.Generator, shape: Shape) -> Float64:  # noqa: ARG002 - nothing to draw
        """Values of `shape` in float64."""
        return np.full(shape, self.value)


@dataclass(frozen=True)
class NearConstant:
    """`value * (1 + e)` with e uniform on [-relative, relative]: a naive variance fails on it."""

    value: float
    relative: float = 1e-6

    def sample(self, rng: np.random.Generator, shape: Shape) -> Float64:
        """Values of `shape` in float64."""
        return self.value * (1.0 + rng.uniform(-self.relative, self.relative, shape))


@dataclass(frozen=True)
class Integers:
    """Integers from `low` to `high` - 1, equally likely: `high` is exclusive, as in torch.randint."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if self.low >= self.high:
            raise ValueError("integers needs low < high (high is exclusive)")

    def sample(self, rng: np.random.Generator, shape: Shape) -> Float64:
        """Values of `shape` in float64."""
        return rng.integers(self.low, self.high, shape).astype(np.float64)


@dataclass(frozen=True)
class Probabilities:
    """Rows along the last axis that sum to 1 in every dtype: multiples of 1 / `parts`, a power of two."""

    parts: int = 256

    def __post_init__(self) -> None:
        if self.parts < 1 or self.parts & (self.parts - 1):
            raise ValueError("probabilities needs parts that are a power of two")

    def sample(self, rng: np.random.Generator, shape: Shape) -> Float64:
        """Values of `shape` in float64."""
        counts = rng.multinomial(self.parts, rng.dirichlet(np.ones(shape[-1:] or 1), shape[:-1]))
        return np.reshape(counts / self.parts, shape)


@dataclass(frozen=True)
class Values:
    """Literal numbers, nested as the tensor is."""

    values: Any

    @property
    def shape(self) -> Shape:
        """The shape of the nesting."""
        return np.shape(self.values)

    def sample(self, rng: np.random.Generator, shape: Shape) -> Float64:  # noqa: ARG002 - nothing to draw
        """The literal values in float64; `shape` equals `self.shape`."""
        return np.asarray(self.values, dtype=np.float64).reshape(shape)


@dataclass(frozen=True)
class File:
    """A `.npy` file, read without pickle."""

    path: Path

    @property
    def shape(self) -> Shape:
        """The shape in the file's header."""
        return tuple(np.load(self.path, mmap_mode="r", allow_pickle=False).shape)

    def sample(self, rng: np.random.Generator, shape: Shape) -> Float64:  # noqa: ARG002 - nothing to draw
        """The stored values in float64; `shape` equals `self.shape`."""
        return np.asarray(np.load(self.path, allow_pickle=False), dtype=np.float64).reshape(shape)


DISTRIBUTIONS: Mapping[str, type[Draw]] = {
    "normal": Normal,
    "uniform": Uniform,
    "log_uniform": LogUniform,
    "constant": Constant,
    "near_constant": NearConstant,
    "integers": Integers,
    "probabilities": Probabilities,
}
"""YAML key to distribution; literal `values` and a `file` have their own keys."""


@dataclass(frozen=True)
class Special:
    """Puts `values` (nan, inf, -0.0, a subnormal …) in turn at `count` random locations of a tensor."""

    values: tuple[float, ...]
    count: int = 1

    def sprinkle(self, tensor: Float64, rng: np.random.Generator) -> Float64:
        """A copy of `tensor` with the special values in it."""
        result = tensor.copy()
        locations = rng.permutation(result.size)[: self.count]
        result.flat[locations] = np.resize(np.asarray(self.values), locations.size)
        return result


@dataclass(frozen=True)
class TensorPlan:
    """One input tensor: `scale * draw + offset`, then the special values, rounded to every dtype of the case.

    A tensor of `integers` is int64 in every dtype. `layout` is a key of `LAYOUTS`, if it is not contiguous. `alias`:
    another tensor of the same draw, whose memory it shares. `storage`: the narrower dtype of the framework's tensor.
    `fixed`: backends make it themselves, so a diagnosis keeps its values.
    """

    name: str
    shape: Shape
    draw: Draw
    scale: float = 1.0
    offset: float = 0.0
    special: Special | None = None
    integers: bool = False
    layout: str = ""
    alias: str = ""
    storage: str = ""
    fixed: bool = False

    def sample(self, seed: int, case_id: str, *dtypes: str) -> NDArray[Any]:
        """The tensor with values that all `dtypes` have, the same for the same seed, case and name on every machine."""
        rng = generator(seed, case_id, self.alias or self.name)
        values = self.draw.sample(rng, self.shape)
        if self.scale != 1.0 or self.offset != 0.0:
            values = self.scale * values + self.offset
        if self.special is not None:
            values = self.special.sprinkle(values, rng)
        with np.errstate(over="ignore", under="ignore"):
            values = values.astype(np.int64) if self.integers else self.held(values, dtypes)
        return np.ascontiguousarray(values).reshape(self.shape)

    def held(self, values: NDArray[Any], dtypes: Sequence[str]) -> NDArray[Any]:
        """`values` rounded so that each of `dtypes` has them, and the storage."""
        values = held_by_all(values, dtypes)
        return as_stored(values, self.storage) if self.storage else values


def generator(seed: int, *names: str) -> np.random.Generator:
    """An independent random generator for each sequence of names."""
    digest = hashlib.sha256("\0".join(names).encode()).digest()
    return np.random.default_rng([seed, *np.frombuffer(digest[:16], dtype=np.uint32).tolist()])
