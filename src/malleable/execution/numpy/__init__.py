"""Programs as generated NumPy code."""
