"""Reveals the order of a sum exactly, with numbers so large that they absorb others.

Xie, Gao, Wang, Xue, "Revealing floating-point accumulation orders in software/hardware implementations" (FPRev,
arXiv:2411.00442): put M at index i, -M at index j and ones elsewhere, M so large that M + 1 = M. The sum then counts
the ones that are added after M and -M have met, so n - sum is the number of terms l(i, j) below the node of the
summation tree where i and j meet. Only the pairs (0, j) and (i, i + 1) are probed; they distinguish sequences, blocks,
lanes and pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.fingerprint.claims import KernelClaim, undecided

Ints = NDArray[np.int64]


def pairs(n: int) -> list[tuple[int, int]]:
    """The pairs that are probed for n terms: (0, j) for j >= 1, then (i, i + 1) for i >= 1."""
    return [(0, j) for j in range(1, n)] + [(i, i + 1) for i in range(1, n - 1)]


def patterns(n: int, huge: float, ones: float = 1.0) -> NDArray[np.float64]:
    """(number of pairs, n): one row of terms for each of `pairs(n)`."""
    rows = np.full((2 * n - 3, n), ones)
    for row, (i, j) in zip(rows, pairs(n), strict=True):
        row[i], row[j] = huge, -huge
    return rows


@dataclass(frozen=True)
class Meetings:
    """l(0, j) for j = 1 .. n - 1 and l(i, i + 1) for i = 0 .. n - 2: how many terms meet at once."""

    from_first: Ints
    neighbours: Ints

    @property
    def n(self) -> int:
        """How many terms the sum has."""
        return len(self.from_first) + 1

    @property
    def exact(self) -> bool:
        """Whether no term was absorbed."""
        return bool((self.from_first == 2).all() and (self.neighbours == 2).all())


def meetings(n: int, sums: NDArray[Any]) -> Meetings | None:
    """From the sums of `patterns`; None if they are not counts, so that it is not a plain sum."""
    missing = n - np.asarray(sums, np.float64)
    if not np.isfinite(missing).all() or np.abs(missing - np.rint(missing)).max() > 0.02:
        return None
    counts = np.rint(missing).astype(np.int64)
    if counts.min() < 2 or counts.max() > n:
        return None
    return Meetings(counts[: n - 1], np.concatenate([counts[:1], counts[n - 1 :]]))


def order_name(met: Meetings) -> str:
    """The order in words; empty if the tree has no name."""
    n, first, neighbours = met.n, met.from_first, met.neighbours
    positions = np.arange(1, n)
    if (first == n).all() and (neighbours == n).all():
        return "all terms at once"
    if (neighbours == positions + 1).all():
        return "sequential"
    if (neighbours == n + 1 - positions).all():
        return "sequential from the last term"
    if (neighbours == 2 * (positions & -positions)).all():
        return "pairwise"
    return _blocks(met) or _lanes(met)


def _blocks(met: Meetings) -> str:
    """Contiguous blocks, each summed in sequence: within a block, l(i, i + 1) counts up."""
    starts = [0]
    for position, count in enumerate(met.neighbours):
        if count != position - starts[-1] + 2:
            starts.append(position + 1)
    sizes = np.diff([*starts, met.n])
    if len(sizes) < 2 or np.median(sizes) < 4:
        return ""
    even = len(set(sizes[:-1].tolist())) == 1 and sizes[-1] <= sizes[0]
    text = f"{sizes[0]}" if even else ", ".join(map(str, sizes[:6])) + (", …" if len(sizes) > 6 else "")
    return f"sequential in blocks of {text}, the blocks {_joined(met.from_first[np.array(starts[1:]) - 1])}"


def _lanes(met: Meetings) -> str:
    """Strided lanes: term 0 first meets term s, then 2s, ...; in unaligned memory after a few neighbours."""
    path = _path(met.from_first)
    steps = np.diff([0, *path])
    head = int(np.argmax(steps > 1)) if (steps > 1).any() else len(steps)
    if head == len(steps) or len(steps) - head < 2:
        return ""
    stride = int(steps[head])
    run = head + int(np.argmax([*(steps[head:] != stride), True]))
    block = path[run - 1] + stride
    if any(len(set(met.from_first[head + lane - 1 : block - 1 : stride].tolist())) != 1 for lane in range(1, stride)):
        return ""
    whole = f"{stride} lanes, each in sequence"
    if head:
        return f"{whole}, after the first {head} terms"
    if block + stride <= met.n:
        later = met.from_first[block - 1 :: block]
        return f"{whole} over blocks of {block}, the blocks {_joined(later)}"
    return f"{whole}, the lanes {_joined(met.from_first[: stride - 1])}"


def _path(first: Ints) -> list[int]:
    """The indices that join term 0 one at a time, in that order."""
    path: list[int] = []
    while len(joining := np.flatnonzero(first == len(path) + 2)) == 1:
        path.append(int(joining[0]) + 1)
    return path


def _joined(met: Ints) -> str:
    """How lanes or blocks are combined, from the number of terms at which the first meets each other one."""
    kinds = len(np.unique(met))
    if kinds == len(met) == 1:
        return "joined"
    if kinds == len(met) and (np.diff(met) > 0).all():
        return "joined in sequence"
    if kinds == len(met) and (np.diff(met) < 0).all():
        return "joined in sequence from the last"
    return "joined in a tree"


def run_lengths(values: Sequence[int] | Ints, most: int = 12) -> str:
    """`2 3 4 .. 64`-like text: values with their repetitions, shortened."""
    edges = [i for i in range(len(values)) if i == 0 or values[i] != values[i - 1]]
    spans = [(int(values[i]), j - i) for i, j in zip(edges, [*edges[1:], len(values)], strict=True)]
    shown = [f"{value}" if n == 1 else f"{value}×{n}" for value, n in spans[:most]]
    return " ".join(shown) + (" …" if len(spans) > most else "")


def name_sum(n: int, huge: NDArray[Any], immense: NDArray[Any], dtype: str) -> KernelClaim:
    """The order of a sum and its accumulator.

    `immense` are the sums of patterns whose M absorbs ones in every dtype, `huge` of those whose M does so in `dtype`
    only: if the ones survive next to `huge`, the accumulator is wider.
    """
    narrow = meetings(n, huge)
    met = meetings(n, immense) or narrow
    if met is None:
        shown = [float(value) for value in np.asarray(huge, np.float64)[[0, 1, n // 2, n - 2]]]
        reason = "the result does not count terms, so it is not a plain sum"
        return undecided(reason, {"terms": n, "some of the sums": shown})
    wide = narrow is not None and narrow.exact
    evidence = {
        "terms": n,
        "l(0,j)": run_lengths(met.from_first),
        "l(i,i+1)": run_lengths(met.neighbours),
        "ones survive next to a huge term": wide,
    }
    if met.exact:
        return KernelClaim(f"accumulated in a wider precision than {dtype}", "no term was absorbed", evidence)
    name = order_name(met) or "a tree of unknown shape"
    suffix = f", accumulated in a wider precision than {dtype}" if wide else ""
    return KernelClaim(name + suffix, evidence=evidence)
