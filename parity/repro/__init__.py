"""A finding of a stored run as a script that shows it without parity."""

from __future__ import annotations

from parity.errors import UserError


class ReproError(UserError):
    """A script has nothing to show, or lacks what it needs; the message says what, and the remedy."""
