"""What the library decides and says about many programs, on record: see README.md."""
