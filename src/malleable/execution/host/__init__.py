"""Functions of JAX in NumPy, for the statements between two regions."""
