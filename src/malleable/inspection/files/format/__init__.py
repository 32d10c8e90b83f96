"""What a saved program is, as plain data, as text and as bytes."""
