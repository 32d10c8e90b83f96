"""What random array programs do along axes: prefixes, reductions, weights, dots, labels.

Each is a function of (writer, scope), which writes one step or returns NotImplemented.
"""

from tests.generators.arrays.elements import ELEMENTWISE, VIEWS, is_array, is_float, other_operand
from tests.generators.arrays.writer import real


def prefix(w, scope):
    a = w.read(scope, lambda v: is_array(v) and v.dtype != "bool")
    if a is None:
        return NotImplemented
    axis = 0 if w.rng.integers(3) else int(w.rng.integers(a.rank))
    if a.dtype == "int32":
        text, bound = f"jnp.cumsum({a.name}, axis={axis}, dtype=jnp.int32)", 1e10
        return w.add(scope, "prefix", text, a.shape, dtype="int32", bound=bound, distinct=False)
    text, bound = w.pick(
        [
            ("jnp.cumsum({0}, axis={1})", 1.5 * a.shape[axis]),
            ("lax.cumsum({0}, {1}, reverse=True)", 1.5 * a.shape[axis]),
            ("jnp.cumprod(1 + 0.1 * {0}, axis={1})", 4),
            ("lax.cummax(lax.stop_gradient({0}), {1})", 1.5),
            ("jnp.cumsum({0}, axis={1})", 1.5 * a.shape[axis]),
        ]
    )
    distinct = a.distinct and "cummax" not in text
    w.add(scope, "prefix", text.format(real(a), axis), a.shape, bound=bound, distinct=distinct)


def reduced(shape, axes, keep):
    if keep:
        return tuple(1 if k in axes else n for k, n in enumerate(shape))
    return tuple(n for k, n in enumerate(shape) if k not in axes)


def reduction(w, scope):
    a = w.read(scope, is_array)
    if a is None:
        return NotImplemented
    axes = tuple(w.some(range(a.rank), a.rank))
    if 0 not in axes and w.chance(2):
        axes = (0, *axes)
    keep, count = w.chance(4), 1
    for k in axes:
        count *= a.shape[k]
    options = f"axis={axes[0] if len(axes) == 1 else axes}" + ", keepdims=True" * keep
    facts = {"bound": 1.5, "distinct": a.distinct}
    if a.dtype == "bool":
        kind, dtype = w.pick(
            (("any", "bool"), ("all", "bool"), ("sum", "int32"), ("mean", "float"))
        )
        text = f"jnp.{kind}({a.name}, {options}{', dtype=jnp.int32' * (kind == 'sum')})"
        facts = {"dtype": dtype, "bound": a.size, "distinct": False}
    elif a.dtype == "int32":
        kind = w.pick(("sum", "prod", "max", "min"))
        text = f"jnp.{kind}({a.name}, {options}{', dtype=jnp.int32' * (kind in ('sum', 'prod'))})"
        facts = {"dtype": "int32", "bound": 1e10, "distinct": False}
    else:
        v = real(a)
        still = v if a.distinct else f"lax.stop_gradient({v})"  # no gradient that rounding decides
        kind, text, bound = w.pick(
            [
                ("sum", f"jnp.sum({v}, {options})", 1.5 * count),
                ("mean", f"jnp.mean({v}, {options})", 1.5),
                ("sum", f"{v}.sum({options})", 1.5 * count),
                ("mean", f"{v}.mean({options})", 1.5),
                ("max", f"jnp.max({still}, {options})", 1.5),
                ("min", f"jnp.min({still}, {options})", 1.5),
                ("prod", f"jnp.prod(1 + 0.05 * {v}, {options})", 1.1**count),
                ("logsumexp", f"jax.nn.logsumexp({v}, {options})", 1.5 + count**0.5),
                ("var", f"jnp.var({v}, {options})", 2.3),
                ("std", f"jnp.sqrt(0.1 + jnp.var({v}, {options}))", 1.6),
                ("moments", f"jnp.mean({v} ** 2, {options}) - jnp.mean({v}, {options}) ** 2", 2.3),
                ("norm", f"jnp.sqrt(0.1 + jnp.sum({v} ** 2, {options}))", 1 + 1.5 * count**0.5),
                (
                    "centred",
                    f"jnp.mean(({v} - jnp.mean({v}, axis={axes}, keepdims=True)) ** 3, {options})",
                    27,
                ),
            ]
        )
        facts["bound"] = bound
        facts["distinct"] &= kind != "centred" or count > 2  # of two it is 0, but for rounding
        if bound > 1e4:
            return NotImplemented
    w.add(scope, kind, text, reduced(a.shape, axes, keep), **facts)


def arg_reduction(w, scope):
    """Where the largest or smallest is: of distinct floats, or the first of equal integers."""
    a = w.read(scope, lambda v: is_array(v) and (v.distinct or v.dtype == "int32"))
    if a is None:
        return NotImplemented
    axis = int(w.rng.integers(a.rank))
    if w.chance(4):
        axis, shape, extent = None, (), a.size
    else:
        shape, extent = reduced(a.shape, (axis,), False), a.shape[axis]
    text = f"jnp.{w.pick(('argmax', 'argmin'))}({a.name}, axis={axis}).astype(jnp.int32)"
    w.add(scope, "arg", text, shape, dtype="int32", bound=extent, distinct=False)


def order(w, scope):
    """Sorting and selecting, which no stream can do."""
    a = w.read(scope, lambda v: is_array(v) and is_float(v) and v.distinct)
    if a is None:
        return NotImplemented
    axis = int(w.rng.integers(a.rank))
    rest = reduced(a.shape, (axis,), False)
    text, shape = w.pick(
        [
            ("jnp.sort({0}, axis={1})", a.shape),
            ("jnp.sort({0}, axis={1}).take(0, {1})", rest),
            ("jnp.median({0}, axis={1})", rest),
            ("lax.top_k({0}, 1)[0]", (*a.shape[:-1], 1)),
        ]
    )
    w.add(scope, "order", text.format(real(a), axis), shape, bound=1.5)


def indexed(w, scope):
    """Sums by index: of segments, of a histogram, into rows of an array."""
    a = w.read(scope, lambda v: is_array(v) and v.dtype != "bool")
    if a is None:
        return NotImplemented
    few, n = w.pick((1, 2, 4)), a.shape[0]
    rows = w.arg((n,), f"below({few + w.chance(3)})").name  # the last may be outside
    rest, v = (few, *a.shape[1:]), real(a)
    whole = f"jnp.round(3 * {v}).astype(jnp.int32)"
    text, shape, facts = w.pick(
        [
            (f"jax.ops.segment_sum({v}, {rows}, {few})", rest, {}),
            (f"jnp.zeros({rest}).at[{rows}].add({v}, mode='drop')", rest, {}),
            (f"jnp.zeros({few}).at[{rows}[::-1]].add({v}.reshape({n}, -1).sum(1))", rest[:1], {}),
            (f"jax.ops.segment_max({whole}, {rows}, {few})", rest, INTS),
            (f"jnp.bincount(jnp.abs({whole}).ravel(), length=5)", (5,), INTS),
            (f"jnp.histogram(lax.stop_gradient({v}), bins=4, range=(-1, 1.1))[0]", (4,), {}),
        ]
    )
    w.add(scope, "indexed", text, shape, **{"bound": 1.5 * a.size, "distinct": False, **facts})


INTS = {"dtype": "int32", "bound": 1e10}


def lagged(w, scope):
    """What was there one, two or three steps earlier or later, beside what is there."""
    a = w.read(scope, lambda v: is_array(v) and is_float(v) and v.shape[0] > 1)
    if a is None:
        return NotImplemented
    d = min(1 + int(w.rng.integers(3)), a.shape[0] - 1)
    v, rows = real(a), w.arg((d, *a.shape[1:])).name
    q = w.pick((f"jnp.concatenate([{rows}, {v}[:-{d}]])", f"jnp.concatenate([{v}[{d}:], {rows}])"))
    k = w.arg(a.shape).name
    text = w.pick(("{q} * {v}", "{q} - {v}", "{q} * {k}", "({q} + {v}) * {k}", "{v} - {k} * {q}"))
    w.add(scope, "lagged", text.format(q=q, v=v, k=k), a.shape, bound=3, distinct=False)


def softmax(w, scope):
    """Weights along an axis, and what they are the weights of."""
    a = w.read(scope, lambda v: is_array(v) and is_float(v))
    if a is None:
        return NotImplemented
    axis = 0 if w.chance(2) else int(w.rng.integers(a.rank))
    b = w.read(scope, lambda v: v.shape == a.shape and is_float(v)) or a
    rest = reduced(a.shape, (axis,), False)
    s, v = real(a), real(b)
    text, shape, distinct = w.pick(
        [
            (f"(jax.nn.softmax({s}, axis={axis}) * {v}).sum({axis})", rest, True),
            (f"jax.nn.log_softmax({s}, axis={axis})", a.shape, a.distinct),
            (f"jnp.log(jax.nn.softmax({s}, axis={axis}))", a.shape, a.distinct),
            (f"jax.nn.softmax({s}, axis={axis}) * {v}", a.shape, False),
            (f"(jnp.exp({s}) * {v}).sum({axis}) / jnp.exp({s}).sum({axis})", rest, True),
        ]
    )
    w.add(scope, "softmax", text, shape, bound=6, distinct=distinct)


def contraction(w, scope):
    """A dot with weights: over the last axis, over the first, over all."""
    a = w.read(scope, lambda v: is_array(v) and is_float(v))
    if a is None:
        return NotImplemented
    v, s, n = real(a), a.shape, w.pick((1, 2, 4))
    letters = "tbcdef"[: a.rank]
    # with an argument of this shape, or with the value itself
    options = [
        ("{0} @ {1}", (s[-1], n), (*s[:-1], n)),
        (f"jnp.einsum('{letters},{letters}->{letters[1:]}', {{0}}, {{1}})", s, s[1:]),
        (f"jnp.einsum('{letters},{letters}->{letters[:-1]}', {{0}}, {{1}})", s, s[:-1]),
        ("jnp.vdot({0}, {1})", s, ()),
        ("jnp.tensordot({1}, {0}, 1)", s[:1], s[1:]),
        (f"jnp.einsum('{letters},tz->z{letters[1:]}', {{0}}, {{1}})", (s[0], n), (n, *s[1:])),
    ]
    if a.rank == 2:
        options += [("{0}.T @ {0}", None, (s[1], s[1])), ("{0} @ {0}.T", None, (s[0], s[0]))]
    text, weights, shape = w.pick(options)
    text = text.format(v, w.arg(weights).name if weights else "")
    w.add(scope, "contraction", text, shape, bound=2 * a.size, distinct=weights is not None)


def labelled(w, scope):
    """Cross entropy with labels, in the spellings that people use."""
    a = w.read(scope, lambda v: is_array(v) and v.rank > 1 and is_float(v))
    if a is None:
        return NotImplemented
    lead, classes = a.shape[:-1], a.shape[-1]
    labels = w.arg(lead, f"below({classes})").name
    logits = real(a) if w.chance(2) else f"jax.nn.log_softmax({real(a)}, axis=-1)"
    options = [
        (f"jnp.take_along_axis({logits}, {labels}[..., None], axis=-1)[..., 0]", lead),
        (f"(jax.nn.one_hot({labels}, {classes}) * {logits}).sum(-1)", lead),
        (f"-jnp.mean(jnp.take_along_axis({logits}, {labels}[..., None], axis=-1))", ()),
        (f"jnp.sum({logits} * ({labels}[..., None] == jnp.arange({classes})), axis=-1)", lead),
    ]
    if a.rank == 2:
        options += [(f"({logits})[jnp.arange({lead[0]}), {labels}]", lead)]
        options += [(f"jax.vmap(lambda p, k: p[k])({logits}, {labels})", lead)]
    text, shape = w.pick(options)
    w.add(scope, "labelled", text, shape, bound=6, distinct=False)


def wrapped(w, scope):
    """A small function of two values: jitted, rematerialised, or with a derivative of its own."""
    a = w.read(scope, lambda v: is_array(v) and is_float(v))
    if a is None:
        return NotImplemented
    b = other_operand(w, scope, a)
    f = w.name("f")
    kind = w.pick(("jit", "checkpoint", "custom_jvp", "custom_vjp"))
    result, shape = w.pick(
        [
            ("jnp.sin(p) * q", a.shape),
            ("jnp.sum(p * q)", ()),
            ("jnp.mean((p - q) ** 2, axis=0)", a.shape[1:]),
        ]
    )
    rules = []
    if kind.startswith("custom"):  # with another derivative than its own, so that losing it shows
        result, shape = "jnp.sin(p) * q", a.shape
        rules = {
            "custom_jvp": [f"{f}.defjvp(lambda ps, ts: ({f}(*ps), 0.5 * ts[0] * ps[1]))"],
            "custom_vjp": [
                f"{f}.defvjp(lambda p, q: ({f}(p, q), (p, q)), lambda pq, ct: (",
                "    (0.5 * ct * pq[1]).astype(pq[0].dtype),",
                "    (0.2 * ct.mean() * pq[1]).astype(pq[1].dtype)))",
            ],
        }[kind]
    lines = [f"@jax.{kind}", f"def {f}(p, q):", f"    return {result}", *rules]
    text = f"{f}({real(a)}, {real(b)})"
    w.add(scope, "wrapped", text, shape, above=lines, bound=9 * a.size, distinct=False)


TAILS = (
    *ELEMENTWISE, *VIEWS, prefix, reduction, reduction, reduction, reduction, arg_reduction,
    order, softmax, contraction, labelled, wrapped, indexed, lagged, lagged,
)  # fmt: skip
