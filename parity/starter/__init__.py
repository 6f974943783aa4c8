"""`parity init`: makes a config for a file of user ops, with inputs that can reveal mistakes."""

from __future__ import annotations

from parity.errors import UserError


class StarterError(UserError):
    """No config can be made for a file; the message says why, where, and what to do."""
