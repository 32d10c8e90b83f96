"""What breaks a graph, and the words for it."""

_SIZE = (
    "jnp.where(mask, x, 0) and a reduction over all of it",
    "jnp.sum(x, where=mask), as the other reductions take it",
    "jnp.nonzero(mask, size=n, fill_value=0), a size known before",
)
_VALUE = (
    "leave it an array: no float(), int() or item()",
    "jnp in place of numpy, jax.scipy in place of scipy",
    "jax.pure_callback around what only NumPy has",
)
NEAREST = {
    "bool": (
        "jnp.where(test, a, b)",
        "lax.cond or lax.while_loop",
        "control_flow='lift', or mal.autograph on the function",
    ),
    "mask": _SIZE,
    "size": _SIZE,
    "int": (
        "a static argument: a Python int in place of an array",
        "lax.dynamic_slice, or x.at[i]",
        "a range that holds all cases, with a mask",
    ),
    "effect": (
        "jax.debug.print or jax.debug.callback",
        "return the value, and do it after the call",
        "io_callback where the order matters",
    ),
    "state": (
        "nnx.jit on all of the function, for flax.nnx: it carries the state out",
        "nnx.split before the function, nnx.merge inside it",
        "return the new state, and take it as an argument",
    ),
    "text": (
        "jax.debug.print('{}', x)",
        "return the value, and print it after the call",
        "text of shapes and dtypes, which are known",
    ),
    "python": (
        "the statement before or after the function",
        "a loop or branch over arrays: lax.scan, lax.cond",
        "a list or tuple of arrays in place of an object",
    ),
}
"""Three rewrites that lie near, by the kind of break."""


def nearest(kind: str) -> tuple[str, str, str]:
    """Three ways to write what breaks a graph so that it does not."""
    found = NEAREST.get(kind)
    if found is None:
        found = NEAREST["python"] if kind in ("object", "call") else _VALUE
    return found


class Unsupported(Exception):
    """Something this way of running a region does not do; the text says what."""

    def __init__(self, reason: str):
        self.reason = reason
        super().__init__(reason)


class NeedsPython(Exception):
    """A program that was taken for compiled as a whole has a statement that Python must run."""


class Cut(Exception):
    """A region was cut while what it does before an exception matters.

    state: what is known of it.
    """

    def __init__(self, state):
        super().__init__()
        self.state = state


class OtherSignature(Exception):
    """A compiled region was called with arguments of other types than it was traced for."""
