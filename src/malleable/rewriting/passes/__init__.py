"""Passes: jaxpr in, jaxpr out."""
