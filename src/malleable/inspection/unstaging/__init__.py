"""Staged code run as plain Python."""
