"""What works with the libraries that people use: `python -m benchmarks.ecosystem`."""
