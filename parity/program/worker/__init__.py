"""What records calls inside a worker."""
