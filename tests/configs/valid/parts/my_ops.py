"""Ops of a user."""
