"""Python asks for values that are only traced, or keeps them."""

import math
from functools import lru_cache

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from tests.inspection.advice.failing import failing


@failing(r"arguments? (x0|tol)|\berr\b", fix=(r"while_loop",))
def while_py():
    def newton(x0, tol):
        err = 1.0 + x0 * 0
        x = x0
        while err > tol:  #!
            new = x - (x * x - 2) / (2 * x)
            err = jnp.abs(new - x)
            x = new
        return x

    jax.jit(newton)(1.0, 1e-3)


@failing(r"argument x\b|\bx\b", fix=(r"astype|jnp\.int32|static_argn",))
def int_cast():
    def bins(x):
        k = int(x.max())  #!
        return x * k

    jax.jit(bins)(jnp.ones(3))


@failing(r"\btemperature\b", fix=(r"astype|static_argn|jnp\.float32|remove|drop",))
def float_cast():
    def soften(logits, temperature):
        t = float(temperature)  #!
        return logits / t

    jax.jit(soften)(jnp.ones(3), 2.0)


@failing(r"\bn\b", fix=(r"static_argn|fori_loop",))
def range_():
    def power(x, n):
        for _ in range(n):  #!
            x = x * x
        return x

    jax.jit(power)(2.0, 3)


@failing(r"argument i\b|\bi\b", fix=(r"lax\.switch|jnp\.stack|static_argn|jnp\.array",))
def list_index():
    layers = [1.0, 2.0, 3.0]

    def pick(i, x):
        return layers[i] * x  #!

    jax.jit(pick)(1, 2.0)


@failing(r"\bx\b", fix=(r"jnp\.\w+",))
def numpy():
    def norm(x):
        return np.sqrt(np.sum(x * x))  #!

    jax.jit(norm)(jnp.ones(3))


@failing(r"\bx\b", fix=(r"jnp\.exp",))
def math_():
    def sig(x):
        return 1 / (1 + math.exp(-x))  #!

    jax.jit(sig)(1.0)


@failing(r"argument x\b|\bx\b", fix=(r"outside|drop|remove|return|without",))
def item_():
    def logged(x):
        s = x.sum().item()  #!
        return x / s

    jax.jit(logged)(jnp.ones(3))


@failing(r"arguments? x\b|\bx\b", fix=(r"logical_and|&",))
def and_():
    def inside(x):
        ok = x > 0 and x < 1  #!
        return jnp.where(ok, x, 0.0)

    jax.jit(inside)(0.5)


@failing(r"\bx\b", fix=(r"checkify|error_if|debug",))
def assert_():
    def root(x):
        assert x > 0, "negative"  #!
        return jnp.sqrt(x)

    jax.jit(root)(2.0)


@failing(r"arguments? x\b|\bx\b", fix=(r"jnp\.maximum",))
def max_builtin():
    def relu(x):
        return max(x, 0.0)  #!

    jax.jit(relu)(2.0)


@failing(r"\bx\b", fix=(r"jnp\.where|lax\.cond",))
def if_vmap():
    def relu(x):
        if x > 0:  #!
            return x
        return 0.0 * x

    jax.vmap(relu)(jnp.arange(3.0))


@failing(r"\bx\b|\bc\b", fix=(r"jnp\.where|lax\.cond",))
def if_scan():
    def body(c, x):
        y = c * 2
        if y > 3:  #!
            y = y - x
        return y, x

    lax.scan(body, 0.0, jnp.arange(3.0))


@failing(r"argument k\b|\bk\b", fix=(r"static_argn|lax\.switch|jnp\.",))
def hash_():
    table = {0: 1.0, 1: 2.0}

    def look(k):
        return table[k]  #!

    jax.jit(look)(1)


@failing(r"\bn\b", fix=(r"static_argn",))
def zeros_():
    def pad(x, n):
        z = jnp.zeros((n, 2))  #!
        return x.sum() + z

    jax.jit(pad)(jnp.ones(2), 3)


@failing(r"\bx\b", fix=(r"size=",))
def nonzero():
    def where(x):
        return jnp.nonzero(x > 1)[0]  #!

    jax.jit(where)(jnp.ones(2))


@failing(r"\bn\b", fix=(r"dynamic_slice|static_argn",))
def slice_():
    def head(x, n):
        return x[:n].sum()  #!

    jax.jit(head)(jnp.ones(5), 3)


@failing(r"\bi\b", fix=(r"stack|range\(|scan",))
def fstring_key():
    params = {"layer0": 1.0, "layer1": 2.0}

    def body(i, x):
        return x * params[f"layer{i}"]  #!

    lax.fori_loop(0, 2, body, 1.0)


@failing(r"\bx\b|\bm\b", fix=(r"jnp\.where",))
def boolmask_set():
    def total(x, m):
        return jnp.sum(x[m])  #!

    jax.jit(total)(jnp.ones(3), jnp.array([True, False, True]))


@failing(r"\bv\b|argument x\b", fix=(r"jnp\.where|lax\.cond",))
def nested_if():
    def clip(v):
        if v > 1:  #!
            v = 1.0
        return v

    def model(x):
        h = x * 3
        return clip(h)

    jax.grad(model)(1.0)
    jax.jit(model)(1.0)


@failing(r"\bx\b", fix=(r"\.all\(|\.any\(|jnp\.all|jnp\.any",))
def bool_array():
    def f(x):
        if x > 0:  #!
            return x
        return -x

    f(jnp.ones(3))


@failing(r"\bcfg\b|argument (batch|cfg)", fix=(r"jnp\.where|lax\.cond|static",))
def deep_flow():
    def helper(flag, v):
        if flag:  #!
            return v
        return -v

    def middle(cfg, x):
        use = cfg["train"]
        return helper(use, x)

    def outer(cfg, x):
        return middle(cfg, x) + 1

    jax.jit(outer)({"train": True}, jnp.ones(3))


@failing(r"\bxs\b", fix=(r"jnp\.where|sum",))
def listcomp():
    def pos(xs):
        return sum([x for x in xs if x > 0])  #!

    jax.jit(pos)(jnp.ones(3))


@failing(r"\bx\b", fix=(r"jnp\.where",))
def ternary():
    def f(x):
        return x if x > 0 else 0.0  #!

    jax.jit(f)(1.0)


@failing(r"\bdone\b", fix=(r"logical_not|~",))
def not_():
    def f(done, x):
        go = not done  #!
        return jnp.where(go, x, 0)

    jax.jit(f)(True, 1.0)


@failing(r"\bout\b|\bx\b", fix=(r"\.at\[",))
def np_store():
    def f(x):
        out = np.zeros(3)
        out[0] = x  #!
        return out

    jax.jit(f)(1.0)


@failing(r"\bi\b", fix=(r"jnp\.asarray|jnp\.array",))
def np_index():
    table = np.arange(5.0)

    def f(i):
        return table[i]  #!

    jax.jit(f)(1)


@failing(r"\bn\b|counts", fix=(r"total_repeat_length",))
def repeat():
    def f(x, counts):
        return jnp.repeat(x, counts)  #!

    jax.jit(f)(jnp.ones(3), jnp.array([1, 2, 1]))


@failing(r"\bloss\b", fix=(r"jax\.debug\.print|outside",))
def print_fmt():
    def f(x):
        loss = x.sum()
        print(f"loss {loss:.3f}")  #!
        return loss

    jax.jit(f)(jnp.ones(3))


@failing(r"self\.last", fix=(r"return",))
def leak_self():
    class Net:
        def __call__(self, x):
            h = jnp.sin(x)
            self.last = h  #!
            return h * 2

    net = Net()
    jax.jit(net.__call__)(1.0)
    net.last + 1


@failing(r"\bbest\b", fix=(r"return",))
def leak_nonlocal():
    best = None

    def loss(w):
        nonlocal best
        value = jnp.sum(w**2)
        best = value  #!
        return value

    jax.grad(loss)(jnp.ones(3))
    jax.jit(lambda x: x + best)(1.0)


@failing(r"\bcache\b", fix=(r"return|scan",))
def leak_dict_scan():
    cache = {}

    def body(c, x):
        c = c + x
        cache["c"] = c  #!
        return c, x

    lax.scan(body, 0.0, jnp.arange(3.0))
    print(cache["c"] * 2)


@failing(r"\btable\b", fix=(r"return|lru_cache|cache|outside|argument",))
def leak_cache():
    @lru_cache  #!
    def table(n):
        return jnp.arange(n) * 2  #!

    jax.jit(lambda x: x + table(3))(jnp.ones(3))
    table(3) + 1


@failing(r"self\.count", fix=(r"return|argument",))
def leak_class_counter():
    class Counter:
        def __init__(self):
            self.count = 0

    class Model:
        def __init__(self):
            self.c = Counter()
            self.count = 0

        def __call__(self, x):
            self.count += x  #!
            return x

    m = Model()
    f = jax.jit(m.__call__)
    f(1.0)
    f(jnp.ones(2))


@failing(r"\btotal\b|acc|running", fix=(r"return|carry|argument",))
def leak_generator():
    def running():
        total = 0.0
        while True:
            x = yield total
            total = total + x  #!

    g = running()
    next(g)

    def f(x):
        return g.send(x)  #!

    jax.jit(f)(1.0)
    g.send(2.0)


@failing(r"\blogs\b", fix=(r"return",))
def leak_vmap():
    logs = []

    def f(x):
        logs.append(x + 1)  #!
        return x

    jax.vmap(f)(jnp.ones(3))
    logs[0] + 1


@failing(r"\bstate\b", fix=(r"return",))
def leak_default_state():
    state = {"step": 0}

    @jax.jit
    def train(x):
        state["step"] = state["step"] + 1
        state["ema"] = 0.9 * x  #!
        return x

    train(1.0)
    print(float(state["ema"]))


@failing(r"x\[0\]", fix=(r"jnp\.sort\(jnp\.stack\(\[x\[0\], x\[1\]\]\)\)",))
def sorted_list():
    def f(x):
        return sorted([x[0], x[1]])  #!

    jax.jit(f)(jnp.ones(2))


@failing(r"\ba\b", fix=(r"jnp\.max\(jnp\.stack\(\[a, b, c\]\)\)",))
def max_of_three():
    def f(a, b, c):
        return max(a, b, c)  #!

    jax.jit(f)(1.0, 2.0, 3.0)


@failing(r"\bx\b", fix=(r"jnp\.linalg\.norm\(x\)",))
def numpy_linalg():
    def f(x):
        return np.linalg.norm(x)  #!

    jax.jit(f)(jnp.ones(3))


@failing(r"\bidx\b", both=(r"float32",), fix=(r"idx\.astype\(jnp\.int32\)",))
def take_float():
    idx = jnp.array([0.0, 1.0])
    jnp.take(jnp.ones((3, 4)), idx, axis=0)  #!


@failing(r"flaot32", fix=(r"jnp\.float32",))
def dtype_typo():
    jnp.ones(3).astype("flaot32")  #!


@failing(r"box\.log", fix=(r"has_aux|return it",))
def leak_in_dict():
    class Box:
        log: dict

    box = Box()
    box.log = {}

    def loss(w):
        box.log["norm"] = jnp.sum(w**2)  #!
        return box.log["norm"]

    jax.grad(loss)(jnp.ones(3))
    float(box.log["norm"])
