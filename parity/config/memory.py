"""What a case needs of the machine's memory, as measured at the peaks of runs."""

from __future__ import annotations

from dataclasses import dataclass

ORACLE_BYTES = 64
BACKEND_BYTES = 24
"""Per element of all inputs, outputs and gradients: LayerNorm with 5e6 elements in x took 0.84 GiB in the host, where
the oracle keeps its intermediate values in longdouble, and as much in a numpy worker."""

GIB = 2**30


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes that the host needs, and each backend."""

    host: int
    backend: int

    def total(self, n_backends: int) -> int:
        """Bytes of the whole run while this case is computed."""
        return self.host + n_backends * self.backend


def memory_of_op(n_elements: int) -> MemoryNeed:
    """For an op whose inputs, outputs and gradients have so many elements."""
    return MemoryNeed(ORACLE_BYTES * n_elements, BACKEND_BYTES * n_elements)
