"""How one axis of an array passes an equation, by kind of primitive."""
