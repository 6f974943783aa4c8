"""Exact products, ordered sums, and formats of lower precision."""
