"""Rewrite rules: a pattern, its replacement, and the driver."""
