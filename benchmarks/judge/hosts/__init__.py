"""What runs inside the workers; this folder is on their path, and nothing here may be named like a framework."""
