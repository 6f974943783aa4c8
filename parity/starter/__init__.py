"""`parity init`: makes a config for a file of user ops, with inputs that can reveal mistakes."""

from __future__ import annotations


class StarterError(Exception):
    """No config can be made for a file; the message says why, where, and what to do."""
