"""Calls a backend for one more cell; the judge knows no processes, only this callable."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from parity.config.plan import CasePlan
from parity.judge.bound.envelope import Array

Ask = Callable[[str, CasePlan, str, Mapping[str, Array]], Mapping[str, Array] | None]
"""Maps backend, case, dtype and inputs by tensor name (`grad.<output>` for grad_outputs) to outputs by tensor name.

The case's params and the shapes of its tensors may differ from the user's; nothing is drawn. The outputs are new arrays
in that dtype; outputs without values, or of a wrong shape, are missing. An input that the op has changed, and whose new
value is not an output, is returned as `input.<name>`. None if the backend gave no result (unsupported, crash, timeout,
lost), or the budget of calls for this case is used up.
"""

Kernel = Callable[[CasePlan, str, Mapping[str, Array]], Mapping[str, Array] | None]
"""`Ask` of one backend."""


def kernel_of(ask: Ask | None, backend: str) -> Kernel | None:
    """One backend as a kernel; None if it cannot be called (stored runs, dumps, the library)."""
    return None if ask is None else partial(ask, backend)
