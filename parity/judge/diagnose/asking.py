"""Asking a backend that can still be asked for one more cell: the judge knows no processes, it has a callable."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from parity.config.plan import CasePlan
from parity.judge.bound.envelope import Array

Ask = Callable[[str, CasePlan, str, Mapping[str, Array]], Mapping[str, Array] | None]
"""Backend, case, dtype and inputs by tensor name (`grad.<output>` for upstream gradients) to outputs by tensor name.

The case's params and the shapes of its tensors may differ from the user's; nothing is drawn. The outputs are arrays of
their own in that dtype; one without values, or of another shape than the case has, is missing. An input that the op has
changed, though no output is its new value, is there with its values afterwards, as `input.<name>`. None where the
backend gave no answer (unsupported, crash, timeout, lost), or may be asked no more about this case.
"""

Kernel = Callable[[CasePlan, str, Mapping[str, Array]], Mapping[str, Array] | None]
"""`Ask` of one backend."""


def kernel_of(ask: Ask | None, backend: str) -> Kernel | None:
    """One backend as a kernel; None where nobody can be asked (stored runs, dumps, the library)."""
    return None if ask is None else partial(ask, backend)
