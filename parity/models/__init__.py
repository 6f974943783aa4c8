"""Two ports of one model: where they differ, and why."""
