"""ONNX Runtime."""
