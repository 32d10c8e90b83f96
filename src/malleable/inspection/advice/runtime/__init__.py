"""Errors that come while a program runs, on one device or several."""
