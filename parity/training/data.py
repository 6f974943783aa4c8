"""Data sets that a small model can learn, drawn from the run's seed and the case's id.

A generator's options are a frozen dataclass whose fields are its YAML keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.cases.draw import Float64, Shape, generator
from parity.cases.op import CaseError
from parity.outcome import Array
from parity.training.spec import DataSpec, Training

IGNORED = -100
"""The target of a position that the loss ignores (ignore_index of torch.nn.functional.cross_entropy)."""

INTEGERS = "int64"


@dataclass(frozen=True)
class Classification:
    """Gaussian noise around a random centre for each class; `features` is the shape of an example, or its length."""

    features: int | tuple[int, ...]
    classes: int


@dataclass(frozen=True)
class Regression:
    """The `targets` outputs of a random network with one hidden layer for normal `features`, with some noise."""

    features: int | tuple[int, ...]
    targets: int = 1


@dataclass(frozen=True)
class MaskedLm:
    """Sequences of tokens, each mostly determined by the one before; a share `masked` of them is to be predicted.

    Tokens are 0 .. `vocab` - 2; `vocab` - 1 is the mask. Each token is masked with that probability, at
    least one in a sequence: sequences have different numbers of them.
    """

    vocab: int
    sequence: int
    masked: float = 0.15


def lengths(features: int | tuple[int, ...]) -> Shape:
    """`features` as a shape."""
    return (features,) if isinstance(features, int) else tuple(features)


NOISE = 0.1
DISTANCE = 3.0
"""Distance of a class's centre from 0 in standard deviations of the noise; most examples are then separable."""


def classification(options: Classification, rows: int, rng: np.random.Generator) -> tuple[Float64, NDArray[np.int64]]:
    """x [rows, *features] in float64, classes [rows]."""
    shape = lengths(options.features)
    centres = rng.normal(size=(options.classes, *shape)) * DISTANCE / np.prod(shape) ** 0.5
    target = rng.integers(0, options.classes, rows)
    return rng.normal(size=(rows, *shape)) + centres[target], target


HIDDEN = 16


def regression(options: Regression, rows: int, rng: np.random.Generator) -> tuple[Float64, Float64]:
    """x [rows, *features] and targets [rows, targets] in float64."""
    shape = lengths(options.features)
    n = int(np.prod(shape))
    x, inner = rng.normal(size=(rows, n)), rng.normal(size=(n, HIDDEN)) * 2 / n**0.5
    outer = rng.normal(size=(HIDDEN, options.targets)) / HIDDEN**0.5
    target = np.tanh(x @ inner) @ outer + NOISE * rng.normal(size=(rows, options.targets))
    return x.reshape(rows, *shape), target


FOLLOWERS = (0.6, 0.2, 0.1, 0.1)
"""The probability of each of a token's successors."""


def masked_lm(options: MaskedLm, rows: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Tokens [rows, sequence], and the targets: the masked tokens, and IGNORED elsewhere."""
    tokens = chains(options.vocab - 1, rows, options.sequence, rng)
    drawn = rng.random(tokens.shape)
    masked = (drawn < options.masked) | (drawn == drawn.min(axis=1, keepdims=True))
    return np.where(masked, options.vocab - 1, tokens), np.where(masked, tokens, IGNORED)


def chains(n: int, rows: int, length: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Markov chains [rows, length] of tokens 0 .. `n` - 1; low tokens are frequent, as words are (Zipf's law)."""
    frequent = 1.0 / np.arange(1, n + 1)
    frequent /= frequent.sum()
    followers = rng.choice(n, (n, len(FOLLOWERS)), p=frequent)
    which = rng.choice(len(FOLLOWERS), (rows, length), p=FOLLOWERS)
    tokens = np.empty((rows, length), np.int64)
    tokens[:, 0] = rng.choice(n, rows, p=frequent)
    for i in range(1, length):
        tokens[:, i] = followers[tokens[:, i - 1], which[:, i]]
    return tokens


@dataclass(frozen=True)
class GeneratorKind:
    """A generator of data sets: its options, and `draw(options, rows, rng)`.

    `x`, `target` and `output` give the shapes of an example, its target and the model's output for it. `tokens` is the
    number of different integers in x, None if x holds floats. `loss` is the loss that such a model is trained with.
    """

    name: str
    summary: str
    options: type[Any]
    x: Callable[[Any], Shape]
    target: Callable[[Any], Shape]
    output: Callable[[Any], Shape]
    draw: Callable[[Any, int, np.random.Generator], tuple[Array, Array]]
    loss: str
    tokens: Callable[[Any], int] | None = None


GENERATORS: Mapping[str, GeneratorKind] = {
    kind.name: kind
    for kind in (
        GeneratorKind(
            "classification",
            "noise around a centre per class",
            Classification,
            x=lambda options: lengths(options.features),
            target=lambda _: (),
            output=lambda options: (options.classes,),
            draw=classification,
            loss="cross_entropy",
        ),
        GeneratorKind(
            "regression",
            "what a random network answers",
            Regression,
            x=lambda options: lengths(options.features),
            target=lambda options: (options.targets,),
            output=lambda options: (options.targets,),
            draw=regression,
            loss="mse_loss",
        ),
        GeneratorKind(
            "masked_lm",
            "tokens that follow from each other, some of them masked",
            MaskedLm,
            x=lambda options: (options.sequence,),
            target=lambda options: (options.sequence,),
            output=lambda options: (options.sequence, options.vocab),
            draw=masked_lm,
            loss="cross_entropy",
            tokens=lambda options: int(options.vocab),
        ),
    )
}
"""Every generator, by its name in a config."""


def check(options: Any) -> None:
    """Raise CaseError, keyed by the option, for a data set that cannot be drawn."""
    least = {"classes": 2, "vocab": 3}
    for name, value in vars(options).items():
        if name == "masked":
            if not 0.0 < value <= 1.0:
                raise CaseError(name, f"masked must be above 0 and at most 1, not {value}")
            continue
        numbers = lengths(value)
        if not numbers or min(numbers) < least.get(name, 1):
            raise CaseError(name, f"{name} must be {least.get(name, 1)} or more, not {value}")


def generate(data: DataSpec, seed: int, case_id: str, dtype: str) -> tuple[Array, Array]:
    """The data set: x [rows, *data.x] and target [rows, *data.target].

    Floats are rounded to `dtype`, the case's coarsest; integers are int64.
    """
    kind = GENERATORS[data.name]
    drawn = kind.draw(kind.options(**data.options), data.rows, generator(seed, case_id, "data"))
    x, target = (v.astype(INTEGERS if v.dtype.kind == "i" else dtype) for v in drawn)
    return np.ascontiguousarray(x), np.ascontiguousarray(target)


def order(training: Training, seed: int, case_id: str) -> NDArray[np.int32]:
    """The rows that each step takes, [steps, batch_size].

    An epoch is a permutation of all rows (or all rows in order) in whole batches; the remainder is dropped. Raises
    CaseError if the rows do not fill a batch.
    """
    rows, batch = training.data.rows, training.batch_size
    if rows < batch:
        raise CaseError("batch_size", f"a batch of {batch} is larger than the data, {rows} rows")
    per_epoch = rows // batch
    epochs = -(-training.steps // per_epoch)
    rng = generator(seed, case_id, "order")
    shuffled = training.data.order == "shuffled"
    orders = [rng.permutation(rows) if shuffled else np.arange(rows) for _ in range(epochs)]
    batches = [epoch[: per_epoch * batch].reshape(per_epoch, batch) for epoch in orders]
    return np.concatenate(batches)[: training.steps].astype(np.int32)
