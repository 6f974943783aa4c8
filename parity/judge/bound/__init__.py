"""The error bound: how far from the exact answer a careful implementation may be."""
