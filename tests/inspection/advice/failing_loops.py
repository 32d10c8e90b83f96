"""Loops and branches whose parts do not fit together."""

import collections

import jax
from jax import lax
from jax import numpy as jnp

from tests.inspection.advice.failing import failing


@failing(r"\bc\b|count", both=(r"int32", r"float32"), fix=(r"astype|jnp\.float32|float32",))
def scan_dtype():
    def body(count, x):
        total = count + 0.5 * x  #!
        return total, x

    lax.scan(body, jnp.int32(0), jnp.arange(3.0))  #!


@failing(
    r"\['m'\]",
    both=(r"\[3\]|\(3,\)", r"\[4,3\]|\[4, 3\]|\(4, 3\)"),
    fix=(r"sum|mean|reshape|shape|broadcast",),
)
def scan_leaf_shape():
    def body(carry, x):
        p, opt = carry
        m = opt["m"] * 0.9 + x  #!
        return (p - 0.1 * opt["m"], {"m": m, "v": opt["v"]}), None

    init = (jnp.ones(3), {"m": jnp.zeros(3), "v": jnp.zeros(3)})
    lax.scan(body, init, jnp.ones((5, 4, 3)))


@failing(r"\bbody\b", both=(r"pair|tuple|two|\(carry",), fix=(r"return \w+, |return \(|, None",))
def scan_not_pair():
    def body(c, x):
        return c + x  #!

    lax.scan(body, 0.0, jnp.arange(3.0))


@failing(
    r"\bu\b|xs\[1\]|xs\['u'\]", both=(r"\b5\b", r"\b6\b"), fix=(r"\[:5\]|slice|same length|length",)
)
def scan_xs_len():
    t = jnp.arange(5.0)
    u = jnp.ones((6, 2))

    def body(c, tx):
        return c + tx[0] * tx[1].sum(), None

    lax.scan(body, 0.0, (t, u))  #!


@failing(r"carry", both=(r"None", r"float32"), fix=(r"jnp\.|init",))
def scan_none_carry():
    def body(prev, x):
        return x, x + 1  #!

    lax.scan(body, None, jnp.arange(3.0))  #!


@failing(r"\['step'\]|step", both=(r"step",), fix=(r"init|add|drop|remove|return",))
def scan_dict_key():
    def body(state, x):
        return {"x": state["x"] + x, "step": 1}, None  #!

    lax.scan(body, {"x": 0.0}, jnp.arange(3.0))


@failing(r"carry|\ba\b", both=(r"\[2\]|\(2,\)", r"\[3\]|\(3,\)"), fix=(r"\w",))
def scan_swap():
    def body(carry, x):
        a, b = carry
        return (b, a), x  #!

    lax.scan(body, (jnp.ones(2), jnp.ones(3)), jnp.ones(3))


@failing(r"state\.v|\.v", both=(r"float32\[\]", r"float32\[3\]"), fix=(r"sum|shape",))
def scan_namedtuple():
    State = collections.namedtuple("State", "x v")

    def body(state, f):
        v = state.v + f  #!
        return State(state.x + state.v, v), None

    lax.scan(body, State(0.0, 0.0), jnp.ones((5, 3)))


@failing(r"length", both=(r"\b10\b", r"\b5\b"), fix=(r"length",))
def scan_length():
    lax.scan(lambda c, x: (c + x, None), 0.0, jnp.ones(5), length=10)  #!


@failing(r"length|xs", fix=(r"length=",))
def scan_noxs():
    lax.scan(lambda c, _: (c + 1, None), 0.0, None)  #!


@failing(r"\bbody\b", both=(r"pair|two|2",), fix=(r"return",))
def scan_triple():
    def body(c, x):
        return c, x, x  #!

    lax.scan(body, 0.0, jnp.ones(3))


@failing(r"\bi\b|\[0\]", both=(r"int32", r"float32"), fix=(r"astype|jnp\.float32|//",))
def while_dtype():
    def body(state):
        i, x = state
        i = i / 2  #!
        return i, x + 1

    lax.while_loop(lambda s: s[0] > 0, body, (jnp.int32(8), 0.0))


@failing(r"body|state|carry", both=(r"2", r"3"), fix=(r"return|drop|move",))
def while_structure():
    def body(state):
        i, x = state
        return i + 1, x, x * 2  #!

    lax.while_loop(lambda s: s[0] < 3, body, (0, 0.0))


@failing(r"\bxs\b|\[1\]", both=(r"\[3\]|\(3,\)", r"\[4\]|\(4,\)"), fix=(r"\.at\[|shape|pad|fixed",))
def while_shape():
    def body(s):
        i, xs = s
        xs = jnp.append(xs, i)  #!
        return i + 1, xs

    lax.while_loop(lambda s: s[0] < 3, body, (0, jnp.ones(3, int)))


@failing(r"\bgo\b", both=(r"float32",), fix=(r">|!=|bool",))
def while_cond_float():
    def go(x):
        return 10 - x  #!

    lax.while_loop(go, lambda x: x * 2, 1.0)


@failing(r"\bgo\b", fix=(r"\[0\]|return",))
def while_cond_tuple():
    def go(s):
        return s[0] < 3, s[1]  #!

    lax.while_loop(go, lambda s: (s[0] + 1, s[1]), (0, 1.0))


@failing(
    r"\bacc\b|body|val",
    both=(r"float32\[\]|\(\)", r"float32\[3\]|\(3,\)"),
    fix=(r"jnp\.zeros|\.sum|init",),
)
def fori_shape():
    x = jnp.ones(3)

    def body(i, acc):
        return acc + x * i  #!

    lax.fori_loop(0, 5, body, 0.0)


@failing(r"lower|upper|bound|\bn\b", both=(r"float",), fix=(r"int\(|astype|//|int32",))
def fori_float_bound():
    n = 10 / 2
    lax.fori_loop(0, n, lambda i, a: a + i, 0)  #!


@failing(r"body|lambda", both=(r"1", r"2"), fix=(r"i, ",))
def fori_arity():
    lax.fori_loop(0, 3, lambda a: a + 1, 0)  #!


@failing(r"\bbody\b", both=(r"None", r"float32|array|\*"), fix=(r"return",))
def fori_none():
    def body(i, acc):
        acc = acc + i  #!

    lax.fori_loop(0, 5, body, 0.0)


@failing(
    r"true_fun|false_fun|\bwith_aux\b|\bplain\b",
    both=(r"tuple|2|\(\*", r"\*|array|1"),
    fix=(r"return",),
)
def cond_structure():
    def with_aux(x):
        return x, x * 2

    def plain(x):
        return x  #!

    lax.cond(True, with_aux, plain, 1.0)


@failing(
    r"\bsmall\b|\blarge\b|true_fun|false_fun",
    both=(r"\[3\]|\(3,\)", r"\[\]|\(\)"),
    fix=(r"broadcast|full|shape|sum",),
)
def cond_shape():
    def large(x):
        return x

    def small(x):
        return x.sum()  #!

    def f(x):
        return lax.cond(x[0] > 0, large, small, x)

    jax.jit(f)(jnp.ones(3))


@failing(r"\bneg\b|false_fun", both=(r"\b1\b", r"\b2\b"), fix=(r"def neg\(|argument|operand",))
def cond_arity():
    def pos(x, y):
        return x + y

    def neg(x):  #!
        return -x

    lax.cond(True, pos, neg, 1.0, 2.0)


@failing(r"\bsave\b|branch", both=(r"None", r"float32|array|\*"), fix=(r"return",))
def cond_none():
    def f(x):
        def save(v):
            v * 2  #!

        return lax.cond(x > 0, save, lambda v: v, x)

    jax.jit(f)(1.0)


@failing(r"\['loss'\]|'loss'", both=(r"'aux'", r"'loss'"), fix=(r"return|add|drop",))
def cond_dict():
    def on(x):
        return {"loss": x, "aux": x}

    def off(x):
        return {"loss": x}  #!

    lax.cond(True, on, off, 1.0)


@failing(r"true_fun|lambda|branch", fix=(r"lambda|jnp\.where",))
def cond_notfun():
    def f(x):
        return lax.cond(x > 0, x, -x)  #!

    jax.jit(f)(1.0)


@failing(r"pred|\bmask\b", both=(r"\(3,\)|\[3\]",), fix=(r"\.any|\.all|jnp\.where",))
def cond_pred_array():
    def f(x):
        mask = x > 0
        return lax.cond(mask, lambda v: v, lambda v: -v, x)  #!

    jax.jit(f)(jnp.ones(3))


@failing(
    r"branch(es)? ?\[?(1|2)|branch 1|branches\[1\]|\bround_\b",
    both=(r"int32", r"float32"),
    fix=(r"astype|jnp\.float32",),
)
def switch_dtype():
    def keep(x):
        return x

    def round_(x):
        return jnp.round(x).astype(int)  #!

    def zero(x):
        return x * 0

    jax.jit(lambda i, x: lax.switch(i, [keep, round_, zero], x))(1, 2.5)


@failing(r"index|\bi\b", both=(r"float32",), fix=(r"astype|int32",))
def switch_index():
    def f(i, x):
        return lax.switch(i, [jnp.sin, jnp.cos], x)  #!

    jax.jit(f)(1.0, 2.5)


@failing(r"\bcombine\b|fn", both=(r"2|tuple", r"1|\*|array|list"), fix=(r"return",))
def assoc():
    def combine(a, b):
        return a[0] * b[0]  #!

    lax.associative_scan(combine, (jnp.ones(4), jnp.ones(4)))


@failing(r"\bf\b", both=(r"\(x\)", r"\(a, b\)"), fix=(r"a, b = ",))
def map_two_args():
    def f(a, b):  #!
        return a + b

    lax.map(f, (jnp.ones(3), jnp.ones(3)))
