"""Two tensors to metrics and a comparison."""
