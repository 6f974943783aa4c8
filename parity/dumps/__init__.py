"""`parity compare`: tensors in files, matched by name, order or content, and compared as they stream by."""
