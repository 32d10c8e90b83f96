"""State crosses every control flow: what goes in, what comes out, and what stays as it was."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from malleable import interpret, listen, stage
from tests.generators.keys import quick_key
from tests.rules import again, assert_same, count, hand_out, prims, twice

MESH = Mesh(np.array(jax.devices()[:2]), ("i",))
ROOT = quick_key(0)


def scan(f, n=3, **options):
    return lambda x: lax.scan(lambda c, _: (f(c), None), x, length=n, **options)[0]


def while_loop(f, n=3):
    return lambda x: lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, f(s[1])), (0, x))[1]


def with_jvp(f):
    fun = jax.custom_jvp(lambda x: f(x))
    fun.defjvp(lambda xs, ts: (fun(*xs), 10 * ts[0]))
    return fun


def with_vjp(f):
    fun = jax.custom_vjp(lambda x: f(x))
    fun.defvjp(lambda x: (f(x), None), lambda _, ct: (10 * ct,))
    return fun


def replicated(f):
    return jax.shard_map(f, mesh=MESH, in_specs=PartitionSpec(), out_specs=PartitionSpec())


# name -> f as the body of a control flow, which runs once
ONCE = {
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "custom_jvp": with_jvp,
    "custom_vjp": with_vjp,
    "cond": lambda f: lambda x: lax.cond(x < 9, f, f, x),
    "switch": lambda f: lambda x: lax.switch(1, [jnp.cos, f, jnp.tan], x),
    "shard_map": replicated,
}
LOOPS = {"scan": scan, "fori": lambda f: lambda x: lax.fori_loop(0, 3, lambda i, c: f(c), x),
         "while": while_loop}  # fmt: skip
ALL = ONCE | LOOPS
NESTED = [*itertools.product(ALL, ["jit", "cond", "scan", "custom_vjp"]), ("cond", "while")]

once = pytest.mark.parametrize("around", ONCE.values(), ids=ONCE)
every = pytest.mark.parametrize("around", ALL.values(), ids=ALL)


def tame(f):
    """`f` scaled, so that no result is small or large."""
    return lambda x: 0.5 + f(x)


def by_shared(frame, x, **params):
    return frame.bind(x) * frame.read("w")


def noisy(frame, x, **params):
    return frame.bind(x) + jax.random.uniform(frame.next_key())


# ------------------------------------------------------------ all of them


@pytest.mark.parametrize(("outer", "inner"), NESTED)
def test_the_carry_flows_through_any_nesting(outer, inner):
    program = ALL[outer](tame(ALL[inner](tame(jnp.sin))))
    counted = interpret(program, {lax.sin_p: count}, carry=0)
    (out, n, _), wanted = jax.jit(lambda x: (counted(x), program(x)))(0.5)
    assert n == (3 if outer in LOOPS else 1) * (3 if inner in LOOPS else 1)
    assert_same(out, wanted)


@every
def test_a_rule_changes_what_is_inside(around):
    out, *_ = interpret(around(tame(jnp.sin)), {lax.sin_p: twice})(0.5)
    assert_same(out, around(tame(lambda x: 2 * jnp.sin(x)))(0.5))


@every
def test_what_is_shared_is_the_same_everywhere(around):
    program = around(tame(jnp.sin))
    out, *_ = interpret(program, {lax.sin_p: by_shared}, shared={"w": 3.0})(0.5)
    assert_same(out, around(tame(lambda x: jnp.sin(x) * 3.0))(0.5))


@once
def test_a_feed_is_handed_to_a_body_that_runs_once(around):
    out, *_ = interpret(around(jnp.sin), {lax.sin_p: by_shared}, feeds={"w": 3.0})(0.5)
    assert np.allclose(out, 3 * jnp.sin(0.5))


@pytest.mark.parametrize("mode", ["stack", "unique", "masked", "last", "sum"])
@pytest.mark.parametrize("around", [v for k, v in ONCE.items() if k != "switch"])
def test_what_a_body_that_runs_once_writes_comes_out_as_it_is(around, mode):
    _, _, writes = interpret(around(jnp.sin), {lax.sin_p: hand_out(mode)})(0.5)
    assert_same(jax.tree.map(jnp.float32, writes), {"x": jnp.float32(0.5)})


@pytest.mark.parametrize("around", [v for k, v in ONCE.items() if k not in ("switch", "shard_map")])
def test_keys_are_counted_through_a_body_that_runs_once(around):
    program = lambda body: lambda x: jnp.sin(body(jnp.sin(x)))
    noise = lambda body: interpret(program(body), {lax.sin_p: noisy}, key=ROOT)(0.5)[0]
    assert np.allclose(noise(around(jnp.sin)), noise(jnp.sin))


@pytest.mark.parametrize("around", LOOPS.values(), ids=LOOPS)
def test_each_step_of_a_loop_has_a_root_of_its_own(around):
    def by_hand(x):
        for i in range(3):
            key = jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(ROOT, 0), i), 0)
            x = jnp.sin(x) + jax.random.uniform(key)
        return jnp.sin(x) + jax.random.uniform(jax.random.fold_in(ROOT, 1))

    program = lambda x: jnp.sin(around(jnp.sin)(x))
    out, *_ = interpret(program, {lax.sin_p: noisy}, key=ROOT)(0.5)
    assert np.allclose(out, by_hand(0.5))


@pytest.mark.parametrize("around", [v for k, v in ALL.items() if k != "while"])
def test_a_derivative_is_the_same_with_a_rule_that_changes_nothing(around):
    counted = lambda x: interpret(around(tame(jnp.sin)), {lax.sin_p: count}, carry=0)(x)[0]
    assert_same(jax.grad(counted)(0.5), jax.grad(around(tame(jnp.sin)))(0.5))


@pytest.mark.parametrize("around", [v for k, v in ALL.items() if k not in ("while", "custom_vjp")])
def test_what_is_written_inside_has_a_derivative(around):
    program = around(tame(jnp.sin))
    reap = interpret(program, {lax.sin_p: hand_out("sum")})
    read = lambda x: jax.tree.leaves(reap(x)[2])[0]
    step = 1e-2
    wanted = (read(0.5 + step) - read(0.5 - step)) / (2 * step)
    assert np.allclose(jax.grad(read)(0.5), wanted, rtol=1e-2)


# ------------------------------------------------------------ calls


REMAT = stage(jax.checkpoint(jnp.sin))(0.5).jaxpr.eqns[0].primitive.name


def remade(program, name, *args):
    """The params of an equation, in a program and in the same one under a rule."""
    kept = lambda *args: interpret(program, {lax.sin_p: again})(*args)[0]
    both = [[e for e in stage(f)(*args).jaxpr.eqns if e.primitive.name == name]
            for f in (program, kept)]  # fmt: skip
    return [found[0].params for found in both]


def test_a_jit_keeps_its_name_and_whether_it_is_inlined():
    def layer(x):
        return jnp.sin(x)

    old, new = remade(lambda x: jax.jit(layer, inline=False)(x), "jit", 0.5)
    assert [new[k] for k in ("name", "inline", "keep_unused")] == ["layer", old["inline"], False]


def test_a_donated_argument_stays_donated():
    jitted = jax.jit(lambda a, b: jnp.sin(a) + b, donate_argnums=1)
    _, new = remade(jitted, "jit", jnp.ones(3), jnp.ones(3))
    assert new["donated_invars"] == (False, True)
    given = jnp.ones(3)
    interpret(jitted, {lax.sin_p: count}, carry=0)(jnp.ones(3), given)
    assert given.is_deleted()


def test_shardings_stay_as_they_were():
    split = NamedSharding(MESH, PartitionSpec("i"))
    jitted = jax.jit(jnp.sin, in_shardings=split, out_shardings=split)
    _, new = remade(jitted, "jit", jnp.ones(4))
    assert new["in_shardings"][-1] == new["out_shardings"][0] == split
    assert interpret(jitted, {lax.sin_p: count}, carry=0)(jnp.ones(4))[0].sharding == split


def test_a_checkpoint_keeps_its_options():
    policy = jax.checkpoint_policies.dots_saveable
    _, new = remade(jax.checkpoint(jnp.sin, policy=policy, prevent_cse=False), REMAT, 0.5)
    assert (new["policy"], new["prevent_cse"]) == (policy, False)


def test_a_checkpoint_in_a_gradient_stays_marked_as_differentiated():
    old, new = remade(jax.grad(jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)))), REMAT, 0.5)
    assert old["differentiated"] and new["differentiated"]


def test_a_call_that_loses_something_when_entered_says_so():
    fun = jax.custom_batching.custom_vmap(jnp.sin)
    fun.def_vmap(lambda size, mapped, x: (jnp.sin(x), mapped[0]))
    with listen() as heard:
        assert interpret(lambda x: fun(x), {lax.sin_p: count}, carry=0)(0.5)[1] == 1
    (note,) = heard
    assert (note.what, note.why) == ("entered `custom_vmap_call`", "it lost its batching rule")
    assert "test_higher.py:" in note.where


def test_a_default_rule_does_not_enter_what_would_lose_something():
    fun = jax.custom_batching.custom_vmap(jnp.sin)
    fun.def_vmap(lambda size, mapped, x: (jnp.sin(x), mapped[0]))
    program = lambda x: interpret(lambda x: fun(x), {}, default=again)(x)[0]
    assert prims(stage(program)(0.5).jaxpr) == ["custom_vmap_call"]


def test_a_branch_may_give_a_number_of_python_where_another_gives_an_array():
    def fun(x):
        return lax.cond(x[0] > 1, lambda: (3, x), lambda: (jnp.argmax(x), x))

    for x in (jnp.arange(3.0), jnp.arange(3.0) + 2):
        assert_same(interpret(fun, {}, default=again)(x)[0], fun(x))
