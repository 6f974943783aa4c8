"""Judges trainings: from curves and probed steps to verdicts and causes."""
