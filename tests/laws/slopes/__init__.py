"""The gradients of Python programs are the slopes that plain Python has."""
