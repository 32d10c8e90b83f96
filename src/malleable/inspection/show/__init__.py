"""Programs as they are shown, after each stage, and what differs between two."""
