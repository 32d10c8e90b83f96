"""See what a program is and what became of it."""
