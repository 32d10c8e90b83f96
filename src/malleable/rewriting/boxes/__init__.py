"""Which part of each operand an equation needs for a part of its result, and the other way."""
