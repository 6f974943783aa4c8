"""`parity diff`: the comparison of two stored runs, and its formats."""
