"""parity: do two machine-learning frameworks compute the same thing, which one is wrong, and by how much?

Nearly empty on purpose: worker processes and users' scripts import this package in other interpreters. `capture`, and
the library (`compare`, `assert_parity` and their classes) from `parity.library`, are loaded on first use (PEP 562).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from parity.version import __version__ as __version__

if TYPE_CHECKING:
    from parity.capture.capturing import capture
    from parity.library import Agreement, Hint, ParityError, ParityWarning, Report, Row, assert_parity, compare

__all__ = ["Agreement", "Hint", "ParityError", "ParityWarning", "Report", "Row", "assert_parity", "capture", "compare"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    if name == "capture":
        return import_module("parity.capture")  # which can be called
    return getattr(import_module("parity.library"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
