"""One program for code that was recorded: calls as rows, and what they mean in NumPy."""
