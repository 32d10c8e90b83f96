"""`export.source`: the text runs, computes the same bits, and reads like the user's program."""

import functools
import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import malleable as mal
from malleable.errors import MalleableError
from malleable.inspection import export
from malleable.inspection.as_source import source
from tests.array_programs import array_args, random_array_program
from tests.inspection.written import CASES, SMOOTH, A, X
from tests.programs import example_args, random_program

pytestmark = pytest.mark.caches


def run(text: str, name: str = "main"):
    """The function of a module given as text."""
    names: dict = {}
    exec(compile(text, "<source>", "exec"), names)
    return names[name]


def named(fun, *args):
    text = source(fun, *args)
    name = getattr(fun, "__name__", "main")
    return run(text, name if name.isidentifier() else "main")


def assert_equal(left, right):
    assert jax.tree.structure(left) == jax.tree.structure(right)

    def equal(a, b):
        assert a.dtype == b.dtype and a.shape == b.shape
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = map(jax.random.key_data, (a, b))
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))

    jax.tree.map(equal, left, right)


def assert_close(left, right):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), left, right)


def total(fun):
    return lambda *args: sum(jnp.sum(x) for x in jax.tree.leaves(fun(*args)))


# ---------------------------------------------------------------- the law


@pytest.mark.parametrize("seed", range(8))
def test_a_random_program_computes_the_same_bits(seed):
    program, args = random_program(seed, keys=False), example_args(seed)
    assert_equal(jax.jit(named(program, *args))(*args), jax.jit(program)(*args))


@pytest.mark.parametrize("seed", range(8))
def test_a_random_array_program_computes_the_same_bits(seed):
    program = random_array_program(seed)
    args = array_args(program, seed)
    assert_equal(jax.jit(named(program, *args))(*args), jax.jit(program)(*args))


@pytest.mark.parametrize("seed", range(4))
def test_a_random_program_has_its_derivatives(seed):
    program, args = random_program(seed, differentiable=True), example_args(seed)
    mine = named(program, *args)
    grads = [jax.jit(jax.grad(total(f), (0, 1, 2)))(*args) for f in (mine, program)]
    assert_close(*grads)
    many = jax.tree.map(lambda x: jnp.stack([x, x * 2]), args[:3])
    assert_close(*(jax.vmap(f, (0, 0, 0, None))(*many, args[3]) for f in (mine, program)))


@pytest.mark.parametrize("name", CASES)
def test_a_function_computes_the_same_bits(name):
    fun, args = CASES[name]
    mine = named(fun, *args)
    assert_equal(jax.jit(mine)(*args), jax.jit(fun)(*args))
    if name in SMOOTH:
        assert_close(jax.grad(total(mine))(*args), jax.grad(total(fun))(*args))


_AXES = lax.ScatterDimensionNumbers((), (0,), (0,))
OPERATIONS = [
    lambda x: jnp.linalg.svd(x),
    lambda x: jnp.linalg.qr(x),
    lambda x: jax.scipy.linalg.lu(x),
    lambda x: jax.scipy.sparse.linalg.cg(lambda b: 3 * b, x[0])[0],
    lambda x: jnp.fft.rfft2(x),
    lambda x: lax.top_k(x, 2),
    lambda x: (jnp.argmax(x, 1), jnp.sort(x), jnp.cumsum(x, 0), jnp.median(x)),
    lambda x: x.at[0].set(1).at[1].add(2).at[2].mul(3).at[0].max(3).at[0].min(2),
    lambda x: x[jnp.array([0, 1]), jnp.array([1, 2])],
    lambda x: lax.dynamic_slice(x, (x[0, 0].astype(int) - 9, 1), (2, 2)),
    lambda x: lax.conv_general_dilated(x[None, None], x[None, None], (1, 1), "SAME"),
    lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (1, 1), "SAME"),
    lambda x: lax.reduce(x, 1.0, lambda a, b: a * b + 1, (0,)),
    lambda x: jnp.einsum("ij,kj->ik", x, x),
    lambda x: x.astype(jnp.bfloat16) @ x.astype(jnp.bfloat16) * 2,
    lambda x: jax.random.normal(jax.random.key(3), (3,)) + x,
    lambda x: jax.random.bits(jax.random.key(0, impl="rbg"), (3,)),
    lambda x: jax.random.fold_in(jax.random.key(1), 2),
    lambda x: (x > 1) & ~(x < 2) | (x == 0.5) ^ (x != 3),
    lambda x: (x.astype(int) // 3, x.astype(int) % 2, -x.astype(int), x.astype(int) << 2),
    lambda x: jnp.array([jnp.nan, jnp.inf, -0.0, 1e-45, 0.1]) * x[0, 0],
    lambda x: lax.platform_dependent(x, cpu=jnp.sin, default=jnp.cos),
    lambda x: lax.scatter_apply(x[0], jnp.array([[0]]), jnp.sin, _AXES, update_shape=(1,)),
    lambda x: lax.optimization_barrier((x, x + 1)),
    lambda x: jnp.nonzero(x, size=3),
    lambda x: jax.checkpoint(jnp.sin, policy=jax.checkpoint_policies.nothing_saveable)(x),
    lambda x: jax.hessian(lambda y: (y**3).sum())(x[0]),
    lambda x: jax.nn.softmax(x) + jax.nn.gelu(x),
    lambda x: lax.map(jnp.sin, x, batch_size=2),
]


@pytest.mark.parametrize("fun", OPERATIONS, ids=range(len(OPERATIONS)))
def test_an_operation_computes_the_same_bits(fun):
    mine = named(fun, A)
    assert_equal(jax.jit(mine)(A), jax.jit(fun)(A))


def test_devices_are_asked_for_by_number():
    mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("i")
    part = lambda x: lax.psum(x, "i") * x + lax.axis_index("i")
    fun = jax.shard_map(part, mesh=mesh, in_specs=spec, out_specs=spec)
    x = jnp.arange(8.0)
    assert_close(named(lambda x: fun(x), x)(x), fun(x))


def test_a_loop_of_autograph_has_its_derivative():
    @mal.autograph
    def grow(x):
        while mal.loop(x < 10, max_steps=9):
            x = x * 1.5
        return x

    assert_close(jax.grad(named(grow, 1.0))(1.0), jax.grad(grow)(1.0))


# ---------------------------------------------------------------- how it reads


def test_it_reads_like_the_program():
    def net(params, xs):
        hidden = jnp.tanh(xs @ params["w"])
        low, high = lax.split(hidden, (1, 2))
        total = lax.cond(low.sum() > 0, lambda h: h.sum(), lambda h: -h.max(), high)
        return {"total": total, "none": None}

    text = source(net, {"w": A}, A)
    body = text[text.index("def net") :].splitlines()
    assert body == [
        "def net(params, xs):",
        "    params_w = jnp.asarray(params['w'])",
        "    xs = jnp.asarray(xs)",
        '    # hidden = jnp.tanh(xs @ params["w"])',
        "    a = xs @ params_w",
        "    hidden = jnp.tanh(a)",
        "    # low, high = lax.split(hidden, (1, 2))",
        "    (low, high) = lax.split(hidden, sizes=(1, 2), axis=0)",
        "    # total = lax.cond(low.sum() > 0, lambda h: h.sum(), lambda h: -h.max(), high)",
        "    b = jnp.sum(low)",
        "    c = b > 0.0",
        "    total = lax.cond(c, if_true, if_false, high)",
        "    return {'total': total, 'none': None}",
    ] or body[-2:] == [
        "    total = lax.cond(c, if_true, if_false, high)",
        "    return {'none': None, 'total': total}",
    ]
    assert "primitives" not in text and "np." not in text.replace("jnp.", "")


def test_loops_and_rules_have_functions_of_their_own():
    @jax.custom_vjp
    def clipped(x):
        return x * 2

    clipped.defvjp(lambda x: (x * 2, None), lambda _, ct: (jnp.clip(ct, -1, 1),))

    def fun(x, n):
        def step(carry, z):
            return clipped(carry) + z * n, carry

        return lax.scan(step, 0.0, x)

    text = source(fun, X, 3.0)
    for part in (
        "def step(carry, z, *, n):",
        "lax.scan(partial(step, n=n), 0.0, x)",
        "@jax.custom_vjp",
        "clipped.defvjp(clipped_forward, clipped_backward)",
    ):
        assert part in text, text
    grads = [jax.grad(lambda x, f=f: f(x, 3.0)[0])(X) for f in (run(text, "fun"), fun)]
    assert_close(*grads)


def test_the_parameters_are_those_of_the_function():
    def fun(a, *rest, scale, **more):
        return a * scale + rest[0] + more["b"]

    text = source(fun, X, 2 * X, scale=3.0, b=X)
    assert "def fun(a, *rest, scale, **more):" in text
    assert_equal(run(text, "fun")(X, 2 * X, scale=3.0, b=X), fun(X, 2 * X, scale=3.0, b=X))


def test_large_constants_are_kept_bit_by_bit():
    big = jnp.asarray(np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32))
    odd = jnp.asarray(np.array([0x7FC12345, 0xFF800001], np.uint32).view(np.float32))
    half = jnp.asarray([0.1, 2], jnp.bfloat16)
    fun = lambda x: (big * x, odd, half)
    out, wanted = named(fun, 1.0)(1.0), fun(1.0)
    for a, b in zip(out, wanted):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_names_never_get_in_each_others_way():
    def body(step):
        jax_ = step * 2

        def main(carry):
            body = carry + jax_
            return body

        x = lax.fori_loop(0, 3, lambda i, state: main(state), jax_)
        return x

    assert_equal(named(body, X)(X), body(X))


def test_a_model_of_flax_reads_as_one_module():
    linen = pytest.importorskip("flax.linen")

    class Net(linen.Module):
        @linen.compact
        def __call__(self, x):
            return linen.Dense(1)(linen.relu(linen.Dense(4)(x)))

    net = Net()
    weights = net.init(jax.random.key(0), A)
    text = source(net.apply, weights, A)
    mine = run(text, "apply")
    assert "flax" not in text
    assert_equal(jax.jit(mine)(weights, A), jax.jit(net.apply)(weights, A))
    assert_close(jax.grad(total(mine))(weights, A), jax.grad(total(net.apply))(weights, A))


def test_a_model_of_equinox_is_an_argument():
    eqx = pytest.importorskip("equinox")
    cell = eqx.nn.GRUCell(3, 3, key=jax.random.key(0))
    fun = lambda cell, xs: lax.scan(lambda c, x: (cell(x, c), c), X, xs)
    mine = named(fun, cell, A)
    assert_equal(jax.jit(mine)(cell, A), jax.jit(fun)(cell, A))


# ---------------------------------------------------------------- refusals


def test_what_has_no_source_is_refused_with_its_line():
    with pytest.raises(MalleableError, match="callback") as caught:
        source(lambda x: jax.pure_callback(np.sin, x, x), X)
    assert "test_source.py" in caught.value.where
    with pytest.raises(MalleableError, match="node of the class"):
        source(lambda x: jax.tree_util.Partial(functools.partial, x), X)


def test_the_extra_of_onnx_is_named_where_it_is_missing(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError("No module named 'jax2onnx'", name="jax2onnx")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(MalleableError, match="jax2onnx") as caught:
        export.onnx(jnp.sin, X)
    assert "malleable[onnx]" in caught.value.hint
    assert export.source is source
