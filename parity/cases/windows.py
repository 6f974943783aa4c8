"""The windows of convolutions and pools: their number along each axis, and the checks of the params."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parity.cases.draw import Shape
from parity.cases.op import CaseError, require_x
from parity.cases.primitives import Sizes, each

AXES = ("W", "H, W", "D, H, W")


def images(given: Mapping[str, Shape], n: int) -> Shape:
    """The shape of x: (N, C, and `n` more axes)."""
    return require_x(given, (n + 2,), f"(N, C, {AXES[n - 1]})")


def checked(params: Any, n: int, least: Mapping[str, int]) -> None:
    """Raise CaseError for a param with other than one or `n` numbers, or with one below the `least`."""
    for name, low in least.items():
        value = getattr(params, name, None)
        if value is None or isinstance(value, str):
            continue
        if isinstance(value, tuple) and len(value) != n:
            raise CaseError(f"params.{name}", f"{name} must be one number, or {n}, not {list(value)}")
        if min(each(value, n)) < low:
            raise CaseError(f"params.{name}", f"{name} must be {low} or more, not {written(value)}")


def written(value: Sizes) -> str:
    """A number or a list of them, as a config has it."""
    return str(list(value) if isinstance(value, tuple) else value)


def reaches(kernel: Shape, dilation: Sizes) -> Shape:
    """The lengths that a kernel covers."""
    return tuple(d * (k - 1) + 1 for k, d in zip(kernel, each(dilation, len(kernel)), strict=True))


def n_windows(lengths: Shape, kernel: Shape, stride: Sizes, around: Shape, dilation: Sizes) -> Shape:
    """How many windows fit along each axis with so many elements of padding `around` it; CaseError if none does."""
    room = tuple(n + p for n, p in zip(lengths, around, strict=True))
    reach, strides = reaches(kernel, dilation), each(stride, len(kernel))
    if any(r > n for r, n in zip(reach, room, strict=True)):
        at = f"{list(lengths)} with a padding of {written(common(tuple(p // 2 for p in around)))}"
        raise CaseError("params.kernel_size", f"a kernel of {written(common(kernel))} is larger than {at}")
    return tuple((n - r) // s + 1 for n, r, s in zip(room, reach, strides, strict=True))


def common(values: tuple[int, ...]) -> Sizes:
    """The number that all axes have; else all of them."""
    return values[0] if len(set(values)) == 1 else values
