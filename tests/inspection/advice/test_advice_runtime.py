"""What `explain()` says of running programs: devices, keys, primitives, NaN, and what is silent."""

import functools
import re
import warnings

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp
from jax.experimental import checkify, io_callback

import malleable.inspection.advice  # registers the advisers
from malleable.compat import Primitive, ad, mlir
from malleable.compat.hooks import running as running_door
from malleable.errors import AdviceWarning, explain
from malleable.inspection.advice.watching import running

assert malleable.inspection.advice
AUTO, EXPLICIT = jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit


def watched(run, *args):
    """(the error of run(*args) or None, the warnings of ours) under `explain()`."""
    error = None
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            with explain(debug=True):
                block = running.block()
                run(*args)
        except Exception as e:
            error = e
    assert block.failures == []
    return error, [str(w.message) for w in heard if w.category is AdviceWarning]


def note(run, *args):
    """What is added to the error of run(*args)."""
    error, _ = watched(run, *args)
    (text,) = [n for n in error.__notes__ if n.startswith("malleable: ")]
    assert "adviser failed" not in "".join(error.__notes__)
    return text


def heard(run, *args):
    """What is said while run(*args) runs."""
    error, said = watched(run, *args)
    assert error is None
    return said


def line(text, fun, offset):
    """Whether a text names a line, counted from the one a function begins on."""
    here = f"test_advice_runtime.py:{fun.__code__.co_firstlineno + offset}"
    return re.search(re.escape(here) + r"\b", text) is not None


def mesh(*sizes, kind=AUTO, names="ab"):
    return jax.make_mesh(sizes, tuple(names[: len(sizes)]), axis_types=(kind,) * len(sizes))


# ---------------------------------------------------------------- indices out of bounds


def pick(x, i):
    return x[i]


def put(x, i):
    return x.at[i].set(5.0)


def embed(params, ids):
    return params["emb"][ids].sum()


def test_an_index_out_of_bounds_is_named_with_its_array_its_value_and_the_size():
    (said,) = heard(jax.jit(pick), jnp.arange(3.0), 10)
    assert "`i` is 10, outside of `x`, whose axis has size 3" in said and "mode=" in said
    assert line(said, pick, 1)


def test_an_index_is_checked_under_every_transformation():
    x = jnp.arange(4.0)
    rows = jnp.ones((3, 4))
    (said,) = heard(jax.vmap(pick), rows, jnp.array([0, 6, 1]))
    assert "`i` is 6" in said and "size 4" in said
    (said,) = heard(jax.jit(jax.grad(pick)), x, 9)
    assert "`i` is 9" in said
    (said,) = heard(
        jax.jit(lambda x: lax.scan(lambda c, i: (c + pick(x, i), None), 0.0, jnp.arange(5))), x
    )
    assert "`i` is 4" in said
    (said,) = heard(
        jax.jit(
            lambda x: lax.while_loop(
                lambda s: s[0] < 5, lambda s: (s[0] + 1, pick(x, s[0])), (0, 0.0)
            )
        ),
        x,
    )
    assert "`i` is 4" in said
    (said,) = heard(jax.jit(jax.checkpoint(pick)), x, 7)
    assert "`i` is 7" in said
    said = heard(jax.jit(lambda x, i: lax.cond(i > 0, pick, lambda x, i: 0.0, x, i)), x, 7)
    assert len(said) == 1 and "`i` is 7" in said[0]


def test_an_index_before_the_beginning_is_told_as_it_was_written():
    (said,) = heard(jax.jit(pick), jnp.arange(3.0), -7)
    assert "`i` is -7" in said


def test_a_write_out_of_bounds_is_dropped_and_told():
    (said,) = heard(jax.jit(put), jnp.arange(3.0), 10)
    assert "drops the write" in said and "`i` is 10" in said and line(said, put, 1)


def test_the_path_of_the_array_is_told():
    params = {"emb": jnp.ones((100, 4))}
    (said,) = heard(jax.jit(jax.grad(embed)), params, jnp.array([3, 120, 7]))
    assert "`ids` is 120, outside of `params['emb']`, whose axis has size 100" in said


def test_an_index_outside_of_jit_is_checked_too():
    table, ids = jnp.arange(5.0), jnp.array([1, 8, 2])
    (said,) = heard(lambda: table[ids])
    assert "`ids` is 8, outside of `table`, whose axis has size 5" in said


@pytest.mark.parametrize(
    "fun",
    [
        pick,
        put,
        lambda x, i: x.at[i + 9].get(mode="fill", fill_value=0.0),
        lambda x, i: x.at[i + 9].set(0.0, mode="drop"),
        lambda x, i: jnp.take(x, i + 9, mode="clip"),
        lambda x, i: jnp.interp(i + 9.0, x, x),
        lambda x, i: x[:i],
    ],
)
def test_nothing_is_said_of_what_is_within_bounds_or_meant(fun):
    jitted = jax.jit(fun, static_argnums=1 if fun.__name__ == "<lambda>" else ())
    assert heard(jitted, jnp.arange(3.0), 1) == []


def test_a_place_is_told_once():
    def run():
        for _ in range(3):
            jax.jit(pick)(jnp.arange(3.0), 10)

    assert len(heard(run)) == 1


def test_what_a_program_does_to_the_world_is_done_once():
    calls = []

    def log(x):
        calls.append(x)
        return np.float32(0)

    def f(x, i):
        return x[i] + io_callback(log, jax.ShapeDtypeStruct((), jnp.float32), x[0], ordered=True)

    heard(jax.jit(f), jnp.arange(3.0), 10)
    jax.effects_barrier()
    assert len(calls) == 1


# ---------------------------------------------------------------- keys


def draw(key):
    return jax.random.normal(key, (2,))


def init(key):
    w = jax.random.normal(key, (3,))
    b = jax.random.uniform(key, (3,))
    return w, b


def walk(key):
    return lax.scan(lambda x, _: (x + jax.random.normal(key), None), 0.0, length=10)[0]


def after_split(rng):
    k1, _ = jax.random.split(rng)
    return jax.random.normal(k1), jax.random.normal(rng)


def two(key):
    return draw(key) + draw(key)


@pytest.mark.parametrize("make", [jax.random.key, jax.random.PRNGKey])
def test_a_key_used_twice_in_a_program_is_named_with_both_lines(make):
    (said,) = heard(jax.jit(init), make(0))
    assert "`key` is used twice, by `jax.random.normal`" in said and "`jax.random.uniform`" in said
    assert line(said, init, 1) and line(said, init, 2) and "split" in said


@pytest.mark.parametrize(
    ("fun", "words"),
    [
        (walk, "the same key in each of the 10 steps"),
        (after_split, "`rng` is used twice, by `jax.random.split`"),
        (two, "are given the same key, `key`"),
    ],
)
def test_other_ways_to_use_a_key_twice(fun, words):
    (said,) = heard(jax.jit(fun), jax.random.key(0))
    assert words in said and "fold_in" in said


def test_a_key_used_twice_outside_of_jit_is_told():
    def run():
        key = jax.random.PRNGKey(0)
        jax.random.normal(key)
        jax.random.uniform(key)

    (said,) = heard(run)
    assert "`key` is used twice" in said and line(said, run, 3)


def test_a_key_that_a_loop_of_python_does_not_split_is_told():
    def run():
        key = jax.random.key(0)
        for _ in range(3):
            jax.random.normal(key)

    (said,) = heard(run)
    assert "`key` is the same key each time this line runs" in said


def test_a_training_step_that_is_given_one_key_again_and_again_is_told():
    step = jax.jit(lambda w, key: w + jax.random.normal(key))

    def run():
        w, key = 0.0, jax.random.key(0)
        for _ in range(3):
            w = step(w, key)

    (said,) = heard(run)
    assert "`key` is the same key" in said


def split_well(key):
    k1, k2 = jax.random.split(key)
    return jax.random.normal(k1) + jax.random.normal(k2)


def fold_well(key):
    return sum(jax.random.normal(jax.random.fold_in(key, i)) for i in range(3))


def branch_well(key):
    return lax.cond(key.shape == (), jax.random.normal, jax.random.uniform, key)


def scan_well(key):
    keys = jax.random.split(key, 4)
    return lax.scan(lambda c, k: (c + jax.random.normal(k), None), 0.0, keys)[0]


def carry_well(key):
    def step(key, _):
        key, sub = jax.random.split(key)
        return key, jax.random.normal(sub)

    return lax.scan(step, key, length=4)[1].sum()


def remat_well(key):
    noisy = jax.checkpoint(lambda x: jnp.sin(x * jax.random.normal(key)))
    return jax.grad(noisy)(1.0)


def choose_well(key):
    k1, k2 = jax.random.split(key)
    return jax.random.choice(k1, 5, (2,), replace=False).sum() + jax.random.gamma(k2, 2.0)


@pytest.mark.parametrize(
    "fun", [split_well, fold_well, branch_well, scan_well, carry_well, remat_well, choose_well]
)
def test_nothing_is_said_of_keys_used_well(fun):
    assert heard(jax.jit(fun), jax.random.key(0)) == []
    assert heard(fun, jax.random.key(0)) == []


def test_a_call_that_only_runs_again_is_no_reuse():
    jitted, key = jax.jit(draw), jax.random.key(0)
    assert heard(lambda: [jitted(key) for _ in range(3)]) == []


def test_key_reuse_that_jax_finds_gets_the_name_and_both_lines():
    def run():
        with jax.debug_key_reuse(True):
            jax.jit(init)(jax.random.key(0))

    said = note(run)
    assert "`key` is used twice" in said and line(said, init, 1) and line(said, init, 2)


def draws(key):
    return jax.random.normal(key, (3,))


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (lambda: draws(42), "`key` is 42, an int"),
        (lambda: draws(jax.random.split(jax.random.key(0), 4)), "`key` holds several keys"),
        (lambda: draws(jnp.ones(3)), "an array of float32 with shape (3,)"),
        (lambda: jax.jit(lambda key: draws(key + 1))(jax.random.key(0)), "treats it as numbers"),
    ],
)
def test_what_is_no_key_is_named(run, words):
    said = note(run)
    assert words in said and "jax.random" in said


def test_too_few_keys_are_counted():
    def run(key):
        a, b, c = jax.random.split(key)
        return a, b, c

    assert "split makes 2 keys of `key` here, and 3 names" in note(run, jax.random.key(0))


# ---------------------------------------------------------------- compilations


def test_the_argument_whose_shape_changes_is_named():
    def run():
        f = jax.jit(lambda x: x.sum())
        for n in range(1, 20):
            f(np.ones(n))

    (said,) = heard(run)
    assert "compiled 8 times: argument `x` came with 8 different shapes, (1,), (2,)" in said
    assert "pad `x`" in said and line(said, run, 3)


def test_fewer_compilations_are_told_at_the_end_and_few_not_at_all():
    def run(most):
        f = jax.jit(lambda x: x.sum())
        for n in range(most):
            f(np.ones(n + 1))

    assert "compiled 6 times" in heard(run, 6)[0]
    assert heard(run, 4) == []


def times(x, scale):
    return x * scale


class Options:
    def __init__(self, scale):
        self.scale = scale


def by_static():
    f = jax.jit(times, static_argnames="scale")
    for i in range(9):
        f(1.0, scale=i)


def by_partial():
    for i in range(9):
        jax.jit(functools.partial(times, scale=i))(1.0)


def by_lambda():
    for _ in range(9):
        jax.jit(lambda x: x * 2)(1.0)


def by_closure():
    for i in range(9):
        jax.jit(lambda x: x * i)(1.0)  # noqa: B023


def by_object():
    f = jax.jit(lambda x, opts: x * opts.scale, static_argnums=1)
    for _ in range(9):
        f(1.0, Options(2.0))


def by_length():
    f = jax.jit(lambda xs: sum(xs))
    for i in range(9):
        f([1.0] * (i + 1))


def by_dtype():
    f = jax.jit(lambda x: x * 2)
    for d in (np.int8, np.int16, np.int32, np.uint8, np.uint16, np.uint32, np.float16, np.float32):
        f(np.ones(3, d))


def by_gradient():
    f = jax.jit(lambda w, x: (w * x).sum())
    for n in range(9):
        jax.grad(f)(1.0, np.ones(n + 1, np.float32))


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (by_static, "static argument `scale` took 8 values, 0, 1, 2, 3, ..."),
        (by_partial, "with `scale` = 0, 1, 2, 3, ..."),
        (by_lambda, "a new function object"),
        (by_closure, "with `i` = 0, 1, 2, 3, ..."),
        (by_object, "static argument `opts` was a new `Options` object each time"),
        (by_length, "argument `xs` came with different numbers of leaves, 1, 2, 3, 4, ..."),
        (by_dtype, "argument `x` came with 8 different dtypes"),
        (by_gradient, "argument `x` came with 8 different shapes"),
    ],
)
def test_what_changes_between_compilations_is_named(run, words):
    (said,) = heard(run)
    assert words in said


# ---------------------------------------------------------------- NaN


def simulate(x0):
    def step(x, _):
        x = x - 0.4
        return x, jnp.log(x)

    return lax.scan(step, x0, None, length=5)


def norm(x):
    return jnp.sqrt((x**2).sum())


def debugged(fun, *args):
    def run():
        with jax.debug_nans(True):
            fun(*args)

    return note(run)


@pytest.mark.filterwarnings("ignore")
def test_a_nan_is_named_by_line_example_and_step():
    said = debugged(jax.jit(jax.vmap(simulate)), jnp.array([5.0, 6.0, 1.0, 7.0]))
    assert "`log` makes nan, for example 2 of 4, in step 2 of 5" in said
    assert line(said, simulate, 3) and "`x0`" in said and "maximum" in said


def test_a_nan_of_a_gradient_names_the_line_it_differentiates():
    said = debugged(jax.jit(jax.grad(norm)), jnp.zeros(3))
    assert "derivative of this line" in said and line(said, norm, 1) and "where" in said


def test_a_nan_outside_of_jit_names_the_variable():
    def run():
        var = jnp.array([1.0, -2.0])
        with jax.debug_nans(True):
            jnp.sqrt(var)

    said = note(run)
    assert "`sqrt` makes nan" in said and "`var`" in said and line(said, run, 3)


def test_a_nan_that_came_in_is_said_to_have_come_in():
    x = jnp.array([1.0, jnp.nan])
    said = debugged(jax.jit(lambda x: x * 2), x)
    assert "argument x[1] is nan already" in said


# ---------------------------------------------------------------- donated arrays, memory


def test_a_donated_array_is_named_with_the_call_that_took_it():
    step = jax.jit(lambda s: s + 1, donate_argnums=0)

    def run():
        state = jnp.ones(8)
        new = step(state)
        return state + new

    said = note(run)
    assert "`state` (float32[8], shape (8,))" in said and "as argument `s`" in said
    assert line(said, run, 2) and line(said, run, 3)


def test_the_path_of_a_donated_leaf_is_named():
    update = jax.jit(lambda p: jax.tree.map(jnp.negative, p), donate_argnums=0)

    def run():
        params = {"w": jnp.ones((3, 2)), "b": jnp.ones(2)}
        update(params)
        return jnp.sum(params["w"])

    said = note(run)
    assert "`params['w']`" in said and "`p['w']`" in said


def test_an_array_deleted_by_hand_is_not_said_to_be_donated():
    def run():
        x = jnp.ones(3)
        x.delete()
        return x + 1

    said = note(run)
    assert "`x`" in said and "the call at" not in said


def pairwise(x):
    d = x[:, None] - x[None, :]
    return jnp.sort(d, axis=0)


def test_the_largest_value_of_a_program_out_of_memory_is_named():
    said = note(lambda: jax.block_until_ready(jax.jit(pairwise)(jnp.ones(400_000))))
    assert "float32[400000,400000], 640 GB" in said and line(said, pairwise, 1)
    assert "batch_size" in said


# ---------------------------------------------------------------- functions of the host


def host(x):
    return np.ones(4, np.float32)


def failing(x):
    return np.float32({}[float(x)])


def calls(fun, shape=()):
    def f(x):
        return jax.pure_callback(fun, jax.ShapeDtypeStruct(shape, jnp.float32), x)

    return f


def test_a_callback_with_another_shape_names_the_function_and_both_shapes():
    said = note(lambda: jax.block_until_ready(jax.jit(calls(host, (3,)))(1.0)))
    assert "`host`" in said and "returned shape (4,), and shape (3,) was promised" in said
    assert line(said, calls, 2) and line(said, host, 0)


def test_a_callback_that_raises_names_the_line_on_the_host():
    said = note(lambda: jax.block_until_ready(jax.jit(calls(failing))(3.0)))
    assert "`failing`" in said and "KeyError: 3.0" in said and line(said, failing, 1)


def test_a_callback_under_grad_and_vmap_says_what_to_write():
    assert "custom_jvp" in note(lambda: jax.grad(calls(host))(1.0))
    assert "vmap_method=" in note(lambda: jax.vmap(calls(host))(jnp.ones(3)))


# ---------------------------------------------------------------- primitives


def primitive(name, lower=True, impl=True, jvp=False):
    p = Primitive(name)
    p.def_abstract_eval(lambda x: x)
    if impl:
        p.def_impl(lambda x: x * 2)
    if lower:
        mlir.register_lowering(p, mlir.lower_fun(lambda x: x * 2, multiple_results=False))
    if jvp:
        ad.primitive_jvps[p] = lambda xs, ts: (p.bind(*xs), p.bind(*ts))
    return p


@pytest.mark.parametrize(
    ("transform", "options", "rule"),
    [
        (jax.vmap, {}, "batching.primitive_batchers[sow_p]"),
        (jax.grad, {}, "ad.primitive_jvps[sow_p]"),
        (jax.grad, {"jvp": True}, "ad.primitive_transposes[sow_p]"),
        (jax.jit, {"lower": False}, "mlir.register_lowering(sow_p"),
        (lambda f: f, {"impl": False}, "sow_p.def_impl"),
    ],
)
def test_a_missing_rule_names_the_primitive_its_line_and_what_to_register(transform, options, rule):
    sow_p = primitive("sow", **options)

    def f(x):
        return sow_p.bind(x)

    said = note(transform(f), jnp.ones(3) if transform is jax.vmap else 1.0)
    assert "`sow`" in said and rule in said and line(said, f, 1)


# ---------------------------------------------------------------- devices


def total(x):
    return x.sum()


def double(x):
    return x * 2


def mapped(fun, ins="a", outs="a", size=8, **options):
    ins = jax.P(ins) if isinstance(ins, str) else ins
    outs = jax.P(outs) if isinstance(outs, str) else outs
    return lambda: jax.shard_map(fun, mesh=mesh(4), in_specs=ins, out_specs=outs, **options)(
        jnp.ones(size)
    )


def placed(fun):
    """fun(x, w) on different devices."""
    d = jax.devices()
    x, w = jax.device_put(jnp.ones(3), d[0]), jax.device_put(jnp.ones(3), d[1])
    return jax.jit(fun)(x, w)


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (mapped(total, outs=jax.P()), ["out_specs is P()", "`total`", "psum(x, 'a')"]),
        (mapped(double, size=6), ["argument `x`", "size 6", "4 devices", "pad axis 0 to 8"]),
        (mapped(double, ins="data"), ["in_specs names the axis 'data'", "'a' only", "P('a')"]),
        (mapped(double, ins=jax.P("a", None)), ["argument `x` of `double`", "it has 1", "P('a')"]),
        (mapped(total), ["result of `total` is float32[]", "out_specs"]),
        (mapped(times, ins=(jax.P("a"), jax.P())), ["in_specs has 2 entries", "1 argument"]),
        (
            lambda: jax.pmap(double)(jnp.ones((9, 2))),
            ["argument `x` has shape (9, 2)", "8 devices"],
        ),
        (
            lambda: jax.pmap(times)(jnp.ones((4, 2)), jnp.ones((3, 2))),
            ["`scale` has shape (3, 2)", "`x` has shape (4, 2)", "in_axes=None"],
        ),
        (lambda: placed(times), ["`x` lies on CPU devices [0]", "`scale`", "device_put"]),
        (
            lambda: jax.device_put(jnp.ones((6, 2)), jax.NamedSharding(mesh(4), jax.P("a"))),
            ["size 6 along axis 0", "4 devices", "pad axis 0"],
        ),
        (
            lambda: lax.with_sharding_constraint(
                jnp.ones(8), jax.NamedSharding(mesh(4), jax.P("a", None))
            ),
            ["P('a', None) is for 2 axes", "has 1", "jax.P('a')"],
        ),
        (
            lambda: jax.NamedSharding(mesh(4), jax.P("model")),
            ["names the axis 'model'", "('a',)"],
        ),
        (lambda: jax.make_mesh((16,), ("a",)), ["(16,) needs 16 devices, and there are 8"]),
    ],
)
def test_what_does_not_fit_the_devices_is_named(run, words):
    said = note(run)
    assert [w for w in words if w not in said] == []
    assert "test_advice_runtime.py:" in said


def centred(x):
    return x - lax.pmean(x, "batch")


def test_an_axis_without_a_name_names_the_collective_and_the_map():
    def run():
        jax.vmap(centred)(jnp.ones((4, 2)))

    said = note(run)
    assert "`lax.pmean(x, 'batch')`" in said and "jax.vmap(centred, axis_name='batch')" in said
    assert line(said, run, 1) and line(said, centred, 1) and "psum" not in said


def test_an_axis_of_another_name_is_named():
    said = note(lambda: jax.vmap(centred, axis_name="examples")(jnp.ones((4, 2))))
    assert "'examples'" in said and line(said, centred, 1)


def test_a_carry_that_begins_the_same_on_all_devices_says_pcast():
    def f(x):
        return lax.scan(lambda c, v: (c + v, None), 0.0, x)[0][None]

    said = note(mapped(f))
    assert "carry `c` starts as float32[]" in said and "pcast(x, ('a',), to='varying')" in said
    assert line(said, f, 1)


def test_explicit_shardings_that_do_not_combine_are_named():
    m = mesh(2, 2, kind=EXPLICIT)
    x = jax.device_put(jnp.ones((8, 8)), jax.NamedSharding(m, jax.P("a", None)))
    y = jax.device_put(jnp.ones((8, 8)), jax.NamedSharding(m, jax.P("b", None)))

    def run():
        with jax.set_mesh(m):
            jax.jit(lambda x, y: x + y)(x, y)

    said = note(run)
    assert "`x` is float32[8@a,8]" in said and "`y` is float32[8@b,8]" in said and "reshard" in said


# ---------------------------------------------------------------- checks and numbers


def test_a_check_that_nobody_functionalized_says_how():
    def f(x):
        checkify.check(x > 0, "positive")
        return x

    said = note(lambda: jax.jit(f)(1.0))
    assert "checkify.checkify(" in said and line(said, f, 1)


def test_an_index_that_checkify_finds_is_named():
    def run():
        err, _ = checkify.checkify(jax.jit(pick), errors=checkify.index_checks)(jnp.arange(3.0), 7)
        err.throw()

    said = note(run)
    assert "`i` is 7, and axis 0 of `x` has size 3" in said and line(said, pick, 1)


def test_integers_that_lose_their_value_are_told():
    ids = np.array([2**40 + 7, 3])
    (said,) = heard(lambda: jnp.asarray(ids))
    assert "`ids` is int64 and holds 1099511627783" in said and "makes 7 of it" in said
    assert heard(lambda: jnp.asarray(np.array([1, 2]))) == []


@pytest.mark.filterwarnings("ignore")
def test_a_dtype_asked_for_by_name_and_not_given_is_told():
    (said,) = heard(lambda: jnp.zeros(3, dtype="float64"))
    assert "float64 is asked for, and JAX makes float32 of it" in said and "enable_x64" in said


def test_a_python_integer_that_does_not_fit_is_told():
    said = note(jax.jit(lambda x: x + 3_000_000_000), jnp.arange(3))
    assert "3000000000" in said and "int32" in said


# ---------------------------------------------------------------- the block itself


def test_the_error_stays_what_it_is():
    def run():
        raise ValueError("mine")

    error, _ = watched(run)
    assert type(error) is ValueError and str(error) == "mine" and not hasattr(error, "__notes__")


def test_results_are_the_same_and_nothing_is_left_behind():
    f = jax.jit(lambda x: jnp.sin(x) * 2)
    before = f(1.0)
    with explain():
        inside = f(1.0)
    assert before == inside == f(1.0)
    assert running.block() is None and running_door.watches() == []


def test_a_function_compiled_before_the_block_is_looked_at_in_it():
    f = jax.jit(pick)
    f(jnp.arange(3.0), 10)
    assert len(heard(f, jnp.arange(3.0), 10)) == 1


def test_blocks_within_blocks_say_things_once():
    def run():
        with explain():
            jax.jit(pick)(jnp.arange(3.0), 10)

    assert len(heard(run)) == 1


def test_warnings_that_the_user_made_errors_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error", AdviceWarning)
        with pytest.raises(AdviceWarning, match="outside of `x`"), explain():
            jax.jit(pick)(jnp.arange(3.0), 10)


# ---------------------------------------------------------------- whose names these are


def test_several_rows_for_a_device_of_pmap_are_no_squeeze_of_the_users():
    x = jnp.ones((2 * jax.local_device_count(), 3))
    said = note(lambda: jax.pmap(lambda rows: rows * 2)(x))
    count = jax.local_device_count()
    assert "argument `rows` has shape" in said and f"there are {count} devices" in said
    assert f"({count}, 2, ...)" in said and "squeeze" not in said


def test_a_number_given_to_pmap_is_named_without_jax_own_axis():
    x = jnp.ones((jax.local_device_count(), 3))
    said = note(lambda: jax.pmap(lambda x, rate: x * rate)(x, 0.1))
    assert "argument `rate`" in said and "in_axes=(0, None)" in said and "_internal" not in said


def test_operands_on_two_devices_have_the_names_of_the_user():
    weights = jax.device_put(jnp.ones(3), jax.devices()[0])
    batch = jax.device_put(jnp.ones(3), jax.devices()[1])
    said = note(lambda: weights + batch)
    assert "`weights` lies on" in said and "`batch` lies on" in said and "`y`" not in said


def test_an_argument_that_in_shardings_do_not_divide_is_named():
    n = jax.local_device_count()
    sharding = jax.NamedSharding(mesh(n), jax.P("a"))
    double = jax.jit(lambda rows: rows * 2, in_shardings=sharding)
    assert "argument `rows` has size" in note(lambda: double(jnp.ones(n + 1)))


def test_a_collective_over_an_axis_that_the_mesh_lacks():
    n = jax.local_device_count()
    total = lambda x: lax.psum(x.sum(), "i")
    run = jax.shard_map(total, mesh=mesh(n), in_specs=jax.P("a"), out_specs=jax.P())
    said = note(lambda: run(jnp.ones(n)))
    assert "the axis 'i'" in said and "write 'a' here" in said
