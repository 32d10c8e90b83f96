"""Stateful transformations, each a client of the core: tags, random keys, parameters, arrays."""
