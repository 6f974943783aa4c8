"""The primes of the finite fields in which formulas are compared (`field.py`), and what is noted of a computation: the
host reads both without PyTorch."""

from __future__ import annotations

P = 94819199
"""A prime 2 Q + 1, with Q prime, whose products are exact in float64. Modulo both, 2, 3, 5, 7 and 11 are squares, so
that the roots of their products are roots, too; -1 is none."""
ORDER = P - 1
"""Residues that `exp` reads: exponents of powers modulo P."""
Q = ORDER // 2
"""The prime modulo which two of these are compared: modulo 2 they only keep the sign of a logarithm."""
ROOT = 4
"""Its powers modulo P are all squares; those of -ROOT are all numbers but 0."""
MODULI = {"q": ORDER, "p": P}
ROOT_TAKEN, NUMBER_READ = "sqrt", "item"
"""The notes that a root was taken, and that code has read a number from a tensor; all others name a call."""
