"""What stands for functions of Python, NumPy and SciPy on traced values."""
