"""What all faulty kernels share: their switches, a framework's tensor operations, sums in every order, rounding on the way
in, and what may happen to a finished tensor. Runs in workers, on Python 3.10 and later.
"""

from __future__ import annotations

from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np

DEFAULTS = {
    "variance": "two-pass",  # naive, welford, rms (about zero)
    "clamp": False,  # a naive variance below 0 is set to 0
    "summation": "library",  # sequential, blocked, pairwise, double
    "folded": False,  # x * s + (b - m * s)
    "divisor": "n",  # n-1, 1: of the normalising variance
    "centred": True,  # whether the mean is subtracted
    "eps": None,  # another value; or ("times", 2)
    "eps_placement": "inside",
    "affine_order": "weight-first",
    "skip_forward": (),  # weight, bias: not applied in the forward pass
    "skip": (),  # weight: applied nowhere
    "wrong_axis": False,
    "detached": (),  # mean, variance: constants in the backward pass
    "swapped_source": False,  # running statistics in training, the batch's in evaluation
    "running_biased": False,
    "momentum_complement": False,
    "float32_attributes": False,
    "float32_inside": False,  # a float64 op computed in float32
    "operands": None,  # bf16, tf32, float16: inputs and upstream gradient are rounded to it
    "operand_dtypes": ("float32", "float64"),
    "transposed": False,  # a square weight as it is stored
    "per_tensor": False,
    "denominator_eps": 1e-6,
    "by_value": False,
    "clamped": True,  # whether the clipping coefficient is at most 1
    "norm_type": None,
    "two_level": False,  # the norm of the tensors' norms
    "post": (),  # what happens to finished tensors: (tensor, action, argument)
}
"""Every switch with its healthy default."""

NORMS = ("layer_norm", "group_norm", "instance_norm", "batch_norm")
DROPPED_BITS = {"bf16": {"float32": 16, "float64": 45}, "tf32": {"float32": 13, "float64": 42}}
LANES = 32


def switches(given: dict[str, Any]) -> SimpleNamespace:
    """All switches, those given and the defaults; refuses names that do not exist."""
    unknown = set(given) - set(DEFAULTS)
    if unknown:
        raise ValueError(f"no such switch: {sorted(unknown)}")
    return SimpleNamespace(**{**DEFAULTS, **given})


class NumpyLib:
    """A framework's tensor operations: what a host has to provide."""

    @staticmethod
    def array(values: Any, like: Any) -> Any:
        return np.asarray(values, dtype=like.dtype)

    @staticmethod
    def dtype(x: Any) -> str:
        return str(x.dtype)

    @staticmethod
    def cast(x: Any, dtype: str) -> Any:
        return x.astype(dtype)

    @staticmethod
    def sum(x: Any, axes: Any) -> Any:
        return np.sum(x, axis=axes, keepdims=True)

    @staticmethod
    def sequential(rows: Any) -> Any:
        return np.add.accumulate(rows, axis=0)[-1]

    @staticmethod
    def reshape(x: Any, shape: Any) -> Any:
        return np.reshape(x, shape)

    @staticmethod
    def permute(x: Any, order: Any) -> Any:
        return np.transpose(x, order)

    @staticmethod
    def expand(x: Any, shape: Any) -> Any:
        return np.broadcast_to(x, shape)

    @staticmethod
    def concat(parts: Any) -> Any:
        return np.concatenate(parts, axis=0)

    @staticmethod
    def take(flat: Any, index: Any) -> Any:
        return flat[index]

    sqrt = staticmethod(np.sqrt)
    abs = staticmethod(np.abs)
    maximum = staticmethod(np.maximum)
    minimum = staticmethod(np.minimum)
    matmul = staticmethod(np.matmul)

    @staticmethod
    def largest(x: Any) -> Any:
        return np.max(x, keepdims=True)


def shape_of(x: Any) -> tuple[int, ...]:
    return tuple(int(n) for n in x.shape)


# Sums


def total(lib: Any, s: Any, x: Any, axes: tuple[int, ...]) -> Any:
    """The sum over `axes`, which stay as axes of length 1."""
    if not axes:
        return x
    if s.summation == "library":
        return lib.sum(x, axes)
    if s.summation == "double":
        return lib.cast(lib.sum(lib.cast(x, "float64"), axes), lib.dtype(x))
    kept = tuple(1 if i in axes else n for i, n in enumerate(shape_of(x)))
    rows = rows_first(lib, x, axes)
    return lib.reshape(
        {"sequential": in_sequence, "blocked": in_blocks, "pairwise": in_pairs}[s.summation](lib, rows), kept
    )


def rows_first(lib: Any, x: Any, axes: tuple[int, ...]) -> Any:
    """`x` as a matrix whose first axis runs over what is summed."""
    shape = shape_of(x)
    rest = tuple(i for i in range(len(shape)) if i not in axes)
    n = prod(shape[i] for i in axes)
    return lib.reshape(lib.permute(x, (*axes, *rest)), (n, prod(shape) // n))


def in_sequence(lib: Any, rows: Any) -> Any:
    return lib.sequential(rows)


def in_blocks(lib: Any, rows: Any) -> Any:
    """`LANES` running sums, as a vectorised loop has them, and then their sum."""
    n = shape_of(rows)[0]
    if n < 2 * LANES:
        return lib.sequential(rows)
    acc = rows[:LANES]
    for start in range(LANES, n - LANES + 1, LANES):
        acc = acc + rows[start : start + LANES]
    left = n % LANES
    return lib.sequential(lib.concat([acc, rows[n - left :]]) if left else acc)


def in_pairs(lib: Any, rows: Any) -> Any:
    while shape_of(rows)[0] > 1:
        half = shape_of(rows)[0] // 2
        paired = rows[:half] + rows[half : 2 * half]
        rows = lib.concat([paired, rows[2 * half :]]) if shape_of(rows)[0] % 2 else paired
    return rows


# Precision


def entered(lib: Any, s: Any, tensors: dict[str, Any]) -> dict[str, Any]:
    """The tensors as the kernel takes them: rounded, or in a lower precision, where a switch says so."""
    return {name: None if x is None else entered_one(lib, s, x) for name, x in tensors.items()}


def entered_one(lib: Any, s: Any, x: Any) -> Any:
    dtype = lib.dtype(x)
    if s.float32_inside and dtype == "float64":
        return lib.cast(x, "float32")
    if s.operands is None or dtype not in s.operand_dtypes:
        return x
    if s.operands == "float16":
        return lib.cast(lib.cast(x, "float16"), dtype)
    # Dekker's and Veltkamp's split: the high part has the bits that are left.
    scaled = x * lib.array(2.0 ** DROPPED_BITS[s.operands][dtype] + 1.0, x)
    return scaled - (scaled - x)


def attribute(s: Any, value: float) -> float:
    return float(np.float32(value)) if s.float32_attributes else value


# What happens to a finished tensor


def finished_list(lib: Any, s: Any, outputs: dict[str, Any], grads: list[Any]) -> dict[str, Any]:
    """`finished` for ops on a list: a tensor called `grads` in the switch means each of them."""
    given = {f"grads.{i}": g for i, g in enumerate(grads)}
    flat = {f"grads.{i}": g for i, g in enumerate(outputs.pop("grads"))}
    actions = [(n, *rest) for name, *rest in s.post for n in (flat if name == "grads" else [name])]
    changed = {**flat, **outputs}
    for name, action, argument in actions:
        act(lib, changed, name, action, name if argument == "itself" else argument, given, {})
    return {"grads": [changed.pop(name) for name in flat], **changed}


def finished(
    lib: Any, s: Any, outputs: dict[str, Any], given: dict[str, Any], numbers: dict[str, float]
) -> dict[str, Any]:
    """The outputs after the switch `post`, which passes over tensors that are not among them."""
    for name, action, argument in s.post:
        if name in outputs:
            act(lib, outputs, name, action, argument, given, numbers)
    return outputs


def act(
    lib: Any, outputs: dict[str, Any], name: str, action: str, argument: Any, given: dict[str, Any], numbers: Any
) -> None:
    x = outputs[name]
    if action == "swap":
        if argument in outputs and shape_of(outputs[argument]) == shape_of(x):
            outputs[name], outputs[argument] = outputs[argument], x
    elif action == "absent":
        del outputs[name]
    elif action == "copy":
        if shape_of(given[argument]) == shape_of(x):
            outputs[name] = given[argument] + lib.array(0.0, x)
    elif action == "scale":
        outputs[name] = x * lib.array(SCALARS[argument](numbers), x)
    elif action == "index":
        outputs[name] = lib.reshape(
            lib.take(lib.reshape(x, (-1,)), INDICES[argument](shape_of(x)).ravel()), shape_of(x)
        )
    elif action in REGION_FACTORS:
        mask = REGIONS[argument](np.zeros(shape_of(x)))
        outputs[name] = x * lib.array(1.0 + (REGION_FACTORS[action] - 1.0) * mask, x)
    else:
        raise ValueError(f"no such action: {action}")


SCALARS = {
    "-1": lambda _: -1.0,
    "0": lambda _: 0.0,
    "0.5": lambda _: 0.5,
    "2": lambda _: 2.0,
    "1-m": lambda v: 1.0 - v["momentum"],
    "n/(n-1)": lambda v: v["n"] / max(1, v["n"] - 1),
    "1/rows": lambda v: 1.0 / v["rows"],
}
"""The scalars by which a tensor may be off."""


def places(shape: tuple[int, ...]) -> Any:
    return np.arange(prod(shape)).reshape(shape)


def with_equal_axes_swapped(shape: tuple[int, ...]) -> Any:
    """The places after swapping the last two axes that have the same length; as they are where none do."""
    pairs = [(i, j) for j in range(len(shape) - 1, 0, -1) for i in range(j - 1, -1, -1) if shape[i] == shape[j]]
    return places(shape).swapaxes(*pairs[0]) if pairs else places(shape)


def permuted(shape: tuple[int, ...]) -> Any:
    """The places in another order; as they are where there are so few that any other order is a roll or a reversal."""
    size = prod(shape)
    return np.random.default_rng(5).permutation(size) if size > 4 else places(shape)


INDICES = {
    "rolled": lambda shape: np.roll(places(shape).ravel(), 1),
    "rolled-rows": lambda shape: np.roll(places(shape), 1, axis=0),
    "permuted": permuted,
    "axes": with_equal_axes_swapped,
}
"""Which element is written to which place."""


def marked(mask: Any, place: Any) -> Any:
    mask[place] = 1.0
    return mask


REGIONS = {
    "row": lambda mask: marked(mask, (-1,)) if len(mask) > 1 else mask,
    "column": lambda mask: marked(mask, (Ellipsis, -1)) if mask.shape[-1] > 1 else mask,
    "channel": lambda mask: marked(mask, (slice(None), 1)) if mask.ndim > 1 and mask.shape[1] > 1 else mask,
    "tail": lambda mask: marked(mask, (Ellipsis, slice(mask.shape[-1] // 4 * 4, None))) if mask.shape[-1] > 4 else mask,
    "corner": lambda mask: marked(mask, (slice(-2, None),) * mask.ndim) if max(mask.shape) > 2 else mask,
}
"""The part of a tensor that is wrong, never all of it: what is left over by a vectorised loop, a border block, ..."""

REGION_FACTORS = {"unwritten": 0.0, "doubled": 2.0}
