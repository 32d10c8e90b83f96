"""Programs as data: passes and rules from jaxpr to jaxpr."""
