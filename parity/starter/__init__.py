"""The way in: a config for a file of the user's own ops, with inputs that can show a mistake."""

from __future__ import annotations


class StarterError(Exception):
    """No config can be made of a file; the message says why, where, and what to do."""
