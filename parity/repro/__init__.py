"""A finding of a stored run as a script that shows it without parity."""

from __future__ import annotations


class ReproError(Exception):
    """There is nothing that a script could show, or not all that it needs; the message says what, and the remedy."""
