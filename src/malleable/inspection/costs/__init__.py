"""FLOPs, bytes and memory by line."""
