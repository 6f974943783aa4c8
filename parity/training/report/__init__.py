"""Trainings in every output format."""
