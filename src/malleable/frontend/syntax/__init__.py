"""From source text to source text in which operators stand for constructs."""
