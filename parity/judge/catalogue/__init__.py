"""The texts about every diagnosis."""
