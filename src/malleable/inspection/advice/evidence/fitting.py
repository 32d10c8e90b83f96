"""How an array of one shape is made one of another: `jnp.pad(x, (0, 1))`, `(x).T`."""

import itertools
import math

import numpy as np

Shape = tuple[int, ...]


def fitted(shown: str, got: Shape, wanted: Shape) -> str:
    """What to write for `shown`, of one shape, to have another; "" where nothing suggests itself.

    >>> fitted("x", (3,), (2, 3)), fitted("x", (3, 2), (2, 3)), fitted("x", (6,), (2, 3))
    ('jnp.broadcast_to(x, (2, 3))', 'x.T', 'jnp.reshape(x, (2, 3))')
    >>> fitted("x", (2,), (3,)), fitted("a + b", (3,), (2,)), fitted("x", (2, 3), (2,))
    ('jnp.pad(x, (0, 1))', '(a + b)[:2]', 'jnp.sum(x, axis=1)')
    >>> fitted("x", (2, 3), (5, 2))
    ''
    """
    if spreads(got, wanted):
        return f"jnp.broadcast_to({shown}, {wanted})"
    if len(got) > 1 and got[::-1] == wanted:
        return f"{closed(shown)}.T"
    if math.prod(got) == math.prod(wanted):
        return f"jnp.reshape({shown}, {wanted})"
    if len(got) > len(wanted):
        axes = _without(got, wanted)
        return f"jnp.sum({shown}, axis={_spelled(axes)})" if axes else ""
    return _sized(shown, got, wanted) if len(got) == len(wanted) else ""


def gathered(shown: str, got: Shape, wanted: Shape) -> str:
    """The gradient of an argument of shape `wanted` that was broadcast to `got`, "" if not.

    >>> gathered("g * x", (4, 3), (3,)), gathered("g", (4, 3), (4, 1)), gathered("g", (3,), (4,))
    ('jnp.sum(g * x, axis=0)', 'jnp.sum(g, axis=1, keepdims=True)', '')
    >>> gathered("g", (5, 4, 3), (4, 1))
    'jnp.sum(g, axis=(0, 2)).reshape((4, 1))'
    """
    if not spreads(wanted, got):
        return ""
    lead = len(got) - len(wanted)
    kept = [lead + i for i, n in enumerate(wanted) if n == 1 and got[lead + i] != 1]
    summed = f"jnp.sum({shown}, axis={_spelled((*range(lead), *kept))}"
    if lead and kept:
        return f"{summed}).reshape({wanted})"
    return f"{summed}, keepdims=True)" if kept else f"{summed})"


def spreads(got: Shape, wanted: Shape) -> bool:
    """Whether an array of one shape is broadcast to another."""
    try:
        return np.broadcast_shapes(got, wanted) == wanted
    except ValueError:
        return False


def closed(shown: str) -> str:
    """An expression in brackets, unless it is a name or one call.

    >>> closed("x"), closed("a + b"), closed("jnp.ones(3)"), closed("f(x) + g(y)")
    ('x', '(a + b)', 'jnp.ones(3)', '(f(x) + g(y))')
    """
    name, _, rest = shown.partition("(")
    one = not rest or (rest.endswith(")") and "(" not in rest and ")" not in rest[:-1])
    return shown if one and name.replace(".", "_").isidentifier() else f"({shown})"


def _without(got: Shape, wanted: Shape) -> Shape:
    """The axes without which one shape is the other, () if there are none such."""
    for axes in itertools.combinations(range(len(got)), len(got) - len(wanted)):
        if tuple(n for i, n in enumerate(got) if i not in axes) == wanted:
            return axes
    return ()


def _spelled(axes: Shape) -> str:
    return str(axes[0]) if len(axes) == 1 else str(axes)


def _sized(shown: str, got: Shape, wanted: Shape) -> str:
    pairs = list(zip(got, wanted, strict=True))
    if all(m <= n for m, n in pairs):
        pads = tuple((0, n - m) for m, n in pairs)
        return f"jnp.pad({shown}, {pads[0] if len(pads) == 1 else pads})"
    if all(m >= n for m, n in pairs):
        parts = [f":{n}" if n != m else ":" for m, n in pairs]
        while parts[-1] == ":":
            parts.pop()
        return f"{closed(shown)}[{', '.join(parts)}]"
    return ""
