"""Probabilistic programs: the density of what was drawn, whatever JAX does around the sites."""

import contextlib
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from numpyro.distributions import Normal

import malleable as mal
from malleable import Masked, TransformError, UnhandledError, prob
from malleable.prob import condition, intervene, log_prob, sample, trace, update
from tests.generators.keys import quick_key

KEY = quick_key(0)
XS = jnp.arange(1.0, 4.0)


def lp(x, mean=0.0, std=1.0):
    """The log density of a normal distribution."""
    return -0.5 * ((x - mean) / std) ** 2 - math.log(std) - 0.5 * math.log(2 * math.pi)


def close(got, wanted, rtol=1e-5):
    """Raise AssertionError unless two pytrees have one structure, shapes and nearly the values."""
    compare = functools.partial(np.testing.assert_allclose, rtol=rtol, atol=1e-6, strict=True)
    jax.tree.map(lambda a, b: compare(np.float64(a), np.float64(b)), got, wanted)


def two(x=0.0):
    a = sample("a", Normal(x, 1.0))
    return a + sample("b", Normal(a, 2.0))


def loop(x=0.0):
    step = lambda c, u: ((z := sample("z", Normal(c + u, 1.0))), z)
    return lax.scan(step, x, XS)[1]


def plate(x=0.0):
    return jax.vmap(lambda u: sample("z", Normal(x, 1.0)) * u)(XS)


def series(x=0.0):
    walk = lambda u: lax.scan(lambda c, _: ((z := sample("z", Normal(c, 1.0))), z), u, length=2)[1]
    return jax.vmap(walk)(XS + x)


def branches(x=0.0):
    draw = lambda m: lambda: sample("z", Normal(m, 1.0))
    return lax.cond(x < 1, draw(x), draw(-x)) + sample("y", Normal(x, 1.0))


def seen(x=0.0):
    z = sample("z", Normal(x, 1.0))
    return z * sample("y", Normal(z, 0.5), obs=1.0)


def custom(x=0.0):
    fun = jax.custom_jvp(lambda x: x * 2)
    fun.defjvp(lambda xs, ts: (fun(*xs), 2 * ts[0]))
    return fun(sample("z", Normal(fun(x), 1.0)))


def scoped(x=0.0):
    for i in range(2):
        with mal.scope(f"layer{i}"):
            x = sample("w", Normal(x, 1.0))
    return x


PROGRAMS = {
    "two": two,
    "jit": jax.jit(two),
    "checkpoint": jax.checkpoint(two),
    "scan": loop,
    "scan of checkpoint": lambda x=0.0: jax.checkpoint(loop)(x),
    "vmap": plate,
    "scan in vmap": series,
    "vmap of jit": lambda x=0.0: jax.vmap(lambda u: jax.jit(two)(x) * u)(XS),
    "vmap of vmap": lambda x=0.0: jax.vmap(lambda u: plate(x) * u)(jnp.ones(2)),
    "vmap in scan": lambda x=0.0: lax.scan(lambda c, _: (c, plate(c)), x, length=2)[1],
    "cond": branches,
    "obs": seen,
    "custom_jvp": custom,
    "scope": scoped,
}
programs = pytest.mark.parametrize("name", PROGRAMS)


# ------------------------------------------------------------ laws


@functools.cache
def facts(name):
    """All that the laws are about, from one compilation."""
    program = PROGRAMS[name]

    @jax.jit
    def all_of(keys, x):
        f = lambda values, x=x: log_prob(program)(values, x)
        out, values, density = trace(program)(keys[0], x)
        more = jax.vmap(trace(program), (0, None))(keys, x)
        return {
            "trace": (out, values, density),
            "density": f(values),
            "conditioned": trace(condition(program, values))(keys[1], x),
            "replayed": condition(program, values)(x),
            "set": trace(intervene(program, values))(keys[1], x),
            "slope": jax.grad(lambda x: f(values, x))(x),
            "difference": (f(values, x + 0.01) - f(values, x - 0.01)) / 0.02,
            "traces": more,
            "densities": jax.vmap(f)(more[1]),
        }

    return all_of(jax.random.split(KEY, 2), 0.5)


@pytest.mark.in_turns
@programs
def test_the_density_of_a_trace_is_that_of_its_values(name):
    it = facts(name)
    close(it["trace"][2], it["density"])


@programs
def test_a_model_seen_at_the_values_of_a_trace_gives_its_result(name):
    it = facts(name)
    out, _, density = it["trace"]
    close(it["conditioned"], (out, {}, density))
    close(it["replayed"], out)


@programs
def test_a_model_set_to_the_values_of_a_trace_counts_what_is_seen_only(name):
    it = facts(name)
    out, values, _ = it["trace"]
    close(it["set"], (out, {}, lp(1.0, values["z"], 0.5) if name == "obs" else 0.0))


@programs
def test_the_gradient_of_a_density_is_a_difference(name):
    it = facts(name)
    assert abs(it["slope"] - it["difference"]) < 0.01 * abs(it["slope"]) + 0.05


@programs
def test_traces_of_many_keys_are_traces(name):
    it = facts(name)
    close(jax.tree.map(lambda x: x[0], it["traces"]), it["trace"])
    close(it["densities"], it["traces"][2])


@pytest.mark.parametrize("name", ["scan", "scan in vmap", "cond", "checkpoint"])
def test_jit_changes_no_draw(name):
    key = jax.random.split(KEY, 2)[0]
    close(facts(name)["trace"], trace(PROGRAMS[name])(key, 0.5))


# ------------------------------------------------------------ values and their densities


def test_a_density_is_the_sum_of_those_of_the_sites():
    close(log_prob(two)({"a": 1.0, "b": 2.0}), lp(1.0) + lp(2.0, 1.0, 2.0))


def test_a_loop_has_a_value_for_each_step():
    z = jnp.array([1.0, 3.0, 2.0])
    assert trace(loop)(KEY)[1]["z"].shape == (3,)
    before = jnp.array([0.0, 1.0, 3.0])
    close(log_prob(loop)({"z": z}), lp(z, before + XS).sum(), rtol=1e-5)


def test_a_plate_has_a_value_for_each_lane():
    values = trace(plate)(KEY)[1]["z"]
    assert values.shape == (3,) and len(set(values.tolist())) == 3
    close(log_prob(plate)({"z": XS}), lp(XS).sum(), rtol=1e-5)


def test_steps_come_before_lanes():
    assert trace(series)(KEY)[1]["z"].shape == (2, 3)


def test_lanes_are_drawn_from_their_own_distributions():
    model = lambda: jax.vmap(lambda m, s: sample("z", Normal(m, s)))(XS, jnp.full(3, 1e-6))
    close(trace(model)(KEY)[0], XS, rtol=1e-4)
    close(log_prob(model)({"z": XS}), 3 * lp(0.0, 0.0, 1e-6), rtol=1e-5)


def test_a_site_outside_of_a_plate_has_one_value_for_all_lanes():
    def model():
        mean = sample("mean", Normal(0.0, 1.0))
        return jax.vmap(lambda y: sample("y", Normal(mean, 1.0), obs=y))(XS)

    close(log_prob(model)({"mean": 2.0}), lp(2.0) + lp(XS, 2.0).sum(), rtol=1e-5)


def test_the_branch_taken_counts():
    model = lambda p: lax.cond(p, lambda: sample("a", Normal(0.0, 1.0)), lambda: 0.0)
    f = log_prob(model)
    close((f({"a": 1.0}, True), f({"a": 1.0}, False)), (jnp.float32(lp(1.0)), 0.0))


def test_a_site_in_one_branch_says_whether_it_was_drawn():
    model = lambda p: lax.cond(p, lambda: sample("a", Normal(0.0, 1.0)), lambda: 0.0)
    drawn = trace(model)(KEY, True)[1]["a"]
    blank = trace(model)(KEY, False)[1]["a"]
    assert isinstance(drawn, Masked) and drawn.written and drawn.value != 0
    close(blank, Masked(jnp.float32(0.0), jnp.array(False)))
    f = log_prob(model)
    assert f({"a": drawn}, True) == pytest.approx(lp(drawn.value)) and f({"a": blank}, False) == 0
    assert jnp.isnan(f({"a": blank}, True))
    with pytest.raises(TransformError, match=r"'a' may not have been drawn\n  at .*test_prob\.py"):
        condition(model, {"a": blank})(True)


def test_branches_may_draw_one_name_from_two_distributions():
    _, values, density = trace(branches)(KEY, 2.0)
    close(density, lp(values["z"], -2.0) + lp(values["y"], 2.0), rtol=1e-5)


def test_a_batch_of_distributions_and_an_event_are_summed():
    def model():
        v = sample("v", Normal(jnp.zeros((2, 3)), 1.0))
        return v + sample("d", dist.Dirichlet(jnp.ones(3)))

    values = {"v": jnp.ones((2, 3)), "d": jnp.ones(3) / 3}
    close(log_prob(model)(values), 6 * lp(1.0) + math.log(2), rtol=1e-5)
    _, values, _ = trace(model)(KEY)
    assert values["v"].shape == (2, 3) and values["d"].shape == (3,)


DISTRIBUTIONS = {
    "normal": lambda: Normal(jnp.arange(2.0), 1.0),
    "multivariate": lambda: dist.MultivariateNormal(jnp.zeros(2), jnp.eye(2) * 2),
    "discrete": lambda: dist.Categorical(probs=jnp.array([0.2, 0.8])),
    "of logits": lambda: dist.Bernoulli(logits=jnp.array([0.2, 0.8])),
    "bounded": lambda: dist.Exponential(3.0),
    "interval": lambda: dist.Uniform(jnp.array([1.0, 2.0]), 3.0),
    "expanded": lambda: dist.Normal(0.0, 1.0).expand([2, 3]).to_event(1),
    "transformed": lambda: dist.LogNormal(0.0, 0.5),
    "mixture": lambda: dist.MixtureSameFamily(
        dist.Categorical(jnp.array([0.3, 0.7])), Normal(jnp.array([0.0, 5.0]), 1.0)
    ),
    "masked": lambda: Normal(jnp.zeros(2), 1.0).mask(jnp.array([True, False])),
}


@pytest.mark.in_turns
@pytest.mark.parametrize("made", DISTRIBUTIONS.values(), ids=DISTRIBUTIONS)
def test_distributions_of_numpyro_draw_and_count(made):
    d = made()
    model = lambda: (sample("x", d), jax.vmap(lambda _: sample("xs", d))(jnp.zeros(4)))

    @jax.jit
    def both(key):
        _, values, density = trace(model)(key)
        one, four = (jax.random.fold_in(key, i) for i in (0, 1))
        draws = {"x": d.sample(one), "xs": jax.vmap(d.sample)(jax.random.split(four, 4))}
        due = draws, sum(d.log_prob(x).sum() for x in draws.values())
        return values, density, log_prob(model)(values), *due

    values, density, again, draws, due = both(KEY)
    close(values, draws)
    assert jax.tree.map(jnp.result_type, values) == jax.tree.map(jnp.result_type, draws)
    close(density, due, rtol=1e-4)
    close(again, density)


@jax.tree_util.register_pytree_node_class
class Coin:
    """A distribution of our own, with no array in it."""

    def sample(self, key):
        return jax.random.bernoulli(key)

    def log_prob(self, value):
        return jnp.log(0.5)

    def tree_flatten(self):
        return (), None

    @classmethod
    def tree_unflatten(cls, _, leaves):
        return cls()


def test_any_pytree_with_both_methods_is_a_distribution():
    flips = lambda: jax.vmap(lambda _: sample("coin", Coin()))(jnp.zeros(20))
    out, values, density = trace(flips)(KEY)
    assert out.dtype == bool and 0 < out.sum() < 20 and (values["coin"] == out).all()
    close(density, 20 * math.log(0.5), rtol=1e-5)


# ------------------------------------------------------------ what is seen


def test_a_distribution_may_see_many_values():
    model = lambda ys: sample("y", Normal(sample("z", Normal(0.0, 1.0)), 0.5), obs=ys)
    close(log_prob(model)({"z": 0.3}, XS), lp(0.3) + lp(XS, 0.3, 0.5).sum(), rtol=1e-5)


def test_many_distributions_may_see_one_value():
    model = lambda: sample("y", Normal(XS, 1.0), obs=2)
    out, values, density = trace(model)(KEY)
    assert out.tolist() == [2.0] * 3 and out.dtype == "float32" and values == {}
    close(density, lp(2.0, XS).sum(), rtol=1e-5)


def test_what_is_seen_keeps_a_dtype_that_does_not_fit():
    model = lambda: sample("y", dist.Bernoulli(0.25), obs=jnp.array([1.0, 0.0]))
    close(log_prob(model)({}), math.log(0.25 * 0.75), rtol=1e-5)
    assert trace(model)(KEY)[0].dtype == "float32"


def test_what_is_seen_is_in_no_trace():
    _, values, density = trace(seen)(KEY)
    assert values.keys() == {"z"}
    close(density, lp(values["z"]) + lp(1.0, values["z"], 0.5), rtol=1e-5)


def test_the_steps_of_a_state_space_see_their_values():
    def model(ys):
        def step(x, y):
            x = sample("x", Normal(0.9 * x, 1.0))
            return x, sample("y", Normal(x, 0.5), obs=y)

        return lax.scan(step, 0.0, ys)[1]

    x, ys = jnp.array([0.5, 1.0, -1.0]), XS
    expected = lp(x, 0.9 * jnp.array([0.0, 0.5, 1.0])).sum() + lp(ys, x, 0.5).sum()
    close(log_prob(model)({"x": x}, ys), expected, rtol=1e-5)


def test_a_condition_counts_and_an_intervention_does_not():
    given = {"a": 1.0}
    close(log_prob(condition(two, given))({"b": 2.0}), lp(1.0) + lp(2.0, 1.0, 2.0))
    close(log_prob(intervene(two, given))({"b": 2.0}), jnp.float32(lp(2.0, 1.0, 2.0)))
    both = condition(intervene(two, given), {"b": 2.0})
    other = intervene(condition(two, {"b": 2.0}), given)
    for model in (both, other):
        close(log_prob(model)({}), jnp.float32(lp(2.0, 1.0, 2.0)))
        assert model() == 3.0


def test_one_number_is_the_value_of_all_lanes():
    close(log_prob(plate)({"z": 2}), 3 * lp(2.0), rtol=1e-5)


def test_values_in_scopes_are_nested():
    _, values, _ = trace(scoped)(KEY)
    assert jax.tree.map(jnp.shape, values) == {"layer0": {"w": ()}, "layer1": {"w": ()}}
    given = {"layer0": {"w": 1.0}, "layer1": {"w": 3.0}}
    close(log_prob(scoped)(given), lp(1.0) + lp(3.0, 1.0), rtol=1e-5)


# ------------------------------------------------------------ draws


def test_draws_are_those_of_numpyro_by_the_keys_of_seed():
    drawn = trace(two)(KEY)[1]
    a = Normal(0.0, 1.0).sample(jax.random.fold_in(KEY, 0))
    close(drawn, {"a": a, "b": Normal(a, 2.0).sample(jax.random.fold_in(KEY, 1))})


def test_draws_have_the_mean_and_deviation_of_their_distribution():
    draws = jax.jit(jax.vmap(lambda key: trace(two)(key)[0]))(jax.random.split(KEY, 4000))
    assert abs(draws.mean()) < 0.15 and abs(draws.std() - math.sqrt(8)) < 0.15


def test_a_draw_is_differentiable_by_its_parameters():
    slope = jax.grad(lambda m: trace(lambda: sample("x", Normal(m, 1.0)) ** 2)(KEY)[0])(1.0)
    close(slope, 2 * trace(lambda: sample("x", Normal(1.0, 1.0)))(KEY)[0], rtol=1e-5)


def test_old_keys_will_do():
    close(trace(two)(jax.random.PRNGKey(0)), trace(two)(jax.random.key(0)))


def test_other_effects_stay():
    net = lambda x: mal.tag(sample("x", Normal(x * mal.param("w", lambda key: 2.0), 1.0)), "t")
    params = mal.init(lambda x: trace(net)(KEY, x))(KEY, 1.0)
    (out, values, _), tags = mal.reap(mal.apply(lambda x: trace(net)(KEY, x)))(params, 1.0)
    assert out == values["x"] == tags["t"]


def test_what_is_no_array_stays_as_it_is():
    out, _, _ = trace(lambda x: {"y": sample("y", Normal(x, 1.0)), "n": 3, "s": "text"})(KEY, XS)
    assert out["n"] == 3 and out["s"] == "text" and out["y"].shape == (3,)


def test_devices_draw_their_own_and_densities_add_up():
    mesh = Mesh(np.array(jax.devices()[:4]), ("d",))
    spec = PartitionSpec("d")
    draw = lambda x: sample("z", Normal(x, 1.0))
    model = lambda x: jax.shard_map(draw, mesh=mesh, in_specs=spec, out_specs=spec)(x)
    out, values, density = trace(model)(KEY, jnp.zeros(8))
    assert len(set(out.tolist())) == 8
    close(density, lp(out).sum(), rtol=1e-5)
    assert values["z"].size == 8


def test_double_precision_is_kept():
    with jax.enable_x64(True):
        density = log_prob(two)({"a": 1.0, "b": 2.0})
        assert density.dtype == "float64" and abs(density - lp(1.0) - lp(2.0, 1.0, 2.0)) < 1e-14


def test_a_sampler_runs_in_a_compiled_loop():
    model = condition(two, {"b": 2.0})

    @jax.jit
    def chain(key):
        def step(a, key):
            move, accept = jax.random.split(key)
            new = a + jax.random.normal(move)
            gain = log_prob(model)({"a": new}) - log_prob(model)({"a": a})
            a = jnp.where(jnp.log(jax.random.uniform(accept)) < gain, new, a)
            return a, a

        return lax.scan(step, 0.0, jax.random.split(key, 4000))[1]

    draws = chain(KEY)[500:]
    assert abs(draws.mean() - 0.4) < 0.1 and abs(draws.var() - 0.8) < 0.15


# ------------------------------------------------------------ updates


def mixture(ys):
    return jax.vmap(lambda y: sample("y", Normal(sample("z", Normal(0.0, 1.0)), 0.5), obs=y))(ys)


def test_an_update_gives_the_density_of_the_new_values():
    ys, z = jnp.arange(300.0) / 100, jnp.zeros(300)
    init, step = update(mixture, (ys,), {"z": z}, {"z": (1,)})
    density, state = init()
    close(density, log_prob(mixture)({"z": z}, ys))
    density, _ = jax.jit(step)(state, {"z": (jnp.ones(1), [7])})
    close(density, log_prob(mixture)({"z": z.at[7].set(1)}, ys))


def test_sites_may_be_updated_in_turn():
    model = lambda: sample("b", Normal(sample("a", Normal(jnp.zeros(4), 1.0)), 1.0))
    init, step = update(model, (), {"a": jnp.zeros(4), "b": jnp.zeros(4)}, {"a": (1,), "b": (2,)})
    _, state = init()
    _, state = step(state, {"a": (jnp.ones(1), [1])})
    density, _ = step(state, {"b": (jnp.ones(2), [2])})
    new = {"a": jnp.zeros(4).at[1].set(1), "b": jnp.zeros(4).at[2:].set(1)}
    close(density, log_prob(model)(new))


def test_sites_in_scopes_are_updated():
    model = lambda: mal.scope("s")(sample)("z", Normal(jnp.zeros(4), 1.0))
    init, step = update(model, (), {"s": {"z": jnp.zeros(4)}}, {"s": {"z": (1,)}})
    density, _ = step(init()[1], {"s": {"z": (jnp.ones(1), [2])}})
    close(density, log_prob(model)({"s": {"z": jnp.zeros(4).at[2].set(1)}}))


def test_a_site_that_is_not_said_to_change_is_named():
    init, step = update(mixture, (XS,), {"z": XS}, {"z": (1,)})
    with pytest.raises(TransformError, match="q"):
        step(init()[1], {"q": (jnp.ones(1), [0])})


# ------------------------------------------------------------ messages


@contextlib.contextmanager
def refused(*parts, kind=TransformError):
    """Raises with these parts in the message, the line of this file and a hint."""
    with pytest.raises(kind) as info:
        yield
    text = str(info.value)
    assert all(part in text for part in parts), text
    assert "test_prob.py:" in text and "hint: " in text, text


def test_a_draw_with_nobody_around_says_what_to_do():
    with refused("sample() is called", "prob.trace(model)(key", kind=UnhandledError):
        two()
    with refused("sample() is called", " in two", kind=UnhandledError):
        condition(two, {"a": 1.0})()


def test_what_is_seen_needs_nobody():
    assert (lambda: sample("y", Normal(0.0, 1.0), obs=2.0))() == 2.0


def test_a_missing_value_is_named():
    with refused("the site 'b' has no value", "given are: 'a'", " in two"):
        log_prob(two)({"a": 1.0})


@pytest.mark.parametrize("run", [log_prob, lambda m: lambda v: trace(condition(m, v))(KEY)])
def test_a_value_without_a_site_is_named(run):
    message = r"no site named 'c'\n.*\n  hint: known names: 'a', 'b'"
    with pytest.raises(TransformError, match=message):
        run(two)({"a": 1.0, "b": 2.0, "c": 3.0})


def twice():
    return sample("a", Normal(0.0, 1.0)) + jax.jit(sample, static_argnums=0)("a", Normal(0.0, 1.0))


@pytest.mark.parametrize(
    "run",
    [lambda m: trace(m)(KEY), lambda m: log_prob(m)({"a": 1.0}), lambda m: condition(m, {})()],
)
def test_a_name_used_twice_has_two_lines(run):
    with refused("'a' is used twice", "and at", " in twice"):
        run(twice)


def test_a_name_in_a_loop_of_python_is_used_twice():
    with refused("'a' is used twice"):
        trace(lambda: [sample("a", Normal(0.0, 1.0)) for _ in range(2)])(KEY)


@pytest.mark.parametrize("run", [lambda m: trace(m)(KEY), lambda m: log_prob(m)({"step": 1.0})])
def test_a_site_in_a_while_loop_is_refused(run):
    step = lambda c: c + jnp.abs(sample("step", Normal(0.0, 1.0)))
    with refused("'step' is in a while loop", "scan"):
        run(lambda: lax.while_loop(lambda c: c < 3, step, 0.0))


@pytest.mark.parametrize(
    ("program", "value"),
    [(two, jnp.ones(2)), (loop, XS[:2]), (loop, 1.0), (plate, XS[:2]), (plate, jnp.ones((3, 1)))],
)
def test_a_value_of_another_shape_is_refused(program, value):
    values = trace(program)(KEY)[1]
    with refused(f"'{min(values)}'"):
        log_prob(program)({**values, min(values): value})


def test_a_value_of_a_dtype_that_does_not_fit_is_refused():
    with refused("'k' is given as float32[]", "int32[] belongs here"):
        log_prob(lambda: sample("k", dist.Categorical(jnp.ones(3) / 3)))({"k": 1.5})


@pytest.mark.parametrize("run", [condition, intervene])
def test_a_value_for_what_is_seen_is_refused(run):
    with refused("'y' is seen already"):
        trace(run(seen, {"y": 1.0}))(KEY)


def test_what_is_seen_has_the_shape_of_a_draw():
    with refused("'y' draws float32[3] and sees float32[2]"):
        trace(lambda: sample("y", Normal(XS, 1.0), obs=XS[:2]))(KEY)


@pytest.mark.parametrize("what", [3.0, "normal", Normal, jax.random.normal])
def test_what_is_no_distribution_is_refused(what):
    with refused("'x' has no distribution", type(what).__name__):
        trace(lambda: sample("x", what))(KEY)


def test_a_cond_that_differs_between_lanes_is_refused():
    model = lambda x: lax.cond(x > 1, lambda: sample("z", Normal(x, 1.0)), lambda: x)
    with refused("differs between the lanes"):
        trace(lambda: jax.vmap(model)(XS))(KEY)
    values = jax.jit(jax.vmap(trace(model), (None, 0)))(KEY, XS)[1]["z"]
    assert values.written.tolist() == [False, True, True]


def test_a_derivative_through_a_site_is_refused_inside_and_right_outside():
    square = lambda m: sample("x", Normal(m, 1.0)) ** 2
    with refused("a grad inside goes through `sample`", "grad(trace(f))"):
        trace(jax.grad(square))(KEY, 1.0)
    out, values, _ = trace(lambda x: jax.grad(lambda y: y * sample("x", Normal(0.0, 1.0)))(x))(
        KEY, 1.0
    )
    assert out == values["x"]


def test_a_name_is_a_string_and_values_are_a_dict():
    with pytest.raises(TypeError, match="name is a string"):
        trace(lambda: sample(3, Normal(0.0, 1.0)))(KEY)
    with pytest.raises(TypeError, match="dict"):
        log_prob(two)([1.0, 2.0])


def test_a_key_is_needed():
    with pytest.raises(TransformError, match="a single random key is needed"):
        trace(two)(3.0)


def test_a_name_is_a_site_or_a_scope():
    def model():
        a = sample("a", Normal(0.0, 1.0))
        return mal.scope("a")(lambda: sample("b", Normal(a, 1.0)))()

    with refused("names both a value and a scope"):
        trace(model)(KEY)


def test_a_trace_of_nothing_is_nothing():
    out, values, density = trace(lambda x: x + 1)(KEY, 1.0)
    assert (out, values, density) == (2.0, {}, 0.0)
    assert log_prob(lambda: None)({}) == 0.0


def test_a_loop_of_no_steps_counts_nothing():
    step = lambda c, _: (c, sample("z", Normal(c, 1.0)))
    model = lambda: lax.scan(step, 0.0, length=0)[1]
    _, values, density = trace(model)(KEY)
    assert values["z"].shape == (0,) and density == 0 and log_prob(model)(values) == 0


def test_the_names_are_in_the_package():
    assert mal.prob is prob and "prob" in dir(mal)
    assert functools.partial(mal.prob.sample, "x").func is sample
