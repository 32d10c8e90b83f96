"""What every client knows of a program: the facts about primitives."""
