"""Runs a training in all backends side by side, step by step."""
