"""Weights in the names and layouts of PyTorch, in safetensors files and ONNX graphs."""
