"""Loops with a scheduled region in their bodies."""
