"""What converted code calls in the place of a construct of Python."""
