"""Python values as trees of arrays; blocks traced once, and two of them joined."""
