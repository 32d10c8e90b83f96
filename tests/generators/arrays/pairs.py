"""What random array programs do with M x N intermediates: kernels, nearest points, attention.

Each is a function of (writer, scope), which adds one or more steps.
"""

from tests.generators.arrays.elements import is_float
from tests.generators.arrays.writer import EXTENTS, SMALL, real

PAIRS = (2, 3, 5, 7) if EXTENTS is SMALL else (2, 7, 66, 90)
KERNELS = (
    "jnp.exp(-{})",
    "1 / (1 + {})",
    "jnp.sqrt({} + 0.1)",
    "jnp.exp(-jnp.sqrt({} + 0.01))",
    "(1 + {0}) * jnp.exp(-{0})",
    "{} ** 2 * jnp.log({} + 0.5)".replace("{}", "{0}"),
)


def points(w, scope):
    """Two sets of points: (M, D) and (N, D); the first may come from what is there."""
    x = w.read(scope, lambda v: v.rank == 2 and is_float(v) and v.distinct and v.size <= 60)
    if x is None or w.rng.integers(3):
        x = w.arg((w.pick(PAIRS), w.pick((1, 2, 3))))
    return x, w.arg((w.pick(PAIRS), x.shape[1]))


def squared_distances(w, x, y):
    """Text of (M, N), as people write it."""
    a, b, d = real(x), real(y), x.shape[1]
    return w.pick(
        [
            f"(({a}[:, None] - {b}[None]) ** 2).sum(-1)",
            f"jnp.sum(jnp.square({a}[:, None, :] - {b}[None, :, :]), axis=2)",
            f"jnp.abs({a}[:, None] - {b}[None] + 3.1).sum(-1)",
            f"sum(({a}[:, None, k] - {b}[None, :, k]) ** 2 for k in range({d}))",
            f"jax.vmap(lambda p: jax.vmap(lambda q: jnp.sum((p - q) ** 2))({b}))({a})",
            f"jax.vmap(lambda p: ((p - {b}) ** 2).sum(1))({a})",
            f"(({a} ** 2).sum(1)[:, None] - 2 * {a} @ {b}.T + ({b} ** 2).sum(1)[None])",
            f"{a} @ {b}.T",
            f"jnp.maximum({a}[:, None] * 1.3, {b}[None]).sum(-1)",
        ]
    )


def distances(w, scope):
    """(M, N) of distinct numbers, left among the values for any tail to reduce."""
    x, y = points(w, scope)
    text = squared_distances(w, x, y)
    return w.add(scope, "distances", text, (x.shape[0], y.shape[0]), bound=9 * x.shape[1])


def kernel(w, scope):
    d = distances(w, scope)
    text = w.pick(KERNELS).format(f"({d.name} / {0.5 * d.bound:.1f} + 1.2)")
    k = w.add(scope, "kernel", text, d.shape, bound=3, distinct=False)
    if w.chance(4):
        mask = w.pick(
            (
                w.arg(k.shape, "mask").name,
                f"{d.name} < 1.1",
                f"jnp.tri({k.shape[0]}, {k.shape[1]}) > 0",
            )
        )
        k = w.add(
            scope, "masked", f"jnp.where({mask}, {k.name}, 0.0)", d.shape, bound=3, distinct=False
        )
    for _ in range(w.pick((1, 1, 2))):
        b = w.arg((k.shape[1], w.pick((1, 2))))
        m, n, extra = *k.shape, b.shape[1]
        text, shape = w.pick(
            [
                (f"{k.name} @ {b.name}", (m, extra)),
                (f"{k.name} @ {b.name}[:, 0]", (m,)),
                (f"{k.name}.sum(1)", (m,)),
                (f"{k.name}.mean()", ()),
                (f"{k.name}.sum(0) / {k.name}.sum()", (n,)),
                (f"({k.name} @ {b.name}) / {k.name}.sum(1, keepdims=True).clip(0.1)", (m, extra)),
                (f"jnp.einsum('mn,nz->zm', {k.name}, {b.name})", (extra, m)),
                (f"(({k.name}[..., None] * {b.name}[None]).sum(1))", (m, extra)),
            ]
        )
        w.add(scope, "kernel_sum", text, shape, bound=6 * n, distinct=False)


def row_sums(w, scope):
    """Sums of the rows of a kernel, or of its columns, and what comes of all of these."""
    x, y = points(w, scope)
    d = f"({squared_distances(w, x, y)} / {4.5 * x.shape[1]:.1f} + 1.2)"
    axis, how = w.pick((0, 1)), w.pick(("sum", "mean"))
    m, n = (y.shape[0], x.shape[0])[:: 1 if axis == 0 else -1]
    text = f"({w.pick(KERNELS).format(d)}).{how}({axis}) / {n if how == 'sum' else 1}"
    r = w.add(scope, "row_sums", text, (m,), bound=6, distinct=False)
    text, shape = w.pick(
        [
            (f"jnp.var({r.name})", ()),
            (f"jax.nn.softmax({r.name})", (m,)),
            (f"({r.name} - {r.name}.mean()) * {r.name}", (m,)),
            (f"{r.name} / (1 + jnp.abs({r.name}).sum())", (m,)),
            (f"{r.name} * jnp.sqrt(({r.name} * {r.name}).mean() + 0.1)", (m,)),
            (f"jnp.cumsum({r.name}) / {m} + {r.name}.sum() / {m}", (m,)),
        ]
    )
    w.add(scope, "row_statistics", text, shape, bound=36, distinct=False)


def nearest(w, scope):
    """The nearest points, by index and by distance, from one side or from both."""
    d = distances(w, scope)
    m, n = d.shape
    labels = w.arg((n,), "below(3)").name
    options = [
        (f"jnp.argmin({d.name}, axis=1).astype(jnp.int32)", (m,), "int32"),
        (f"jnp.argmax({d.name}, axis=0).astype(jnp.int32)", (n,), "int32"),
        (f"{d.name}.min(1).mean() + {d.name}.min(0).mean()", (), "float"),
        (f"jnp.maximum({d.name}.min(1).max(), {d.name}.min(0).max() - 0.05)", (), "float"),
        (f"{labels}[jnp.argmin({d.name}, axis=1)]", (m,), "int32"),
        (f"jax.nn.one_hot(jnp.argmin({d.name}, axis=1), {n}).sum(0)", (n,), "float"),
        (f"-lax.top_k(-{d.name}, 1)[0]", (m, 1), "float"),
    ]
    for text, shape, dtype in w.some(options, 2):
        w.add(scope, "nearest", text, shape, dtype=dtype, bound=50, distinct=False)


def log_sums(w, scope):
    d = distances(w, scope)
    m, n = d.shape
    log = f"(-{d.name} / {0.3 * d.bound:.1f})"
    u, v = w.arg((m,)).name, w.arg((n,)).name
    text, shape = w.pick(
        [
            (f"jax.nn.logsumexp({log}, axis=1)", (m,)),
            (f"jax.nn.logsumexp({log}, axis=0)", (n,)),
            (f"jax.nn.logsumexp({log})", ()),
            (f"jax.nn.logsumexp({log} + {v}, axis=1).mean()", ()),
            (
                f"jax.nn.logsumexp({log} + {v}[None], 1) + "
                f"jax.nn.logsumexp({log} + {u}[:, None], 0).mean()",
                (m,),
            ),
            (f"-jnp.mean(jnp.diagonal(jax.nn.log_softmax({log}, axis=1)))", ()),
            (f"jax.nn.logsumexp({log}, axis=1, b=jnp.exp({v}))", (m,)),
        ]
    )
    w.add(scope, "log_sums", text, shape, bound=20, distinct=False)


def attention(w, scope):
    heads, n, width = w.pick((1, 2)), w.pick((2, 3, 5)), w.pick((1, 2, 4))
    q, k, v = (w.arg((heads, n, width)).name for _ in range(3))
    scores = f"jnp.einsum('hqd,hkd->hqk', {q}, {k}) / {width}**0.5"
    s = w.name("s")
    lines = [f"{s} = {scores}"]
    mask = w.pick(
        (
            "",
            "",
            f"jnp.tril(jnp.ones(({n}, {n}), bool))",
            f"jnp.arange({n})[:, None] >= jnp.arange({n})",
        )
    )
    if mask:
        empty = w.pick(("-jnp.inf", "-1e30"))
        lines += [f"{s} = jnp.where({mask}, {s}, {empty})"]
    text = w.pick(
        [
            f"jnp.einsum('hqk,hkd->hqd', jax.nn.softmax({s}, axis=-1), {v})",
            f"jax.nn.softmax({s}, axis=-1) @ {v}",
            f"(jnp.exp({s}) @ {v}) / jnp.exp({s}).sum(-1, keepdims=True)",
        ]
    )
    w.add(scope, "attention", text, (heads, n, width), above=lines)


def forces(w, scope):
    """Sums of vectors over pairs: an intermediate of three axes."""
    x, y = points(w, scope)
    m, width = w.arg((y.shape[0],), "positive").name, x.shape[1]
    r = w.name("r")
    lines = [f"{r} = {real(y)}[None] - {real(x)}[:, None]"]
    squares = f"(jnp.sum({r} ** 2, -1, keepdims=True) + 0.3)"
    text = w.pick(
        [
            f"jnp.sum({m}[None, :, None] * {r} * {squares} ** -1.5, axis=1)",
            f"jnp.einsum('mn,mnd->md', {m} / (jnp.sum({r} ** 2, -1) + 0.3), {r})",
        ]
    )
    w.add(scope, "forces", text, (x.shape[0], width), above=lines, bound=9 * y.shape[0])


PAIR_PROGRAMS = (kernel, row_sums, nearest, log_sums, attention, forces, distances)
