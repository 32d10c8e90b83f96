"""Programs in files: `save(path, fun, *args)`, `load(path)`; what can still be transformed, too."""
