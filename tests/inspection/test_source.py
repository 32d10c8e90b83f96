"""`export.source`: the text runs, and computes what the function computes."""

import collections
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from malleable import compat
from malleable.errors import MalleableError
from malleable.inspection import export
from tests.generators.arrays.programs import array_args, random_array_program
from tests.generators.programs.programs import example_args, random_program
from tests.inspection.written import CASES, SMOOTH

pytestmark = pytest.mark.caches

X = jnp.array([0.3, -0.7, 1.5])
A = jnp.array([[4.0, 1.0, 0.0], [1.0, 3.0, -1.0], [0.5, 0.0, 2.0]])


def run(text: str, name: str):
    module: dict[str, Any] = {}
    exec(compile(text, "<source>", "exec"), module)
    return module[name]


def written(fun, *args, **kwargs):
    """The function that the source of `fun` defines."""
    name = getattr(fun, "__name__", "main")
    name = name if name.isidentifier() else "main"
    return run(export.source(fun, *args, **kwargs), name)


def bits(x):
    x = jax.random.key_data(x) if jnp.issubdtype(jnp.asarray(x).dtype, jax.dtypes.prng_key) else x
    return np.asarray(x)


def types(tree):
    return [str(a) for a in jax.tree.leaves(tree)]


def assert_same(left, right, exact=True):
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right)):
        a, b = bits(a), bits(b)
        assert a.dtype == b.dtype and a.shape == b.shape
        if exact:
            np.testing.assert_array_equal(a, b)
        else:
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


def total(fun):
    def scalar(*args):
        floats = [
            x
            for x in map(jnp.asarray, jax.tree.leaves(fun(*args)))
            if jnp.issubdtype(x.dtype, jnp.floating)
        ]
        return sum((jnp.sum(x.astype(float)) for x in floats), jnp.zeros(()))

    return scalar


def floats(args):
    return tuple(
        i
        for i, a in enumerate(args)
        if all(jnp.issubdtype(jnp.result_type(x), jnp.floating) for x in jax.tree.leaves(a))
    )


def everything(fun, grad, vmap, *args):
    """(value, [gradients, values of a batch])."""
    more = []
    if grad and floats(args):
        more.append(jax.grad(total(fun), floats(args))(*args))
    if vmap:
        more.append(jax.vmap(fun)(*jax.tree.map(lambda x: jnp.stack([x, x]), args)))
    return fun(*args), more


def check(fun, *args, grad=True, vmap=True, exact=True):
    """The source computes the same: types, values under jit, gradients, batches."""
    again = written(fun, *args)
    left, right = (jax.eval_shape(f, *args) for f in (again, fun))
    one, two = (compat.trace(f, *args) for f in (again, fun))
    assert types(left) == types(right)
    assert one.out_avals == two.out_avals, "weak types"
    (found, more), (wanted, others) = (
        jax.jit(everything, static_argnums=(0, 1, 2))(f, grad, vmap, *args) for f in (again, fun)
    )
    assert_same(found, wanted, exact)
    assert_same(more, others, False)
    return again


# ---------------------------------------------------------------- programs by hand


def arithmetic(x, y):
    z = x * y + 1.0 - x / (2.0 + y**2)
    return -z, x**3, x % 0.4, abs(x) ** 1.5, 2.0 - x, x @ y, (x > y) & (x != 0), ~(x <= y)


def elementwise(x):
    f = [jnp.sin, jnp.exp, jnp.tanh, jnp.expm1, jax.nn.sigmoid, jnp.arctan, jax.lax.erf, jnp.sign]
    g = [jnp.floor, jnp.round, jnp.cbrt, jnp.isfinite, jax.nn.gelu, jax.nn.relu, jnp.square]
    return (
        [h(x) for h in f + g],
        jnp.arctan2(x, x + 3.0),
        jnp.clip(x, -0.5, 0.5),
        jnp.logaddexp(x, 1),
    )


def shapes(x):
    y = x[None, :, None] + jnp.ones((2, 3, 4))
    z = y.transpose(2, 0, 1).reshape(8, 3)[1:7:2, :2]
    parts = jnp.concatenate([z, z * 2]), jnp.stack([z, z]), jnp.split(y, 2, axis=2), y.squeeze()
    return (
        parts,
        jnp.pad(x, 2),
        x[::-1],
        jnp.tile(x, 3),
        jnp.arange(4.0),
        jnp.full((2,), 3),
        jnp.eye(3),
    )


def indexing(x, i):
    return x[i], x[-1], x[1:], x.at[i].set(0.0), x.at[i].add(2.0), x.at[i].max(x[0]), x.at[i].mul(2)


def slicing(x, i):
    y = lax.dynamic_slice(x, (i - 9,), (2,))  # clamped, never counted from the end
    z = lax.dynamic_update_slice(x, y, (i + 9,))
    return y, z, lax.dynamic_index_in_dim(x, i, 0), jnp.take(x, jnp.array([0, 2]))


def reductions(a):
    sums = a.sum(), a.mean(0), a.max(1), a.min(), a.prod(), jnp.any(a > 0), jnp.all(a > 0, axis=1)
    order = jnp.sort(a), jnp.argsort(a[0]), jnp.argmax(a, 1), lax.top_k(a, 2), jnp.median(a)
    more = jnp.cumsum(a, 1), jnp.cumprod(a), lax.cummax(a), jax.nn.softmax(a), jnp.linalg.norm(a)
    return sums, order, more, lax.reduce(a, 1.0, lambda x, y: x * y, (0,))


def products(a, x):
    image = jnp.arange(32.0).reshape(1, 2, 4, 4)
    kernel = jnp.ones((3, 2, 2, 2)) * x[0]
    convolved = lax.conv_general_dilated(image, kernel, (1, 1), "SAME")
    pooled = lax.reduce_window(image * x[0], -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    return a @ a, a @ x, x @ a, x @ x, jnp.einsum("ij,kj->ik", a, a), convolved, pooled


def solving(a, x):
    return jnp.linalg.solve(a, x), jnp.linalg.cholesky(a @ a.T + jnp.eye(3)), jnp.linalg.inv(a)


def scanned(h, c, xs):
    w = jnp.tanh(h)

    def step(carry, x):
        h, c = carry
        new = jnp.tanh(h * w + x)
        return (new, c + 1), (new.sum(), new)

    return lax.scan(step, (h, c), xs, reverse=True), lax.scan(
        lambda c, _: (c * 2, None), h, length=3
    )


def looped(x, n):
    def body(state):
        i, y = state
        return i + 1, jnp.where(y > x, y * 0.5, y + x)

    return lax.while_loop(lambda s: s[0] < n, body, (0, x)), lax.fori_loop(
        0, n, lambda i, y: y * i, x
    )


def branching(x, i):
    once = lax.cond(x[0] > 0, lambda x: (x * 2, i), lambda x: (jnp.sin(x), i + 1), x)
    return once, lax.switch(i, [jnp.sin, jnp.cos, lambda x: x * x.sum()], x)


def nested(x, i):
    @jax.jit
    def inner(y):
        return lax.cond(i > 0, lambda y: lax.scan(lambda c, t: (c + t, c * t), y, A)[0], jnp.cos, y)

    kept = jax.checkpoint(
        lambda y: jnp.sin(jnp.sin(y)), policy=jax.checkpoint_policies.dots_saveable
    )
    return jax.vmap(inner)(jnp.stack([x, x * 2])), kept(x), inner(x) + inner(x * 3)


@jax.custom_jvp
def cubed(x, n):
    return x**3 + n


@cubed.defjvp
def _cubed_jvp(primals, tangents):
    (x, n), (dx, _) = primals, tangents
    return cubed(x, n), 7.0 * x * dx


@jax.custom_vjp
def clipped(x, y):
    return x * y, y


clipped.defvjp(
    lambda x, y: ((x * y, y), (x, y)),
    lambda res, ct: (jnp.clip(ct[0] * res[1], -0.1, 0.1), ct[1] * 5.0),
)


def derivatives(x, n):
    return cubed(x, n).sum() + cubed(x * 2, n).sum(), clipped(x, jnp.cos(x)), jax.nn.silu(x)


def drawn(key, x):
    one, two = jax.random.split(key)
    noise = jax.random.normal(one, x.shape) * jax.random.uniform(two) + x
    return noise, jax.random.randint(two, (3,), 0, 9), jax.random.permutation(one, 5), one


def seeded(n):
    return jax.random.bernoulli(jax.random.key(n), 0.5, (4,)), jax.random.PRNGKey(n)


def small_floats(x):
    y = x.astype(jnp.bfloat16) * 0.1 + 1e-3
    return y, y.sum(), jnp.exp(y), x.astype(jnp.float16) / 3, y.astype(jnp.float32) @ x, y > 0.1


def booleans(p, q):
    return p & q, p | ~q, p ^ q, jnp.where(p, 1, 0), p.sum(), p.astype(jnp.float32), p == q


def complexes(z):
    return z * (1 + 2j), jnp.conj(z), z.real, jnp.abs(z), jnp.exp(1j * z), jnp.fft.fft(z), z == z


def integers(i):
    j = i.astype(jnp.uint8)
    return (
        i // 2,
        i % 3,
        i << 1,
        i & 5,
        -i,
        j * 200,
        j >> 1,
        i.astype(jnp.int8),
        lax.div(i, 2),
        i**2,
    )


BIG = np.random.default_rng(0).normal(size=(7, 9)).astype(np.float32)
ODD = np.array([np.nan, -0.0, np.inf, 1e-45, 0.1], np.float32)
ROWS: dict[str, Any] = {
    "f4": jnp.array([1.5, -0.0]), "big": BIG, "odd": ODD, "half": jnp.arange(3, dtype=jnp.bfloat16),
    "bool": np.array([[True], [False]]), "z": np.array([complex(-0.0, np.nan), -1j], np.complex64),
    "none": np.zeros((0, 3), np.float32), "byte": np.arange(40, dtype=np.uint8),
}  # fmt: skip


def constant(x):
    return {k: jnp.asarray(v) for k, v in ROWS.items()}, x @ BIG[0, :3], x + ODD[1], x * jnp.nan


def weakly(x, n):
    return x + n, n, n * 2, jnp.sin(n), lax.scan(lambda c, _: (c * 1.5, c), n, None, length=2), 3.0


INDICES = jnp.array([2, 0, -1])
PROGRAMS: dict[str, tuple] = {
    f.__name__: (f, args)
    for f, *args in (
        (arithmetic, X, X + 1), (elementwise, X), (shapes, X), (indexing, X, INDICES),
        (slicing, X, jnp.int32(1)), (reductions, A), (products, A, X), (solving, A, X),
        (scanned, X, jnp.int32(0), A), (branching, X, jnp.int32(2)), (nested, X, jnp.int32(1)),
        (derivatives, X, jnp.int32(2)), (small_floats, X), (constant, X), (weakly, X, 2.0),
    )
}  # fmt: skip
FLAT: dict[str, tuple] = {
    f.__name__: (f, args)
    for f, *args in (
        (looped, X, jnp.int32(3)), (drawn, jax.random.key(1), X), (seeded, jnp.int32(7)),
        (booleans, X > 0, INDICES > 0), (complexes, X + 1j), (integers, jnp.array([-7, 3, 250])),
    )
}  # fmt: skip


@pytest.mark.in_turns
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_and_its_gradient(name):
    fun, args = PROGRAMS[name]
    check(fun, *args, vmap=name not in ("reductions", "solving", "products"))


@pytest.mark.in_turns
@pytest.mark.parametrize("name", FLAT)
def test_a_program_without_gradient(name):
    fun, args = FLAT[name]
    check(fun, *args, grad=False, vmap=name not in ("looped",))


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_program_that_files_hold(name):
    fun, args = CASES[name]
    check(fun, *args, grad=name in SMOOTH, vmap=False)


@pytest.mark.parametrize("name", ["scanned", "derivatives", "products", "nested"])
def test_a_gradient_as_source(name):
    fun, args = PROGRAMS[name]
    check(jax.grad(total(fun), floats(args)), *args, grad=False, vmap=False, exact=False)


def test_second_derivatives():
    def fun(x):
        return jnp.sum(cubed(x, 1)) + jnp.sum(jax.nn.silu(x)) + jnp.sum(jnp.sin(x) ** 3)

    again = written(fun, X)
    assert_same(jax.hessian(again)(X), jax.hessian(fun)(X), False)


def test_doubles():
    def fun(x, n):
        y = x * 0.1 + n + jnp.float32(0.1)
        return y, n.sum(), jnp.max(x.astype(jnp.float32), initial=0.0), jnp.argmax(x), 2.5

    with jax.enable_x64(True):
        check(fun, jnp.arange(3.0), jnp.arange(3))
        check(
            lambda x: lax.scan(lambda c, t: (c * 2.0 + t, c), 1.0, x),
            jnp.arange(3, dtype="float32"),
        )
        text = export.source(fun, jnp.arange(3.0), jnp.arange(3))
    with pytest.raises(RuntimeError, match="jax_enable_x64"):
        run(text, "fun")


@pytest.mark.parametrize("seed", range(6))
def test_random_programs(seed):
    program = random_program(seed, tags=False, differentiable=seed % 2 == 0)
    args = example_args(seed)
    check(lambda *a: program(*a), *args, grad=seed % 2 == 0, vmap=False, exact=False)


@pytest.mark.parametrize("seed", range(4))
def test_random_array_programs(seed):
    program = random_array_program(seed)
    args = array_args(program, seed)
    grad = program.differentiable and seed % 2 == 0
    check(lambda *a: program(*a), *args, grad=grad, vmap=False, exact=False)


# ---------------------------------------------------------------- arguments and results

Point = collections.namedtuple("Point", "x y")


class State(NamedTuple):
    h: Any
    rest: Any


def test_plain_containers_keep_their_form():
    def fun(params, *xs, scale, point):
        w, b = params["w"], params["layers"][1][0]
        return {"b": [w * scale, (b,)], "c": None, "p": State(point.x + xs[1], {}), "name": "net"}

    params = {"w": X, "layers": [(), (X * 2, None)]}
    kwargs = {"scale": 2.0, "point": Point(X, X)}
    again = written(fun, params, 1.0, X, **kwargs)
    found, wanted = (f(params, 1.0, X, **kwargs) for f in (again, fun))
    assert found["name"] == "net" and found["c"] is None and found["p"]._fields == ("h", "rest")
    assert_same(jax.tree.leaves(found)[:-2], jax.tree.leaves(wanted)[:-2])
    assert_same(list(found["p"]), list(wanted["p"]))


def test_names_that_meet():
    def fun(a, a_b, **more):
        carry, state = a["b"] * 2.0, a_b + 1.0
        primitives = jnp.sin(carry)
        step = lambda c, x: ((c[0] * carry, c[1] + x), primitives * state)
        return lax.scan(step, (carry, state), a["xs"]), more["lax_"] * primitives

    a = {"b": X, "xs": A}
    assert_same(written(fun, a, X, lax_=X)(a, X, lax_=X), fun(a, X, lax_=X), False)


def test_rules_whose_arguments_are_called_like_ours():
    @jax.custom_jvp
    def fun(tangents, primals):
        return tangents * primals

    @fun.defjvp
    def _rule(primals, tangents):
        (a, b), (da, db) = primals, tangents
        return a * b, 3 * a * db + 5 * b * da

    @jax.custom_vjp
    def back(res, cotangents):
        return res * cotangents

    back.defvjp(lambda x, y: (x * y, (x, y)), lambda res, ct: (ct * res[1] * 2, ct * res[0] * 3))

    def both(tangents, primals):
        return fun(tangents, primals), back(tangents, primals)

    check(both, X, X + 1)


def test_nothing_in_or_out():
    assert written(lambda: {"a": jnp.ones(2), "b": ()})()["b"] == ()
    assert written(lambda x: (), X)(X) == ()
    assert_same(written(lambda x: x, X)(X), X)
    assert_same(written(lambda x: (x, x, 1), X)(X), (X, X, jnp.int32(1)))


def test_arguments_of_other_types_are_refused():
    again = written(lambda x: x.mean(), X)
    for other in (jnp.ones(4), jnp.arange(3), jnp.ones((1, 3))):
        with pytest.raises(TypeError, match=r"float32\[3\]"):
            again(other)
    assert again([0.0, 0.0, 3.0]) == 1.0 and again(np.ones(3)) == 1.0


def test_what_is_no_array_was_decided():
    def fun(x, how):
        return jnp.sin(x) if how == "sin" else x

    again = written(fun, X, "sin")
    assert_same(again(X, "sin"), fun(X, "sin"))
    with pytest.raises(TypeError, match="sin"):
        again(X, "cos")


# ---------------------------------------------------------------- models


def test_an_equinox_model_and_its_gradient():
    eqx = pytest.importorskip("equinox")
    model = eqx.nn.MLP(3, 2, 4, 1, key=jax.random.key(0))

    def loss(model, x):
        return jnp.sum(jax.vmap(model)(x) ** 2)

    again = written(loss, model, A)
    assert_same(eqx.filter_jit(again)(model, A), eqx.filter_jit(loss)(model, A))
    slope = eqx.filter_grad(loss)
    assert_same(eqx.filter_grad(again)(model, A), slope(model, A), False)
    flat = written(lambda model, x: slope(model, x), model, A)(model, A)
    arrays = [x for x in jax.tree.leaves(slope(model, A)) if eqx.is_array(x)]
    assert_same(list(flat), arrays, False)


def test_a_flax_model_and_its_gradient():
    nn = pytest.importorskip("flax.linen")

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.LayerNorm()(nn.relu(nn.Dense(5)(x)))
            return nn.Dense(2)(x)

    net = Net()
    params = net.init(jax.random.key(0), A)
    again = check(lambda p, x: net.apply(p, x), params, A, vmap=False)
    assert again(params, A).shape == (3, 2)
    check(
        jax.grad(lambda p, x: net.apply(p, x).sum()), params, A, grad=False, vmap=False, exact=False
    )


# ---------------------------------------------------------------- what is said and refused


def test_it_reads_like_what_was_written():
    def wave(x):
        y = jnp.sin(x) * 2.0
        return {"y": y + x}

    text = export.source(wave, X)
    assert "# y = jnp.sin(x) * 2.0" in text and "y = a * 2.0" in text
    assert "malleable" not in text.replace("malleable.", "")
    for needless in ("base64", "partial", "lax", "compat"):
        assert needless not in text


def test_loops_and_rules_are_written_as_such():
    text = export.source(scanned, X, jnp.int32(0), A)
    assert "= lax.scan(partial(step, a=w), (h, c), xs, reverse=True)" in text
    text = export.source(derivatives, X, jnp.int32(1))
    assert "@jax.custom_jvp\ndef cubed(x, n):" in text and "@cubed.defjvp" in text
    assert "clipped.defvjp(clipped_forward, clipped_backward)" in text
    assert text.count("def cubed(") == 1


@pytest.mark.parametrize("call", ["pure", "debug", "ref"])
def test_what_has_no_source_names_the_line(call):
    def fun(x):
        if call == "pure":
            return jax.pure_callback(np.sin, x, x)
        if call == "debug":
            jax.debug.print("{}", x)
            return x
        ref = jax.new_ref(x)
        ref[...] = x
        return ref[...]

    with pytest.raises(MalleableError, match=r"source") as caught:
        export.source(fun, X)
    assert "test_source.py" in str(caught.value) and "transformable" not in caught.value.what


def test_a_rule_that_cannot_be_traced_says_so():
    @jax.custom_jvp
    def hard(x):
        return jnp.sin(x)

    @hard.defjvp
    def _rule(primals, tangents):
        raise ValueError("no slope here")

    def fun(x):
        return hard(x) + hard(lax.stop_gradient(x))

    again = written(fun, X)
    assert_same(jax.jit(again)(X), jax.jit(fun)(X))
    with pytest.raises(NotImplementedError, match="no slope here"):
        jax.grad(lambda x: again(x).sum())(X)
    quiet = written(lambda x: (hard(lax.stop_gradient(x)) * x).sum(), X)
    assert_same(jax.grad(quiet)(X), jnp.sin(X), False)


def test_mapped_over_devices():
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("i")

    def fun(x):
        body = lambda x: (lax.psum(x * 2.0, "i"), x + lax.axis_index("i"))
        none = jax.sharding.PartitionSpec(None)
        return jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=(none, spec))(x)

    check(fun, X, vmap=False)


def test_onnx_is_the_function_of_the_integration(monkeypatch):
    integration = export.importlib.import_module("malleable.integrations.onnx")
    monkeypatch.setattr(integration, "export_onnx", lambda *a, **k: (a, k))
    assert export.onnx(abs, 1.0, verify=False) == ((abs, 1.0), {"verify": False})


def test_onnx_names_the_extra(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError("No module named 'onnx'", name="onnx")

    monkeypatch.setattr(export.importlib, "import_module", missing)
    with pytest.raises(MalleableError, match="onnx") as caught:
        export.onnx(abs, 1.0)
    assert "malleable[onnx]" in caught.value.hint


def scaled(x, n, how, m=(1, 2)):
    return (x * n if how == "times" else x + n) * sum(m)


@pytest.mark.parametrize(
    "static", [{"static_argnums": (1, 2, 3)}, {"static_argnames": ("n", "how", "m")}]
)
def test_static_arguments_are_part_of_the_program(static):
    fun = jax.jit(scaled, **static)
    for args, kwargs in [((2, "times"), {}), ((2.5,), {"how": "plus", "m": (3, 4)})]:
        again = written(fun, X, *args, **kwargs)
        assert_same(again(X + 1, *args, **kwargs), fun(X + 1, *args, **kwargs))
        with pytest.raises(TypeError, match="written for n = 2"):
            again(X, 3, *args[1:], **kwargs)
    rest = jax.jit(lambda *xs: xs[0] * xs[1] - xs[2], static_argnums=1)
    assert_same(written(rest, X, 2, X)(X + 1, 2, X), rest(X + 1, 2, X))
    text = export.source(jax.jit(lambda x, inf: x * inf, static_argnums=1), X, float("inf"))
    assert_same(run(text, "main")(X, None), X * float("inf"))
