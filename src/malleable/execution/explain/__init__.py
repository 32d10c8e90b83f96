"""What selective JIT did, measured and reported."""
