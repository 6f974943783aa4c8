"""The options of frameworks' layers in PyTorch's names and values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

Renamed = tuple[str, Callable[[Any], Any]]


def same(value: Any) -> Any:
    """The value."""
    return value


def tanh_or_none(approximate: Any) -> Any:
    """PyTorch's word for an approximation that is on or off."""
    return "tanh" if approximate else "none"


def kept(momentum: float) -> float:
    """PyTorch's momentum, which weighs the new statistics, from one that weighs the old."""
    return 1.0 - momentum


RENAMED: Mapping[str, Mapping[str, Renamed]] = {
    "paddle": {
        "epsilon": ("eps", same),
        "ksize": ("kernel_size", same),
        "axis": ("dim", same),
        "start_axis": ("start_dim", same),
        "stop_axis": ("end_dim", same),
        "min": ("min_val", same),
        "max": ("max_val", same),
        "momentum": ("momentum", kept),
        "exclusive": ("count_include_pad", lambda exclusive: not exclusive),
        "divisor": ("divisor_override", same),
        "approximate": ("approximate", tanh_or_none),
        "return_mask": ("return_indices", same),
    },
    "keras": {
        "epsilon": ("eps", same),
        "momentum": ("momentum", kept),
        "approximate": ("approximate", tanh_or_none),
        "pool_size": ("kernel_size", same),
        "strides": ("stride", same),
        "dilation_rate": ("dilation", same),
        "rate": ("p", same),
        "groups": ("groups", same),
        "size": ("scale_factor", same),
        "interpolation": ("mode", same),
    },
}
"""Attributes with another name in PyTorch, and the conversion to PyTorch's value. Source: the classes' documentation;
BatchNorm's momentum is the weight of the old statistics in Paddle and Keras."""
INTERNAL = frozenset(("name", "inplace", "in_place", "device", "data_format", "sparse", "is_distributed", "op_type"))
"""Attributes that do not change what a layer computes."""


def in_words_of_pytorch(framework: str, kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a layer of class `kind`, by PyTorch's names; lists of one repeated number become that number.

    Raises TypeError, ValueError or KeyError for options that the framework does not have.
    """
    names, renamed = RENAMED.get(framework, {}), {}
    for attribute, value in options.items():
        own = attribute.removeprefix("_")
        name, change = names.get(own, (own, same))
        if name not in INTERNAL and value is not None:
            renamed[name] = single(change(value))
    if framework == "keras":
        renamed |= of_keras(renamed, kind)
    if "kernel_size" in renamed and "pool" in kind.lower():
        renamed.setdefault("stride", renamed["kernel_size"])
    return renamed


def of_keras(options: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Keras's options that PyTorch expresses differently: padding in numbers where possible, groups of a norm, the axis
    of a softmax."""
    renamed: dict[str, Any] = {}
    kernel, stride, dilation = (options.get(name, 1) for name in ("kernel_size", "stride", "dilation"))
    if options.get("padding") == "valid":
        renamed["padding"] = 0
    elif options.get("padding") == "same" and stride == 1:
        lengths = kernel if isinstance(kernel, list) else [kernel]
        if isinstance(dilation, int) and all(dilation * (n - 1) % 2 == 0 for n in lengths):
            renamed["padding"] = single([dilation * (n - 1) // 2 for n in lengths])
    if kind == "AveragePooling2D":
        renamed["count_include_pad"] = options.get("padding") == "valid"
    if kind == "GroupNormalization":
        renamed["num_groups"] = options["groups"]
    if kind.lower() in ("softmax", "log_softmax"):
        renamed["dim"] = options["axis"]
    return renamed


def single(value: Any) -> Any:
    """`[2, 2]` as 2."""
    return value[0] if isinstance(value, list) and value and all(item == value[0] for item in value) else value


def differing(options: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The options of both that have different values; numbers that differ by rounding only count as equal."""
    shared = [name for name in options if name in others]
    return {name: (options[name], others[name]) for name in shared if not alike(options[name], others[name])}


def alike(a: Any, b: Any) -> bool:
    """Whether two values are equal; numbers up to the rounding of 1 - x."""
    if isinstance(a, float) and isinstance(b, (int, float)):
        return math.isclose(a, b, rel_tol=1e-12)
    return bool(a == b)
