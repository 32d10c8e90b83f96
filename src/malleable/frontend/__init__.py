"""Ordinary Python and NumPy code, compiled."""
