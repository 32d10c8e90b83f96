"""The errors users see. Each names the user's line and one way out."""


class MalleableError(Exception):
    """Base of every error this library raises on purpose.

    what: one sentence, in the user's words; where: `file.py:12 in fun`, or "" when no line of
    the user's is known; hint: one sentence telling what to do next.

    >>> print(MalleableError("'x' is fed nothing", where="model.py:3 in net", hint="feed it"))
    'x' is fed nothing
      at model.py:3 in net
      hint: feed it
    """

    def __init__(self, what: str, *, where: str = "", hint: str = ""):
        self.what, self.where, self.hint = what, where, hint
        at, todo = f"\n  at {where}" * bool(where), f"\n  hint: {hint}" * bool(hint)
        super().__init__(what + at + todo)


class TransformError(MalleableError):
    """A function and the transformation applied to it do not fit together."""


class BreakWarning(UserWarning):
    """A statement breaks the graph of a function under `jit`, or programs are made on and on."""


class RuleError(MalleableError):
    """A rule returned something that does not fit in the place of its equation."""


class UnhandledError(MalleableError):
    """A value was asked for that only a transformation can supply, and none is around."""
