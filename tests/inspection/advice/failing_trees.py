"""Trees, axes and calls that do not fit."""

import dataclasses
from functools import partial

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from tests.inspection.advice.failing import failing


@failing(r"\bb\b|scale", both=(r"\b2\b", r"\b3\b"), fix=(r"in_axes=\(None, 0, None\)",))
def vmap_arity():
    def affine(w, x, scale):
        return w @ x * scale

    f = jax.vmap(affine, in_axes=(None, 0))  #!
    f(jnp.ones((2, 3)), jnp.ones((5, 3)), 2.0)


@failing(r"batch\['label'\]", both=(r"\b4\b", r"\b5\b"), fix=(r"in_axes|None|slice",))
def vmap_sizes_tree():
    def loss(params, batch):
        return params * batch["image"].sum() + batch["label"]

    f = jax.vmap(loss, in_axes=(None, 0))  #!
    f(1.0, {"image": jnp.ones((4, 3)), "label": jnp.ones(5)})  #!


@failing(r"\bscale\b", both=(r"axis 0|in_axes", r"rank|scalar|\(\)|0-d"), fix=(r"None",))
def vmap_rank():
    def mul(x, scale):
        return x * scale

    jax.vmap(mul)(jnp.ones(3), 2.0)  #!


@failing(r"'b'", both=(r"'w'", r"'b'"), fix=(r"'b'|\"b\"",))
def vmap_dict():
    params = {"w": jnp.ones((2, 3)), "b": jnp.ones(3)}
    f = jax.vmap(lambda p, x: p["w"] @ x, in_axes=({"w": None}, 0))  #!
    f(params, jnp.ones((4, 3)))


@failing(r"out_axes", fix=(r"out_axes=",))
def vmap_out_none():
    f = jax.vmap(lambda x: (x, x.sum()), out_axes=(0, None))  #!
    f(jnp.ones((2, 3)))


@failing(
    r"\bscale\b",
    both=(r"\b3\b", r"\b2\b"),
    fix=(r"partial|closure|close|positional|lambda|\[:2\]|None",),
)
def vmap_kwargs():
    def f(x, scale):
        return x * scale

    jax.vmap(f)(jnp.ones(3), scale=jnp.ones(2))  #!


@failing(r"params", both=(r"None|dict", r"0"), fix=(r"in_axes=\(None",))
def vmap_tree_none():
    params = {"w": jnp.ones((2, 3)), "b": jnp.ones(2)}

    def apply(params, x):
        return params["w"] @ x + params["b"]

    jax.vmap(apply)(params, jnp.ones((5, 3)))  #!


@failing(r"out_axes", both=(r"\b2\b", r"\(3,\)|1|rank|dimension"), fix=(r"out_axes=",))
def vmap_out_range():
    f = jax.vmap(lambda x: x * 2, out_axes=2)  #!
    f(jnp.ones((3, 4)))


@failing(r"axis_size", both=(r"\b4\b", r"\b3\b"), fix=(r"axis_size=|drop",))
def vmap_axis_size():
    jax.vmap(lambda x: x, axis_size=4)(jnp.ones(3))  #!


@failing(r"\['bias'\]|bias", both=(r"bias",), fix=(r"add|drop|same keys|both",))
def tree_map():
    params = {"w": jnp.ones(3), "bias": jnp.ones(1)}
    grads = {"w": jnp.ones(3)}
    jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)  #!


@failing(r"params\['b'\]|\bb\b", both=(r"None",), fix=(r"is None|is_leaf|jnp\.zeros|give|pass",))
def none_leaf():
    def layer(params, x):
        return params["w"] * x + params["b"]  #!

    jax.jit(layer)({"w": jnp.ones(3), "b": None}, jnp.ones(3))


@failing(r"state\.?\[?'?opt|\bstate\['opt'\]", both=(r"Adam",), fix=(r"static_argn|register",))
def object_leaf():
    class Adam:
        lr = 0.1

    def step(state, g):
        return state["p"] - state["opt"].lr * g

    jax.jit(step)({"p": jnp.ones(3), "opt": Adam()}, jnp.ones(3))  #!


@failing(r"\bact\b", both=(r"function",), fix=(r"static_argn|partial",))
def fun_arg():
    def layer(x, act):
        return act(x)

    jax.jit(layer)(jnp.ones(3), jnp.tanh)  #!


@failing(r"params", fix=(r"str\(|same type|sort",))
def mixed_keys():
    params = {1: jnp.ones(3), "b": jnp.ones(3)}  #!
    jax.jit(lambda params: params[1])(params)  #!


@failing(r"\['b'\]", both=(r"None",), fix=(r"is_leaf|None",))
def tree_none():
    params = {"w": jnp.ones(3), "b": jnp.ones(3)}
    grads = {"w": jnp.ones(3), "b": None}
    jax.tree.map(jnp.add, params, grads)  #!


@failing(r"params\['b'\]", both=(r"float32\[3\]", r"float32\[2\]"), fix=(r"same shape",))
def tree_leaf_fn():
    params = {"w": jnp.ones(3), "b": jnp.ones(3)}
    grads = {"w": jnp.ones(3), "b": jnp.ones(2)}

    def step(p, g):
        return p - g  #!

    jax.tree.map(step, params, grads)


@failing(r"\['name'\]", both=(r"str",), fix=(r"out|partial|static|close",))
def str_grad():
    def loss(params, x):
        return (params["w"] * x).sum()

    jax.grad(loss)({"w": jnp.ones(3), "name": "mlp"}, jnp.ones(3))  #!


@failing(r"\['name'\]|'name'", both=(r"str",), fix=(r"out|close|drop|numbers",))
def scan_str():
    def body(c, x):
        return c, x

    lax.scan(body, {"x": 1.0, "name": "a"}, jnp.ones(3))  #!


@failing(r"bias", fix=(r"\w",))
def jit_keyerror():
    def f(params, x):
        return params["w"] * x + params["bias"]  #!

    jax.jit(f)({"w": 1.0, "b": 2.0}, 1.0)


@failing(r"\bshape\b", both=(r"list",), fix=(r"tuple",))
def unhashable():
    f = jax.jit(lambda x, shape: x.reshape(shape), static_argnames="shape")
    f(jnp.ones(6), shape=[2, 3])  #!


@failing(r"\bmask\b|weights", both=(r"array|Array",), fix=(r"static|tuple",))
def unhashable_array():
    def f(x, weights):
        return x * weights

    g = jax.jit(f, static_argnums=1)  #!
    g(jnp.ones(3), np.ones(3))  #!


@failing(r"\bcfg\b", both=(r"dict",), fix=(r"tuple|frozen",))
def unhashable_dict():
    @partial(jax.jit, static_argnums=0)
    def f(cfg, x):
        return x * cfg["lr"]

    cfg = {"lr": 0.1}
    f(cfg, 1.0)  #!


@failing(r"self", both=(r"Model",), fix=(r"hash|frozen|register",))
def static_method_unhashable():
    @dataclasses.dataclass
    class Model:
        w: float

        @partial(jax.jit, static_argnums=0)  #!
        def apply(self, x):
            return self.w * x

    Model(2.0).apply(1.0)  #!


@failing(r"nstep\b|'nstep'", both=(r"nstep\b", r"n_steps"), fix=(r"n_steps",))
def static_typo():
    def sim(x, n_steps):
        return x * n_steps

    jax.jit(sim, static_argnames="nstep")(1.0, n_steps=3)  #!


@failing(r"static_argnums", both=(r"\b2\b|\b3\b",), fix=(r"static_argn",))
def static_num():
    def sim(x, n):
        return x * n

    jax.jit(sim, static_argnums=3)(1.0, 3)  #!


@failing(r"\bmask\b", fix=(r"mask",))
def missing_arg():
    def att(q, k, mask):
        return q * k * mask

    jax.jit(att)(1.0, 2.0)  #!


@failing(r"self", both=(r"Layer",), fix=(r"static_argn|register|partial",))
def method_static():
    class Layer:
        def __init__(self, n):
            self.n = n

        @partial(jax.jit, static_argnames=("k",))  #!
        def apply(self, x, k):
            return x * self.n * k

    Layer(3).apply(1.0, k=2)


@failing(r"jit", fix=(r"jax\.jit\(\w+\)|function|without calling",))
def jit_int():
    def f(x):
        return x * 2

    jax.jit(f(1.0))(2.0)  #!


@failing(r"\bstatus\b|'status'|\['status'\]", both=(r"str",), fix=(r"return|outside|array",))
def jit_return_str():
    def step(x):
        return {"x": x * 2, "status": "ok"}  #!

    jax.jit(step)(1.0)


@failing(r"\bf\b", both=(r"2", r"3"), fix=(r"\w",))
def too_many():
    @jax.jit
    def f(x, y):
        return x + y

    f(1.0, 2.0, 3.0)  #!


@failing(r"learning_rate", fix=(r"\blr\b",))
def wrong_kw():
    @jax.jit
    def f(x, lr):
        return x * lr

    f(1.0, learning_rate=0.1)  #!


@failing(r"\bb\b", fix=(r"\bb\b",))
def vmap_missing():
    def f(a, b):
        return a + b

    jax.vmap(f)(jnp.ones(3))  #!
