import contextlib
import functools
import io
import os
import signal
import subprocess
import sys
import textwrap
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from jax import lax, vmap
from jax.custom_derivatives import SymbolicZero
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

from malleable import compat
from malleable.errors import MalleableError
from malleable.inspection.debugging import lanes
from malleable.inspection.unstaging import cooperative
from malleable.inspection.unstaging.unstage import unstage
from malleable.notes import listen
from tests.generators.programs.programs import inputs, programs
from tests.inspection.test_stepping import assert_same

X = jnp.arange(6.0).reshape(2, 3) / 7
LINE = jnp.arange(1.0, 9.0)
MESH = Mesh(np.array(jax.devices()), ("d",))
TWO = Mesh(np.array(jax.devices()[:2]), ("d",))
SEEN: list = []


@pytest.fixture(autouse=True)
def _nothing_seen():
    threads = threading.active_count()
    SEEN.clear()
    yield
    SEEN.clear()
    for thread in threading.enumerate()[threads:]:
        thread.join(10)
    assert threading.active_count() == threads
    assert compat.detour() is None


def see(x):
    """Note down a value, as a print would; while something is unstaged."""
    if compat.detour() is not None:
        value = compat.concrete(x) if under_derivative() else x
        SEEN.append(str(x) if isinstance(value, compat.Tracer) else np.asarray(value).tolist())
    return x


def under_derivative():
    return "derivative" in compat.around()


def check(fun, *args, seen=None, compiled=False):
    """unstage(fun) gives what fun gives, and the user's code saw values, not tracers."""
    SEEN.clear()
    got = unstage(fun)(*args)
    assert not any(isinstance(x, str) for x in SEEN)  # no tracers
    assert seen in (None, SEEN)
    assert_same(got, (jax.jit(fun) if compiled else fun)(*args))


@jax.jit
def jitted(x):
    return 2 * see(x) + 1


mapped = vmap(lambda x: see(x.sum()))  # wrapped long before unstage is called, by another name


def test_jit_is_a_call():
    check(jitted, 3.0, seen=[3.0])


def test_a_step_changes_a_copy_of_its_carry():
    """As flax.nnx does: JAX gives a step containers of its own."""

    def popped(carry, x):
        total, held = carry
        first = held.pop()
        return (total + first * x, [first + x]), first

    def body(carry):
        first = carry["held"].pop()
        return {"held": [first * 2.0], "n": carry["n"] + 1}

    def going(carry):
        return (carry["n"] < 4) & (carry["held"].pop() < 9.0)

    def f(x):
        return lax.scan(popped, (0.0, [1.0]), x), lax.while_loop(
            going, body, {"held": [x[1]], "n": 0}
        )

    given = jnp.arange(1.0, 4.0)
    assert_same(unstage(f)(given), f(given))


def test_branches_on_values_work():
    fun = jax.jit(lambda x: x if x.sum() > 1 else -x)
    assert unstage(fun)(X).tolist() == X.tolist()


def test_a_function_compiled_before_is_called_too():
    jitted(3.0), jitted(3.0)
    check(jitted, 3.0, seen=[3.0])


def test_static_arguments_stay_as_they_are():
    fun = jax.jit(lambda x, how, *, n: x * n if how == "times" else x, static_argnums=1)
    fun = functools.partial(jax.jit, static_argnums=1, static_argnames="n")(fun.__wrapped__)
    check(lambda x: fun(x, "times", n=3), 2.0)


def test_numbers_reach_a_jitted_function_as_arrays():
    check(jax.jit(lambda x: x.at[0].set(1).astype(x.dtype)), np.zeros(3))
    check(jax.jit(lambda n: n.dtype.itemsize * n), 3)


def test_scan_is_a_loop():
    def step(c, x):
        return c + see(x), {"c": c, "n": 1}

    xs = jnp.array([1.0, 2.0])
    check(lambda x: lax.scan(step, 0.0, x), xs, seen=[1.0, 2.0])
    check(lambda x: lax.scan(step, 0.0, x, reverse=True), xs, seen=[2.0, 1.0])
    check(lambda x: lax.scan(lambda c, _: (c * 2, None), x, length=3), xs)
    check(lambda x: lax.map(lambda v: see(v) * 2, x), xs, seen=[1.0, 2.0])
    check(lambda x: lax.map(lambda v: v.sum(), x, batch_size=2), X)


def test_a_scan_without_steps():
    assert_same(*[f(jnp.zeros((0, 2))) for f in (unstage(_sums), _sums)])


def _sums(x):
    return lax.scan(lambda c, a: (c + a.sum(), a * 2), 0.0, x)


def test_numbers_that_start_a_loop_widen_as_in_jax():
    check(lambda x: lax.scan(lambda c, a: (c + a, c), 0, x), X[0])
    check(lambda x: lax.fori_loop(0, 3, lambda i, c: c / 2 + i, 1), X)
    check(lambda x: lax.while_loop(lambda c: c < 0, lambda c: c + 0.5, 1), X)
    check(lambda x: lax.while_loop(lambda c: c < 3, lambda c: c + 0.5, 1), X)


def test_while_and_fori_are_loops():
    check(lambda x: lax.while_loop(lambda c: c < 5, lambda c: see(c) * 2, x), 1.0, seen=[1, 2, 4])
    check(lambda n: lax.fori_loop(0, n, lambda i, c: c + see(i), 0), 3, seen=[0, 1, 2])


def test_only_the_branch_taken_runs():
    def fun(x):
        y = lax.cond(x > 0, lambda x: see(x) * 1, lambda x: see(-x), x)
        return lax.switch(5, [lambda x: x, lambda x: see(x) + 1], y)

    check(fun, -2.0, seen=[2.0, 2.0])
    check(lambda x: lax.cond(x > 0, lambda: 1.0, lambda: jnp.float32(2)), 1.0)
    check(lambda x: lax.cond(x > 0, 1.0, lambda x: x, 2.0, lambda x: -x), 1.0)
    check(lambda x: lax.cond(x > 0, lambda x: x, lambda x: -x, operand=x), 1.0)


def test_vmap_calls_its_function_once_per_example():
    check(mapped, X, seen=[float(row.sum()) for row in X])
    axes = ({"a": 1, "b": None}, 0)
    fun = vmap(lambda t, y: (t["a"] * y, t["b"]), in_axes=axes, out_axes=(1, None))
    check(fun, {"a": X, "b": jnp.ones(4)}, jnp.arange(3.0))
    check(jnp.vectorize(lambda v: see(v).sum(), signature="(n)->()"), X, seen=X.tolist())
    check(vmap(vmap(lambda k: jax.random.normal(k))), jax.random.split(jax.random.key(0), (2, 2)))


def test_examples_along_a_named_axis_meet_at_collectives():
    def fun(x):
        share = x / lax.psum(x, "i")
        see(share)
        return share - lax.pmean(share, "i") + lax.axis_index("i")

    check(vmap(fun, axis_name="i"), jnp.array([1.0, 3.0]), seen=[0.25, 0.75])
    inner = vmap(lambda x: x / lax.psum(x, ("i", "j")) + lax.pmax(x, "i"), axis_name="j")
    check(vmap(inner, axis_name="i"), X + 1)


@jax.checkpoint
def block(x):
    return jnp.sin(see(x)) * 2


@jax.custom_jvp
def bent(x):
    return jnp.sin(see(x))


bent.defjvp(lambda p, t: (bent(see(p[0])), 2 * t[0]))


@jax.custom_vjp
def kinked(x):
    return jnp.sin(see(x))


kinked.defvjp(lambda x: (kinked(see(x)), x), lambda x, g: (3 * see(g) * x,))


def test_checkpoint_and_custom_derivatives_are_calls():
    check(lambda x: block(x) + bent(x) + kinked(x), 0.5, seen=[0.5] * 3)


def test_derivatives_are_those_of_jax_and_values_show():
    def fun(x):
        return (bent(x) + kinked(x) + jnp.sin(x)) if x > 0 else x

    unstage(jax.grad(fun))(0.5)
    assert SEEN == [0.5, 0.5, 0.5, 0.5, 1.0]
    SEEN.clear()
    assert_same(
        unstage(jax.grad(fun))(0.5), jax.grad(lambda x: bent(x) + kinked(x) + jnp.sin(x))(0.5)
    )


def deep(x):
    c, ys = lax.scan(lambda c, a: (jax.checkpoint(jnp.sin)(c) + a, c * jax.nn.relu(a)), x[0], x)
    y = lax.cond(c.sum() > 0, lambda c: c, lambda c: c**2, c)
    return vmap(lambda v: v * y.sum())(ys).sum()


@pytest.mark.caches  # looking for leaks after each of so many operations takes a minute
@pytest.mark.parametrize("around", [jax.grad, jax.hessian, jax.jacfwd])
def test_derivatives_of_all_that(around):
    fun = jax.jit(vmap(around(deep)))
    assert_same(unstage(fun)(X[None] + 0.5), fun(X[None] + 0.5))


def test_under_a_derivative_values_print_and_compare():
    said = io.StringIO()

    def fun(x):
        print("x", x)
        return x**2 if x > 1 else x

    with contextlib.redirect_stdout(said):
        slope = unstage(jax.grad(jax.jit(fun)))(3.0)
    assert slope == 6.0
    assert "primal=3.0" in said.getvalue()


def test_solves_call_the_users_functions():
    a = X.T @ X + jnp.eye(3)
    check(lambda b: jax.scipy.sparse.linalg.cg(lambda v: a @ see(v), b)[0], X[0])
    check(lambda b: jnp.linalg.solve(a, b), X[0])


@pytest.mark.caches  # pmap keeps what it made of a function
def test_pmap_calls_its_function_once_per_device():
    fun = jax.pmap(lambda x: see(x) / lax.psum(x, "i"), axis_name="i")
    check(fun, jnp.array([1.0, 3.0]), seen=[1.0, 3.0])
    pairs = functools.partial(lax.psum, axis_name="i", axis_index_groups=[[0, 1], [2, 3]])
    check(jax.pmap(pairs, axis_name="i"), jnp.arange(12.0).reshape(4, 3))
    rows = jax.pmap(vmap(lambda x: x + lax.psum(x, ("i", "j")), axis_name="j"), axis_name="i")
    check(rows, jnp.arange(24.0).reshape(4, 3, 2))


def test_shard_map_calls_its_function_once_per_device():
    def body(x):
        see(x)
        total = lax.psum(x, "d")
        see(total)
        return x / total

    fun = jax.jit(jax.shard_map(body, mesh=MESH, in_specs=P("d"), out_specs=P("d")))
    # each device up to the collective, in order; then each to its end
    check(fun, LINE, seen=[[i] for i in LINE.tolist()] + [[36.0]] * 8)
    assert unstage(fun)(LINE).sharding == fun(LINE).sharding


def exchanged(x, w):
    y = jnp.sin(x) @ w + lax.axis_index("d")
    summed = jax.grad(lambda w: lax.psum((x @ w).sum(), "d"))(w)
    joint = jax.grad(lambda w: jnp.sin(x @ w).sum())(w)  # JAX sums over devices here
    start = lax.pcast(0.0, "d", to="varying")
    sums = lax.scan(lambda c, a: (c + lax.psum(a.sum(), "d"), c), start, x)[1]
    ring = [(i, (i + 1) % 8) for i in range(8)]
    tile = jnp.arange(8.0).reshape(8, 1) * y[0, 0]
    noise = jax.random.normal(jax.random.fold_in(jax.random.key(0), lax.axis_index("d")), (1,))
    return (
        *(lax.pmean(y, "d"), summed, joint, lax.pmax(y, "d"), sums, lax.ppermute(x, "d", ring)),
        *(lax.all_gather(x[0], "d"), lax.psum_scatter(tile[:, 0], "d", tiled=True)),
        *(lax.all_to_all(tile, "d", 0, 1), noise, jnp.searchsorted(jnp.sort(x[:, 0]), x[:, 0])),
    )


@pytest.mark.caches
@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_collectives_and_derivatives_inside_and_around(axis_type):
    mesh = jax.make_mesh((8,), ("d",), axis_types=(axis_type,))
    outs = (P(),) * 4 + (P("d"),) * 7
    fun = jax.jit(jax.shard_map(exchanged, mesh=mesh, in_specs=(P("d"), P()), out_specs=outs))
    x = jax.device_put(jnp.arange(48.0).reshape(16, 3) / 50, jax.NamedSharding(mesh, P("d")))
    with listen() as notes:
        check(fun, x, jnp.eye(3) + 1)
    assert not notes

    def loss(w):
        return sum(jnp.sum(jnp.sin(v)) for v in mean(x, w))

    def body(x, w):
        shared = lax.pmean(jnp.sin(x) @ w, "d")
        inner = jax.grad(lambda w: jnp.sin(x @ w).sum())(w)
        return x @ w * shared, lax.all_gather(x @ w, "d"), (inner @ w)[:2]

    specs = {"in_specs": (P("d"), P()), "out_specs": (P("d"), P("d"), P())}
    mean = jax.jit(jax.shard_map(body, mesh=mesh, **specs))
    check(jax.jit(jax.grad(loss)), jnp.eye(3) + 1)


def test_a_mesh_inside_a_mesh():
    grid = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)

    def inner(b):
        return b + lax.psum(b, "y") + lax.psum(b, "x") + lax.psum(b, ("x", "y"))

    def body(a):
        specs = {"in_specs": P(None, "y"), "out_specs": P(None, "y"), "check_vma": False}
        return jax.shard_map(inner, axis_names={"y"}, **specs)(a)

    specs = {"in_specs": P("x"), "out_specs": P("x"), "axis_names": {"x"}, "check_vma": False}
    check(jax.jit(jax.shard_map(body, mesh=grid, **specs)), jnp.arange(32.0).reshape(4, 8))


def test_a_reduction_by_a_function_of_ones_own():
    check(lambda x: lax.reduce(x, 1.0, lambda p, q: p * q + 0.0, (0,)), X)
    check(lambda x: lax.reduce_window(x, 1.0, lambda p, q: p * q + 0.0, (2, 1), (1, 1), "same"), X)


@jax.custom_batching.custom_vmap
def ruled(x):
    return jnp.sin(x)


@ruled.def_vmap
def _(size, batched, x):
    return jnp.cos(x), True


def test_a_function_with_a_rule_for_batches_is_batched_by_it():
    with listen() as notes:
        check(vmap(lambda x: ruled(x) + 1), X)
    assert [n.what for n in notes if "rule for batches" in n.why] == ["ran a vmap as a whole"]
    check(vmap(vmap(ruled)), X)
    check(vmap(lambda x: see(x) + vmap(ruled)(X[0]).sum()), X[0], seen=X[0].tolist())
    check(vmap(lambda x: ruled(x) / lax.psum(x, "i"), axis_name="i"), X)
    check(vmap(jax.jit(lambda x: lax.map(ruled, x))), X)
    check(vmap(lambda x: lax.scan(lambda c, a: (c, ruled(x)), 0.0, X[:0])[1]), X)  # stays staged
    check(vmap(jax.shard_map(ruled, mesh=TWO, in_specs=P("d"), out_specs=P("d"))), X.T)
    check(ruled, X)


def test_a_rule_for_batches_is_followed_though_the_user_catches_everything():
    def swallowed(x):
        try:
            return ruled(x)
        except BaseException:
            return x

    def misled(x):
        try:
            return ruled(x)
        except BaseException:
            raise ValueError from None

    for one in (swallowed, misled):
        with listen() as notes:
            check(vmap(one), X)
        assert "ran a vmap as a whole" in [n.what for n in notes]
        check(vmap(lambda x, one=one: one(x) / lax.psum(x, "i"), axis_name="i"), X)


def test_what_is_not_mapped_over_comes_out_as_it_was():
    fun = vmap(lambda x: (x, jnp.ones(2), 1.5), out_axes=(0, None, None))
    named = vmap(lambda x: (lax.psum(x, "i"), jnp.ones(2), 2), axis_name="i", out_axes=None)
    for mapped in (fun, named):
        *got, number = unstage(mapped)(X[0])
        *want, wanted = mapped(X[0])
        assert_same(got, want)
        assert type(number) is type(wanted) and number == wanted


# Rules that are not the derivative of their function, so that it shows who is asked.
seven = jax.custom_vjp(jnp.sin)
seven.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (g * 7,))
limited = jax.custom_vjp(lambda x: x)
limited.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -0.1, 0.1),))
summed = jax.custom_vjp(lambda x: x)
summed.defvjp(lambda x: (x, None), lambda _, g: (lax.psum(g, "d"),))
eight = jax.custom_jvp(jnp.sin)
eight.defjvp(lambda p, t: (eight(p[0]), t[0] * 8))
shared = jax.custom_jvp(lambda x: see(x) / lax.psum(x, "d"))
shared.defjvp(lambda p, t: (shared(p[0]), 9 * t[0] / lax.psum(p[0], "d")))
met = jax.custom_jvp(lambda x: lax.psum(jnp.sin(x), "d"))
met.defjvp(lambda p, t: (met(p[0]), lax.psum(5 * t[0], "d")))
half = jax.custom_jvp(lambda x, y: x * y)
half.defjvp(
    lambda p, t: (half(*p), sum(3 * x for x in t if not isinstance(x, SymbolicZero))),
    symbolic_zeros=True,
)


def whole(f):
    """A derivative of what devices do, each with its part."""
    return jax.grad(lambda x: (f(x) * 1.5).sum())


RULED = {
    "relu": lambda v: jax.nn.relu(v - 1),
    "softmax": jax.nn.softmax,
    "vjp": seven,
    "no linear rule": lambda v: limited(lax.psum(v, "d")) * v,
    "collective backward": summed,
    "jvp": eight,
    "collective of values": shared,
    "collective of tangents": met,
    "symbolic zeros": lambda v: half(v, 2.0) + half(v, v),
    "in jit": lambda v: jax.jit(eight)(v) + jax.jit(seven)(v),
    "in scan": lambda v: lax.scan(lambda c, a: (c + eight(a), c), v[0], v)[1],
    "in library": lambda v: lax.map(jax.nn.relu, v - 1),
    "in vmap": lambda v: vmap(lambda a: eight(a) * lax.psum(a, "i"), axis_name="i")(v),
    "both in vmap": lambda v: vmap(lambda a: seven(a) / lax.psum(a, "i"), axis_name="i")(v),
    "derivative inside": lambda v: jax.grad(lambda v: eight(v).sum() * seven(v).sum())(v),
}


@pytest.mark.in_turns
@pytest.mark.caches
@pytest.mark.parametrize("name", RULED)
def test_rules_for_derivatives_hold_around_devices(name):
    rule = RULED[name]
    for checked in (True, False):
        if checked and name == "collective backward":  # JAX refuses it
            continue
        if checked and name.endswith("in vmap"):  # and cannot batch this
            continue
        body = rule if checked else lambda v: lax.psum(rule(v).sum(), "d")
        specs = {"in_specs": P("d"), "out_specs": P("d") if checked else P(), "check_vma": checked}
        check(whole(jax.shard_map(body, mesh=TWO, **specs)), LINE[:4], compiled=True)


@pytest.mark.caches  # pmap keeps what it made of a function
def test_rules_for_derivatives_hold_around_pmap_and_named_examples():
    for rule in (seven, limited, summed, eight, shared, met):
        check(whole(lambda x, f=rule: jax.pmap(f, axis_name="d")(x)), X[:2])
        check(whole(lambda x, f=rule: vmap(f, axis_name="d")(x)), X[:2])
    each = vmap(whole(jax.pmap(seven)))
    check(each, jnp.stack([X[:2], X[:2] + 1]))


def test_devices_whose_derivative_has_a_rule_still_show_values():
    body = lambda v: jax.nn.relu(see(v)) * 2
    fun = jax.shard_map(body, mesh=TWO, in_specs=P("d"), out_specs=P("d"))
    with listen() as notes:
        check(whole(fun), LINE[:2], seen=[[1.0], [2.0]])
    assert not notes
    with listen() as notes:
        check(whole(jax.shard_map(seven, mesh=TWO, in_specs=P("d"), out_specs=P("d"))), LINE[:2])
    assert "ran a shard_map as a whole" in [n.what for n in notes]


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_a_mesh_that_is_set_is_that_of_a_shard_map(axis_type):
    mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(axis_type,) * 2)
    x = jax.device_put(LINE, jax.NamedSharding(mesh, P("a")))
    with jax.set_mesh(mesh):
        body = lambda u: see(u) * 2 + lax.psum(u, "a")
        fun = jax.shard_map(body, in_specs=P("a"), out_specs=P("a"))
        check(fun, x, seen=[LINE[i : i + 2].tolist() for i in (0, 0, 2, 2, 4, 4, 6, 6)])
        check(jax.jit(fun), x)
        assert unstage(fun)(x).sharding == fun(x).sharding


@pytest.mark.caches
@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_derivatives_with_a_mesh_that_is_set(axis_type, checked):
    mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(axis_type,) * 2)
    x = jax.device_put(LINE, jax.NamedSharding(mesh, P("a")))
    with jax.set_mesh(mesh):
        body = lambda u: jnp.sin(u) * 2 + lax.psum(u, "a")
        fun = jax.shard_map(body, in_specs=P("a"), out_specs=P("a"), check_vma=checked)
        check(jax.jit(jax.grad(lambda x: (fun(x) ** 2).sum())), x)


@pytest.mark.caches
def test_examples_along_a_sharded_axis():
    mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(AxisType.Explicit,) * 2)
    place = lambda *spec: jax.device_put(
        jnp.arange(8.0).reshape(4, 2), jax.NamedSharding(mesh, P(*spec))
    )
    for fun, x in [
        (vmap(lambda row: jnp.sin(see(row)).sum()), place("a", None)),
        (vmap(vmap(see), out_axes=1), place("a", "b")),
        (vmap(lambda row: (row * 2, 1.0), in_axes=1), place("a", "b")),
        (vmap(lambda row: row * 2), place(None, "b")),
    ]:
        check(fun, x)
        got, want = unstage(fun)(x), fun(x)
        assert jax.tree.all(jax.tree.map(lambda x, y: x.sharding == y.sharding, got, want))
    with pytest.raises(ValueError, match="0th dimension of all xs should be replicated"):
        unstage(lambda x: lax.scan(lambda c, a: (c, a * 2), 0.0, x))(place("a"))


@pytest.mark.caches  # pmap keeps what it made of a function
def test_a_pmap_knows_nothing_of_the_one_before():
    devices = jax.devices()[:2]
    unstage(jax.pmap(lambda x: x * 2, devices=devices))(X)
    mapped = jax.pmap(lambda x: lax.pmean(x**2, "i"), axis_name="i", devices=devices)
    check(jax.grad(lambda x: mapped(x).sum()), X)


def test_numbers_become_arrays_where_no_transfer_is_allowed():
    row = X[0]
    fun = jax.jit(lambda x: lax.scan(lambda c, a: (c + 2 * see(a), c), x[0], x))
    shares = vmap(lambda x: x / lax.psum(x, "i") + 1, axis_name="i")
    with jax.transfer_guard("disallow"):
        got = unstage(fun)(row), unstage(shares)(row)
    assert_same(got, (fun(row), shares(row)))


@settings(max_examples=6)
@given(programs(), inputs())
def test_any_program(program, args):
    assert_same(
        unstage(jax.jit(lambda *a: program(*a)))(*args), jax.jit(lambda *a: program(*a))(*args)
    )


# ---------------------------------------------------------------- breakpoints


def stop_and_read(monkeypatch, names):
    read = []

    def hook():
        found = sys._getframe(1).f_locals
        read.append({n: np.asarray(found[n]).tolist() for n in names})

    monkeypatch.setattr(sys, "breakpointhook", hook)
    return read


def test_a_breakpoint_reads_values_in_every_construct(monkeypatch):
    read = stop_and_read(monkeypatch, ["x"])

    def stop(x):
        breakpoint()
        return x * 1

    body = jax.shard_map(stop, mesh=MESH, in_specs=P("d"), out_specs=P("d"))
    unstage(jax.jit(stop))(1.0)
    unstage(lambda xs: lax.scan(lambda c, x: (stop(x), c), 0.0, xs))(jnp.array([2.0, 3.0]))
    unstage(jax.vmap(stop))(jnp.array([4.0, 5.0]))
    unstage(jax.pmap(stop))(jnp.array([6.0, 7.0]))
    unstage(body)(LINE)
    values = [r["x"] for r in read]
    assert values == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, *([i] for i in LINE.tolist())]


def test_without_collectives_everything_runs_in_the_callers_thread():
    threads = set()
    body = lambda x: threads.add(threading.get_ident()) or x
    unstage(jax.shard_map(body, mesh=MESH, in_specs=P("d"), out_specs=P("d")))(LINE)
    unstage(vmap(body, axis_name="i"))(LINE)
    assert threads == {threading.get_ident()}


def test_pdb_in_a_device_reads_and_goes_on():
    code = """
        import jax, jax.numpy as jnp, numpy as np
        from jax.sharding import Mesh, PartitionSpec as P
        from malleable.inspection.unstaging.unstage import unstage

        def body(x):
            total = jax.lax.psum(x, "d")
            breakpoint()
            return x / total

        mesh = Mesh(np.array(jax.devices()), ("d",))
        fun = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("d"), out_specs=P("d")))
        print("result", unstage(fun)(jnp.arange(1.0, 4.0)).tolist())
    """
    commands = "p x + 10\np float(total[0])\nc\np x\np int(jax.lax.axis_index('d'))\nc\nc\n"
    env = {"XLA_FLAGS": "--xla_force_host_platform_device_count=3", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        input=commands,
        capture_output=True,
        text=True,
        timeout=120,
        env={**_environment(), **env},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "(Pdb) Array([11.], dtype=float32)" in done.stdout
    assert "(Pdb) 6.0" in done.stdout
    assert "(Pdb) Array([2.], dtype=float32)\n(Pdb) 1\n" in done.stdout
    assert "result [0.1666666716337204, 0.3333333432674408, 0.5]" in done.stdout


def _environment():
    return {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}


# ---------------------------------------------------------------- errors


def test_a_carry_that_changes_its_type_is_refused_as_by_jax():
    with pytest.raises(TypeError, match="scan body function carry input and carry output"):
        unstage(lambda x: lax.scan(lambda c, a: (c > 0, a), jnp.float32(0), x))(X[0])
    with pytest.raises(TypeError, match="while_loop body function carry input"):
        unstage(lambda x: lax.while_loop(lambda c: True, lambda c: X, x))(X[0])
    with pytest.raises(TypeError, match="must be a pair"):
        unstage(lambda x: lax.scan(lambda c, a: c, 0.0, x))(X[0])


def test_other_mistakes_are_refused_as_by_jax():
    with pytest.raises(ValueError, match="was batched on axis"):
        unstage(vmap(lambda x: x, out_axes=None))(X)
    with pytest.raises(TypeError, match="Index type must be an integer"):
        unstage(lambda x: lax.switch(x, [jnp.sin, jnp.cos], x))(1.0)
    with pytest.raises(TypeError, match="not a valid JAX"):
        unstage(jax.jit(lambda x: "text"))(1.0)
    with pytest.raises(ValueError, match="require replication"):
        unstage(jax.shard_map(lambda x: x, mesh=MESH, in_specs=P("d"), out_specs=P()))(LINE)


def test_an_error_says_in_which_step_and_example():
    def step(c, a):
        return c, 1 // int(a - 2)

    with pytest.raises(ZeroDivisionError) as caught:
        unstage(jax.vmap(lambda x: lax.scan(step, 0.0, x)))(jnp.arange(6.0).reshape(2, 3))
    assert [n for n in caught.value.__notes__ if n.startswith("in ")] == [
        "in scan[2/3]",
        "in vmap[0/2]",
    ]


def failing(x):
    total = lax.psum(x, "d")
    if lax.axis_index("d") == 3:
        raise KeyError("lost")
    return x / lax.psum(total, "d")


def test_an_error_in_one_device_ends_all_and_names_it():
    fun = jax.shard_map(failing, mesh=MESH, in_specs=P("d"), out_specs=P("d"))
    with pytest.raises(KeyError, match="lost") as caught:
        unstage(fun)(LINE)
    assert "in shard_map[d=3/8]" in caught.value.__notes__
    assert any(f.name == "failing" for f in caught.traceback)


def test_an_error_caught_inside_leaves_the_others_running():
    def inner(v):
        total = lax.psum(v, "i")
        if v > 3:
            raise KeyError
        return total + lax.psum(v, "i")

    def outer(row):
        try:
            out = vmap(inner, axis_name="i")(row)
        except KeyError:
            out = row * 0
        return out + lax.psum(row, "o")

    got = unstage(vmap(outer, axis_name="o"))(jnp.arange(6.0).reshape(3, 2))
    assert got.tolist() == [[8.0, 11.0], [16.0, 19.0], [6.0, 9.0]]


def test_devices_at_different_collectives_are_named_with_both_lines():
    def body(x):
        if lax.axis_index("d") == 3:
            return lax.pmax(x, "d")
        return lax.psum(x, "d")

    fun = jax.shard_map(body, mesh=MESH, in_specs=P("d"), out_specs=P("d"), check_vma=False)
    with pytest.raises(
        MalleableError, match=r"(?s)d=0 .*`psum` at .*:\d+.*d=3 at `pmax` at .*:\d+"
    ):
        unstage(fun)(LINE)


def meeting(count, meets, under: Any = contextlib.nullcontext):
    """Functions of a 2 by 2 mesh, of which some meet along x, and their spots."""

    def fun(i):
        return lambda: cooperative.ask("psum", {"axes": ("x",)}, [i], under) if i in meets else i

    return list(map(fun, range(count))), list(lanes.every_lane({"y": 2, "x": 2}))


def test_a_collective_that_fails_at_the_end_of_a_thread_is_raised():
    @contextlib.contextmanager
    def failing():
        raise KeyError("lost")
        yield

    with pytest.raises(KeyError, match="lost"):  # asked by 0 and 1, computed when 3 has ended
        cooperative.run(*meeting(4, {0, 1}, failing))
    assert cooperative.run(*meeting(4, {0, 1})) == [[1], [1], 2, 3]


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_thread_that_cannot_start_ends_all(monkeypatch, which):
    start, left = threading.Thread.start, [*[True] * which, False]

    def refused(thread):
        if not left.pop(0):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        cooperative.run(*meeting(4, {0, 1, 2} if which < 2 else {0, 1}))


def test_an_interrupt_does_not_wait_for_what_runs_in_a_thread(monkeypatch):
    monkeypatch.setattr(cooperative, "PATIENCE", 0.1)
    functions, spots = meeting(4, {0})
    ended = threading.Event()

    def interrupting():
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        ended.wait(60)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            cooperative.run([functions[0], interrupting, *functions[2:]], spots)
        assert not ended.is_set()
    finally:
        signal.signal(signal.SIGINT, before)
        ended.set()


def test_a_thread_that_is_not_told_the_context_ends_all(monkeypatch):
    def tell():
        raise KeyError("untold")

    monkeypatch.setattr(compat, "thread_state", lambda: tell)
    with pytest.raises(KeyError, match="untold"):
        cooperative.run(*meeting(4, {0, 1, 2, 3}))


def test_inside_of_jit_and_vmap_there_are_no_values():
    for around in (jax.jit, vmap):
        with pytest.raises(MalleableError, match="put unstage around"):
            around(unstage(lambda x: x))(LINE)


def test_what_jax_insists_on_staging_leaves_a_note():
    def fun(x):
        return jax.eval_shape(lambda x: x * 2, x).shape, x

    with listen() as notes:
        unstage(jax.jit(lambda x: fun(x)[1]))(X)
    (said,) = notes
    assert said.what == "<lambda> stays staged"
    assert "test_unstage.py" in said.where


def test_other_threads_and_later_calls_are_left_alone():
    seen = []

    def elsewhere():
        seen.append(jax.jit(lambda x: isinstance(x, compat.Tracer))(1.0))

    def fun(x):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        return unstage(jitted)(x)

    unstage(jax.jit(fun))(2.0)
    assert [bool(x) for x in seen] == [True]
    with pytest.raises(ZeroDivisionError):
        unstage(jax.jit(lambda x: 1 // 0))(1.0)
    assert not jax.jit(lambda x: isinstance(x, compat.HostArray))(1.0)


@pytest.mark.caches  # pmap keeps what it made of a function
@pytest.mark.parametrize("across", [lax.psum, lax.pmax, lax.pmin, lax.all_gather])
def test_numbers_of_python_have_the_types_that_collectives_give_them(across):
    fun = lambda x, y: (x * y, across(y, "i"))
    for mapped in (
        jax.pmap(fun, axis_name="i", in_axes=(0, None)),
        jax.jit(vmap(fun, axis_name="i", in_axes=(0, None))),
    ):
        check(mapped, jnp.array([1.0, 3.0]), 2.0)
        weak = [x.aval.weak_type for x in mapped(jnp.array([1.0, 3.0]), 2.0)]
        found = [x.aval.weak_type for x in unstage(mapped)(jnp.array([1.0, 3.0]), 2.0)]
        assert found == weak
