"""Functions without a derivative, and rules that do not fit."""

import jax
from jax import lax
from jax import numpy as jnp

from tests.inspection.advice.failing import failing


@failing(
    r"\['step'\]",
    both=(r"int32",),
    fix=(r"astype|float|argnums|allow_int|partition|separate|has_aux",),
)
def grad_int():
    params = {"w": jnp.ones(3), "step": jnp.int32(0)}

    def loss(params):
        return jnp.sum(params["w"] ** 2)

    jax.grad(loss)(params)  #!


@failing(r"\bloss\b", both=(r"tuple|\(\*|aux",), fix=(r"has_aux=True",))
def has_aux():
    def loss(w):
        return jnp.sum(w**2), {"w": w}

    jax.grad(loss)(jnp.ones(3))  #!


@failing(r"\bloss\b", both=(r"pair|tuple|two",), fix=(r"return \w+, |has_aux",))
def has_aux_missing():
    def loss(w):
        return jnp.sum(w**2)

    jax.value_and_grad(loss, has_aux=True)(jnp.ones(3))  #!


@failing(r"argnums", both=(r"\b2\b",), fix=(r"argnums=",))
def argnums():
    def loss(w, x):
        return jnp.sum(w * x)

    g = jax.grad(loss, argnums=2)  #!
    g(jnp.ones(3), jnp.ones(3))


@failing(r"f_bwd|bwd", both=(r"\b1\b|\b3\b|tuple", r"\b2\b"), fix=(r"return|None",))
def vjp_structure():
    @jax.custom_vjp
    def f(x, n):
        return x * n

    def f_fwd(x, n):
        return x * n, n

    def f_bwd(n, g):
        return (g * n,)  #!

    f.defvjp(f_fwd, f_bwd)
    jax.grad(lambda x: f(x, 2.0))(1.0)


@failing(r"f_bwd|bwd", both=(r"tuple",), fix=(r"return \(|,\)",))
def vjp_not_tuple():
    @jax.custom_vjp
    def f(x):
        return x * 2

    def f_fwd(x):
        return x * 2, None

    def f_bwd(res, g):
        return g * 2  #!

    f.defvjp(f_fwd, f_bwd)
    jax.grad(f)(1.0)


@failing(r"f_fwd|fwd", both=(r"pair|2|two|tuple",), fix=(r"return",))
def vjp_fwd():
    @jax.custom_vjp
    def f(x):
        return jnp.sin(x)

    def f_fwd(x):
        return jnp.sin(x)  #!

    def f_bwd(res, g):
        return (g * res,)

    f.defvjp(f_fwd, f_bwd)
    jax.grad(f)(1.0)


@failing(r"\bf\b", fix=(r"defvjp",))
def vjp_nodef():
    @jax.custom_vjp  #!
    def f(x):
        return jnp.sin(x)

    jax.grad(f)(1.0)


@failing(r"\bfwd\b", both=(r"1", r"2"), fix=(r"\w",))
def vjp_fwd_args():
    @jax.custom_vjp
    def f(x, y):
        return x * y

    def fwd(x):  #!
        return x, x

    def bwd(r, g):
        return (g, g)

    f.defvjp(fwd, bwd)
    jax.grad(f)(1.0, 2.0)


@failing(r"\bbwd\b", both=(r"1", r"2"), fix=(r"\w",))
def vjp_bwd_args():
    @jax.custom_vjp
    def f(x):
        return x * 2

    def fwd(x):
        return x * 2, x

    def bwd(g):  #!
        return (g,)

    f.defvjp(fwd, bwd)
    jax.grad(f)(1.0)


@failing(r"\bfwd\b", both=(r"\[\]|\(\)", r"\[3\]|\(3,\)"), fix=(r"return",))
def vjp_fwd_shape():
    @jax.custom_vjp
    def f(x):
        return jnp.sum(x)

    def fwd(x):
        return x, x  #!

    def bwd(x, g):
        return (g * x,)

    f.defvjp(fwd, bwd)
    jax.grad(f)(jnp.ones(3))


@failing(r"f_jvp|\bf\b", both=(r"\[3\]|\(3,\)", r"\[\]|\(\)"), fix=(r"sum|shape|@|dot",))
def jvp_tangent():
    @jax.custom_jvp
    def f(x):
        return jnp.sum(x**2)

    @f.defjvp
    def f_jvp(primals, tangents):
        (x,), (t,) = primals, tangents
        return f(x), 2 * x * t  #!

    jax.grad(f)(jnp.ones(3))


@failing(r"\bf_jvp\b|\bf\b", both=(r"pair|two|tuple",), fix=(r"return",))
def jvp_not_pair():
    @jax.custom_jvp
    def f(x):
        return x * 2

    @f.defjvp
    def f_jvp(primals, tangents):
        return 2 * tangents[0]  #!

    jax.grad(f)(1.0)


@failing(r"tangents|primals", both=(r"tuple",), fix=(r"\(x,\)|tuple",))
def jvp_list():
    x = jnp.ones(3)
    jax.jvp(jnp.sin, x, x)  #!


@failing(r"\bwhile_loop\b|halve", fix=(r"lax\.scan|custom_vjp|jvp|jacfwd|fori_loop",))
def rev_while():
    def halve(x):
        return lax.while_loop(lambda v: v > 1, lambda v: v / 2, x)  #!

    jax.grad(halve)(8.0)


@failing(r"\bn\b|fori_loop", fix=(r"static_argn|lax\.scan|jacfwd|jvp",))
def rev_fori():
    def power(x, n):
        return lax.fori_loop(0, n, lambda i, v: v * x, 1.0)  #!

    jax.jit(jax.grad(power))(2.0, 3)


@failing(
    r"tangents?\b|\bx\b",
    both=(r"float32\[3\]|\(3,\)", r"float32\[\]|\(\)|float0|\[2\]|\(2,\)"),
    fix=(r"ones_like|shape|same",),
)
def jvp_tangents():
    jax.jvp(jnp.sin, (jnp.ones(3),), (jnp.ones(2),))  #!


@failing(r"cotangent|vjp", both=(r"\(3,\)|\[3\]", r"\(\)|\[\]"), fix=(r"ones|shape|jnp\.",))
def vjp_call():
    _, back = jax.vjp(jnp.sin, jnp.ones(3))
    back(1.0)  #!


@failing(r"\bspec\b", both=(r"complex64",), fix=(r"jnp\.abs|\.real|holomorphic",))
def grad_complex():
    def spec(x):
        return jnp.sum(jnp.fft.fft(x))  #!

    jax.grad(spec)(jnp.ones(4))


@failing(r"\bloss\b", both=(r"None",), fix=(r"return",))
def grad_none():
    def loss(w):
        jnp.sum(w**2)  #!

    jax.grad(loss)(jnp.ones(3))


@failing(r"\baccuracy\b", both=(r"int32|bool",), fix=(r"astype|float",))
def grad_bool_out():
    def accuracy(w, y):
        return jnp.sum((w > 0) == y)  #!

    jax.grad(accuracy)(jnp.ones(3), jnp.ones(3, bool))


@failing(r"loss", both=(r"\(8,\)",), fix=(r"mean|sum",))
def vag_nonscalar_method():
    class M:
        def loss(self, w, x):
            err = x @ w
            return err**2  #!

        def fit(self, w, x):
            return jax.value_and_grad(self.loss)(w, x)

    M().fit(jnp.ones(3), jnp.ones((8, 3)))


@failing(r"p\['b'\]", both=(r"keys 'a'", r"'a', 'b'"), fix=(r"\{'a': g \* p\['b'\], 'b': ...\}",))
def vjp_tree():
    @jax.custom_vjp
    def f(p):
        return (p["a"] * p["b"]).sum()

    def bwd(p, g):
        return ({"a": g * p["b"]},)  #!

    f.defvjp(lambda p: (f(p), p), bwd)
    jax.grad(f)({"a": jnp.ones(3), "b": jnp.ones(3)})


@failing(r"p\['a'\]\['b'\]", both=(r"keys 'w'", r"'b', 'w'"), fix=(r"'b': \.\.\.",))
def vjp_tree_nested():
    @jax.custom_vjp
    def f(p, x):
        return (p["a"]["w"] * p["a"]["b"] * x).sum()

    def bwd(res, g):
        p, x = res
        return {"a": {"w": g * p["a"]["b"] * x}}, g * x  #!

    f.defvjp(lambda p, x: (f(p, x), (p, x)), bwd)
    jax.grad(f)({"a": {"w": jnp.ones(3), "b": jnp.ones(3)}}, jnp.ones(3))


@failing(r"\bp\b", both=(r"'w', 'c'",), fix=(r"leave 'c' out",))
def vjp_tree_extra():
    @jax.custom_vjp
    def f(p):
        return p["w"] * 2

    def bwd(_, g):
        return ({"w": g * 2, "c": g},)  #!

    f.defvjp(lambda p: (f(p), None), bwd)
    jax.grad(f)({"w": 1.0})


@failing(r"\bw\b", both=(r"float32\[3,2\]", r"float32\[2,3\]"), fix=(r"jnp\.outer\(x, g\)\.T",))
def vjp_transposed():
    @jax.custom_vjp
    def f(w, x):
        return w @ x

    def bwd(res, g):
        w, x = res
        return jnp.outer(x, g), w.T @ g  #!

    f.defvjp(lambda w, x: (w @ x, (w, x)), bwd)
    jax.grad(lambda w: f(w, jnp.ones(3)).sum())(jnp.ones((2, 3)))


@failing(r"\bx\b", both=(r"4,5,3", r"4,1,3"), fix=(r"jnp\.sum\(g, axis=1, keepdims=True\)",))
def vjp_keepdims():
    @jax.custom_vjp
    def f(x, b):
        return x + b

    def bwd(_, g):
        return g, jnp.sum(g, axis=(0, 2)).reshape((5, 1))  #!

    f.defvjp(lambda x, b: (x + b, None), bwd)
    jax.grad(lambda b: f(jnp.ones((4, 1, 3)), b).sum())(jnp.ones((5, 1)))


@failing(r"\bfj\b", both=(r"\(\*, \*\)", r"one"), fix=(r"tx \* y \+ ty \* x",))
def jvp_two_tangents():
    @jax.custom_jvp
    def f(x, y):
        return x * y

    @f.defjvp
    def fj(primals, tangents):
        (x, y), (tx, ty) = primals, tangents
        return f(x, y), (tx * y, ty * x)  #!

    jax.grad(f)(1.0, 2.0)


@failing(r"pull", both=(r"one array", r"\(\*, \*\)"), fix=(r"ones_like",))
def cotangent_tree():
    _, pull = jax.vjp(lambda x: (x, 2 * x), 1.0)
    pull(1.0)  #!
