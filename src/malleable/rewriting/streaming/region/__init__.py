"""Which equations an axis streams through: grown, then trimmed."""
