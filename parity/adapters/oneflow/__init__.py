"""OneFlow."""
