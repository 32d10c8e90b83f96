"""Programs as Python source."""
