"""What random array programs do with elements and rows: arithmetic, casts, views, windows, joins.

Each is a function of (writer, scope), which writes one step or returns NotImplemented.
"""

from tests.generators.arrays.writer import FLOATS, fits, real

LARGEST = 160  # elements
# text, bound of the result, whether different operands give different results
UNARY = [
    ("jnp.sin({0})", 1, True),
    ("jnp.tanh({0})", 1, True),
    ("jnp.exp({0})", 4.5, True),
    ("{0} ** 2", 2.3, True),
    ("jax.nn.sigmoid({0})", 1, True),
    ("jnp.log(2.0 + {0})", 1.3, True),
    ("jax.nn.softplus({0})", 1.8, True),
    ("jax.nn.gelu({0})", 1.5, True),
    ("-{0}", 1.5, True),
    ("lax.rsqrt(2.0 + {0})", 1.5, True),
    ("jnp.maximum({0}, 0.1)", 1.5, False),
    ("jnp.clip({0}, -0.4, 0.5)", 0.5, False),
    ("{0} / (2.5 + {0})", 1.5, True),
    ("jnp.where({0} > 0.1, {0}, 0.3)", 1.5, False),
    ("{0} ** 3", 3.4, True),
    ("jnp.log(1 + jnp.exp({0}))", 1.8, True),
    ("jax.jit(jnp.cos)({0})", 1, True),
    ("jax.checkpoint(lambda z: jnp.sin(z) * z)({0})", 1.5, False),
    ("2 * {0} - 1", 4, True),
    ("jax.nn.relu({0})", 1.5, False),
    ("jnp.sqrt(2.0 + {0})", 1.9, True),
    ("lax.stop_gradient({0})", 1.5, True),
    ("1.5 * {0} / 3", 1, True),
]
BINARY = [
    ("{0} + {1}", 3),
    ("{0} - 0.6 * {1}", 2.4),
    ("{0} * {1}", 2.3),
    ("({0} - {1}) ** 2", 9),
    ("jnp.maximum({0}, 0.7 * {1} - 0.1)", 1.5),
    ("{0} / (2.5 + {1})", 1.5),
    ("jnp.logaddexp({0}, {1})", 2.3),
    ("jnp.where({0} > 0.1, {1}, 0.5 * {0})", 1.5),
    ("jnp.arctan2({0}, 2.5 + {1})", 1),
    ("jnp.exp({0}) * {1}", 7),
    ("{1} * {0} + {1} * 0.3", 3),
]


def is_float(value):
    return value.dtype in FLOATS


def is_small(value):
    return value.size <= LARGEST


def is_array(value):
    return value.rank > 0 and value.size <= LARGEST


def unary(w, scope):
    a = w.read(scope, is_small)
    if a is None:
        return NotImplemented
    text, bound, distinct = w.pick(UNARY)
    w.add(
        scope, "unary", text.format(real(a)), a.shape, bound=bound, distinct=distinct and a.distinct
    )


def other_operand(w, scope, a):
    """A value that broadcasts to the shape of a: one that is there, or a new argument."""
    given = [b for b, _ in w.args if fits(b.shape, a.shape)]
    if given and w.chance(5):
        return w.pick(given)
    b = w.read(scope, lambda b: b.name != a.name and fits(b.shape, a.shape))
    if b is not None and w.rng.integers(3):
        return b
    shape = a.shape[w.pick((0, 0, min(1, a.rank), a.rank)) :]
    shape = tuple(1 if w.chance(4) else n for n in shape)
    return w.arg(shape, w.pick(("signed", "signed", "positive", "mask")))


def binary(w, scope):
    a = w.read(scope, is_small)
    if a is None:
        return NotImplemented
    b = other_operand(w, scope, a)
    text, bound = w.pick(BINARY)
    operands = [real(a), real(b)]
    if fits(a.shape, b.shape) and w.chance(2):
        operands.reverse()
    distinct = a.distinct and "where" not in text and "maximum" not in text and "{1} *" not in text
    w.add(
        scope,
        "binary",
        text.format(*operands),
        a.shape,
        bound=bound,
        distinct=distinct and b.dtype == "float",
    )


def integers(w, scope):
    a = w.read(scope, lambda v: is_small(v) and v.dtype != "bool")
    if a is None:
        return NotImplemented
    if a.dtype == "int32":
        text, bound = w.pick(
            [
                ("{0} * 1103515245 + 12345", 1e10),
                ("{0} % 3", 3),
                ("2 * {0} - 1", 2 * a.bound + 1),
                ("jnp.minimum({0}, 2)", a.bound),
                ("{0} ^ 5", 1e10),
            ]
        )
        text = text.format(a.name)
    else:
        text, bound = f"(3 * {real(a)}).astype(jnp.int32)", 5
    w.add(scope, "integers", text, a.shape, dtype="int32", bound=bound, distinct=False)


def test(w, scope):
    a = w.read(scope, is_small)
    if a is None:
        return NotImplemented
    text = {"bool": "~{}", "int32": "{} % 2 == 0"}.get(a.dtype, "{} > 0.1").format(a.name)
    w.add(scope, "test", text, a.shape, dtype="bool", distinct=False)


def cast(w, scope):
    a = w.read(scope, is_small)
    if a is None:
        return NotImplemented
    dtype = w.pick(("bfloat16", "float32", "float32"))
    distinct = a.distinct and dtype != "bfloat16"
    text = f"{real(a)}.astype(jnp.{dtype})"
    w.add(scope, "cast", text, a.shape, dtype=dtype, bound=1.5, distinct=distinct)


def view(w, scope):
    """The same elements, in another order or shape."""
    a = w.read(scope, is_array)
    if a is None:
        return NotImplemented
    v, s = a.name, a.shape
    axis = int(w.rng.integers(a.rank))
    options = [
        (f"{v}.reshape(-1)", (a.size,)),
        (f"{v}[::-1]", s),
        (f"jnp.flip({v}, {axis})", s),
        (f"jnp.roll({v}, 1, {axis})", s),
        (f"jnp.expand_dims({v}, {axis})", (*s[:axis], 1, *s[axis:])),
    ]
    if a.rank > 1:
        order = tuple(int(k) for k in w.rng.permutation(a.rank))
        options += [(f"{v}.transpose({order})", tuple(s[k] for k in order))] * 2
        options += [(f"jnp.swapaxes({v}, 0, 1)", (s[1], s[0], *s[2:]))] * 2
        options += [(f"{v}.reshape({s[0] * s[1]}, *{s[2:]})", (s[0] * s[1], *s[2:]))] * 2
    if 1 in s:
        k = s.index(1)
        options += [(f"{v}.squeeze({k})", (*s[:k], *s[k + 1 :]))]
    for k, n in enumerate(s):
        if n in (4, 6):
            shape = (*s[:k], 2, n // 2, *s[k + 1 :])
            options += [(f"{v}.reshape({shape})", shape)]
    if a.size <= LARGEST // 3:
        options += [
            (f"jnp.broadcast_to({v}, {(2, *s)})", (2, *s)),
            (f"jnp.repeat({v}, 2, {axis})", (*s[:axis], 2 * s[axis], *s[axis + 1 :])),
        ]
    text, shape = w.pick(options)
    if len(shape) > 4:
        return NotImplemented
    distinct = a.distinct and "broadcast" not in text and "repeat" not in text
    w.add(scope, "view", text, shape, dtype=a.dtype, bound=a.bound, distinct=distinct)


def window(w, scope):
    """Some of the rows, along the first axis or along another."""
    a = w.read(scope, is_array)
    if a is None:
        return NotImplemented
    axis = 0 if w.rng.integers(4) else int(w.rng.integers(a.rank))
    n = a.shape[axis]
    k = int(w.rng.integers(n))
    options = [("-1", None), (str(k), None), (f"{k}:", n - k), ("::2", -(-n // 2)), ("::-1", n)]
    if n > 1:
        options += [
            (":-1", n - 1),
            ("1:", n - 1),
            (f":{k + 1}", k + 1),
            ("1::2", n // 2),
            ("::3", -(-n // 3)),
        ] * 2
    index, extent = w.pick(options)
    before, after = a.shape[:axis], a.shape[axis + 1 :]
    shape = (*before, *([] if extent is None else [extent]), *after)
    text = f"{a.name}[{':, ' * axis}{index}]"
    if extent is None and axis == 0 and w.chance(3):
        text = f"lax.dynamic_index_in_dim({a.name}, {k}, 0, keepdims=False)"
    w.add(scope, "window", text, shape, dtype=a.dtype, bound=a.bound, distinct=a.distinct)


def difference(w, scope):
    """Neighbours along the first axis, of one value or of two."""
    a = w.read(scope, lambda v: is_array(v) and v.shape[0] > 1 and is_float(v))
    if a is None:
        return NotImplemented
    b = w.read(scope, lambda v: v.shape == a.shape and is_float(v) and v.name != a.name)
    b = b or w.arg(a.shape)
    text = w.pick(
        (
            "{0}[1:] - 0.7 * {0}[:-1]",
            "({0}[:-1] - {1}[1:]) ** 2",
            "{0}[1:] * {1}[:-1]",
            "jnp.diff({0}, axis=0)",
        )
    )
    text = text.replace("{0}", real(a)).replace("{1}", real(b))
    w.add(scope, "difference", text, (a.shape[0] - 1, *a.shape[1:]), bound=9, distinct=False)


def joined(w, scope):
    """With a row in front or behind, or another array."""
    a = w.read(scope, lambda v: is_array(v) and is_float(v))
    if a is None:
        return NotImplemented
    row = w.arg(a.shape[1:])
    n, rest = a.shape[0], a.shape[1:]
    text, extent = w.pick(
        [
            ("jnp.concatenate([{1}[None], {0}])", n + 1),
            ("jnp.concatenate([{0}, {1}[None]])", n + 1),
            ("jnp.concatenate([{1}[None], {0}[:-1]])", n),
            ("jnp.concatenate([{0}, {0}[::-1]])", 2 * n),
            ("jnp.concatenate([{1}[None], {0}, {1}[None]])", n + 2),
        ]
    )
    text = text.replace("{0}", real(a)).replace("{1}", row.name)
    w.add(scope, "joined", text, (extent, *rest), bound=1.5, distinct=False)


ELEMENTWISE = (unary, unary, binary, binary, binary, integers, test, cast)
VIEWS = (view, view, window, window, difference, joined)
