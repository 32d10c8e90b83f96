"""Programs that compute only what is new: `incremental`, and `as_scan` for causal ones."""
