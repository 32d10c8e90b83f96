"""What the docs say about the whole of the package."""
