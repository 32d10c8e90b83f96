"""Where in the user's code something runs."""

from malleable import compat


def here() -> str:
    """The user's line that runs."""
    at = compat.place()
    return "{}:{} in {}".format(*at) if at else ""
