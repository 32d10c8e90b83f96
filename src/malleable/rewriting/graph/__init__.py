"""A program as a graph, and one axis of its arrays."""
