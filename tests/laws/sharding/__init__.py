"""What every transformation keeps, on random programs."""
