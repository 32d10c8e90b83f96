"""The user's Python: files, syntax trees, names, and whose a piece of code is."""
