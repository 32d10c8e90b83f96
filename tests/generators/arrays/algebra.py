"""What random array programs have for rules and passes to find: algebra, duplicates, equal blocks.

Each is a function of (writer, scope), which adds one or more steps.
"""

import re
from dataclasses import replace

from tests.generators.arrays.elements import is_array, is_float
from tests.generators.arrays.writer import Step, real

SCALAR_CHAINS = (
    "jnp.log(1 + {0})",
    "jnp.log(jnp.exp({0}))",
    "jnp.exp(jnp.log({0}))",
    "jnp.sqrt({0}) ** 2",
    "{0} * 1 + 0",
    "-(-{0})",
    "({0} + 1) + 2",
    "({0} * 2) * 3",
    "jnp.exp({0}) * jnp.exp({1})",
    "jnp.log({0}) + jnp.log({1})",
    "{0} * {1} + {0} * 0.3",
    "1 / jnp.sqrt({0})",
    "{0} / {1} / {0}",
    "(jnp.exp({0}) - jnp.exp(-{0})) / (jnp.exp({0}) + jnp.exp(-{0}))",
    "jnp.exp({0}) - 1",
    "1 / (1 + jnp.exp(-{0}))",
    "jnp.maximum({0}, {0})",
    "jnp.log(jnp.sum(jnp.exp({0}), 0))[None] + {0}",
    "({0}.T).T",
    "{0}.reshape(-1).reshape({0}.shape)",
    "jnp.sum(3 * {0}, 0)[None] + {0}",
    "jnp.where({1} > 0.5, {0}, {0})",
    "{0} - {0} * 0.5",
    "jnp.real(jnp.fft.ifft(jnp.fft.fft({0})))",
    "jnp.flip(jnp.flip({0}, 0), 0)",
    "{0}.astype(jnp.float32).astype(jnp.float32)",
    "jnp.log(jax.nn.sigmoid({0}))",
    "jnp.abs({0}) ** 2",
    "{0} ** 2 * {0} ** 3",
)


def scalar_chain(w, scope):
    """Of positive numbers: each is the same as something shorter."""
    a, b = (w.arg(shape, "positive").name for shape in [w.pick(((3,), (2, 3), (1, 4)))] * 2)
    text = w.pick(SCALAR_CHAINS).format(a, b)
    shape = w.args[-1][0].shape
    w.add(scope, "chain", text, shape, bound=9, distinct=False)


def matrices(w, scope):
    """Products of matrices that are shorter in another order, or need no product at all."""
    m, k, n = w.pick((1, 2, 4)), w.pick((2, 5)), w.pick((1, 3, 6))
    a, b, c = w.arg((m, k)).name, w.arg((k, n)).name, w.arg((k, n)).name
    s, v, z = w.arg((k, k)).name, w.arg((n,)).name, w.arg((k,), "positive").name
    i = w.arg((m,), f"below({k})").name
    spd = f"({s} @ {s}.T + 2 * jnp.eye({k}))"
    text, shape = w.pick(
        [
            (f"({a} @ {b}) @ {v}", (m,)),
            (f"{a} @ {s} @ {b} @ {v}", (m,)),
            (f"{a} @ {b} @ {c}.T", (m, k)),
            (f"{a} @ {s} @ {s} @ {z}", (m,)),
            (f"jnp.sum({a} @ {b})", ()),
            (f"jnp.sum({a} @ {b}, 0)", (n,)),
            (f"jnp.trace({b} @ {c}.T)", ()),
            (f"jnp.sum(jnp.diag({s} @ {s}))", ()),
            (f"{a} @ {b} + {a} @ {c}", (m, n)),
            (f"jnp.diag({z}) @ {b}", (k, n)),
            (f"{a} @ jnp.diag({z})", (m, k)),
            (f"{a} @ jnp.eye({k})", (m, k)),
            (f"jax.nn.one_hot({i}, {k}) @ {b}", (m, n)),
            (f"jnp.linalg.inv({spd}) @ {b}", (k, n)),
            (f"jnp.log(jnp.linalg.det({spd}))", ()),
            (f"jnp.linalg.multi_dot([{a}, {s}, {b}])", (m, n)),
            (f"({b}.T @ {a}.T).T", (m, n)),
            (f"jnp.sum({a}[:, :, None] * {b}[None], 1)", (m, n)),
            (f"jnp.diag({b} @ {c}.T)", (k,)),
            (f"jnp.sort({z})[0]", ()),
        ]
    )
    w.add(scope, "matrices", text, shape, bound=30, distinct=False)


def duplicate(w, scope):
    """A step over again, under other names."""
    again = [s for s in scope.steps if s.construct != "duplicate"]
    if not again:
        return NotImplemented
    step = w.pick(again)
    new = {name: w.name("v") for name in step.outs}
    lines = [re.sub(r"\w+", lambda found: new.get(found[0], found[0]), line) for line in step.lines]
    scope.steps.append(Step("duplicate", tuple(new.values()), tuple(lines)))
    scope.values += [replace(v, name=new[v.name]) for v in scope.values if v.name in new]


BLOCKS = (
    ("jnp.tanh({h} @ {w} + {b})",),
    ("{h} + 0.3 * jax.nn.gelu({h} @ {w}) * {b}",),
    ("jnp.sin({h}) * {b}",),
    ("{h} * 0.9 + 0.1 * {b}", "jnp.tanh({h} @ {w})"),
    (
        "({h} - {h}.mean(-1, keepdims=True)) / jnp.sqrt({h}.var(-1, keepdims=True) + 0.5)",
        "{h} + jnp.tanh({h} @ {w})",
    ),
    ("f({h}, {w}, {b})",),
)


def blocks(w, scope):
    """Equal blocks one after the other: a stack of layers, or a loop over time written out."""
    n, width = w.pick((2, 3, 4, 6)), w.width
    h = w.arg(w.pick(((width,), (w.batch, width)))).name
    shape = w.args[-1][0].shape
    style = w.pick(("own", "slices", "shared", "unpacked"))
    if style == "slices":
        ws, bs = w.arg((n, width, width)).name, w.arg((n, width)).name
        weights = [(f"{ws}[{k}]", f"{bs}[{k}]") for k in range(n)]
    elif style == "own":
        weights = [(w.arg((width, width)).name, w.arg((width,)).name) for _ in range(n)]
    else:
        weights = [(w.arg((width, width)).name, w.arg((width,)).name)] * n
    lines, texts, kept = [], w.pick(BLOCKS), []
    if "f(" in texts[0]:
        f = w.name("f")
        lines = [
            *["@jax.jit"] * w.chance(2),
            f"def {f}(h, w, b):",
            "    return jnp.cos(h @ w) * 0.5 + b",
        ]
        texts = (texts[0].replace("f(", f"{f}("),)
    for a, b in weights:
        for text in texts:
            new = w.name("h")
            lines += [f"{new} = {text.format(h=h, w=a, b=b)}"]
            h = new
        kept.append(h)
    text = w.pick((h, h, f"jnp.stack([{', '.join(kept)}])", f"{' + '.join(kept)}"))
    out = (n, *shape) if text.startswith("jnp.stack") else shape
    w.add(scope, "blocks", text, out, above=lines, bound=2.0 * n, distinct=False)


def escape(w, scope):
    """A value of before, changed a little: one more consumer."""
    a = w.read(scope, lambda v: is_array(v) and is_float(v))
    if a is None:
        return NotImplemented
    w.add(scope, "escape", f"0.5 * {real(a)}", a.shape, distinct=a.distinct)


ALGEBRA = (scalar_chain, matrices, duplicate, blocks, escape)
