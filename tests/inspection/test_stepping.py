import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from jax import lax
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

from malleable import compat
from malleable.errors import MalleableError
from malleable.inspection import places
from malleable.inspection.debugging.stepping import Enter, Leave, Step, prepare, spell_path, walk
from malleable.notes import listen
from tests.generators.programs.programs import inputs, programs

X = jnp.arange(6.0).reshape(2, 3) / 7
MESH = Mesh(np.array(jax.devices()), ("d",))
GRID = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)


def events_of(fun, *args, **options):
    """(events, results with their pytrees) of a walk through a function."""
    ready = prepare(fun)(*args)
    run, events = walk(ready.program, ready.args, **options), []
    while True:
        try:
            events.append(next(run))
        except StopIteration as stop:
            return events, ready.rebuild(stop.value)


def steps_of(fun, *args, **options):
    return [e for e in events_of(fun, *args, **options)[0] if isinstance(e, Step)]


def check(fun, *args, exact=False, **options):
    """Step through a function, see that each value has its type, and compare with jit."""
    events, got = events_of(fun, *args, **options)
    numbers = [e.number for e in events if isinstance(e, Step)]
    assert numbers == list(range(1, len(numbers) + 1))
    around = [(e.eqn, e.path) for e in events if isinstance(e, Enter)]
    assert sorted(map(str, around)) == sorted(
        str((e.eqn, e.path)) for e in events if isinstance(e, Leave)
    )
    for e in events:
        if isinstance(e, Step):
            assert e.path == (e.before.path if e.before else ())
            for v, x in zip(e.eqn.outvars, e.outputs, strict=True):
                assert (x.shape, x.dtype) == (v.aval.shape, v.aval.dtype)
                assert not isinstance(x, compat.Tracer)
    assert_same(got, jax.jit(fun)(*args), exact)
    return events


def assert_same(got, want, exact=False):
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert getattr(a, "weak_type", None) == getattr(b, "weak_type", None)
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        tight = 0 if exact or a.dtype.kind in "biu" else 3e-5
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=tight, atol=tight)


@jax.jit
def ensemble(x):
    def step(c, a):
        return c + jnp.where(a.sum() > 0.3, a, -a), jax.nn.relu(c).sum()

    def one(v):
        c, ys = lax.scan(step, v, jnp.stack([v, 2 * v, -v]))
        c = lax.cond(c[0] > 0.1, jnp.sin, lambda v: v**2, c)
        return lax.while_loop(lambda s: s.sum() < 10, lambda s: s * 1.5 + 1, c), ys

    return jax.vmap(one)(x)


def test_a_walk_gives_what_the_compiled_function_gives():
    check(ensemble, X)


def test_equations_that_are_not_entered_give_the_same():
    events = check(ensemble, X, enter=lambda eqn, path: False)
    assert [str(e.eqn.primitive) for e in events] == ["jit"]


def test_the_path_names_the_example_and_the_iteration():
    paths = {spell_path(s.path) for s in steps_of(ensemble, X)}
    assert "jit:ensemble > vmap[1/2] > scan[2/3]" in paths
    assert "jit:ensemble > vmap[0/2] > cond:false" in paths
    assert "jit:ensemble > vmap[1/2] > while[0] test" in paths


def test_enter_is_asked_with_the_path_around_the_equation():
    asked = []
    steps_of(ensemble, X, enter=lambda eqn, path: asked.append((str(eqn.primitive), path)) or True)
    assert asked[0] == ("jit", ())
    assert any(name == "scan" and spell_path(p) == "jit:ensemble > vmap[0/2]" for name, p in asked)


def test_every_equation_names_its_own_line():
    for step in steps_of(ensemble, X):
        assert step.place is not None
        assert places.is_own(step.place.file)
        assert step.place in step.chain


def test_the_last_leave_carries_the_results_of_the_equation():
    events, _ = events_of(lambda x: lax.scan(lambda c, a: (c + a, c), 0.0, x), jnp.arange(3.0))
    leaves = [e for e in events if isinstance(e, Leave)]
    assert [e.results is None for e in leaves] == [True, True, False]
    carry, ys = leaves[-1].results
    assert (float(carry), ys.tolist()) == (3.0, [0.0, 0.0, 1.0])


def test_a_whole_step_follows_an_entered_equation_on_request():
    events, _ = events_of(jax.jit(lambda x: jnp.sin(x) + 1), 0.5, whole=True)
    last = events[-1]
    assert [e.entered for e in events if isinstance(e, Step)] == [False, False, True]
    assert str(last.eqn.primitive) in ("jit", "pjit")
    assert dict(last.env)[last.eqn.outvars[0]] is last.outputs[0]


def test_env_is_what_is_known_at_that_point():
    first, second = steps_of(lambda x: jnp.sin(x) * 2, 0.5)
    assert list(first.env.values()) == [0.5, first.outputs[0]]
    assert len(first.env) == len(second.env) - 1
    with pytest.raises(KeyError):
        first.env[second.eqn.outvars[0]]
    assert {first.names[v] for v in first.env} == {"a", "b"}


def test_env_of_an_enter_is_that_of_the_body_around():
    events, _ = events_of(lambda x: jax.jit(jnp.cos)(x * 2), 0.5)
    enter = next(e for e in events if isinstance(e, Enter))
    assert [float(x) for x in enter.env.values()] == [0.5, 1.0]


def test_before_leads_outwards():
    step = next(s for s in steps_of(ensemble, X) if "scan" in spell_path(s.path))
    names = []
    while (before := step.before) is not None:
        names.append(str(before.eqn.primitive))
        step = before
    assert names == ["scan", "scan", "jit"]  # a vmap is a scan over examples


def test_a_reversed_scan_counts_down():
    fun = lambda x: lax.scan(lambda c, a: (c + a, c), 0.0, x, reverse=True)
    events, _ = events_of(fun, X[0])
    assert [e.path[-1].index for e in events if isinstance(e, Enter)] == [2, 1, 0]


def test_a_loop_without_steps_is_one_step():
    check(lambda x: lax.scan(lambda c, a: (c + a, c), 0.0, x), jnp.arange(0.0))


@jax.custom_jvp
def bent(x):
    return jnp.sin(x)


bent.defjvp(lambda p, t: (bent(p[0]), 2 * t[0]))


@jax.custom_vjp
def kinked(x):
    return jnp.sin(x)


kinked.defvjp(lambda x: (kinked(x), x), lambda x, g: (3 * g * x,))


@functools.partial(jax.checkpoint, policy=None)
def block(x):
    return kinked(jnp.sin(x)) + bent(x)


def deep(x):
    c, ys = lax.scan(lambda c, a: (block(c) + a, lax.switch(1, [jnp.sin, bent, block], c)), x[0], x)
    return lax.fori_loop(0, 2, lambda i, c: c * 1.1 + i, c).sum() + ys.sum()


def slope(x):
    return jax.grad(deep)(x)


@pytest.mark.parametrize("fun", [deep, slope, lambda x: jax.vmap(slope)(jnp.stack([x, x + 1]))])
def test_custom_derivatives_checkpoints_and_switches(fun):
    check(fun, X)


def test_derivatives_name_lines_of_the_function_they_are_of():
    steps = steps_of(jax.jit(slope), X)
    assert len(steps) > 40
    assert all(s.place is not None and s.place.file == __file__ for s in steps)


def test_keys_integers_and_linear_algebra():
    def fun(key, n, x):
        keys = jax.random.split(key, 3)
        noise = jax.vmap(lambda k: jax.random.normal(k, (2,)))(keys)
        _, folded = lax.scan(lambda c, k: (c, jax.random.fold_in(k, n)), 0, keys)
        a = x.T @ x + jnp.eye(3)
        return noise, folded, jnp.linalg.solve(a, x.T), n // 3 * 7 % 5

    check(fun, jax.random.key(0), jnp.int32(17), X)


@settings(max_examples=6)
@given(programs(), inputs())
def test_any_program(program, args):
    check(program, *args)


def exchanged(x, w):
    y = jnp.sin(x) @ w + lax.axis_index("d")
    grad = jax.grad(lambda w: lax.psum((x @ w).sum(), "d"))(w)
    start = lax.pcast(0.0, "d", to="varying")
    sums = lax.scan(lambda c, a: (c + lax.psum(a.sum(), "d"), c), start, x)[1]
    ring = [(i, (i + 1) % 8) for i in range(8)]
    tile = jnp.arange(8.0).reshape(8, 1) * y[0, 0]
    return (
        *(lax.pmean(y, "d"), grad, lax.pmax(y, "d"), sums, lax.ppermute(x, "d", ring)),
        *(lax.all_gather(x[0], "d"), lax.psum_scatter(tile[:, 0], "d", tiled=True)),
        lax.all_to_all(tile, "d", 0, 1),
    )


def on_mesh(mesh):
    outs = (P(), P(), P()) + (P("d"),) * 5
    return jax.shard_map(exchanged, mesh=mesh, in_specs=(P("d"), P()), out_specs=outs)


def sharded_args(mesh):
    x = jnp.arange(48.0).reshape(16, 3) / 50
    return jax.device_put(x, jax.NamedSharding(mesh, P("d"))), jnp.eye(3) + 1


@pytest.mark.caches  # looking for leaks after each compiled operation takes long
@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_devices_of_a_mesh_meet_at_collectives(axis_type):
    mesh = jax.make_mesh((8,), ("d",), axis_types=(axis_type,))
    events = check(on_mesh(mesh), *sharded_args(mesh))
    levels = [spell_path(e.path) for e in events if isinstance(e, Enter) and len(e.path) == 1]
    assert levels == [f"shard_map[d={i}/8]" for i in range(8)]
    check(on_mesh(mesh), *sharded_args(mesh), enter=lambda eqn, path: False)


@pytest.mark.caches  # of JAX, which keeps tracers of this: make_jaxpr alone does
def test_the_derivative_of_a_shard_map():
    def body(x, w):
        shared = lax.pmean(jnp.sin(x) @ w, "d") + w[0]
        return x @ w * shared, lax.all_gather(x @ w, "d"), lax.psum_scatter(shared, "d", tiled=True)

    fun = jax.shard_map(body, mesh=MESH, in_specs=(P("d"), P()), out_specs=P("d"))
    x, w = jnp.arange(192.0).reshape(64, 3) / 50, jnp.eye(3) + 1
    check(lambda x, w: jax.grad(lambda w: sum(map(jnp.sum, fun(x, w))))(w), x, w)


@pytest.mark.caches
def test_a_mesh_of_two_axes_with_collectives_in_loops_and_branches():
    def body(a):
        def loop(i, a):
            return a + lax.psum(a, "x") * 0.1 + lax.pmax(a, "y") + lax.psum(a, ("x", "y")) / 9

        a = lax.fori_loop(0, 2, loop, a)
        even = lax.axis_index("x") == 0
        a = lax.cond(even, lambda a: lax.psum(a, "y"), lambda a: a * 2.0, a)
        return a, lax.all_gather(a, ("y", "x"), tiled=True)

    specs = {"in_specs": P("x", "y"), "out_specs": (P("x", "y"), P(("x", "y")))}
    check(jax.shard_map(body, mesh=GRID, check_vma=False, **specs), jnp.arange(32.0).reshape(4, 8))


def test_a_mesh_inside_a_mesh():
    def inner(b):
        return b + lax.psum(b, "y") + lax.psum(b, "x") + lax.psum(b, ("x", "y"))

    def body(a):
        specs = {"in_specs": P(None, "y"), "out_specs": P(None, "y"), "check_vma": False}
        return jax.shard_map(inner, axis_names={"y"}, **specs)(a)

    specs = {"in_specs": P("x"), "out_specs": P("x"), "axis_names": {"x"}, "check_vma": False}
    check(jax.shard_map(body, mesh=GRID, **specs), jnp.arange(32.0).reshape(4, 8))


@pytest.mark.caches  # pmap keeps what it made of a function
def test_pmap_and_groups_of_devices():
    def fun(x):
        pairs = lax.psum(x, "i", axis_index_groups=[[0, 1], [2, 3]])
        return x - lax.pmean(x, "i"), pairs

    check(jax.pmap(fun, axis_name="i"), jnp.arange(12.0).reshape(4, 3))


def test_devices_at_different_collectives_are_named_with_both_lines():
    def body(x):
        first = lax.axis_index("d") == 0
        return lax.cond(first, lambda x: lax.psum(x, "d"), lambda x: lax.pmax(x, "d"), x)

    fun = jax.shard_map(body, mesh=MESH, in_specs=P("d"), out_specs=P("d"), check_vma=False)
    with pytest.raises(MalleableError, match=r"(?s)d=0 at `psum` at .*:\d+ in .*; d=1 .*`pmax`"):
        steps_of(fun, jnp.arange(8.0))


def test_devices_that_are_through_are_not_waited_for():
    def body(x):
        first = lax.axis_index("d") == 0
        return lax.cond(first, lambda x: lax.psum(x, "d"), lambda x: x, x)

    fun = jax.shard_map(body, mesh=MESH, in_specs=P("d"), out_specs=P("d"), check_vma=False)
    with pytest.raises(MalleableError, match="the others are through"):
        steps_of(fun, jnp.arange(8.0))


def test_an_error_in_an_equation_says_where():
    with jax.debug_nans(True), pytest.raises(FloatingPointError) as caught:
        steps_of(lambda x: lax.scan(lambda c, a: (c, jnp.log(a)), 0.0, x), jnp.array([1.0, -1.0]))
    note = next(n for n in caught.value.__notes__ if n.startswith("in `log` at"))
    assert "test_stepping.py" in note
    assert note.endswith("inside scan[1/2]")


def test_what_cannot_be_entered_leaves_one_note():
    def solve(x):
        a = x.T @ x + jnp.eye(3)
        return lax.custom_linear_solve(
            lambda v: a @ v, x[0], lambda f, b: jnp.linalg.solve(a, b), symmetric=True
        )

    with listen() as notes:
        check(lambda x: jax.vmap(solve)(jnp.stack([x, x + 1])), X)
    assert len([n for n in notes if "as one operation" in n.what]) == 1


def test_numbers_are_as_wide_as_when_the_walk_was_asked_for():
    with jax.enable_x64(True):
        ready = prepare(lambda x: jnp.sin(x) / 3)(np.float64(0.5))
        run = walk(ready.program, ready.args)
    assert [str(step.outputs[0].dtype) for step in run] == ["float64", "float64"]


def test_traced_values_are_refused():
    ready = prepare(jnp.sin)(0.5)
    with pytest.raises(MalleableError, match="concrete values"):
        jax.jit(lambda x: [0 for _ in walk(ready.program, [x])] or x)(0.5)


@pytest.mark.caches  # pmap keeps what it made of a function
@pytest.mark.parametrize("across", [lax.psum, lax.pmax, lax.all_gather])
def test_collectives_give_types_as_weak_as_jax_does(across):
    fun = jax.pmap(lambda x, y: (x * y, across(y, "i")), axis_name="i", in_axes=(0, None))
    args = jnp.array([1.0, 3.0]), 2.0
    _, outs = events_of(fun, *args)
    assert [x.aval.weak_type for x in outs] == [x.aval.weak_type for x in fun(*args)]


def test_a_batching_rule_of_the_users_own_is_run():
    @jax.custom_batching.custom_vmap
    def f(x):
        return jnp.sin(x)

    @f.def_vmap
    def rule(size, batched, x):
        return jnp.cos(x), True

    xs = jnp.arange(3.0)
    ready = prepare(jax.jit(jax.vmap(lambda x: f(x) + 1)))(xs)
    events = walk(ready.program, ready.args)
    steps = [e for e in events if isinstance(e, Step)]
    (out,) = steps[-1].outputs
    assert jnp.allclose(out, jnp.cos(xs) + 1)


def test_numbers_become_arrays_where_no_transfer_is_allowed():
    fun = jax.jit(lambda x: lax.scan(lambda c, a: (c + 2 * a, c), x[0], x))
    row = X[0]
    with jax.transfer_guard("disallow"):
        events, got = events_of(fun, row)
    assert [str(e.eqn.primitive) for e in events if isinstance(e, Step)][-1] == "add"
    assert_same(got, fun(row))
