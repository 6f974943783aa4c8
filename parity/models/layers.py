"""Matches the layers of two ports: by their parameters, then layers without parameters by name and class."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence

from parity.models.layer_ops import BY_CLASS, op_of
from parity.models.ports import LayerInfo, RemotePort
from parity.models.state import Move

Key = Callable[[LayerInfo], str]


def partners(base: RemotePort, other: RemotePort, moves: Sequence[Move]) -> dict[str, str]:
    """The baseline's layer for each layer of another port that has a partner; "" is the model itself.

    Layers are partners if they contain the same parameters of the baseline. Nested layers that contain the same ones
    are matched from the outermost inwards; if one port has more of them, the innermost are matched if they are the
    same op. Layers without parameters are matched within partners: by name, then by class, and by order if both ports
    have equally many.
    """
    ours = {source: {source} for move in moves for source in move.sources}
    theirs = {move.target: set(move.sources) for move in moves}
    pairs: dict[str, str] = {"": ""}
    by_parameters = below(base, ours)
    for parameters, names in below(other, theirs).items():
        pairs |= nested(base, other, by_parameters.get(parameters, []), names)
    pairs[""] = ""
    bare = [name for name in other.layers if name not in pairs and not has(name, theirs)]
    free = [name for name in base.layers if name not in pairs.values() and not has(name, ours)]
    # Outer layers come first, so that they are paired before those within.
    for depth in range(1 + max((name.count(".") for name in bare), default=-1)):
        level = [name for name in bare if name.count(".") == depth]
        for parent in dict.fromkeys(paired_above(name, pairs) for name in level):
            ours_below = [name for name in free if name not in pairs.values()]
            mine = [name for name in ours_below if paired_above(name, pairs.values()) == pairs[parent]]
            yours = [name for name in level if paired_above(name, pairs) == parent]
            pairs |= alike([base.layers[name] for name in mine], [other.layers[name] for name in yours])
    return pairs


def nested(base: RemotePort, other: RemotePort, ours: Sequence[str], theirs: Sequence[str]) -> dict[str, str]:
    """Partners among nested layers with the same parameters, given from the outermost inwards."""
    if ours and theirs and len(ours) != len(theirs):
        op = op_of(base.layers[ours[-1]])
        if op is not None and op is op_of(other.layers[theirs[-1]]):
            return {**dict(zip(theirs[:-1], ours[:-1], strict=False)), theirs[-1]: ours[-1]}
    return dict(zip(theirs, ours, strict=False))


def below(port: RemotePort, sources: Mapping[str, set[str]]) -> dict[frozenset[str], list[str]]:
    """The layers by the baseline's parameters that they contain, the outer ones first."""
    layers: dict[frozenset[str], list[str]] = {}
    for name in sorted(port.layers, key=lambda name: name.count(".") + bool(name)):
        prefix = f"{name}." if name else ""
        parts = frozenset(part for own, made_of in sources.items() if own.startswith(prefix) for part in made_of)
        if parts:
            layers.setdefault(parts, []).append(name)
    return layers


def has(layer: str, sources: Iterable[str]) -> bool:
    """Whether a layer contains mapped parameters."""
    return any(name.startswith(f"{layer}.") for name in sources)


def paired_above(layer: str, paired: Container[str]) -> str:
    """The innermost layer around a layer that has a partner; the model itself has one."""
    parent = layer.rpartition(".")[0]
    return parent if not parent or parent in paired else paired_above(parent, paired)


def alike(mine: Sequence[LayerInfo], yours: Sequence[LayerInfo]) -> dict[str, str]:
    """Pairs of layers without parameters within a pair of partners."""
    pairs: dict[str, str] = {}
    keys: tuple[Key, ...] = (
        lambda layer: layer.name.rpartition(".")[2],
        lambda layer: plain(layer.kind),
        lambda layer: str(plain(layer.kind) == "dropout"),
        lambda _: "",
    )
    for key in keys:
        ours = [layer for layer in mine if layer.name not in pairs.values()]
        theirs = [layer for layer in yours if layer.name not in pairs]
        for word in dict.fromkeys(map(key, theirs)):
            a, b = ([layer for layer in layers if key(layer) == word] for layers in (ours, theirs))
            if len(a) == len(b):
                pairs |= {there.name: here.name for here, there in zip(a, b, strict=True)}
    return pairs


def plain(kind: str) -> str:
    """`max_pool2d` for MaxPool2d, MaxPool2D and MaxPooling2D."""
    word = kind.lower().replace("_", "")
    return BY_CLASS.get(word, word)
