"""Which values a loop stacks and cuts field by field, and which it refuses or makes arrays of."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import malleable as mal
from malleable.errors import TransformError
from tests.core.values.value_classes import KINDS, Diagonal, typed
from tests.core.values.value_classes import dense as dense_of

FIRST = lambda cls, x, like: cls(x, jnp.zeros((like.g.shape[0], *x.shape)))
AVAL = property(lambda self: jax.ShapeDtypeStruct((self.n,), jnp.float32))
LAST = lambda cls, x, like: cls(x, jnp.zeros((*x.shape, like.g.shape[-1])))


def affine(lift=None, materialise=None):
    """A class of a centre and of generators, which have an axis of their own."""
    shown = {"lift": lift and classmethod(lift), "materialise": materialise}
    fields = {"__annotations__": {"c": Any, "g": Any}, "aval": property(lambda self: typed(self.c))}
    return mal.value(type("Affine", (), fields | {k: v for k, v in shown.items() if v}))


def rows(cls, c, g):
    negative = lambda frame, x, **_: cls(frame.bind(x.c), -x.g)
    f = lambda x: lax.scan(lambda h, _: (-h, h), x, None, length=4)[1]
    return mal.interpret(f, {lax.neg_p: negative})(cls(c, g))[0]


@pytest.mark.parametrize("shape", [(3,), (2,), ()])
@pytest.mark.parametrize("lift", [None, FIRST])
def test_fields_of_unknown_axes_are_not_stacked(shape, lift):
    with pytest.raises(TransformError, match=r"`scan` meets Affine.* unknown which axes") as caught:
        rows(affine(lift), jnp.ones(shape), jnp.ones((2, *shape)))
    assert "test_stacked_values.py" in caught.value.where and "lift" in caught.value.hint


@pytest.mark.parametrize("shape", [(3,), ()])
@pytest.mark.parametrize("shown", [{"lift": LAST}, {"materialise": lambda s: s.c + s.g.sum(-1)}])
def test_axes_behind_those_of_the_array_are_stacked_where_the_class_shows_it(shape, shown):
    out = rows(affine(**shown), jnp.ones(shape), jnp.ones((*shape, 2)))
    assert out.c.shape == (4, *shape) and out.g.shape == (4, *shape, 2)


@pytest.mark.parametrize(
    "dense",
    [lambda s: s.c + s.g.sum(0), lambda s: s.c - s.c.max() + s.g[0], lambda s: s.c * s.g.max()],
)
def test_what_materialise_makes_of_a_stack_is_what_it_makes_of_the_rows(dense):
    c, g = jnp.arange(3.0), jnp.arange(3.0)[None]
    out = rows(affine(materialise=dense), c, g)
    want = [dense(type("Row", (), {"c": s * c, "g": s * g})) for s in (1, -1, 1, -1)]
    np.testing.assert_allclose(dense_of(out), jnp.stack(want), rtol=1e-6)


def test_a_feed_whose_axes_are_unknown_is_not_cut():
    cls = affine()
    rules = {lax.neg_p: lambda frame, x, **_: frame.read("row").c}
    f = lambda x: lax.fori_loop(0, 2, lambda i, x: -x, x)
    with pytest.raises(TransformError, match="Affine has unknown axes"):
        feed = cls(jnp.ones((2, 3)), jnp.ones((2, 2, 3)))
        mal.interpret(f, rules, feeds={"row": feed})(jnp.ones(3))


@pytest.mark.parametrize("run", [mal.interpret, mal.live])
def test_a_vmap_around_returns_a_static_shape_as_an_array(run):
    rules, make, *_ = KINDS["zero"]
    f = lambda x, z: run(lambda z: z * 2.0, rules)(z)[0]
    out = jax.vmap(f, in_axes=(0, None))(jnp.ones(4), make(jnp.ones(3)))
    assert out.shape == (4, 3) and not out.any()


ZERO, MAKE, *_ = KINDS["zero"]
double = lambda x, z: (x, mal.interpret(lambda z, x: z * x, ZERO)(z, x)[0])
own_jvp, own_vjp = jax.custom_jvp(double), jax.custom_vjp(double)
own_jvp.defjvp(lambda xs, dxs: (double(*xs), double(*dxs)))
own_vjp.defvjp(lambda *xs: (double(*xs), xs), lambda xs, _: xs)
TRACED = {
    "jit": jax.jit(double),
    "jit of jit": jax.jit(lambda x, z: jax.jit(double)(x, z)),
    "mal.jit": mal.jit(double),
    "optimize": mal.optimize(double),
    "live": jax.jit(lambda x, z: (x, mal.live(lambda z, x: z * x, ZERO)(z, x)[0])),
    "checkpoint": jax.checkpoint(double),
    "custom_jvp": jax.jit(own_jvp),
    "custom_vjp": jax.jit(own_vjp),
    "cond": lambda x, z: lax.cond(x.sum() > 0, double, double, x, z),
    "scan": lambda x, z: lax.scan(lambda c, _: (c, jax.jit(double)(x, z)), 0, None, length=2)[1],
    "vmap": lambda x, z: jax.vmap(lambda _: jax.jit(double)(x, z))(jnp.ones(2)),
    "linearize": lambda x, z: jax.linearize(lambda x: jax.jit(double)(x, z), x)[0],
    "grad": lambda x, z: jax.value_and_grad(
        jax.jit(lambda x: (x.sum(), double(x, z)[1])), has_aux=True
    )(x)[0],
}


@pytest.mark.caches  # JAX takes what an error of a body holds for a leak
@pytest.mark.parametrize("in_axes", [(0, None), (1, None), ({"x": 0}, None)])
@pytest.mark.parametrize("name", TRACED)
def test_a_static_shape_out_of_what_is_traced_is_refused_by_a_vmap_around(name, in_axes):
    x = {"x": jnp.ones((3, 3))} if isinstance(in_axes[0], dict) else jnp.ones((3, 3))
    f = lambda x, z: TRACED[name](x["x"] if isinstance(x, dict) else x, z)
    with pytest.raises(
        TransformError, match=r"returned Zero.* to a `vmap` or `scan` around"
    ) as caught:
        jax.vmap(f, in_axes=in_axes)(x, MAKE(jnp.ones(3)))
    assert "test_stacked_values.py" in caught.value.where


@pytest.mark.parametrize("wrap", [jax.jit, jax.checkpoint, mal.optimize, mal.jit])
def test_a_static_shape_comes_out_of_what_is_traced_without_a_vmap(wrap):
    _, out = wrap(double)(jnp.ones(3), MAKE(jnp.ones(3)))
    assert out.aval.shape == (3,) and type(out).__name__ == "Zero"


@pytest.mark.parametrize(
    "around",
    [
        lambda f: jax.jit(jax.vmap(f)),
        jax.vmap,
        lambda f: lambda xs: lax.map(f, xs),
        lambda f: lambda xs: jax.vmap(lambda x: jax.jvp(f, (x,), (x,))[0])(xs),
        lambda f: lambda xs: jax.vmap(lambda x: lax.map(f, x[None]))(xs)[:, 0],
    ],
)
def test_a_static_shape_is_stacked_as_an_array(around):
    out = around(lambda x: double(x, MAKE(jnp.ones(3)))[1])(jnp.ones((4, 3)))
    assert out.shape == (4, 3) and not out.any()


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
def test_a_value_without_fields_is_not_cut_by_in_axes_and_a_note_says_so(wrap):
    f = lambda x, z: mal.interpret(lambda x, z: x + (z * x).sum(), ZERO)(x, z)[0]
    with mal.listen() as notes:
        jax.vmap(wrap(f))(jnp.ones((3, 3)), MAKE(jnp.ones(3)))
    assert any("took Zero" in n.what and "lane" in n.what for n in notes)


def test_layers_that_a_vmap_made_are_never_read_as_one_array():
    layers = jax.vmap(KINDS["int8"][1])(jax.random.normal(jax.random.key(0), (4, 4, 4)))
    f = lambda x, ws: lax.scan(lambda x, w: (x @ w, None), x, ws)[0]
    run = mal.interpret(f, KINDS["int8"][0])
    three = jax.tree.map(lambda x: x[:3], layers)
    want = f(jnp.ones(4), jax.vmap(dense_of)(three))
    np.testing.assert_allclose(run(jnp.ones(4), three)[0], want, rtol=1e-5)
    with pytest.raises(TransformError, match="`scan` cuts what may be a stack") as caught:
        run(jnp.ones(4), layers)
    assert "last axes" in caught.value.hint and "test_stacked_values.py" in caught.value.where


def test_a_static_shape_without_an_array_is_refused_by_a_vmap_around():
    cls = mal.value(type("Empty", (), {"__annotations__": {"n": int}, "aval": AVAL}), static="n")
    f = lambda x, z: mal.interpret(lambda z: z * 2.0, {lax.mul_p: lambda _, z, y, **__: z})(z)[0]
    with pytest.raises(TransformError, match="a `vmap` or `scan` around of `mul` meets Empty"):
        jax.vmap(f, in_axes=(0, None))(jnp.ones(4), cls(3))


def test_a_vmap_around_notes_what_is_no_stack_by_its_type():
    f = lambda d: mal.interpret(lambda d: d @ d, KINDS["diagonal"][0])(Diagonal(d))[0]
    d = jnp.arange(6.0).reshape(2, 3)
    with mal.listen() as notes:
        out = jax.vmap(f)(d)
    assert any("Diagonal" in n.what and "vmap" in n.what for n in notes)
    np.testing.assert_array_equal(jax.vmap(dense_of)(out), jax.vmap(lambda d: jnp.diag(d * d))(d))


@pytest.mark.parametrize("wrap", [jax.jit, jax.checkpoint, mal.optimize])
def test_a_static_shape_out_of_what_is_traced_is_refused_by_a_scan_around(wrap):
    step = lambda c, x: (c, wrap(double)(x, MAKE(x))[1])
    with pytest.raises(TransformError, match=r"returned Zero.* `scan` around") as caught:
        lax.scan(step, 0, jnp.ones((4, 3)))
    assert "test_stacked_values.py" in caught.value.where


def test_a_static_shape_out_of_what_is_traced_may_stay_in_a_lane():
    f = jax.jit(lambda x: double(x, MAKE(x))[1])
    g = jax.jit(lambda x: mal.interpret(lambda z, x: z + x, ZERO)(f(x), x)[0])
    rows = jnp.arange(12.0).reshape(4, 3)
    np.testing.assert_array_equal(jax.vmap(g)(rows), rows)
    np.testing.assert_array_equal(lax.map(g, rows), rows)


def test_a_static_shape_out_of_what_is_traced_does_not_slow_down_its_calls():
    f = jax.jit(lambda x: double(x, MAKE(x)))
    assert not jax.make_jaxpr(f)(jnp.ones(3)).effects  # with effects, calls leave the fast path


def test_the_carry_of_rules_is_stacked_as_an_array_too():
    f = lambda x: mal.interpret(jnp.sin, {}, carry=MAKE(x))(x)[1]
    assert jax.vmap(f)(jnp.ones((4, 3))).shape == (4, 3)
