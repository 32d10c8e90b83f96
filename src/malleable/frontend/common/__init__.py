"""What all of the front end shares: options of a call, hints, tracebacks."""
