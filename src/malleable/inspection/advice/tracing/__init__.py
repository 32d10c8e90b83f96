"""Errors of calls, loops, branches, maps and derivatives."""
