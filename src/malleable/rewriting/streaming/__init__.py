"""Reductions pushed into scans, large intermediates worked off in blocks."""
