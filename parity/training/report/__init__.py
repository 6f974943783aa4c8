"""Reports trainings in every output format."""
