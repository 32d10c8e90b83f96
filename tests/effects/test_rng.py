"""Keys without plumbing: the same numbers whatever JAX does around them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from malleable import TransformError, UnhandledError, listen, next_key, reap, seed, tag
from tests.generators.keys import QUICK, quick_key
from tests.rules import assert_same

ROOT = quick_key(0)


def draw(*_, shared=False):
    return jax.random.uniform(next_key(shared=shared))


def noisy(x):
    return jnp.sin(x * draw()) * draw() + x


def number(*path):
    """The number drawn by the key at a path of fold_ins."""
    key = ROOT
    for n in path:
        key = jax.random.fold_in(key, n)
    return jax.random.uniform(key)


def loop(f):
    return lambda x: lax.scan(lambda c, _: (f(c), None), x, length=3)[0]


def while_loop(f):
    return lambda x: lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, f(s[1])), (0, x))[1]


def custom(f):
    fun = jax.custom_vjp(f)
    fun.defvjp(lambda x: (f(x), None), lambda _, ct: (10 * ct,))
    return fun


PROGRAMS = {
    "plain": noisy,
    "jit": lambda x: jax.jit(noisy)(x) * draw(),
    "checkpoint": lambda x: jax.checkpoint(noisy)(x) * draw(),
    "scan": lambda x: loop(noisy)(x) * draw(),
    "scan of checkpoint": loop(jax.checkpoint(noisy)),
    "cond": lambda x: lax.cond(x > 0, noisy, lambda x: x, x) * draw(),
    "custom_vjp": custom(noisy),
}
programs = pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)


def agree(one, other, x=0.5):
    """Raise AssertionError unless two functions of (key, x) do, compiled."""
    assert_same(*jax.jit(lambda key, x: (one(key, x), other(key, x)))(ROOT, x), rtol=1e-4)


# ------------------------------------------------------------ which key


def test_keys_are_counted_from_the_root():
    assert seed(lambda: (draw(), draw()))(ROOT) == (number(0), number(1))


def test_a_key_depends_on_what_came_before_and_not_on_what_comes_after():
    assert seed(lambda: (draw(), draw(), draw())[:2])(ROOT) == seed(lambda: (draw(), draw()))(ROOT)


@pytest.mark.parametrize(
    "around", [jax.jit, jax.checkpoint, lambda f: lambda: lax.cond(True, f, f)]
)
def test_a_body_that_runs_once_shares_the_count(around):
    assert seed(lambda: (draw(), around(draw)(), draw()))(ROOT) == tuple(map(number, range(3)))


def test_each_step_of_a_loop_has_a_root_of_its_own():
    program = lambda: (lax.scan(lambda c, _: (c, draw()), 0, length=3)[1], draw())
    numbers, after = seed(program)(ROOT)
    assert_same(numbers, jnp.stack([number(0, i, 0) for i in range(3)]))
    assert after == number(1)


@pytest.mark.caches  # a jitted function is found in the cache the second time
def test_a_jitted_function_draws_anew_each_time():
    jitted = jax.jit(draw)
    assert seed(lambda: (jitted(), jitted()))(ROOT) == (number(0), number(1))


def test_lanes_have_keys_of_their_own():
    drawn = seed(lambda: jax.vmap(draw)(jnp.zeros(3)))(ROOT)
    keys = jax.random.split(jax.random.fold_in(ROOT, 0), 3)
    assert_same(drawn, jax.vmap(jax.random.uniform)(keys))


def test_lanes_of_lanes_have_keys_of_their_own():
    drawn = seed(lambda: jax.vmap(jax.vmap(draw))(jnp.zeros((2, 3))))(ROOT)
    assert len(set(drawn.ravel().tolist())) == 6


def test_lanes_may_share_a_key():
    program = lambda: jax.vmap(lambda _: draw(shared=True))(jnp.zeros(3))
    assert seed(program)(ROOT).tolist() == [number(0)] * 3


def test_a_vmap_of_a_seed_maps_over_keys():
    keys = jax.random.split(ROOT, 3)
    drawn = jax.vmap(seed(noisy), (0, None))(keys, 0.5)
    assert_same(drawn, jnp.stack([seed(noisy)(key, 0.5) for key in keys]), rtol=1e-4)


def test_the_nearest_seed_supplies_the_key():
    inner = lambda: seed(draw)(quick_key(7))
    drawn = seed(lambda: (draw(), inner(), draw()))(ROOT)
    assert drawn == (
        number(0),
        jax.random.uniform(jax.random.fold_in(quick_key(7), 0)),
        number(1),
    )


# ------------------------------------------------------------ laws


@programs
def test_a_seed_under_jit_draws_the_same(program):
    assert_same(jax.jit(seed(program))(ROOT, 0.5), seed(program)(ROOT, 0.5))


@programs
def test_seed_and_grad_commute(program):
    agree(seed(jax.grad(program)), lambda key, x: jax.grad(lambda x: seed(program)(key, x))(x))


@pytest.mark.parametrize("derive", [lambda f: f, jax.grad], ids=["value", "gradient"])
@pytest.mark.parametrize("name", ["plain", "checkpoint", "scan"])
def test_a_checkpoint_around_draws_the_same(name, derive):
    agree(seed(derive(jax.checkpoint(PROGRAMS[name]))), seed(derive(PROGRAMS[name])))


def test_a_checkpoint_around_a_scan_of_checkpoints_draws_the_same():
    program = PROGRAMS["scan of checkpoint"]
    agree(seed(jax.grad(jax.checkpoint(program))), seed(jax.grad(program)))


def test_seed_and_jvp_commute_through_a_while_loop():
    program = while_loop(noisy)
    agree(
        seed(lambda x: jax.jvp(program, (x,), (1.0,))),
        lambda key, x: jax.jvp(lambda x: seed(program)(key, x), (x,), (1.0,)),
    )


@pytest.mark.parametrize("program", [noisy, jax.checkpoint(noisy), loop(jax.checkpoint(noisy))])
def test_seed_and_jacrev_commute(program):
    twin = lambda key, x: jax.jacrev(lambda x: seed(program)(key, x))(x)
    agree(seed(jax.jacrev(program)), twin, jnp.array([0.1, 0.2]))


def test_seed_and_jacfwd_commute_where_lanes_share_the_key():
    program = lambda x: jnp.sin(x * draw(shared=True))
    twin = lambda key, x: jax.jacfwd(lambda x: seed(program)(key, x))(x)
    agree(seed(jax.jacfwd(program)), twin, jnp.array([0.1, 0.2]))


def test_seed_and_reap_commute():
    program = lambda x: tag(noisy(x), "y")
    assert_same(seed(reap(program))(ROOT, 0.5), reap(seed(program))(ROOT, 0.5))


def test_a_derivative_rule_may_reuse_the_noise_of_its_value():
    fun = jax.custom_vjp(lambda x: x * draw())
    fun.defvjp(lambda x: (lambda u: (x * u, u))(draw()), lambda u, ct: (ct * u,))
    value, slope = seed(jax.value_and_grad(fun))(ROOT, 2.0)
    assert value == 2 * slope == 2 * number(0)


# ------------------------------------------------------------ keys of every kind


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg", QUICK])
def test_every_generator_will_do(impl):
    root = jax.random.key(0, impl=impl)
    drawn, key = seed(lambda: (draw(), next_key()))(root)
    assert drawn == jax.random.uniform(jax.random.fold_in(root, 0))
    assert key.dtype == root.dtype


def test_a_key_that_the_function_makes_is_the_one_it_would_make():
    data = lambda: jax.random.key_data(jax.random.key(7))
    assert seed(data)(jax.random.key(0, impl="rbg")).tolist() == data().tolist()


@pytest.mark.parametrize(
    "raw", [jax.random.PRNGKey(0), np.zeros(2, np.uint32), jax.random.PRNGKey(0, impl="rbg")]
)
def test_raw_keys_will_do(raw):
    impl = "threefry2x32" if raw.shape == (2,) else "rbg"
    assert seed(draw)(raw) == seed(draw)(jax.random.key(0, impl=impl))


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (0, "0"),
        (None, "None"),
        (jnp.ones(2), r"float32\[2\]"),
        (jax.random.split(jax.random.key(0), 3), r"key<fry>\[3\]"),
        (jnp.zeros((3, 2), jnp.uint32), r"uint32\[3,2\]"),
    ],
)
def test_what_is_no_single_key_is_refused(key, text):
    with pytest.raises(
        TransformError, match=f"a single random key is needed, not {text}\n.*\n  hint: "
    ):
        seed(draw)(key)


@pytest.mark.parametrize("program", [draw, jax.jit(draw), lambda: draw(shared=True)])
def test_without_a_seed_the_line_is_named(program):
    with pytest.raises(UnhandledError, match=r"no key is around\n  at .*test_rng\.py:\d+ in draw"):
        program()


@pytest.mark.caches  # the trace with a key must not be found in the cache
def test_a_function_that_had_a_key_misses_it_afterwards():
    jitted = jax.jit(draw)
    seed(jitted)(ROOT)
    with pytest.raises(UnhandledError, match="no key is around"):
        jitted()


# ------------------------------------------------------------ devices

GRID = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
DATA, BOTH, NONE = PartitionSpec("data"), PartitionSpec("data", "model"), PartitionSpec()


def noise(x, shared=False):
    return x + jax.random.normal(next_key(shared=shared), x.shape)


def in_a_scan_that_starts_without(x):
    start = jnp.zeros(x.shape)
    return x + lax.scan(lambda c, _: (noise(c), None), start, length=2)[0]


def in_a_while_that_starts_without(x):
    start = 0, jnp.zeros(x.shape)
    return x + lax.while_loop(lambda s: s[0] < 2, lambda s: (s[0] + 1, noise(s[1])), start)[1]


ON_DEVICES = {
    "plain": noise,
    "jit": jax.jit(noise),
    "scan": loop(noise),
    "scan, wider carry": in_a_scan_that_starts_without,
    "while, wider carry": in_a_while_that_starts_without,
    "cond": lambda x: lax.cond(x[0, 0] < 1, noise, lambda x: x, x),
    "checkpoint": jax.checkpoint(noise),
    "gradient": jax.grad(lambda x: (noise(x) ** 2).sum()),
}


def on_devices(program, spec, check_vma):
    mapped = jax.shard_map(program, mesh=GRID, in_specs=spec, out_specs=spec, check_vma=check_vma)
    return jax.jit(seed(mapped))(ROOT, jnp.zeros((4, 2)))


@pytest.mark.parametrize("program", ON_DEVICES.values(), ids=ON_DEVICES)
def test_copies_of_what_is_said_to_be_the_same_are_the_same(program):
    with listen() as notes:
        out = on_devices(program, DATA, True)
    copies: dict = {}
    for shard in out.addressable_shards:
        copies.setdefault(str(shard.index), set()).add(np.asarray(shard.data).tobytes())
    assert len(copies) == 4 and all(len(same) == 1 for same in copies.values())
    assert "`model`" in notes[0].what and "test_rng.py" in notes[0].where
    assert_same(on_devices(program, DATA, False), out)


@pytest.mark.parametrize("program", ON_DEVICES.values(), ids=ON_DEVICES)
def test_each_device_draws_its_own_where_results_may_differ(program):
    drawn = on_devices(program, BOTH, True)
    assert len(set(drawn.ravel().tolist())) == 8
    assert_same(on_devices(program, BOTH, False), drawn)


@pytest.mark.parametrize("check_vma", [True, False])
def test_a_shared_key_is_the_same_on_every_device(check_vma):
    drawn = on_devices(lambda x: noise(x, shared=True), BOTH, check_vma)
    assert len(set(drawn.ravel().tolist())) == 1


@pytest.mark.parametrize("check_vma", [True, False])
def test_what_a_collective_unites_comes_of_a_key_per_device(check_vma):
    with listen() as notes:
        mean = on_devices(lambda x: lax.pmean(noise(x), ("data", "model")), NONE, check_vma)
    each = on_devices(lambda x: x + jax.random.normal(next_key(), (4, 2))[:1, :1], BOTH, True)
    assert_same(mean[0, 0], each.mean())
    assert notes == []


@pytest.mark.parametrize("check_vma", [True, False])
def test_a_key_that_all_share_does_not_make_the_others_the_same(check_vma):
    def program(x):
        common = jax.random.uniform(next_key(shared=True))
        return x + jax.random.normal(next_key(), x.shape), common

    out_specs = (BOTH, PartitionSpec())
    mapped = jax.shard_map(
        program, mesh=GRID, in_specs=BOTH, out_specs=out_specs, check_vma=check_vma
    )
    with listen() as notes:
        drawn, common = jax.jit(seed(mapped))(ROOT, jnp.zeros((4, 2)))
    assert len(set(drawn.ravel().tolist())) == 8 and not notes
    assert len({float(shard.data) for shard in common.addressable_shards}) == 1
