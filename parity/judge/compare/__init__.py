"""Compares two tensors: metrics, structure and verdict."""
