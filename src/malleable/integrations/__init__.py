"""PyTensor, ONNX and other programs that meet this one."""
