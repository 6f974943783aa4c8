"""A finding of a stored run as a script that shows it without parity."""
