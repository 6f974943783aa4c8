"""Reads trainings from YAML."""
