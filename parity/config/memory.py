"""A case's memory, estimated from measured peaks."""

from __future__ import annotations

from dataclasses import dataclass

ORACLE_BYTES = 64
BACKEND_BYTES = 24
"""Per element of all inputs, outputs and gradients: LayerNorm with 5e6 elements in x took 0.84 GiB in the host, where
the oracle keeps its intermediate values in longdouble, and as much in a numpy worker."""

GIB = 2**30


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes in the host, and in each backend."""

    host: int
    backend: int

    def total(self, n_backends: int) -> int:
        """Bytes of the whole run while this case is computed."""
        return self.host + n_backends * self.backend


def memory_of_op(n_elements: int) -> MemoryNeed:
    """The estimate for an op with this many elements in its inputs, outputs and gradients."""
    return MemoryNeed(ORACLE_BYTES * n_elements, BACKEND_BYTES * n_elements)
