"""Shapes and dtypes that do not fit."""

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from tests.inspection.advice.failing import failing


@failing(
    r"\bw\b|\bx\b",
    both=(r"\(4, 3\)|\[4,3\]", r"\(4, 5\)|\[4,5\]"),
    fix=(r"\.T\b|transpose|swap|shape",),
)
def matmul():
    def layer(w, x):
        return x @ w  #!

    jax.jit(layer)(jnp.ones((4, 5)), jnp.ones((4, 3)))


@failing(r"\bw2\b", both=(r"16", r"8"), fix=(r"\.T\b|shape|transpose",))
def matmul_chain():
    def mlp(w1, w2, x):
        h = jax.nn.relu(x @ w1)
        return h @ w2  #!

    jax.jit(mlp)(jnp.ones((4, 16)), jnp.ones((8, 2)), jnp.ones((3, 4)))


@failing(r"\bk\b|\bq\b", both=(r"\b8\b", r"\b6\b"), fix=(r"letter|index|shape|\w"))
def einsum_():
    def att(q, k):
        return jnp.einsum("bqd,bkd->bqk", q, k)  #!

    jax.jit(att)(jnp.ones((2, 5, 8)), jnp.ones((2, 7, 6)))


@failing(r"\bb\b|\ba\b", both=(r"\(2, 3\)|\[2,3\]", r"\(2, 4\)|\[2,4\]"), fix=(r"axis=",))
def concat():
    def join(a, b):
        return jnp.concatenate([a, b], axis=0)  #!

    jax.jit(join)(jnp.ones((2, 3)), jnp.ones((2, 4)))


@failing(r"\btoken\b|\bcls\b", both=(r"\(4, 8\)", r"\(8,\)"), fix=(r"\[None|expand_dims|reshape",))
def concat_dim():
    def prepend(cls, tokens):
        return jnp.concatenate([cls, tokens])  #!

    jax.jit(prepend)(jnp.ones(8), jnp.ones((4, 8)))


@failing(r"\bx\b|\by\b", both=(r"\(\)|0-d|zero-dim",), fix=(r"stack|\[None\]|atleast_1d|append",))
def concat_scalar():
    def f(x, y):
        return jnp.concatenate([x, y])  #!

    jax.jit(f)(1.0, 2.0)


@failing(r"\bb\b", both=(r"\(3,\)", r"\(4,\)"), fix=(r"pad|concatenate|same shape",))
def stack_():
    def join(a, b):
        return jnp.stack([a, b])  #!

    jax.jit(join)(jnp.ones(3), jnp.ones(4))


@failing(
    r"\bx\b",
    both=(r"\b12\b|\(12,\)|\(3, 4\)", r"\(5, 2\)|\b10\b|\(5, -1\)"),
    fix=(r"reshape|-1|size",),
)
def reshape():
    def fold(x):
        return x.reshape(5, 2)  #!

    jax.jit(fold)(jnp.ones((3, 4)))


@failing(r"\bx\b", both=(r"\b2\b", r"\(3, 4\)|dimension 2|2 dim|ndim"), fix=(r"axis=",))
def axis():
    def total(x):
        return jnp.sum(x, axis=2)  #!

    jax.jit(total)(jnp.ones((3, 4)))


@failing(
    r"\bb\b|\bw\b",
    both=(r"\(5, 4\)|5,4", r"\(5,\)|\[5\]"),
    fix=(r"\[:, None\]|reshape|expand_dims",),
)
def broadcast_expr():
    def dense(w, b, x):
        return jnp.tanh(x @ w + b)  #!

    jax.jit(dense)(jnp.ones((3, 4)), jnp.ones(5), jnp.ones((5, 3)))


@failing(r"\bidx\b", both=(r"float32",), fix=(r"astype|int32",))
def float_index():
    def take(x, idx):
        return x[idx]  #!

    jax.jit(take)(jnp.ones(3), jnp.ones(2))


@failing(r"\bidx\b", both=(r"float32",), fix=(r"astype",))
def take_along():
    def f(x, idx):
        return jnp.take_along_axis(x, idx, axis=0)  #!

    jax.jit(f)(jnp.ones(3), jnp.ones(2))


@failing(r"\bx\b", fix=(r"\.at\[.*\]\.set",))
def setitem_():
    def zero(x):
        x[0] = 0.0  #!
        return x

    jax.jit(zero)(jnp.ones(3))


@failing(r"\bcounts\b", fix=(r"\.at\[.*\]\.add",))
def inplace_add():
    counts = jnp.zeros(3)
    counts[1] += 1.0  #!


@failing(r"\btable\b", both=(r"numpy|ndarray",), fix=(r"jnp\.asarray|jnp\.array",))
def at_numpy():
    table = np.zeros(3)

    def put(i):
        return table.at[i].set(1.0)  #!

    jax.jit(put)(1)


@failing(r"\brows\b", both=(r"\b3\b", r"\b2\b"), fix=(r"pad|stack",))
def ragged():
    rows = [[1.0, 2.0, 3.0], [4.0, 5.0]]
    jnp.array(rows)  #!


@failing(r"\bmask\b|\bx\b", both=(r"float32",), fix=(r"astype|logical|bool",))
def int_mod():
    def f(x, mask):
        return x & mask  #!

    jax.jit(f)(jnp.ones(3), jnp.ones(3, bool))


@failing(r"\bx\b|\bi\b", both=(r"float32", r"int32"), fix=(r"astype",))
def lax_add_dtype():
    def f(x, i):
        return lax.add(x, i)  #!

    jax.jit(f)(jnp.ones(3), jnp.ones(3, int))


@failing(r"\bi\b|\bx\b", both=(r"float32", r"int32"), fix=(r"astype",))
def strict_promotion():
    with jax.numpy_dtype_promotion("strict"):
        jax.jit(lambda x, i: x + i)(jnp.ones(3), jnp.arange(3))  #!


@failing(r"\bimg\b|\bkernel\b|lhs|rhs", both=(r"\b3\b", r"\b4\b"), fix=(r"\w",))
def conv_():
    def conv(img, kernel):
        return lax.conv(img, kernel, (1, 1), "SAME")  #!

    jax.jit(conv)(jnp.ones((1, 3, 8, 8)), jnp.ones((8, 4, 3, 3)))


@failing(r"\bname\b", both=(r"str",), fix=(r"static|outside|number|ord|index",))
def string_arr():
    name = "adam"
    jnp.array(name)  #!


@failing(r"\bx\b", both=(r"3|too many",), fix=(r"\[|ndim",))
def key_index():
    def f(x):
        return x[0, 1, 2]  #!

    jax.jit(f)(jnp.ones((3, 4)))


@failing(r"\bstate\b", both=(r"tuple",), fix=(r"\[0\]|unpack",))
def tuple_math():
    def f(state):
        return state * 2.5  #!

    jax.jit(f)((jnp.ones(3), 1.0))


@failing(r"\bstate\b|\bx\b", both=(r"3", r"2"), fix=(r"\w",))
def unpack():
    def f(state):
        a, b = state  #!
        return a + b

    jax.jit(f)(jnp.ones(3))


@failing(r"\ba\b", both=(r"\b2\b", r"\b3\b"), fix=(r"jnp\.linalg\.pinv\(a\)",))
def inverse():
    a = jnp.ones((2, 3))
    jnp.linalg.inv(a)  #!


@failing(r"\ba\b", both=(r"\b3\b", r"\b4\b"), fix=(r"square",))
def cholesky():
    a = jnp.ones((3, 4))
    jax.jit(lambda a: jnp.linalg.cholesky(a))(a)  #!


@failing(r"\bb\b", both=(r"\(3, 3\)", r"\(2, 3\)"), fix=(r"b\.T",))
def solve():
    a, b = jnp.eye(3), jnp.ones((2, 3))
    jnp.linalg.solve(a, b)  #!


@failing(r"`b`", both=(r"\(3, 4\)", r"\(4,\)", r"rank_promotion"), fix=(r"b\[None, :\]",))
def rank_promotion():
    a, b = jnp.ones((3, 4)), jnp.ones(4)
    with jax.numpy_rank_promotion("raise"):
        a + b  #!


@failing(
    r"branch 1", both=(r"float32\[3\]", r"float32\[2\]"), fix=(r"jnp\.pad\(x\[:2\], \(0, 1\)\)",)
)
def switch_sizes():
    jax.lax.switch(1, [lambda x: x, lambda x: x[:2], lambda x: x], jnp.ones(3))  #!


@failing(r"jnp\.ones\(\(2, 5\)\)", both=(r"\(3, 4\)", r"\(2, 5\)"), fix=(r"axis=",))
def concatenate_inline():
    def f(x):
        return jnp.concatenate([x, jnp.ones((2, 5))], axis=0)  #!

    jax.jit(f)(jnp.ones((3, 4)))


@failing(r"\by\b", both=(r"\(2, 3\)", r"\(2, 4\)"), fix=(r"jnp\.concatenate\(\[x, y\], axis=1\)",))
def vstack():
    x, y = jnp.ones((2, 3)), jnp.ones((2, 4))
    jnp.vstack([x, y])  #!


@failing(r"\bk\b", both=(r"\b8\b", r"\b3\b"), fix=(r"lax\.conv_general_dilated\(img, k, .*NHWC",))
def conv_layout():
    def f(img, k):
        return jax.lax.conv(img, k, (1, 1), "SAME")  #!

    f(jnp.ones((2, 8, 8, 3)), jnp.ones((3, 3, 3, 16)))


@failing(r"\by\b", both=(r"\(2, 3\)", r"\(3, 2\)"), fix=(r"y\.T",))
def stack_transposed():
    x, y = jnp.ones((2, 3)), jnp.ones((3, 2))
    jnp.stack([x, x, y])  #!


@failing(r"`ij,jk->ik`", both=(r"2 arrays", r"1 are passed"), fix=(r"one group of letters",))
def einsum_lacks_one():
    jnp.einsum("ij,jk->ik", jnp.ones((2, 3)))  #!


@failing(r"\blabels\b", both=(r"\(4, 5\)", r"\(4,\)"), fix=(r"expand_dims\(labels, 1\)",))
def picked_along_an_axis():
    def nll(logp, labels):
        return jnp.take_along_axis(logp, labels, axis=1)  #!

    jax.jit(nll)(jnp.ones((4, 5)), jnp.zeros(4, int))


@failing(r"\bx\b", both=(r"\(4, 3\)",), fix=(r"x\.shape",))
def array_for_a_shape():
    def noisy(key, x):
        return x + jax.random.normal(key, x)  #!

    jax.jit(noisy)(jax.random.key(0), jnp.ones((4, 3)))


@failing(r"\bx\b", both=(r"\(4, 3\)",), fix=(r"axes 0 to 1",))
def swapped_axes():
    def turned(x):
        return jnp.swapaxes(x, 1, 2)  #!

    jax.jit(turned)(jnp.ones((4, 3)))


@failing(r"\bb\b", both=(r"\(4, 3\)", r"\(3,\)"), fix=(r"jax\.numpy",))
def sum_of_lax():
    def shifted(x, b):
        return lax.add(x, b)  #!

    jax.jit(shifted)(jnp.ones((4, 3)), jnp.ones(3))
