"""A region at run time: traced, and run the way that costs least."""
