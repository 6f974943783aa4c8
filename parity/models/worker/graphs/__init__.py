"""ONNX graphs as models with layers: what the graph is made of, what each layer is, and how parts of it run."""
