"""The boundaries of layers: the names of the tensors that cross them, and their replacement.

`|`-separated, `encoder.0.norm|0|out|0` is the first tensor that the first call of that layer returned.
"""

from __future__ import annotations

import zlib
from typing import Any, Callable, Collection, Dict, Optional

import numpy as np

from parity.models.worker.tape import TensorTape

IN, OUT, STATE = "in", "out", "state:"
LOSS = ":loss"
"""The name under which the user's loss is a layer."""
ULP = {"bfloat16": 2.0**-8, "float16": 2.0**-11}

Replace = Callable[[str, Any], Any]
"""From a tensor's name and values to the values that replace it; None keeps it."""


def key(layer: str, call: int, role: str, index: int) -> str:
    """The name of a tensor at a layer's boundary."""
    return f"{layer}|{call}|{role}|{index}"


def perturbed(values: Any, dtype: str, name: str, seed: int) -> Any:
    """Every number perturbed by one ulp, up or down; unchanged with seed 0.

    Tensors of integral values are not perturbed: a mask's ones are not rounded, and an ulp of -10000 is not small.
    """
    if not seed or values.dtype.kind != "f" or np.array_equal(values, np.rint(values)):
        return values
    up = np.random.RandomState(zlib.crc32(f"{name} {seed}".encode()) & 0xFFFFFFFF).randint(0, 2, values.shape) > 0
    if dtype in ULP:
        return (values * np.where(up, 1 + ULP[dtype], 1 - ULP[dtype])).astype(values.dtype)
    own = values.astype(dtype)
    return np.nextafter(own, np.where(up, np.inf, -np.inf).astype(dtype))


class Crossing:
    """Records and replaces tensors at the boundaries of `layers` in a run of a port.

    A tensor that crosses a boundary goes to the tape, and is replaced by what `source` returns.
    """

    def __init__(self, tape: TensorTape, layers: Collection[str], source: Optional[Replace] = None) -> None:
        self.tape, self.layers, self.source = tape, frozenset(layers), source
        self._calls: Dict[str, int] = {}

    def begun(self, layer: str) -> int:
        """Begin a call of a layer; returns its number, from 0."""
        call = self._calls.get(layer, 0)
        self._calls[layer] = call + 1
        return call

    def crossed(self, name: str, array: Any) -> Any:
        """Record a tensor that crosses a boundary; returns the values that replace it, or None."""
        self.tape.put(name, array)
        return None if self.source is None else self.source(name, array)
