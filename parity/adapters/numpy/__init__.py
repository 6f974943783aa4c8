"""NumPy, and user ops that bring their own backward."""
