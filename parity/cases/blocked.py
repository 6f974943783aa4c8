"""Large cases a few rows at a time: temporaries stay in cache, and memory stays bounded.

A trial on a few random rows shows whether an op allows it: an output is `ROWS` if a part of the rows gives that part of
the output, `SUM` if the outputs of the parts add up to that of the whole. A batch normalisation is neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.cases.draw import generator
from parity.cases.op import GRADIENT, Op

Array = NDArray[Any]
Tensors = Mapping[str, Array]
Evaluate = Callable[[Tensors], Tensors]

LARGE = 1 << 19
"""From this number of input elements on, rows are taken a few at a time: above it, temporaries leave the cache."""
BLOCK = 1 << 18
"""Elements of the inputs' rows in a block; at least as many as the inputs without rows have."""
TRIED = 2
CLOSE = 1e-9
ROWS, SUM = "rows", "sum"


def rows_of(op: Op, tensors: Tensors) -> Iterator[frozenset[str]]:
    """The tensors that may share their first axis with the data: all of that length, or those without a gradient."""
    data = tensors.get(op.data or "")
    if data is None or not data.ndim:
        return
    alike = [name for name, values in tensors.items() if values.ndim and len(values) == len(data)]
    arriving = [name for name in alike if name == op.data or name.startswith(GRADIENT)]
    yield from dict.fromkeys((frozenset(alike), frozenset(arriving)))


def split(op: Op, tensors: Tensors, run: Evaluate) -> tuple[frozenset[str], dict[str, str]] | None:
    """The tensors that are cut into rows, and the kind of each output (ROWS or SUM); None if an output is neither."""
    for names in rows_of(op, tensors):
        rng = generator(0, op.name, "rows")
        tried = {name: few(values, name in names, rng) for name, values in tensors.items()}
        first, second = ({n: v[part] if n in names else v for n, v in tried.items()} for part in HALVES)
        try:
            kinds = kinds_of(run(tried), run(first), run(second))
        except (ValueError, IndexError, TypeError):
            continue
        if all(kinds.values()):
            return names, kinds
    return None


HALVES = (slice(None, TRIED), slice(TRIED, None))


def few(values: Array, cut: bool, rng: np.random.Generator) -> Array:
    """Random numbers instead of a tensor, for a few rows if it is `cut`; integers are some of its own."""
    shape = (2 * TRIED, *values.shape[1:]) if cut else values.shape
    if values.dtype.kind != "f":
        return rng.choice(values.ravel(), shape) if values.size else values
    return rng.uniform(0.5, 1.5, shape)


def kinds_of(whole: Tensors, first: Tensors, second: Tensors) -> dict[str, str]:
    """The kind of each output, "" if it is neither."""
    kinds = dict.fromkeys(whole, "")
    for name, values in whole.items():
        parts = first[name], second[name]
        if values.ndim and len(values) == 2 * TRIED and all(len(part) == TRIED for part in parts):
            kinds[name] = ROWS if same(values, np.concatenate(parts)) else ""
        elif values.shape == parts[0].shape == parts[1].shape:
            kinds[name] = SUM if same(values, parts[0] + parts[1]) else ""
    return kinds


def same(one: Array, other: Array) -> bool:
    """Whether two tensors hold the same finite numbers, up to rounding."""
    return one.shape == other.shape and np.allclose(one, other, CLOSE, CLOSE) and bool(np.isfinite(one).all())


def in_blocks(tensors: Tensors, names: frozenset[str], kinds: Mapping[str, str], run: Evaluate) -> dict[str, Array]:
    """The outputs of `run` for all rows, a block at a time."""
    n_rows = len(tensors[min(names)])
    shared = sum(values.size for name, values in tensors.items() if name not in names)
    block = max(1, max(BLOCK, shared) * n_rows // sum(tensors[name].size for name in names))
    results: dict[str, Array] = {}
    for start in range(0, n_rows, block):
        part = slice(start, start + block)
        for name, values in run({n: v[part] if n in names else v for n, v in tensors.items()}).items():
            if kinds[name] == ROWS:
                if name not in results:
                    results[name] = np.empty((n_rows, *values.shape[1:]), values.dtype)
                results[name][part] = values
            elif name in results:
                results[name] += values
            else:
                results[name] = values.copy()
    return results
