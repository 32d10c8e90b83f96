"""The tests mirror src/malleable: one file per module, plus the laws and the rules of the house."""
