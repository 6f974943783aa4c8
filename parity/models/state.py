"""The mapping of parameters between two ports: proposed, read from a file, checked, and applied."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from parity.dumps.matching import Matching, TensorSummary, match
from parity.models.layer_ops import op_of
from parity.models.layouts import Layout, inverse, layout_of
from parity.models.ports import Array, RemotePort, TensorInfo
from parity.models.worker.tape import Recorded, TensorTape

FUSED = (2, 3)
"""Projections that are often one parameter: key and value, or query, key and value."""
MOST_LISTED = 8
UNTIED = "untied"
"""How a parameter is matched whose partner is tied to another one."""


class MappingError(ValueError):
    """The parameters of two ports do not match; the message lists them."""


@dataclass(frozen=True)
class Move:
    """How a tensor of a port is made of the baseline's tensors.

    The `sources` are joined along the first axis, or `part` i of n is cut from it; the result is reshaped to `split`
    and its `axes` are permuted. `how` says how the match was found, `doubt` why it may be wrong. With `eps`, the first
    four sources are a BatchNorm's weight, bias, mean and variance, by which the fifth is scaled or shifted.
    """

    target: str
    sources: tuple[str, ...]
    axes: tuple[int, ...] = ()
    part: tuple[int, int] | None = None
    how: str = "name"
    doubt: str = ""
    split: tuple[int, ...] = ()
    eps: float | None = None

    def apply(self, arrays: Sequence[Array], shape: tuple[int, ...]) -> Array:
        """The port's tensor of this shape. Raises ValueError if the numbers of elements differ."""
        if self.eps is not None:
            return folded([array.astype(np.float64) for array in arrays], self.eps, shape).astype(arrays[0].dtype)
        whole = arrays[0] if len(arrays) == 1 else np.concatenate(list(arrays))
        if self.part is not None:
            whole = np.split(whole, self.part[1])[self.part[0]]
        whole = whole.reshape(self.split) if self.split else whole
        return np.ascontiguousarray(whole.transpose(self.axes) if self.axes else whole).reshape(shape)

    def undone(self, array: Array, shape: tuple[int, ...]) -> Array:
        """The port's tensor in the baseline's layout and this shape, for a single source."""
        split = [(self.split or shape)[i] for i in self.axes] if self.axes else array.shape
        whole = array.reshape(split)
        return (whole.transpose(inverse(self.axes)) if self.axes else whole).reshape(shape)

    def shares(self, array: Array, grads: Sequence[Array]) -> list[Array]:
        """The port's gradient of the tensor, split into one per source, in the baseline's layout.

        Where the port has only a part of a source, the rest is taken from the baseline's `grads`.
        """
        if self.part is not None:
            length, (i, n) = len(grads[0]), self.part
            mine = slice(i * length // n, (i + 1) * length // n)
            whole = grads[0].astype(array.dtype, copy=True)
            whole[mine] = self.undone(array, whole[mine].shape)
            return [whole]
        if len(grads) == 1:
            return [self.undone(array, grads[0].shape)]
        lengths = [len(grad) for grad in grads]
        joined = self.undone(array, (sum(lengths), *grads[0].shape[1:]))
        return np.split(joined, np.cumsum(lengths)[:-1])

    def row(self) -> dict[str, Any]:
        """The entry in a mapping file."""
        row: dict[str, Any] = {"from": self.sources[0] if len(self.sources) == 1 else list(self.sources)}
        row |= {"shape": list(self.split)} if self.split else {}
        row |= {"axes": list(self.axes)} if self.axes else {}
        return row | ({"part": list(self.part)} if self.part is not None else {})


def folded(arrays: Sequence[Array], eps: float, shape: tuple[int, ...]) -> Array:
    """The weight, or for one axis the bias, of a convolution with the BatchNorm after it folded in."""
    weight, bias, mean, variance, *own = arrays
    scale = weight / np.sqrt(variance + eps)
    if len(shape) > 1:
        return own[0] * scale.reshape(-1, *[1] * (len(shape) - 1))
    return ((own[0] if own else 0.0) - mean) * scale + bias


def canonical(port: RemotePort, info: TensorInfo) -> tuple[TensorSummary, Layout]:
    """A tensor with PyTorch's name and shape, and the layout that converts it."""
    owner, _, name = info.name.rpartition(".")
    layout = layout_of(port.spec.adapter, port.layers[owner], name)
    order = list(port.tensors).index(info.name)
    name = f"{owner}.{layout.name}" if owner else layout.name
    op = op_of(port.layers[owner])
    return TensorSummary(name, layout.shape(info.shape), info.dtype, order, layer=op.name if op else ""), layout


class ParameterMatcher:
    """Matches both ports' tensors by PyTorch's names, without tied ones."""

    def __init__(self, base: RemotePort, other: RemotePort) -> None:
        self.base, self.other = base, other
        self._ours, self._theirs = (
            {entry.name: (info, entry, layout) for info in port.tensors.values() if not info.tied
             for entry, layout in (canonical(port, info),)}
            for port in (base, other)
        )  # fmt: skip

    def proposed(self, given: Mapping[str, Move]) -> tuple[list[Move], Matching]:
        """The moves that names, shapes and order suggest for tensors not in `given`, and the matching."""
        used = {source for move in given.values() for source in move.sources}
        left = [entry for info, entry, _ in self._ours.values() if info.name not in used]
        right = [entry for info, entry, _ in self._theirs.values() if info.name not in given]
        matching = match(left, right)
        moves = []
        for pair in matching.pairs:
            (ours, _, ours_in), (theirs, _, theirs_in) = self._ours[pair.left], self._theirs[pair.right]
            axes, split = moved(ours_in, theirs_in, theirs.shape, pair.transform.axes)
            moves.append(Move(theirs.name, (ours.name,), axes, None, pair.how.value, pair.doubt, split))
        return [*moves, *self._fused(matching), *self._untied(matching)], matching

    def _untied(self, matching: Matching) -> Iterator[Move]:
        """Moves of parameters that are tied in the baseline only."""
        tied = {entry.name: (info, layout) for info in self.base.tensors.values() if info.tied
                for entry, layout in (canonical(self.base, info),)}  # fmt: skip
        for name in matching.right_only:
            if name in tied:
                (info, ours_in), (theirs, _, theirs_in) = tied[name], self._theirs[name]
                first = self.base.tensors[info.tied]
                if sorted(first.shape) == sorted(theirs.shape):
                    axes, split = moved(ours_in, theirs_in, theirs.shape)
                    yield Move(theirs.name, (first.name,), axes, None, UNTIED, split=split)

    def _fused(self, matching: Matching) -> Iterator[Move]:
        """Moves of parameters that are one in one port, and several adjacent ones of one shape in the other."""
        for names, many, one in (
            (matching.right_only, matching.left_only, True),
            (matching.left_only, matching.right_only, False),
        ):
            whole, parts = (self._theirs, self._ours) if one else (self._ours, self._theirs)
            left = [parts[name] for name in many]
            for name in names:
                info, entry, layout = whole[name]
                group = next((run for n in FUSED for run in neighbours(left, n, entry)), None)
                if group is None:
                    continue
                left = [item for item in left if item not in group]
                if one:
                    axes, split = moved(Layout(""), layout, info.shape)
                    yield Move(info.name, tuple(i.name for i, _, _ in group), axes, None, "fused", split=split)
                else:
                    for i, (target, _, own) in enumerate(group):
                        axes, split = moved(Layout(""), own, target.shape)
                        yield Move(target.name, (info.name,), axes, (i, len(group)), "fused", split=split)


def moved(
    ours: Layout, theirs: Layout, shape: tuple[int, ...], between: Sequence[int] = ()
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The order of axes, and the shape before it, that convert our layout to theirs, where the tensor has this shape.

    `between` is the order of axes from theirs to ours in PyTorch's layout.
    """
    if ours == theirs and not between:
        return (), ()
    if theirs.merged and (ours.axes or ours.merged):
        raise MappingError(f"{list(shape)}: its axes are merged in PyTorch, and the baseline's layout is another one")
    if theirs.merged:
        return composed([inverse(theirs.axes)]), theirs.ordered(shape)
    return composed([ours.axes, inverse(between), inverse(theirs.axes)]), ()


def composed(steps: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The composition of several orders of axes; empty for the identity."""
    axes: tuple[int, ...] = ()
    for step in steps:
        if step:
            axes = tuple(axes[i] for i in step) if axes else tuple(step)
    return () if axes == tuple(range(len(axes))) else axes


def neighbours(entries: Sequence[Any], n: int, whole: TensorSummary) -> Iterator[list[Any]]:
    """Groups of n adjacent tensors with equal last words and shapes that together have the shape of `whole`."""
    role = whole.name.rpartition(".")[2].rpartition("_")[2]
    alike = [item for item in entries if item[1].name.endswith(role) and item[1].shape[1:] == whole.shape[1:]]
    for i in range(len(alike) - n + 1):
        group = alike[i : i + n]
        if len({item[1].shape for item in group}) == 1 and n * group[0][1].shape[0] == whole.shape[0]:
            yield group


def mapped(base: RemotePort, other: RemotePort, path: Path | None) -> tuple[list[Move], list[str]]:
    """The moves from the baseline to another port, and remarks. Raises MappingError for an unmatched parameter."""
    given = read(path, base, other) if path is not None else {}
    proposed, matching = ParameterMatcher(base, other).proposed(given)
    moves = [*given.values(), *proposed]
    check(base, other, moves)
    notes = [f"{move.target}: {move.doubt}" for move in moves if move.doubt]
    return moves, [*notes, *matching.notes]


def check(base: RemotePort, other: RemotePort, moves: Sequence[Move]) -> None:
    """Raise MappingError unless every parameter of both ports is used once, in shapes that fit."""
    targets = {move.target for move in moves}
    once = [move for move in moves if move.how != UNTIED]
    parts = {(source, move.part and move.part[0]) for move in once for source in move.sources}
    problems = []
    for port, used, peers in ((base, {s for s, _ in parts}, other), (other, targets, base)):
        left = [info for info in port.tensors.values() if info.trained and not info.tied and info.name not in used]
        problems += [f"{port.name}'s {info.name} {list(info.shape)} has no partner in {peers.name}{near(info, peers)}"
                     for info in left]  # fmt: skip
    if sum(len(move.sources) for move in once) != len(parts):
        problems.append("a tensor of the baseline is used twice")
    for move in moves:
        size = sum(np.prod(base.tensors[source].shape, dtype=int) for source in move.sources)
        size //= 1 if move.part is None else move.part[1]
        if size != np.prod(other.tensors[move.target].shape, dtype=int):
            shapes = ", ".join(f"{source} {list(base.tensors[source].shape)}" for source in move.sources)
            problems.append(f"{move.target} {list(other.tensors[move.target].shape)} cannot be made of {shapes}")
        elif move.split and np.prod(move.split, dtype=int) != size:
            problems.append(f"{move.target}: its source has {size} elements, which is not the shape {list(move.split)}")
    if problems:
        problems = [*blocks_apart(base, other), *problems]
        more = f"; and {len(problems) - MOST_LISTED} more" if len(problems) > MOST_LISTED else ""
        raise MappingError("; ".join(problems[:MOST_LISTED]) + more)


NUMBERED = re.compile(r"(.*?)\.?(\d+)\.")


def blocks_apart(base: RemotePort, other: RemotePort) -> list[str]:
    """A message if the longest list of layers has another length in the other port."""
    longest = []
    for port in (base, other):
        lists: dict[str, list[str]] = {}
        for name in port.tensors:
            if numbered := NUMBERED.match(name):
                lists.setdefault(numbered[1], []).append(numbered[2])
        prefix, numbers = max(lists.items(), key=lambda item: len(item[1]), default=("", []))
        longest.append((port.name, prefix, len(set(numbers))))
    (mine, first, n), (theirs, second, m) = longest
    if not n or not m or n == m:
        return []
    return [
        f"{mine} has {n} layers {first}.0 to {first}.{n - 1}, {theirs} has {m} layers {second}.0 to {second}.{m - 1}"
    ]


def near(info: TensorInfo, port: RemotePort) -> str:
    """A text about the closest candidates in another port."""
    alike = [t.name for t in port.tensors.values() if sorted(t.shape) == sorted(info.shape)]
    nearest = get_close_matches(info.name, alike, 2, 0.0) or get_close_matches(info.name, list(port.tensors), 1, 0.0)
    tied = [t.name for t in port.tensors.values() if t.tied and t.name == info.name]
    if tied:
        return f", where it shares the memory of {port.tensors[tied[0]].tied}"
    return f" (nearest: {', '.join(f'{name} {list(port.tensors[name].shape)}' for name in nearest)})" if nearest else ""


def stored(base: RemotePort, other: RemotePort, moves: Sequence[Move], folder: Path) -> None:
    """Write the state of a port, made of the baseline's; tensors without a move keep their initial values."""
    ours, theirs, tape = Recorded(str(base.state)), Recorded(str(other.state)), TensorTape(str(folder))
    by_target = {move.target: move for move in moves}
    for name in theirs:
        move = by_target.get(name)
        shape = other.tensors[name].shape
        array = theirs.load(name) if move is None else move.apply([ours.load(s) for s in move.sources], shape)
        tape.put(name, array)
    tape.close()


def written(moves: Mapping[str, Sequence[Move]]) -> str:
    """The mapping as YAML, by backend."""
    lines = ["# Which parameter of each backend is made of which of the baseline; `mapping: FILE` in the case uses it."]
    for backend, theirs in moves.items():
        lines.append(f"{text(backend)}:")
        for move in theirs:
            if move.eps is not None:
                lines.append(f"  # {text(move.target)}: {', '.join(move.sources)}, folded into one")
                continue
            remark = move.how + (f"; {move.doubt}" if move.doubt else "")
            row = yaml.safe_dump(move.row(), default_flow_style=True, width=10_000).strip()
            lines.append(f"  {text(move.target)}: {row}  # {remark}")
    return "\n".join(lines) + "\n"


def text(word: str) -> str:
    """A word in YAML."""
    return str(yaml.safe_dump(word, width=10_000).strip().removesuffix("...").strip())


def read(path: Path, base: RemotePort, other: RemotePort) -> dict[str, Move]:
    """The moves of a mapping file for a port; raises MappingError with the file and the entry."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise MappingError(f"{path} cannot be read: {error}") from error
    rows = document.get(other.name, {}) if isinstance(document, dict) else None
    if not isinstance(rows, dict):
        raise MappingError(f"{path}: it must be a mapping of backends to their tensors")
    return {target: parsed(path, str(target), row, base, other) for target, row in rows.items()}


def parsed(path: Path, target: str, row: Any, base: RemotePort, other: RemotePort) -> Move:
    """One entry; raises MappingError."""
    row = {"from": row} if isinstance(row, (str, list)) else row
    if not isinstance(row, dict) or not {"from"} <= row.keys() <= {"from", "shape", "axes", "part"}:
        raise MappingError(
            f"{path}: {target}: it must be {{from: NAME, axes: [1, 0], part: [0, 3]}}; from may be a list"
        )
    sources = tuple(row["from"]) if isinstance(row["from"], list) else (row["from"],)
    for name, port in ((target, other), *((source, base) for source in sources)):
        if name not in port.tensors:
            close = get_close_matches(str(name), list(port.tensors), 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise MappingError(f"{path}: {port.name} has no tensor {name}{hint}")
    axes, part, split = row.get("axes", []), row.get("part"), row.get("shape", [])
    if split and not (isinstance(split, list) and all(type(n) is int and n > 0 for n in split)):
        raise MappingError(f"{path}: {target}: shape must be the lengths of axes, such as [4, 8, 32]")
    ranks = {len(split)} if split else {len(base.tensors[source].shape) for source in sources}
    if axes and (not isinstance(axes, list) or ranks != {len(axes)} or sorted(axes) != list(range(len(axes)))):
        raise MappingError(f"{path}: {target}: axes must be an order of all axes, such as [1, 0]")
    if part is not None and not (
        isinstance(part, list) and len(part) == 2 and all(type(i) is int for i in part) and 0 <= part[0] < part[1]
    ):
        raise MappingError(f"{path}: {target}: part must be [i, n], part i of n")
    whole = None if part is None else (part[0], part[1])
    return Move(target, sources, tuple(axes), whole, how="mapping", split=tuple(split))
