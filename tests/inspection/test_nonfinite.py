"""`first_nonfinite` names the line, the step of each loop and the lane of each vmap."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from malleable import MalleableError
from malleable.inspection.debugging.nonfinite import first_nonfinite
from malleable.notes import listen
from tests.inspection import ensemble
from tests.inspection.ensemble import BAD, PARAMS, XS, advance, line_of
from tests.work import calls


def found(fun, *args, **options):
    """What is found, which must be something, and must spell out."""
    finding = first_nonfinite(fun, **options)(*args)
    assert finding is not None
    assert str(finding)
    return finding


# ---------------------------------------------------------------- where


def test_line_step_and_lane_through_grad_of_jit_of_vmap_of_scan():
    one = found(ensemble.gradient, PARAMS, BAD)
    assert (one.kind, one.primitive, one.line) == ("nan", "sqrt", line_of(advance, "sqrt"))
    assert one.steps == (1,) and one.lanes == (2,)
    assert list(one.inputs) == ["r"] and float(one.inputs["r"]) < 0


def test_a_finding_spells_line_source_path_inputs_and_a_way_out():
    text = str(found(ensemble.gradient, PARAMS, BAD))
    line = line_of(advance, "sqrt")
    assert text.startswith("nan made by `sqrt` at ")
    assert f"ensemble.py:{line} in advance: `y = jnp.sqrt(r)`" in text
    assert "jit:loss > vmap[2/3] > scan[1/4]" in text
    assert "inputs: r = -1.8" in text
    assert "a way out: sqrt is nan below 0" in text


@pytest.mark.parametrize("make", [ensemble.of_flax, ensemble.of_equinox])
def test_a_planted_nan_in_a_model(make):
    fun, params, xs = make()
    assert first_nonfinite(fun)(params, xs) is None
    one = found(fun, params, xs.at[2, 3].set(-1.0))
    assert (one.primitive, one.source) == ("log", "return h, jnp.log(x.sum())")
    assert one.steps == (3,) and one.lanes == (2,)
    assert [float(x) for x in one.inputs.values()] == [-3.0]


def test_nothing_is_found_where_all_is_finite():
    assert first_nonfinite(ensemble.gradient)(PARAMS, XS) is None


CASES = {
    "jit": (jax.jit(jnp.log), (-1.0,), "log", (), ()),
    "scan": (
        lambda xs: lax.scan(lambda c, x: (c + jnp.log(x), c), 0.0, xs)[1],
        (jnp.array([1.0, 1.0, -1.0, 1.0]),),
        "log",
        (2,),
        (),
    ),
    "reversed scan": (
        lambda xs: lax.scan(lambda c, x: (c + jnp.log(x), c), 0.0, xs, reverse=True)[0],
        (jnp.array([1.0, -1.0, 1.0, 1.0]),),
        "log",
        (1,),
        (),
    ),
    "while": (
        lambda n: lax.fori_loop(0, n, lambda i, c: jnp.log(c), 2.0),
        (5,),
        "log",
        (2,),
        (),
    ),
    "cond": (
        lambda i, x: lax.cond(i > 0, jnp.log, jnp.sin, x),
        (1, -1.0),
        "log",
        (),
        (),
    ),
    "switch": (
        lambda i, x: lax.switch(i, [jnp.sin, jnp.log, jnp.cos], x),
        (1, -1.0),
        "log",
        (),
        (),
    ),
    "vmap of cond": (
        jax.vmap(lambda i, x: lax.cond(i > 0, jnp.log, jnp.sin, x)),
        (jnp.array([-1, 1, 1]), jnp.array([-1.0, 1.0, -1.0])),
        "log",
        (),
        (2,),
    ),
    "vmap of while": (
        jax.vmap(lambda x: lax.while_loop(lambda c: c[0] < 3, _log_of, (0, x))[1]),
        (jnp.array([100.0, 2.0, 1e5]),),
        "log",
        (2,),
        (1,),
    ),
    "vmap of vmap": (
        jax.vmap(jax.vmap(jnp.log)),
        (jnp.ones((3, 4)).at[1, 2].set(-1.0),),
        "log",
        (),
        (1, 2),
    ),
    "vmap of scan of vmap": (
        jax.vmap(lambda xs: lax.scan(lambda c, x: (c, jax.vmap(jnp.log)(x)), 0.0, xs)[1]),
        (jnp.ones((2, 3, 4)).at[1, 2, 3].set(-1.0),),
        "log",
        (2,),
        (1, 3),
    ),
    "remat": (jax.checkpoint(lambda x: jnp.log(x) * x), (-1.0,), "log", (), ()),
}


def _log_of(c):
    return c[0] + 1, jnp.log(c[1])


@pytest.mark.in_turns
@pytest.mark.parametrize("name", CASES)
def test_steps_and_lanes(name):
    fun, args, primitive, steps, lanes = CASES[name]
    one = found(fun, *args)
    assert (one.primitive, one.steps, one.lanes) == (primitive, steps, lanes)
    assert one.kind == "nan" and one.reaches_result


def test_a_nan_that_comes_round_a_loop_is_made_in_the_step_that_made_it():
    def body(c, x):
        a, b = c
        return (b, jnp.sqrt(a - x)), None  # what is made in step 1 shows in a in step 2

    one = found(lambda xs: lax.scan(body, (3.0, 1.0), xs)[0][0], jnp.array([0.0, 2.0, 0.0, 0.0]))
    assert one.primitive == "sqrt" and one.steps == (1,)
    assert float(one.inputs["operand 0"]) == -1.0


def test_the_element_of_an_array():
    one = found(lambda x: jnp.log(x).sum(), jnp.ones((4, 5)).at[2, 3].set(-7.0))
    assert one.element == (2, 3)
    assert "x[2, 3] = -7." in str(one) and "at [2, 3] of float32[4,5]" in str(one)


def test_the_device_of_a_shard_map():
    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))

    def one_device(x):
        total = lax.psum(x.sum(), "d")
        return jnp.log(x) / total

    fun = jax.jit(jax.shard_map(one_device, mesh=mesh, in_specs=P("d"), out_specs=P("d")))
    one = found(fun, jnp.ones(16).at[11].set(-1.0))
    assert one.primitive == "log" and one.lanes == (5,) and one.element == (1,)


def test_the_device_of_a_pmap():
    one = found(jax.pmap(jnp.log), jnp.ones((8, 2)).at[3, 1].set(-1.0))
    assert one.primitive == "log" and one.lanes == (3,)


# ---------------------------------------------------------------- derivatives


def distances(x):
    d = x[:, None] - x[None]
    r = jnp.sqrt((d * d).sum(-1))
    return jnp.where(r > 0, 1 / r, 0.0).sum()


def test_a_gradient_through_a_where_names_the_line_that_was_masked():
    points = jnp.ones((3, 2))
    one = found(jax.grad(distances), points)
    assert one.kind == "inf" and one.line == line_of(distances, "1 / r")
    assert one.becomes is not None and one.becomes.kind == "nan"
    assert "jnp.where" in one.hint


def test_the_backward_pass_names_the_line_of_the_forward_pass():
    @jax.custom_vjp
    def double(x):
        return 2 * x

    double.defvjp(lambda x: (2 * x, x), lambda x, ct: (ct * jnp.sqrt(x),))

    def use(x):
        return double(x).sum()

    one = found(jax.grad(use), jnp.array([1.0, -1.0]))
    assert one.primitive == "sqrt" and one.in_gradient and one.place.file == __file__
    assert "in the gradient of that line" in str(one)


def test_custom_jvp_is_entered():
    @jax.custom_jvp
    def safe(x):
        return jnp.log(x)

    safe.defjvp(lambda p, t: (safe(p[0]), t[0] / p[0]))
    assert found(lambda x: safe(x).sum(), jnp.array([1.0, -1.0])).path[-1].kind == "custom_jvp"
    assert found(jax.grad(safe), 0.0).primitive == "div"


# ---------------------------------------------------------------- what is not blamed


def attention(q, mask):
    scores = jnp.where(mask, q @ q.T, -jnp.inf)
    weights = jnp.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


CAUSAL = jnp.tril(jnp.ones((4, 4), bool))


def test_the_inf_of_a_mask_is_not_blamed():
    assert first_nonfinite(attention)(jnp.ones((4, 2)), CAUSAL) is None


def test_a_result_with_the_inf_of_a_mask_is_fine():
    assert first_nonfinite(lambda x: jnp.where(x > 0, x, -jnp.inf))(jnp.array([1.0, -1.0])) is None


def test_a_row_that_is_masked_altogether_is_blamed_where_it_becomes_nan():
    one = found(attention, jnp.ones((4, 2)), CAUSAL.at[2].set(False))
    assert (one.kind, one.primitive) == ("nan", "sub")
    assert one.line == line_of(attention, "jnp.exp") and one.element == (2, 0)
    assert "mask" in one.hint


def test_an_overflow_that_becomes_nan_is_named_with_where_it_does():
    def fun(x):
        y = jnp.exp(x)
        return y - y

    one = found(fun, 100.0)
    assert (one.kind, one.primitive, one.line) == ("inf", "exp", line_of(fun, "jnp.exp"))
    assert one.becomes is not None and one.becomes.line == line_of(fun, "y - y")


def test_an_inf_in_the_result_is_found():
    one = found(lambda x: lax.scan(lambda c, _: (c * 1e10, None), x, None, length=6)[0], 1.0)
    assert (one.kind, one.primitive, one.steps) == ("inf", "mul", (3,))


def test_a_nan_comes_before_an_inf():
    one = found(lambda x: (jnp.exp(x * 100), jnp.log(-x)), 1.0)
    assert one.primitive == "log"


def test_a_masked_nan_is_not_blamed_for_another():
    def fun(x):
        masked = jnp.where(x > 0, jnp.log(x), 0.0)
        return masked + jnp.sqrt(x - 1)

    one = found(fun, jnp.array([-1.0]))
    assert one.primitive == "sqrt"


def test_a_nan_that_no_result_shows_is_said_to_be_hidden():
    def fun(xs):
        return lax.scan(lambda c, x: (c + jnp.where(x > 0, jnp.log(x), 0.0), None), 0.0, xs)[0]

    xs = jnp.array([1.0, 2.0, -1.0])
    one = found(fun, xs)
    assert one.primitive == "log" and one.steps == (2,) and not one.reaches_result
    assert "hidden" in str(one)
    assert first_nonfinite(fun, hidden=False)(xs) is None


def test_a_hidden_nan_in_a_vmap_of_a_cond():
    def one(x):
        y = lax.cond(x > 5, jnp.log, lambda x: jnp.sqrt(x), x)
        return y > 0

    finding = found(jax.jit(jax.vmap(one)), jnp.array([1.0, 2.0, -1.0]))
    assert finding.primitive == "sqrt" and finding.lanes == (2,) and not finding.reaches_result


# ---------------------------------------------------------------- what was bad already


def test_an_argument_that_is_nan_already():
    one = found(lambda xs: (xs * 2).sum(), jnp.ones(5).at[3].set(jnp.nan))
    assert one.argument == "argument xs[3]" and one.primitive == ""
    assert str(one).startswith("argument xs[3] is already nan")


def test_an_argument_in_a_tree_and_by_keyword():
    fun = lambda x, *, opts: x * opts["a"][0]
    one = first_nonfinite(fun)(1.0, opts={"a": [jnp.nan]})
    assert one.argument == "argument opts['a'][0]"


def test_an_argument_that_reaches_the_result_through_a_loop_and_a_vmap():
    one = found(ensemble.gradient, PARAMS, XS.at[1, 2].set(jnp.nan))
    assert one.argument == "argument xs[1, 2]"


def test_a_constant_that_is_nan_already():
    table = jnp.array([1.0, jnp.nan])
    one = found(lambda x: (x * table).sum(), 1.0)
    assert one.argument.startswith("a constant[1], used at ") and one.place.file == __file__


def test_a_nan_argument_that_is_masked_is_not_blamed():
    xs = jnp.array([1.0, jnp.nan])
    assert first_nonfinite(jnp.nansum)(xs) is None


# ---------------------------------------------------------------- large values, odd input


def test_large_values():
    def fun(x):
        return lax.scan(lambda c, _: (c * 10.0, None), x, None, length=5)[0]

    one = found(fun, 1.0, large=1e3)
    assert (one.kind, one.primitive, one.steps) == ("large", "mul", (3,))
    assert "a large value" in str(one)
    assert first_nonfinite(fun, large=1e7)(1.0) is None


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.complex64])
def test_other_dtypes(dtype):
    one = found(lambda x: jnp.log(x), jnp.array([1.0, 0.0], dtype))
    assert one.kind == "inf" and one.element == (1,)


def test_results_without_numbers():
    assert first_nonfinite(lambda x: None)(1.0) is None
    assert first_nonfinite(lambda x: x // 2)(jnp.arange(3)) is None


def test_random_keys_pass():
    fun = lambda key: jnp.log(jax.random.normal(key, (5,)))
    assert found(fun, jax.random.key(0)).primitive == "log"


def test_what_is_raised_while_tracing_goes_through():
    with pytest.raises(TypeError, match="shape"):
        first_nonfinite(lambda x: jnp.ones(3) @ jnp.ones(4) * x)(1.0)


def test_traced_values_are_refused():
    with pytest.raises(MalleableError, match="concrete values"):
        jax.jit(first_nonfinite(jnp.log))(1.0)


def test_a_nan_that_parts_of_the_program_do_not_make_is_not_denied():
    calls = []

    def first_time_only(x):  # as if rounding differed
        calls.append(1)
        return np.float32(np.nan) if len(calls) == 1 else x

    def fun(x):
        return jax.pure_callback(first_time_only, jax.ShapeDtypeStruct((), jnp.float32), x)

    with pytest.raises(MalleableError, match="not where the program runs in parts"):
        first_nonfinite(fun)(1.0)


def test_a_second_call_sees_its_own_values():
    find = first_nonfinite(lambda x: jnp.log(x))
    assert find(1.0) is None
    assert find(-1.0).primitive == "log"
    assert find(jnp.ones(3)) is None
    assert find(np.array([1.0, -1.0, 1.0], np.float32)).element == (1,)


@pytest.mark.caches
def test_a_search_where_all_is_finite_takes_no_step_by_itself():
    def fun(xs):
        return lax.scan(lambda c, x: (jnp.sin(c * x) + jnp.cos(c), c), xs[0], xs)[1].sum()

    def work(length):
        find, xs = first_nonfinite(fun), jnp.ones((length, 20))
        find(xs)  # compiles
        return calls(find, xs)

    assert work(2000) <= 1.1 * work(20)


# ---------------------------------------------------------------- mutable references


def doubled(x):
    r = jax.new_ref(x)
    r[0] = r[0] * 2.0
    y = r[...]
    return jnp.log(y)


def cancelled(x):
    r = jax.new_ref(x)
    r[0] += jnp.inf
    r[0] += -jnp.inf
    return r[...]


def covered(x):
    r = jax.new_ref(x)
    r[0] = jnp.log(r[0])
    return r[...][1:]


def test_a_nan_in_a_program_with_references():
    x = jnp.array([-0.5, 2.0])
    with listen() as heard:
        one = found(doubled, x)
    assert (one.kind, one.primitive, one.line) == ("nan", "log", line_of(doubled, "log"))
    assert one.element == (0,) and "mutable references" in str(heard)
    two = found(cancelled, x)
    assert (two.kind, two.line) == ("nan", line_of(cancelled, "-jnp.inf"))
    three = found(covered, x)
    assert three.primitive == "log" and not three.reaches_result
    assert first_nonfinite(covered, hidden=False)(x) is None
    assert first_nonfinite(covered)(jnp.abs(x)) is None
    assert found(doubled, x.at[0].set(jnp.nan)).argument == "argument x[0]"


def test_a_reference_that_is_given():
    def fun(r):
        r[0] = r[0] * 2.0
        return jnp.log(r[...])

    r = jax.new_ref(jnp.array([-0.5, 2.0]))
    one = found(fun, r)
    assert one.primitive == "log" and r[...].tolist() == [-1.0, 2.0]
    assert found(fun, jax.new_ref(jnp.array([jnp.nan, 2.0]))).argument.endswith("[0]")
