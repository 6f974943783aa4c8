"""Finds the cause of a wrong tensor."""
