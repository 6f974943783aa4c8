"""Sentences about a run that several formats share."""
