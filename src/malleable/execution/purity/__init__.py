"""Which statements only compute, and may stand in a compiled region."""
