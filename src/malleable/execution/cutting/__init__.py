"""One function cut into regions and host statements; its residual program."""
