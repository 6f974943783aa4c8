"""A training in YAML to its spec."""
