"""Asking a backend again, with other inputs than the user's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from numpy.typing import NDArray

from parity.config.plan import CasePlan

Array = NDArray[Any]
Kernel = Callable[[CasePlan, str, Mapping[str, Array]], Mapping[str, Array] | None]
"""One backend: a case, a dtype and inputs by tensor name to outputs by tensor name; None where it gives no answer."""
Ask = Callable[[str, CasePlan, str, Mapping[str, Array]], Mapping[str, Array] | None]
"""Any backend of a run, by name."""
