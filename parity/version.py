"""The release of parity."""

__version__ = "0.1.0"
