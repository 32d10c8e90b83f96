"""Errors of values: shapes, types, and numbers that Python asks for."""
