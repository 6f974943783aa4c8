"""Curves and probed steps of a training to verdicts and causes."""
