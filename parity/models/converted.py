"""Converted ports, such as exports: which value is which parameter of the baseline, and what was folded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path

import numpy as np

from parity.config.plan import CasePlan
from parity.models.layer_ops import Kernel, op_of, options_of
from parity.models.layouts import Layout
from parity.models.ports import Array, ModelError, RemotePort, TensorInfo
from parity.models.state import Move, canonical, composed
from parity.models.steps import grouped, inside, lengths
from parity.models.weights import FOLDED as SAME
from parity.models.weights import close
from parity.models.worker.tape import Recorded, squeezed

FOLDED = "folded"
"""How a parameter is matched that includes the BatchNorm after its layer."""
NAME, CONTENT = "name", "content"


@dataclass(frozen=True)
class Fold:
    """A layer of the port that is a convolution of the baseline and the BatchNorm after it."""

    layer: str
    conv: str
    norm: str


def moves_of(
    base: RemotePort, other: RemotePort, given: Mapping[str, Move]
) -> tuple[list[Move], list[str], list[Fold]]:  # fmt: skip
    """The moves to a converted port, remarks about parameters without a partner, and the folded layers.

    A value is matched by name, else by content, else by shape if only one is left. Values without a partner are no
    error: an exporter folds constants.
    """
    folds = list(folds_of(base, other))
    by_target: dict[str, Move] = dict(given)
    for fold in folds:
        by_target.update((move.target, move) for move in folded(base, other, fold) if move.target not in by_target)
    for move in (*named(base, other, by_target), *alike(base, other, by_target)):
        by_target.setdefault(move.target, move)
    # In a graph whose layers have no names, shapes and order are no evidence.
    if sum(move.how == NAME for move in by_target.values()) * 2 > len(other.tensors):
        for move in left_of_shape(base, other, by_target):
            by_target.setdefault(move.target, move)
    moves = [move for move in by_target.values() if fits(base, other, move)]
    used = {source for move in moves for source in move.sources}
    left = [t.name for t in base.tensors.values() if t.trained and not t.tied and t.name not in used]
    notes = [f"{move.target}: {move.doubt}" for move in moves if move.doubt]
    return moves, [*notes, *(f"{name} is not among its parameters" for name in left)], folds


def fits(base: RemotePort, other: RemotePort, move: Move) -> bool:
    """Whether a move gives the right number of elements."""
    if move.eps is not None:
        return True
    size = sum(int(np.prod(base.tensors[source].shape)) for source in move.sources)
    return size // (1 if move.part is None else move.part[1]) == int(np.prod(other.tensors[move.target].shape))


def by_pytorchs_names(base: RemotePort) -> dict[str, tuple[TensorInfo, Layout]]:
    """The baseline's tensors by PyTorch's names, with the layouts that convert to PyTorch's, as a graph has them."""
    tensors = ((info, *canonical(base, info)) for info in base.tensors.values())
    return {entry.name: (info, layout) for info, entry, layout in tensors}


def named(base: RemotePort, other: RemotePort, known: Mapping[str, Move]) -> Iterator[Move]:
    """Moves of parameters that have the same name."""
    ours = by_pytorchs_names(base)
    for name, info in other.tensors.items():
        if name not in known and name in ours and not ours[name][1].merged:
            there, layout = ours[name]
            shape = layout.ordered(there.shape)
            if sorted(squeezed(shape)) == sorted(squeezed(info.shape)):
                turned = () if squeezed(shape) == squeezed(info.shape) else (1, 0)
                if not turned or len(shape) == len(info.shape) == len(turned):
                    yield Move(name, (there.tied or there.name,), composed([layout.axes, turned]), how=NAME)


def alike(base: RemotePort, other: RemotePort, known: Mapping[str, Move]) -> Iterator[Move]:
    """Moves of parameters that have the same values, transposed or not; constant values do not count."""
    ours, theirs = Recorded(str(base.state)), Recorded(str(other.state))
    names = by_pytorchs_names(base)
    named_already = {name for name in other.tensors if name in names}
    used = {source for move in known.values() for source in move.sources}
    used |= {names[name][0].name for name in named_already}
    free = [t for t in base.tensors.values() if not t.tied and t.name not in used]
    for name, info in other.tensors.items():
        array = theirs.load(name) if name not in known and name not in named_already else np.zeros(0)
        if array.size < 2 or (array == array.flat[0]).all():
            continue
        for there in [t for t in free if sorted(squeezed(t.shape)) == sorted(squeezed(info.shape))]:
            loaded = ours.load(there.name)
            axes = () if np.array_equal(loaded.squeeze(), array.squeeze()) else same(loaded, array)
            if axes is not None:
                yield Move(name, (there.name,), axes, how=CONTENT)
                break


def left_of_shape(base: RemotePort, other: RemotePort, known: Mapping[str, Move]) -> Iterator[Move]:
    """Moves of the only remaining value and parameter of a shape."""
    used = {source for move in known.values() for source in move.sources}
    ours = [t for t in base.tensors.values() if t.trained and not t.tied and t.name not in used]
    theirs = [t for t in other.tensors.values() if t.name not in known]
    for info in theirs:
        partners = [t for t in ours if t.shape == info.shape]
        if len(partners) == 1 and sum(t.shape == info.shape for t in theirs) == 1:
            yield Move(info.name, (partners[0].name,), how="shape", doubt="matched by its shape alone")


def same(a: Array, b: Array) -> tuple[int, ...] | None:
    """The order of axes in which `a` equals `b`; empty if unchanged, None if there is none."""
    if a.ndim != b.ndim:
        return None
    for axes in permutations(range(a.ndim)):
        if a.transpose(axes).shape == b.shape and np.array_equal(a.transpose(axes), b):
            return () if axes == tuple(range(a.ndim)) else axes
    return None


def folds_of(base: RemotePort, other: RemotePort) -> Iterator[Fold]:
    """Convolutions of the port that include a BatchNorm: its parameters are missing in the port."""
    names, ours = list(base.layers), by_pytorchs_names(base)
    for layer in names:
        statistic = f"{layer}.running_var"
        if not is_norm(base, layer) or statistic in other.tensors or statistic not in ours:
            continue
        size = ours[statistic][0].shape
        before = [
            name
            for name in names[: names.index(layer)]
            if is_conv(base, name) and (weight(base, name) or ())[:1] == size
        ]
        # The exporter names the result after either layer.
        own = other.layers.get(layer)
        conv = next((n for n in reversed(before) if weight(base, n) == weight(other, layer)), None)
        if own is not None and conv is not None:
            yield Fold(layer, conv, layer)
        elif own is None and before and f"{before[-1]}.bias" in other.tensors:
            yield Fold(before[-1], before[-1], layer)
        else:
            yield from with_numbers(base, other, before, layer)


def with_numbers(base: RemotePort, other: RemotePort, convs: Sequence[str], norm: str) -> Iterator[Fold]:
    """The layer whose weight is that of one of these convolutions with the BatchNorm folded in."""
    ours, theirs = Recorded(str(base.state)), Recorded(str(other.state))
    for name in [name for name in other.layers if weight(other, name) is not None and name not in base.layers]:
        have = theirs.load(f"{name}.weight")
        for conv in [conv for conv in convs if weight(base, conv) == have.shape]:
            (move, *_) = folded(base, other, Fold(name, conv, norm))
            wanted = move.apply([ours.load(source) for source in move.sources], have.shape)
            if close(have, wanted, 0.0, SAME * float(np.abs(wanted).max(initial=0.0))):
                yield Fold(name, conv, norm)
                return


def weight(port: RemotePort, layer: str) -> tuple[int, ...] | None:
    """The shape of a layer's weight."""
    info = port.tensors.get(f"{layer}.weight")
    return None if info is None else info.shape


def is_norm(port: RemotePort, layer: str) -> bool:
    """Whether a layer is a BatchNorm."""
    op = op_of(port.layers[layer])
    return op is not None and op.name == "batch_norm"


def is_conv(port: RemotePort, layer: str) -> bool:
    """Whether a layer is a convolution."""
    op = op_of(port.layers[layer])
    return op is not None and op.name in ("conv1d", "conv2d", "conv3d")


def folded(base: RemotePort, other: RemotePort, fold: Fold) -> Iterator[Move]:
    """The moves of a folded layer's weight and bias."""
    eps = float(options_of(base, base.layers[fold.norm]).get("eps", 1e-5))
    ours = by_pytorchs_names(base)
    parts = [f"{fold.norm}.{name}" for name in ("weight", "bias", "running_mean", "running_var")]
    if not all(name in ours for name in parts):
        return
    statistics = [ours[name][0].name for name in parts]
    bias = [name for name in (f"{fold.conv}.bias",) if name in base.tensors]
    for own, sources in (("weight", [f"{fold.conv}.weight"]), ("bias", bias)):
        if f"{fold.layer}.{own}" in other.tensors:
            yield Move(f"{fold.layer}.{own}", (*statistics, *sources), how=FOLDED, eps=eps)


@dataclass(frozen=True)
class FoldedKernel(Kernel):
    """The baseline's convolution and the BatchNorm after it as one kernel of the convolution's op.

    It only runs with the folded weight and bias. The layer and its `state` are the port's.
    """

    base: RemotePort
    base_state: Path
    fold: Fold

    def _folded(self) -> dict[str, Array]:
        """The folded weight and bias."""
        stored, names = Recorded(str(self.state)), (f"{self.fold.layer}.{name}" for name in ("weight", "bias"))
        return {name.rpartition(".")[2]: stored.load(name) for name in names if name in stored}

    def inputs(self, plain: Recorded) -> dict[str, Array]:
        """The op's inputs in a run. Raises KeyError."""
        return {"x": plain.load(f"{self.fold.conv}|{self.call}|in|0"), **self._folded()}

    def __call__(self, case: CasePlan, dtype: str, inputs: Mapping[str, Array]) -> dict[str, Array] | None:
        """The output of both layers for `x`; None for other weights."""
        own = self._folded()
        if (case.op, case.params, dtype) != (self.op.name, self.params, self.dtype) or not all(
            name in inputs and np.array_equal(inputs[name], array) for name, array in own.items()
        ):
            return None
        x = np.asarray(inputs["x"])
        try:
            for layer in (self.fold.conv, self.fold.norm):
                x = self.base.alone(self.base_state, layer, self.call, {"in:0": x})[f"{layer}|{self.call}|out|0"]
        except (ModelError, KeyError):
            return None
        return {self.op.grad_outputs[0]: x}


def adopted(base: RemotePort, other: RemotePort, partners: Mapping[str, str]) -> None:
    """Give layers whose class the file does not name that of their partner."""
    other.guessed = [name for name in partners if name in other.layers and not other.layers[name].kind]
    for name in other.guessed:
        ours = base.layers[partners[name]]
        other.layers[name] = replace(other.layers[name], kind=ours.kind, own=ours.own)


def of_size(other: RemotePort, partners: Mapping[str, str], base: Recorded, run: Recorded) -> dict[str, str]:
    """The partners without layers of guessed class whose tensors have other sizes: such a node has a layer's
    parameter, but is another part of the model."""

    def sizes(stored: Recorded, layer: str) -> list[list[int]]:
        groups = grouped(stored)
        return [sorted(lengths(stored, groups.get((layer, 0, role), []))) for role in ("in", "out")]

    guessed = {name for name in other.guessed if name and not any(inside(inner, name) for inner in partners)}
    return {n: there for n, there in partners.items() if n not in guessed or sizes(run, n) == sizes(base, there)}


def paired(partners: Mapping[str, str], folds: Sequence[Fold]) -> dict[str, str]:
    """The partners, including those of folded layers."""
    return {**partners, **{fold.layer: fold.conv for fold in folds}}
