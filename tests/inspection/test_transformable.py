"""Transformable files: what is loaded is the program that was saved, to every transformation."""

import functools
import linecache

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name

import malleable as mal
from malleable import compat
from malleable.core.stage import stage
from malleable.errors import MalleableError
from malleable.inspection.files.format import values
from malleable.inspection.files.load import load
from malleable.inspection.files.save import save
from malleable.notes import listen
from tests.generators.arrays.programs import array_args, random_array_program
from tests.generators.programs.programs import example_args, random_program
from tests.inspection.written import A, X

pytestmark = pytest.mark.caches


@pytest.fixture
def again(tmp_path):
    """fun, saved on some arguments and loaded again."""

    def through(fun, *args, **options):
        save(tmp_path / "f.mal", fun, *args, transformable=True, **options)
        return load(tmp_path / "f.mal")

    return through


def assert_equal(left, right):
    def equal(a, b):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))

    jax.tree.map(equal, left, right)


def assert_close(left, right):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), left, right)


def total(fun):
    return lambda *args: sum(jnp.sum(x) for x in jax.tree.leaves(fun(*args)))


def assert_agree(one, other, *args):
    """Two functions have the same values and gradients, all compiled at once."""
    both = lambda *args: [(f(*args), jax.grad(total(f))(*args)) for f in (one, other)]
    assert_close(*jax.jit(both)(*args))


def prims(program):
    inside = (p for e in program.jaxpr.eqns for b in compat.bodies(e.params) for p in prims(b))
    return [e.primitive.name for e in program.jaxpr.eqns] + list(inside)


# ---------------------------------------------------------------- the law


@pytest.mark.parametrize("seed", range(6))
def test_a_random_program_comes_back(again, seed):
    program, args = random_program(seed, keys=False), example_args(seed)
    loaded = again(program, *args)
    assert_equal(jax.jit(loaded)(*args), jax.jit(program)(*args))
    assert prims(loaded.program) == prims(stage(program)(*args).jaxpr)


@pytest.mark.parametrize("seed", range(4))
def test_a_random_program_has_its_derivatives(again, seed):
    program, args = random_program(seed, differentiable=True), example_args(seed)
    loaded = again(program, *args)
    grads = [jax.jit(jax.grad(total(f), (0, 1, 2)))(*args) for f in (loaded, program)]
    assert_close(*grads)
    tangents = (args[0] * 2, *args[1:3], np.zeros((), jax.dtypes.float0))
    if not any(s.construct == "custom_vjp" for s in program.steps):
        assert_close(
            *jax.jit(lambda *a: [jax.jvp(f, *a) for f in (loaded, program)])(args, tangents)
        )


@pytest.mark.parametrize("seed", range(4))
def test_a_random_program_is_mapped(again, seed):
    program, args = random_program(seed, keys=False), example_args(seed)
    many = jax.tree.map(lambda x: jnp.stack([x, x * 2]), args[:3])
    both = again(program, *args), program
    maps = jax.jit(lambda *a: [jax.vmap(f, (0, 0, 0, None))(*a) for f in both])
    assert_close(*maps(*many, args[3]))


@pytest.mark.parametrize("seed", range(4))
def test_a_random_array_program_comes_back(again, seed):
    program = random_array_program(seed)
    args = array_args(program, seed)
    loaded = again(program, *args)
    assert_equal(jax.jit(loaded)(*args), jax.jit(program)(*args))


def test_what_was_loaded_is_saved_again(again):
    program, args = random_program(3, keys=False), example_args(3)
    once = again(program, *args)
    twice = again(once, *args)
    assert prims(twice.program) == prims(once.program)
    assert twice.source_lines == once.source_lines
    assert_equal(twice(*args), once(*args))


def test_passes_take_what_was_loaded(again):
    loaded = again(lambda x: jnp.sin(x) * jnp.sin(x), X)
    assert prims(stage(mal.optimize(loaded))(X).jaxpr) == ["sin", "mul"]


# ---------------------------------------------------------------- bits


@pytest.mark.parametrize(
    "value",
    [
        np.array([0x7FC12345, 0xFF800001, 0x80000000], np.uint32).view(np.float32),  # payloads, -0
        np.array([1.5, np.inf], ml_dtypes.bfloat16),
        np.array([0.5, -448.0], ml_dtypes.float8_e4m3fn),
        np.array([-8, 7], ml_dtypes.int4),
        np.array([[True], [False]]),
        np.array([1 + 2j, complex(np.nan, -0.0)], np.complex64),
        np.array([], np.int32).reshape(0, 3),
        np.array([255], np.uint8),
    ],
    ids=lambda value: str(value.dtype),
)
def test_every_bit_of_a_constant_is_kept(again, value):
    given = jnp.asarray(value)
    out = again(lambda x: (x, given), 1.0)(2.0)[1]
    assert out.dtype == given.dtype and out.shape == given.shape
    assert np.asarray(out).tobytes() == np.asarray(given).tobytes()


def test_random_keys_are_constants_and_results(again):
    key, raw = jax.random.key(7), jax.random.PRNGKey(7)
    other = jax.random.key(1, impl="rbg")

    def draws(x, key):
        here = jax.random.normal(jax.random.split(other)[0], (2,))
        return x + jax.random.normal(key), jax.random.uniform(raw), jax.random.fold_in(key, 3), here

    loaded = again(draws, 1.0, key)
    mine, wanted = loaded(1.0, key), draws(1.0, key)
    assert_equal((*mine[:2], mine[3]), (*wanted[:2], wanted[3]))
    assert jax.random.key_data(mine[2]).tolist() == jax.random.key_data(wanted[2]).tolist()


def test_how_bits_are_drawn_is_kept(again):
    with jax.threefry_partitionable(False):
        draw = lambda key: jax.random.bits(key, (3, 2))
        loaded, wanted = again(draw, jax.random.key(0)), draw(jax.random.key(0))
    assert_equal(loaded(jax.random.key(0)), wanted)


def test_64_bits_are_kept_and_asked_for(tmp_path):
    with jax.enable_x64(True):
        save(tmp_path / "f", lambda x: x * np.pi, jnp.float64(2.0), transformable=True)
        assert float(load(tmp_path / "f")(jnp.float64(2.0))) == 2 * np.pi
    with pytest.raises(MalleableError, match="64 bits"):
        load(tmp_path / "f")


def test_a_weak_argument_stays_weak(again):
    loaded = again(lambda x, y: x * y, 2.0, jnp.bfloat16(3))
    assert loaded(jnp.float32(2), jnp.bfloat16(3)).dtype == jnp.bfloat16
    assert loaded(np.float32(2), np.asarray(3, jnp.bfloat16)).dtype == jnp.bfloat16


# ---------------------------------------------------------------- derivatives


@jax.custom_jvp
def planted(x, n):
    return x * n


@planted.defjvp
def _planted(primals, tangents):  # not the derivative: so we see who uses it
    (x, n), (dx, _) = primals, tangents
    return planted(x, n), 7 * x * dx


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def bounded(limit, x):
    return x


bounded.defvjp(lambda limit, x: (x, None), lambda limit, _, ct: (jnp.clip(ct, -limit, limit),))


def test_the_saved_rule_is_the_derivative_of_every_order(again):
    loaded = again(planted, 3.0, 2)
    assert float(loaded(3.0, 2)) == 6
    assert float(jax.grad(loaded)(3.0, 2)) == 21
    assert float(jax.grad(jax.grad(loaded))(3.0, 2)) == 7
    assert float(jax.vmap(jax.grad(loaded), (0, None))(jnp.ones(2), 2)[0]) == 7


def test_static_arguments_of_a_rule_are_told_apart(again):
    loaded = again(lambda x: (bounded(1.0, x) * 5, bounded(2.0, x) * 5), 1.0)
    assert [float(jax.grad(lambda x, i=i: loaded(x)[i])(1.0)) for i in (0, 1)] == [1.0 * 1, 2.0 * 1]


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def wave(order, x):
    return jnp.sin(x + order * jnp.pi / 2)


wave.defjvp(lambda order, x, dx: (wave(order, *x), wave(order + 1, *x) * dx[0]))


def test_functions_of_jax_of_the_same_types_are_told_apart(again):
    of = jax.scipy.special
    several = lambda x: (of.xlogy(x, x), of.zeta(x + 1.5, x), jnp.logaddexp(x, 2 * x))
    x = jnp.array([0.3, 0.7])
    assert_close(again(several, x)(x), several(x))
    values = lambda x: (of.xlogy(x, x), jnp.logaddexp(x, 2 * x))
    assert_close(jax.grad(total(again(values, x)))(x), jax.grad(total(values))(x))


def test_a_rule_that_asks_for_ever_new_rules_is_kept_to_some_order(again):
    got = again(lambda x: wave(0, x), 0.0)
    wanted = jnp.sin
    for _ in range(5):
        wanted, got = jax.grad(wanted), jax.grad(got)
        assert_close(*jax.jit(lambda x, both=(got, wanted): [f(x) for f in both])(0.3))
    with pytest.raises(MalleableError, match=r"in the file up to order 5"):
        jax.grad(got)(0.3)


def test_a_function_without_a_derivative_is_saved_without_one(again):
    @jax.custom_jvp
    def opaque(x):
        return x + 1

    @opaque.defjvp
    def rule(primals, tangents):
        raise TypeError("this has no derivative")

    with listen() as heard:
        loaded = again(lambda x, y: opaque(x) * y, 1.0, 2.0)
    assert "without its derivative" in heard[0].what
    assert float(loaded(1.0, 2.0)) == 4 and float(jax.grad(loaded, 1)(1.0, 2.0)) == 2
    with pytest.raises(MalleableError, match="this has no derivative"):
        jax.grad(loaded)(1.0, 2.0)


def test_solves_have_their_own_derivatives(again):
    solve = lambda a, b: jnp.linalg.solve(a, b)
    loaded = again(solve, A, X)
    assert_agree(loaded, solve, A, X)
    assert "custom_linear_solve" in prims(loaded.program)


def test_a_loop_of_autograph_has_its_derivative(again):
    @mal.autograph
    def grow(x):
        while mal.loop(x < 10, max_steps=9):
            x = x * 1.5
        return x

    loaded = again(grow, 1.0)
    both = lambda x, many: [(jax.grad(f)(x), jax.vmap(jax.grad(f))(many)) for f in (loaded, grow)]
    assert_close(*jax.jit(both)(1.0, jnp.abs(X)))


@pytest.mark.parametrize(
    "policy", ["dots_saveable", "nothing_saveable", "save_only_these_names", None]
)
def test_a_checkpoint_keeps_its_policy(again, policy):
    known = policy and getattr(jax.checkpoint_policies, policy)
    known = known("h") if policy == "save_only_these_names" else known
    name = lambda x: checkpoint_name(x, "h")

    def loss(x):
        return jax.checkpoint(lambda x: jnp.sin(name(jnp.sin(x) @ A)).sum(), policy=known)(x)

    loaded = again(loss, A)
    with listen() as heard:
        mine = stage(jax.grad(loaded))(A).jaxpr
    assert prims(mine) == prims(stage(jax.grad(loss))(A).jaxpr) and not heard


def test_a_policy_of_the_users_own_leaves_a_note(again):
    with listen() as heard:
        again(jax.checkpoint(jnp.sin, policy=lambda *_, **__: False), 1.0)
    assert heard[0].what == "a checkpoint will keep nothing"


def test_a_loop_that_was_mapped_comes_back(again):
    newton = lambda x: lax.while_loop(lambda y: y * y > x, lambda y: 0.9 * y, 2 * x)
    many = jax.vmap(newton)
    loaded, xs = again(many, jnp.array([1.0, 40.0])), jnp.array([3.0, 70.0])
    assert_equal(loaded(xs), many(xs))
    assert_equal(jax.vmap(loaded)(jnp.stack([xs, 2 * xs])), jax.vmap(many)(jnp.stack([xs, 2 * xs])))
    assert_close(*jax.jit(lambda x: [jax.jvp(f, (x,), (x,)) for f in (loaded, many)])(xs))


# ---------------------------------------------------------------- lines


def test_equations_know_the_lines_of_the_user(again):
    def inner(x):
        return jnp.sin(x) * 2

    def outer(x):
        y = inner(x) + 1
        return lax.fori_loop(0, 3, lambda i, c: c * y, y)

    wanted, loaded = stage(outer)(X).jaxpr, again(outer, X)

    def lines(program):
        for eqn in program.jaxpr.eqns:
            mine = [p for p in compat.user_places(eqn) if p.file == __file__]
            yield [(p.line, p.function, p.column) for p in mine if "test_" not in p.function[-20:]]
            for body in compat.bodies(eqn.params):
                yield from lines(body)

    here = [[f for f in frames if "outer" in f[1] or "inner" in f[1]] for frames in lines(wanted)]
    assert list(lines(loaded.program)) == here
    assert any(len(frames) > 1 for frames in here)
    assert [line for line in loaded.source_lines if "jnp.sin(x) * 2" in line]


def test_names_around_equations_are_kept(again):
    def fun(x):
        with jax.named_scope("layer"):
            return jnp.sin(x)

    (eqn,) = again(jax.grad(fun), 1.0).program.eqns[:1]
    assert ("scope", "layer") in compat.names_around(eqn)


def test_the_line_of_a_file_that_is_gone_can_be_read(tmp_path):
    path, names = tmp_path / "model.py", {}
    path.write_text("import jax.numpy as jnp\n\ndef net(x):\n    return jnp.sin(x)  # first\n")
    exec(compile(path.read_text(), str(path), "exec"), names)
    save(tmp_path / "f", names["net"], X, transformable=True)
    path.write_text("def net(x):\n    something else\n\n    here\n")
    linecache.checkcache()
    (place, *_) = compat.user_places(load(tmp_path / "f").program.eqns[0])
    assert place.file == f"{path} (as saved)" and place.line == 4
    assert "# first" in linecache.getline(place.file, 4)
    path.unlink()
    linecache.checkcache()
    (place, *_) = compat.user_places(load(tmp_path / "f").program.eqns[0])
    assert place.file == str(path) and "# first" in linecache.getline(place.file, 4)


def test_a_variable_is_called_as_in_the_source(again, tmp_path):
    def net(params, x):
        hidden = jnp.tanh(x @ params["w"])
        low, high = lax.split(hidden, (1, 2))
        return low.sum() + high.sum()

    again(net, {"w": A}, A)
    text = (tmp_path / "f.mal").read_text()
    assert '"hidden: float32[3,3]"' in text and '"low: float32[1,3]"' in text
    assert "\"params_w: float32[3,3]\"" in text  # fmt: skip


# ---------------------------------------------------------------- devices


def test_a_shard_map_comes_back(again):
    mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("i")

    def fun(x):
        part = lambda x: lax.psum(x, "i") * x + lax.axis_index("i")
        return jax.shard_map(part, mesh=mesh, in_specs=spec, out_specs=spec)(x)

    loaded, x = again(fun, jnp.arange(8.0)), jnp.arange(8.0)
    assert_agree(loaded, fun, x)


def test_a_program_of_an_explicit_mesh_comes_back(again):
    spec = jax.sharding.PartitionSpec
    mesh = jax.make_mesh((4, 2), ("i", "j"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)
    with jax.set_mesh(mesh):
        x, w = jax.device_put(jnp.ones((8, 4)), spec("i")), jax.device_put(jnp.ones((4, 6)), spec())
        product = lambda x, w: jnp.einsum("bd,df->bf", x, w, out_sharding=spec("i", "j")) ** 2
        loaded = again(product, x, w)
        out = jax.jit(loaded)(x, w)
        assert_close(out, product(x, w))
        assert out.sharding.spec == spec("i", "j")
        slope = jax.grad(lambda x: loaded(x, w).sum())(x)
        assert_close(slope, jax.grad(lambda x: product(x, w).sum())(x))


def test_a_pmap_comes_back(again):
    fun = jax.pmap(lambda x: x / lax.psum(x, "i"), axis_name="i", devices=jax.devices()[:2])
    x = jnp.ones((2, 3))
    assert_close(again(fun, x)(x), fun(x))


# ---------------------------------------------------------------- refusals


def log(x):
    jax.debug.print("{}", x)
    return x


@pytest.mark.parametrize(
    ("fun", "told"),
    [
        (log, "a file holds no code"),
        (lambda x: jax.pure_callback(np.sin, x, x), "a file holds no code"),
        (lambda x: jax.jit(log)(x), "a file holds no code"),
        (lambda x: lax.scan(lambda c, _: (log(c), None), x, None, length=2), "holds no code"),
        (lambda x: jax.ref.new_ref(x)[...], "reference"),
    ],
)
def test_what_no_file_holds_is_refused_with_its_line(again, fun, told):
    with pytest.raises(MalleableError, match=told) as caught:
        again(fun, X)
    assert "test_transformable.py" in caught.value.where and caught.value.hint


def test_a_primitive_of_others_is_refused(again):
    mine = compat.Primitive("mine")
    mine.def_abstract_eval(lambda x: x)
    with pytest.raises(MalleableError, match="`mine` cannot go") as caught:
        again(lambda x: mine.bind(x), X)
    assert "test_transformable.py" in caught.value.where


def test_a_value_traced_outside_is_refused(tmp_path):
    @jax.jit
    def outside(y):
        save(tmp_path / "f", lambda x: x + y, 1.0, transformable=True)
        return y

    with pytest.raises(MalleableError, match="being traced outside"):
        outside(1.0)


# ---------------------------------------------------------------- libraries


def test_a_model_of_flax_comes_back(again):
    linen = pytest.importorskip("flax.linen")

    class Net(linen.Module):
        @linen.compact
        def __call__(self, x):
            x = linen.LayerNorm()(linen.relu(linen.Dense(4)(x)))
            return linen.Dense(1)(x)

    net = Net()
    weights = jax.jit(net.init)(jax.random.key(0), A)
    loaded = again(net.apply, weights, A)
    assert_agree(loaded, net.apply, weights, A)
    assert "params['params']['Dense_0']['bias']" in repr(loaded) or "Dense_0" in repr(loaded)


def test_a_model_of_equinox_comes_back(again):
    eqx = pytest.importorskip("equinox")
    cell = eqx.nn.GRUCell(3, 3, key=jax.random.key(0))

    def run(cell, xs):
        return lax.scan(lambda c, x: (cell(x, c), c), X, xs)

    loaded = again(run, cell, A)
    assert_agree(loaded, run, cell, A)
    other = eqx.nn.GRUCell(3, 3, use_bias=False, key=jax.random.key(0))
    with pytest.raises(MalleableError, match="bias"):
        loaded(other, A)


@pytest.mark.parametrize("kind", ["int64", "float64", "int8", "bool"])
def test_an_array_of_numpy_is_read_as_it_was_written_whatever_its_width(kind):
    read = values.decode(values.encode(np.zeros(3, kind)))
    assert (read.type, read.value.dtype) == (f"{kind}[3]", np.dtype(kind))
