"""What breaks a graph, and the words for it."""


class Unsupported(Exception):
    """Something this way of running a region does not do; the text says what."""

    def __init__(self, reason: str):
        self.reason = reason
        super().__init__(reason)


class NeedsPython(Exception):
    """A program that was taken for compiled as a whole has a statement that Python must run."""


class OtherSignature(Exception):
    """A compiled region was called with arguments of other types than it was traced for."""
