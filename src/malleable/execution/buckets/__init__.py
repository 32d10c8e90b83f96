"""Programs over symbolic sizes, run on padded arrays."""
