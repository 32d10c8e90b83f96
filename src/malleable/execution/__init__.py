"""Selective JIT: Python runs, and the stretches between what needs Python are compiled."""
