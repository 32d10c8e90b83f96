"""Sentences of `explain()` that were false or weak once: each is held to what it may say."""

import functools
import io
import re
import warnings

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

import malleable.inspection.advice  # registers the advisers
from malleable.errors import AdviceWarning, explain
from malleable.inspection.advice.evidence.fitting import fitted, gathered

assert malleable.inspection.advice


def note(run, *args):
    """What is added to the error of run(*args), "" if nothing is."""
    with pytest.raises(Exception) as caught, explain(debug=True):
        run(*args)
    notes = "\n".join(getattr(caught.value, "__notes__", ()))
    assert "adviser failed" not in notes
    return notes[notes.index("malleable: ") :] if "malleable: " in notes else ""


def heard(run, *args):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with explain(debug=True):
            run(*args)
    return [str(w.message) for w in said if w.category is AdviceWarning]


@jax.custom_vjp
def backward(x):
    return x**2


backward.defvjp(lambda x: (x**2, x), lambda x, g: (2 * x * g,))


def loss(x):
    return backward(x) + 1


def test_a_rule_for_reverse_mode_only_is_named_and_no_shape_is_blamed():
    said = note(lambda: jax.jacfwd(loss)(1.0))
    assert "`backward` has a derivative rule for reverse mode only" in said
    assert "jax.custom_jvp" in said and "jax.jacrev" in said and "has shape" not in said


def test_an_array_is_not_blamed_for_a_message_that_does_not_speak_of_it():
    x, key = jnp.ones((2, 3)), jax.random.key(0)
    assert note(lambda: jnp.linalg.norm(x, ord="zz")) == ""
    p = jnp.ones(3) / 3
    assert "`p` has shape (3,)" in note(lambda: jax.random.choice(key, x, p=p))


def test_one_leaf_that_is_no_array_does_not_bind_the_whole_tree_away():
    said = note(lambda: jax.grad(lambda p: p["w"].sum())({"w": jnp.ones(3), "act": "relu"}))
    assert "`p['act']` is the str 'relu'" in said and "other leaves of `p`" in said
    assert "partial" not in said


def test_strict_promotion_is_not_said_to_convert():
    def run():
        with jax.numpy_dtype_promotion("strict"):
            jax.jit(lambda x, i: x * i)(jnp.ones(3), jnp.arange(3))

    said = note(run)
    assert "(i).astype(jnp.float32)" in said and "by themselves" not in said


def both(key):
    return jax.random.normal(key, ()), jax.random.normal(key, ())


def test_a_key_used_twice_in_one_line_is_not_said_to_be_used_in_each_run_of_it():
    for run in (jax.jit(both), both):
        (said,) = heard(run, jax.random.key(0))
        assert "`key` is used twice in this line" in said and "each time" not in said


def test_functions_that_are_made_once_and_kept_are_no_storm():
    def run():
        steps = [jax.jit(functools.partial(lambda a, x: a * x, float(i))) for i in range(10)]
        for step in steps:
            step(1.0)

    assert heard(run) == []


def test_two_things_that_vary_are_both_named():
    def run():
        for i in range(9):
            j = i * i
            jax.jit(lambda x: x * i + j)(1.0)  # noqa: B023

    (said,) = heard(run)
    assert "`i` = 0, 1, 2, 3, ... and `j` = 0, 1, 4, 9, ..." in said


@pytest.mark.parametrize(
    ("run", "axis"),
    [
        (lambda x: x.mean(axis=2), 2),
        (lambda x: jnp.mean(x, axis=-5), -5),
        (lambda x: jnp.argmax(x, axis=len(x)), 3),
    ],
)
def test_an_axis_that_is_not_there_is_named(run, axis):
    said = note(run, jnp.ones((3, 4)))
    assert f"axis {axis} is asked for, but `x` has shape (3, 4)" in said and "axis=-1" in said


def test_a_number_as_a_keyword_of_a_mapped_function_is_named():
    said = note(lambda: jax.vmap(lambda x, train: x * 2)(jnp.ones(3), train=True))
    assert "keyword argument along axis 0, and `train`" in said and "partial" in said


def test_a_float_among_xs_is_not_counted_up_to():
    xs = {"x": jnp.ones((8, 3)), "rate": 0.1}
    said = note(lambda: lax.scan(lambda c, x: (c, None), 0.0, xs))
    assert "['rate']" in said and "arange" not in said
    assert "jnp.arange(5)" in note(lambda: lax.scan(lambda c, x: (c, None), 0.0, 5))


def test_a_spec_without_a_mesh_says_where_to_get_one():
    said = note(jax.jit(lambda x: lax.with_sharding_constraint(x, jax.P("d"))), jnp.ones(8))
    assert "`jax.P('d')`" in said and "jax.NamedSharding(mesh, jax.P('d'))" in said


def combine(a, b):
    return a @ b


def test_a_product_in_associative_scan_is_told_that_it_gets_many():
    said = note(lambda: lax.associative_scan(combine, jnp.ones((4, 3))))
    assert "`a` has shape (2, 3)" in said and "jax.vmap(combine)" in said and "b.T" not in said


def test_a_lambda_is_not_written_as_a_def():
    said = note(lambda: lax.map(lambda x, y: x * y, (jnp.ones(3), jnp.ones(3))))
    assert "lambda state: ..." in said and "def <lambda>" not in said


def test_static_arguments_that_are_there_are_kept():
    def run():
        class Net:
            @functools.partial(jax.jit, static_argnums=0)
            def __call__(self, x, train):
                if train:
                    x = x * 0.5
                return x

        Net()(jnp.ones(3), True)

    said = note(run)
    assert "static_argnums=(0, 2) in its jax.jit" in said


def act(mode, x):
    match mode:
        case 0:
            return x
        case _:
            return -x


def test_a_match_statement_is_called_one():
    said = note(jax.jit(act), 0, 1.0)
    assert "`match` needs True or False from `mode`" in said and "lax.switch(mode" in said


def test_none_that_is_written_out_is_not_asked_whether_it_is_none():
    said = note(jax.jit(lambda x: x + None), 1.0)
    assert "jnp.zeros_like(x)" in said and "if None" not in said


def test_a_function_that_is_numpys_own_in_jax_numpy_too_is_no_way_out():
    said = note(jax.jit(lambda x: np.save(io.BytesIO(), x)), jnp.ones(3))
    assert "outside of the traced function" in said and "jnp.save" not in said


@pytest.mark.filterwarnings("ignore:scatter inputs")
def test_what_is_lost_where_it_is_written_is_told():
    def count(counts, w):
        return counts.at[0].add(w)

    (said,) = heard(jax.jit(count), jnp.zeros(3, jnp.int32), 0.5)
    assert "`w` is float32 and `counts`" in said and "drops what is after the point" in said
    assert heard(jax.jit(count), jnp.zeros(3), 1) == []


def fixed(x, n, m):
    return jnp.zeros(m) + x * n


@pytest.mark.parametrize(
    "fun, has",
    [
        (jax.jit(fixed, static_argnums=1), {"static_argnums": (1, 2)}),
        (jax.jit(fixed, static_argnames="n"), {"static_argnums": (1, 2)}),
    ],
)
def test_more_static_arguments_are_added_to_those_that_a_jit_has(fun, has):
    said = note(lambda: fun(1.0, 2, 3))
    assert f"jax.jit(fixed, static_argnums={has['static_argnums']})" in said
    assert jax.jit(fixed, **has)(1.0, 2, 3).shape == (3,)
    with pytest.raises(TypeError):
        jax.jit(fixed, static_argnums=1, static_argnames="m")(1.0, 2, 3)


def explicit(n):
    return jax.make_mesh((n,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))


def test_an_argument_that_lies_otherwise_on_a_mesh_with_explicit_axes():
    n = jax.local_device_count()
    mesh, rows = explicit(n), jnp.ones(2 * n)
    double = jax.shard_map(lambda r: r * 2, mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P("x"))
    said = note(lambda: double(rows))
    assert "the argument `r`" in said and "P(None,)" in said and "P('x',)" in said
    way = re.search(r"lay it out first: (jax\.reshard\(rows, .*?\)\));", said)
    assert way is not None
    moved = eval(way[1], {"jax": jax, "rows": rows, "mesh": mesh})
    assert double(moved).shape == rows.shape


def test_a_size_that_the_devices_do_not_divide_on_a_mesh_with_explicit_axes():
    n = jax.local_device_count()
    rows, sharding = jnp.ones(n + 1), jax.NamedSharding(explicit(n), jax.P("x"))
    said = note(lambda: jax.device_put(rows, sharding))
    assert f"{n} does not divide {n + 1}" in said


SHAPES = [(), (3,), (2,), (1, 3), (2, 3), (3, 2), (6,), (4, 2, 3), (2, 1, 3), (5, 3)]


@pytest.mark.parametrize("got", SHAPES)
def test_what_is_said_to_give_a_shape_gives_it(got):
    for wanted in SHAPES:
        for way in (fitted("x", got, wanted), gathered("x", got, wanted)):
            made = eval(way, {"jnp": jnp, "x": jnp.ones(got)}) if way else jnp.ones(wanted)
            assert made.shape == wanted, way


def test_the_options_of_a_derivative_are_not_made_up():
    said = note(lambda: jax.hessian(lambda p: p["x"] * p["n"])({"x": 1.0, "n": 3}))
    assert "`p['n']`" in said and "allow_int" not in said and "3.0" in said


def test_a_write_that_is_none_is_not_called_one():
    said = note(lambda: jnp.broadcast_to(jnp.ones(2), (3,)))
    assert "the place it is written to" not in said


def test_the_parts_of_a_list_made_in_the_call_are_told_by_their_shapes():
    def stacked(xs):
        return jnp.stack([x * 2 for x in xs])

    def joined(xs):
        return jnp.concatenate([2 * x for x in xs])

    said = note(stacked, [jnp.ones(3), jnp.ones(4)])
    assert "stack cannot join the parts of `[x * 2 for x in xs]`" in said
    assert "their shapes are (3,) and (4,)" in said
    assert "return jnp.stack([" in said
    said = note(jax.jit(joined), [jnp.ones((2, 3)), jnp.ones((2, 4))])
    assert "(2, 3) and (2, 4)" in said
    assert "axis=" in said


def test_a_way_out_is_named_once():
    def body(i, c):
        return c + i * 0.1

    said = note(lambda: lax.fori_loop(0, 5, body, jnp.zeros((), jnp.int32)))
    assert said.count("start with float32") == 1


def test_a_static_array_is_no_internal_name():
    run = jax.jit(lambda x, n: x * n, static_argnums=1)
    said = note(lambda: run(1.0, jnp.arange(3)))
    assert "is given a jax.Array" in said
    assert "ArrayImpl" not in said


def test_an_axis_is_no_size():
    told = note(jax.jit(lambda x, axis: jnp.sum(x, axis=axis)), jnp.ones((2, 3)), 0)
    assert "the axis of `jnp.sum` is the number `axis`" in told
    assert "static_argnames='axis'" in told and "mask" not in told


def test_a_number_of_python_has_no_astype():
    told = note(lambda: lax.switch(1.0, [lambda: 1, lambda: 2]))
    assert "write int(1.0)" in told


def test_a_product_is_turned_round_before_both_are_transposed():
    w, x, q = jnp.ones((3, 4)), jnp.ones((5, 3)), jnp.ones((7, 16))
    assert "write x @ w, if" in note(lambda: w @ x)
    assert "write q @ q.T, if" in note(lambda: q @ q)


def test_einsum_with_letters_too_few_is_told_how_many():
    a, b = jnp.ones((2, 3, 3)), jnp.ones((3, 5))
    assert "write 3 letters for `a`" in note(lambda: jnp.einsum("bi,ij->bj", a, b))
