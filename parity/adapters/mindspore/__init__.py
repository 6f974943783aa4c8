"""MindSpore."""
