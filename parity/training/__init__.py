"""Trainings: runs a small model for many steps in every backend, in lockstep, and finds where they first diverge."""
