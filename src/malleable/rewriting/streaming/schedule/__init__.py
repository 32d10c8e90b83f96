"""How a region runs: one step, or one block of steps, at a time."""
