"""Advice from watching what runs: keys, indices, NaN, recompilation."""
