"""The records that a worker keeps of a training: all tensors of the last steps, and a few numbers of every step."""

from __future__ import annotations

import zlib
from typing import Any, Dict, List, Sequence

import numpy as np

Arrays = Dict[str, Any]

AFTER = ("param.", "state.", "buffer.")
"""Prefixes of the tensors that persist from step to step."""


class Ring:
    """The tensors of the last `capacity` steps by name, in memory that is reused.

    Entry 0, or that of the step at which a training was restored, has only the tensors that persist.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.entries: Dict[int, Arrays] = {}
        self._spare: Arrays = {}
        self._open: Arrays = {}

    def open(self) -> Arrays:
        """Begin an entry in the memory of the oldest one; returns the dict that `keep` fills."""
        if len(self.entries) >= self.capacity:
            self._spare = self.entries.pop(min(self.entries))
        self._open = {}
        return self._open

    def keep(self, name: str, array: Any) -> None:
        """Copy an array into the entry."""
        memory = self._spare.pop(name, None)
        if memory is None or memory.shape != array.shape or memory.dtype != array.dtype:
            memory = np.empty(array.shape, array.dtype)
        np.copyto(memory, array)
        self._open[name] = memory

    def close(self, step: int) -> None:
        """Complete the entry."""
        self.entries[step] = self._open

    def clear(self) -> None:
        """Forget all steps."""
        self.entries.clear()

    def record(self, step: int) -> Arrays:
        """The tensors of a step, and those before it as `before.<name>`; raises KeyError if they are no longer kept."""
        before = {f"before.{name}": v for name, v in self.entries[step - 1].items() if name.startswith(AFTER)}
        return {**before, **self.entries[step]}


BLOCK = 1 << 16
"""Elements that are measured at once, so that they stay in the processor's cache."""

SHIFTS = 4096
SEED = 20260116


class Sketcher:
    """2-norms and random projections of tensors, in float64.

    A projection is the sum of the elements with random signs, which depend on the position and the tensor's name, and
    are the same in every worker.
    """

    def __init__(self) -> None:
        n = BLOCK + SHIFTS
        drawn = np.random.PCG64(SEED).random_raw(-(-n // 64)).astype("<u8").view(np.uint8)
        self._signs = np.unpackbits(drawn)[:n] * 2.0 - 1.0
        self._wide = np.empty(BLOCK)

    def measure(self, name: str, array: Any) -> tuple[float, float]:
        """The sum of squares of all elements, and their projection."""
        flat, squares, projection = array.reshape(-1), 0.0, 0.0
        key = zlib.crc32(name.encode())
        for number, start in enumerate(range(0, flat.size, BLOCK)):
            part = flat[start : start + BLOCK]
            wide = self._wide[: part.size]
            np.copyto(wide, part, casting="same_kind")
            # Each block of a large tensor uses other signs, so that equal blocks do not cancel alike.
            shift = (key + number * 2654435761) % SHIFTS
            squares += float(np.dot(wide, wide))
            projection += float(np.dot(wide, self._signs[shift : shift + part.size]))
        return squares, projection


def total_norm(sketcher: Sketcher, arrays: Sequence[Any]) -> float:
    """The 2-norm of all arrays as one vector; NaN if there are none."""
    if not arrays:
        return float("nan")
    return float(np.sqrt(sum(sketcher.measure("", array)[0] for array in arrays)))


class StepCurves:
    """A few numbers of each step, which a reply has as arrays by their names in the protocol."""

    def __init__(self, sketcher: Sketcher, tracked: Sequence[str]) -> None:
        self.sketcher = sketcher
        self.tracked = tracked
        self.parts: Dict[str, List[Any]] = {
            name: [] for name in ("loss", "grad_norm", "lr", "rows", "norms", "sketches")
        }

    def add(self, entry: Arrays) -> None:
        """Compute the numbers of a step from its tensors, whose memory later steps reuse."""
        measured = [self.sketcher.measure(name, entry[name]) for name in self.tracked]
        gradients = [array for name, array in entry.items() if name.startswith("grad.")]
        numbers = {
            "loss": float(entry["loss"]) if "loss" in entry else float("nan"),
            "grad_norm": total_norm(self.sketcher, gradients),
            "lr": np.array(entry["lr"], np.float64),
            "rows": np.array(entry["rows"], np.int64),
            "norms": np.sqrt([squares for squares, _ in measured]),
            "sketches": np.array([projection for _, projection in measured]),
        }
        for name, value in numbers.items():
            self.parts[name].append(value)

    def arrays(self) -> Arrays:
        """The curves [steps, ...]; none before the first step."""
        if not self.parts["loss"]:
            return {}
        return {name: np.stack([np.asarray(value) for value in values]) for name, values in self.parts.items()}


def perturbed(array: Any, name: str, seed: int) -> Any:
    """Every element replaced by the next number up or down in its dtype, at random by `name` and `seed`."""
    drawn = np.random.PCG64([seed, zlib.crc32(name.encode())]).random_raw(-(-max(1, array.size) // 64))
    up = np.unpackbits(drawn.astype("<u8").view(np.uint8))[: array.size].reshape(array.shape)
    return np.nextafter(array, np.where(up, np.inf, -np.inf).astype(array.dtype))
