"""Paths into a case, defaults of a case, and values set by a sweep; all functions return new trees."""

from __future__ import annotations

from collections.abc import Container, Iterator

from parity.cases.draw import DISTRIBUTIONS
from parity.config.nodes import Node

DRAW_KEYS = frozenset({*DISTRIBUTIONS, "values", "file"})
"""The sources of a tensor's numbers: exactly one of these."""

TENSOR_KEYS = DRAW_KEYS | {"shape", "scale", "offset", "special", "layout"}

Path = tuple[str, ...]


def split_path(text: str) -> Path:
    """`inputs.grad.y.constant` is ("inputs", "grad.y", "constant"): the name of an output's gradient contains a dot.

    An optimizer's `grad` is a tensor itself: `inputs.grad.constant` has three parts as well.
    """
    parts = text.split(".")
    if len(parts) > 2 and parts[:2] == ["inputs", "grad"] and parts[2] not in TENSOR_KEYS:
        parts[1:3] = [f"grad.{parts[2]}"]
    return tuple(parts)


def step(node: Node, key: str) -> Node | None:
    """The entry of a mapping, or the item of a list by its number."""
    if node.is_list:
        return node.items[int(key)] if key.isdecimal() and len(key) < 9 and int(key) < len(node.items) else None
    return node.get(key)


def only(node: Node, keys: Container[str]) -> Node:
    """A mapping with some of its keys."""
    return node.with_value({key: entry for key, entry in node.mapping.items() if key in keys})


def without(node: Node, *keys: str) -> Node:
    """A mapping without some of its keys."""
    return only(node, node.mapping.keys() - set(keys))


def find(tree: Node, path: Path) -> Node | None:
    """The value at `path`, None if there is none."""
    node: Node | None = tree
    for key in path:
        node = step(node, key) if node is not None else None
    return node


def nearest_parent(tree: Node, path: Path) -> tuple[Node, bool]:
    """The value at `path`, else its nearest parent; and whether the whole path exists."""
    node = tree
    for key in path:
        inner = step(node, key)
        if inner is None:
            return node, False
        node = inner
    return node, True


def paths(tree: Node, prefix: str = "") -> Iterator[str]:
    """Every path of mappings below `tree`, dotted."""
    for key, node in tree.mapping.items():
        yield f"{prefix}{key}"
        yield from paths(node, f"{prefix}{key}.")


def put(tree: Node, path: Path, value: Node) -> Node | None:
    """`tree` with `value` at `path`; None if a scalar is on the path or a list has no such item.

    Missing mappings are created; a mapping is merged into an existing one.
    """
    key, rest = path[0], path[1:]
    inner = step(tree, key)
    if rest:
        below = inner if inner is not None and inner.value is not None else value.with_value({})
        new = put(below, rest, value)
    else:
        new = merge(inner, value) if inner is not None and inner.is_mapping and value.is_mapping else value
    if new is None:
        return None
    if tree.is_mapping:
        return tree.with_value({**tree.mapping, key: new})
    if tree.is_list and inner is not None:
        return tree.with_value(tuple(new if item is inner else item for item in tree.items))
    return None


def merge(base: Node | None, over: Node, key: str = "") -> Node:
    """Mappings merged key by key at every depth; any other value is replaced by `over`.

    A tensor (below `inputs`) loses its draw if `over` has another one.
    """
    if base is None or not (base.is_mapping and over.is_mapping):
        return over
    entries = dict(base.mapping)
    for name, node in over.mapping.items():
        below = entries.get(name)
        entries[name] = merge(_undrawn(below, node) if key == "inputs" and below is not None else below, node, name)
    return over.with_value(entries)


def _undrawn(base: Node, over: Node) -> Node:
    """A tensor without its draw if `over` has another one, and without its shape if that draw has its own."""
    drawn = DRAW_KEYS & over.mapping.keys()
    dropped = (DRAW_KEYS - drawn if drawn else set()) | ({"shape"} if drawn & {"values", "file"} else set())
    return without(base, *dropped) if base.is_mapping else base
