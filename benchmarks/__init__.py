"""What malleable costs, measured as ratios in one process: `python -m benchmarks.NAME [--json]`."""
