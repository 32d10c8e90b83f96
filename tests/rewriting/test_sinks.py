"""Block by block, a sink gives what its primitive gives of the whole array."""

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.rewriting.axes import Ax, Running, Sunk, flow, restack, unstack
from malleable.rewriting.sinks import RUNNERS, SINKS, Spec, sink
from tests.rewriting.test_axes import axes, equation, numbers

BY_NAME = {s.name: s for s in SINKS} | {r.name: r for r in RUNNERS}


def cuts(n, seed):
    """Random borders of blocks."""
    rng = np.random.default_rng(seed)
    inner = sorted({int(i) for i in rng.integers(1, max(n, 2), 2)} - {n}) if n > 1 else []
    return [0, *inner, n]


def spec_of(eqn, found, n, reverse):
    return Spec(found.how, tuple(v.aval for v in eqn.outvars), eqn.params, n, reverse)


def blocks_of(fun, args, ins, n):
    eqn, values = equation(fun, *args)
    found = flow(eqn, axes(ins, len(values)), axes(None, len(eqn.outvars)), n)
    assert isinstance(found, Sunk | Running), found
    return eqn, values, found, [unstack(x, a, n) for x, a in zip(values, found.ins)]


def sunk(fun, args, ins, n, reverse=False, seed=0, merged=False):
    """The results of an equation, computed by its sink, block by block."""
    eqn, values, found, stacks = blocks_of(fun, args, ins, n)
    spec, one = spec_of(eqn, found, n, reverse), BY_NAME[eqn.primitive.name]
    start = lambda: one.init(spec, *(jax.typeof(s) for s in stacks))
    borders = cuts(n, seed)
    pieces = list(zip(borders, borders[1:]))
    parts = [(jnp.int32(a), [s[a:b] for s in stacks]) for a, b in pieces if b > a]
    if merged:
        accs = [one.step(spec, start(), at, *part) for at, part in parts]
        acc = start()
        for other in accs:
            acc = one.merge(spec, acc, other)
    else:
        acc = start()
        for at, part in parts[::-1] if reverse else parts:
            new = one.step(spec, acc, at, *part)
            assert jax.tree.map(jax.typeof, new) == jax.tree.map(jax.typeof, acc)
            acc = new
    outs = one.final(spec, acc)
    for x, v in zip(outs, eqn.outvars):
        assert (x.shape, x.dtype) == (v.aval.shape, v.aval.dtype)
        assert jax.typeof(x).weak_type == v.aval.weak_type
    return outs


def whole(fun, *args):
    eqn, values = equation(fun, *args)
    return compat.bind(eqn, values)


def same(got, due, close=0.0):
    for x, y in zip(got, due, strict=True):
        np.testing.assert_allclose(np.asarray(x, x.dtype if x.dtype != jnp.bfloat16 else "f4"), np.asarray(y, y.dtype if y.dtype != jnp.bfloat16 else "f4"), rtol=close, atol=close)


X = numbers(6, 4, 3)
TIES = jnp.round(X * 2)
ODD = X.at[2, 1].set(jnp.nan).at[4].set(jnp.inf).at[1].set(-jnp.inf).at[5, 1].set(jnp.nan)
I = numbers(6, 4, 3, dtype="int32")
total = lambda *axes: lambda x: lax.reduce_sum(x, axes)
dot = lambda a, b: lax.dot_general(a, b, (((1,), (1,)), ((), ())))

CASES = {
    "sum": (total(0), [X], Ax(0), 6, 1e-6),
    "sum of all": (total(0, 1, 2), [X], Ax(1), 4, 1e-6),
    "sum, merged": (total(0, 1), [X], Ax(1, 2), 2, 1e-6),
    "sum of integers": (total(0), [I], Ax(0), 6, 0),
    "sum of halves": (total(0), [X.astype("float16")], Ax(0), 6, 1e-2),
    "sum of bfloat16": (total(0), [X.astype("bfloat16")], Ax(0), 6, 1e-1),
    "sum of complex": (total(0), [lax.complex(X, -X)], Ax(0), 6, 1e-6),
    "prod": (lambda x: lax.reduce_prod(x, (0,)), [X], Ax(0), 6, 1e-5),
    "max": (lambda x: lax.reduce_max(x, (0,)), [TIES], Ax(0), 6, 0),
    "max of odd": (lambda x: lax.reduce_max(x, (0, 2)), [ODD], Ax(0), 6, 0),
    "min of odd": (lambda x: lax.reduce_min(x, (0, 2)), [ODD], Ax(0), 6, 0),
    "max of integers": (lambda x: lax.reduce_max(x, (1,)), [I], Ax(1), 4, 0),
    "min of bytes": (lambda x: lax.reduce_min(x, (1,)), [I.astype("uint8")], Ax(1), 4, 0),
    "min of halves": (lambda x: lax.reduce_min(x, (1,)), [X.astype("float16")], Ax(1), 4, 0),
    "and": (lambda x: lax.reduce_and(x, (1,)), [X > -1], Ax(1), 4, 0),
    "or": (lambda x: lax.reduce_or(x, (1,)), [X > 1], Ax(1), 4, 0),
    "xor": (lambda x: lax.reduce_xor(x, (1,)), [X > 1], Ax(1), 4, 0),
    "and of integers": (lambda x: lax.reduce_and(x, (1,)), [I], Ax(1), 4, 0),
    "or of bytes": (lambda x: lax.reduce_or(x, (1,)), [I.astype("uint8")], Ax(1), 4, 0),
    "argmax": (lambda x: lax.argmax(x, 0, "int32"), [TIES], Ax(0), 6, 0),
    "argmin": (lambda x: lax.argmin(x, 1, "int32"), [TIES], Ax(1), 4, 0),
    "argmax of odd": (lambda x: lax.argmax(x, 0, "int32"), [ODD], Ax(0), 6, 0),
    "argmin of odd": (lambda x: lax.argmin(x, 0, "int8"), [ODD], Ax(0), 6, 0),
    "argmin, merged": (lambda x: lax.argmin(x, 1, "int32"), [TIES], Ax(1, 2), 2, 0),
    "argmin, merged inner": (lambda x: lax.argmin(x, 1, "int32"), [TIES], Ax(1, 1, 2), 2, 0),
    "argmax of booleans": (lambda x: lax.argmax(x, 1, "int32"), [X > 1], Ax(1), 4, 0),
    "argmax of integers": (lambda x: lax.argmax(x, 1, "uint32"), [I], Ax(1), 4, 0),
    "argmax of minus infinity": (lambda x: lax.argmax(x, 0, "int32"), [X * 0 - jnp.inf], Ax(0), 6, 0),
    "dot": (dot, [X[0], X[1, :2]], [Ax(1)], 3, 1e-6),
    "dot, merged": (dot, [X[..., 0], X[..., 1]], [None, Ax(1, 2)], 2, 1e-6),
    "dot of halves": (dot, [X[0].astype("bfloat16"), X[1].astype("bfloat16")], [Ax(1)], 3, 5e-2),
    "dot of integers": (dot, [I[0], I[1]], [Ax(1)], 3, 0),
    "batched dot": (
        lambda a, b: lax.dot_general(a, b, (((0, 2), (0, 2)), ((1,), (1,)))), [X, X + 1], [Ax(0)], 6, 1e-5,
    ),
    "sum of one": (total(0), [X[:1]], Ax(0), 1, 0),
    "argmax of one": (lambda x: lax.argmax(x, 0, "int32"), [X[:1]], Ax(0), 1, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_blocks_give_what_the_whole_gives(name):
    fun, args, ins, n, close = CASES[name]
    due = whole(fun, *args)
    for seed in range(2):
        same(sunk(fun, args, ins, n, seed=seed), due, close)
    same(sunk(fun, args, ins, n, reverse=True, seed=3), due, close)
    same(sunk(fun, args, ins, n, merged=True, seed=4), due, close)


EMPTY = ["sum", "sum of integers", "prod", "max", "min of bytes", "and", "or", "xor"]


@pytest.mark.parametrize("name", EMPTY)
def test_no_blocks_give_what_nothing_gives(name):
    fun, (x,), ax, _, _ = CASES[name]
    x = lax.slice_in_dim(x, 0, 0, axis=ax.dim)
    same(sunk(fun, [x], ax, 0), whole(fun, x))
