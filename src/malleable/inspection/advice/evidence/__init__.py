"""What can be found out about an error: frames, source, values."""
