"""`parity hunt`: searches for the input on which a backend is furthest beyond its error bound, and makes it small."""

from __future__ import annotations

import shlex
import sys
from importlib.util import find_spec

from parity.errors import UserError

NEEDED = ("hypothesis", "cma")


class HuntError(UserError):
    """A hunt cannot start or continue; the message says why and what to do."""


def check_installed() -> None:
    """Raise HuntError if a library of the extra `hunt` is missing."""
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        what = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed"
        remedy = shlex.join([sys.executable, "-m", "pip", "install", *missing])
        raise HuntError(f"{what}: run `{remedy}` (the extra `hunt` of parity)")
