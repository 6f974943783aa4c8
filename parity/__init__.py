"""parity: do two machine-learning frameworks compute the same thing, who is off, and by how much?

Nearly empty on purpose: worker processes load this package in other interpreters.
"""

__version__ = "0.1.0"
