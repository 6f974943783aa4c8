"""A wrong tensor to its cause."""
