"""What all parts of selective JIT share."""
