"""Keras."""
