"""Exact products, ordered sums, and formats of fewer digits."""
