"""The programs of `python -m benchmarks.onnx`, by group: what small models and solvers are made of.

`PROGRAMS` are the 52 that jax2onnx was measured with before this project wrote its exporter, 35
of which it exports by itself; they are rebuilt from their names. `MORE` came later.
"""

from collections import namedtuple

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.experimental.ode import odeint
from jax.extend.core import Primitive  # noqa: TID251  as a library's author does
from jax.interpreters import mlir  # noqa: TID251
from jax.sharding import Mesh, PartitionSpec

# impossible: what ONNX has no counterpart for; it is to be refused with the user's line
Program = namedtuple("Program", "name group fun args polymorphic impossible")
PROGRAMS: list[Program] = []
MORE: list[Program] = []


def program(name, group, *args, polymorphic=None, impossible=False, into=PROGRAMS):
    """A decorator: the function below on these arguments, under this name."""

    def keep(fun):
        into.append(Program(name, group, fun, args, polymorphic, impossible))
        return fun

    return keep


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def spd(n):
    """A positive definite matrix, well conditioned."""
    a = normal(n, n, n)
    return (a @ a.T / n + np.eye(n)).astype(np.float32)


XS, H0 = normal(0, 6, 4), np.zeros(3, np.float32)
W_XH, W_HH = 0.5 * normal(1, 4, 3), 0.5 * normal(2, 3, 3)

# ---------------------------------------------------------------- loops


def cell(h, x, w_xh, w_hh):
    h = jnp.tanh(x @ w_xh + h @ w_hh)
    return h, h


@program("scan: RNN", "loops", XS, H0, W_XH, W_HH)
def scan_rnn(xs, h, w_xh, w_hh):
    return lax.scan(lambda h, x: cell(h, x, w_xh, w_hh), h, xs)


@program("scan closing over an array", "loops", XS)
def scan_closure(xs):
    shift = jnp.arange(4.0)
    return lax.scan(lambda c, x: (c + x + shift, jnp.max(c)), jnp.zeros(4), xs)


@program("scan with several outputs", "loops", XS)
def scan_outputs(xs):
    def body(c, x):
        return (c[0] + x, c[1] * 0.5), {"sum": c[0], "even": x > 0, "half": c[1]}

    return lax.scan(body, (jnp.zeros(4), jnp.ones(())), xs)


@program("vmap of scan", "loops", normal(3, 5, 6, 4))
def vmap_scan(xs):
    return jax.vmap(lambda x: lax.scan(lambda c, y: (c + y, c * y), jnp.zeros(4), x))(xs)


@program("scan over flipped xs", "loops", XS, H0, W_XH, W_HH)
def scan_flipped(xs, h, w_xh, w_hh):
    return lax.scan(lambda h, x: cell(h, x, w_xh, w_hh), h, xs[::-1])


@program("while: Newton", "loops", np.float32(2.0))
def while_newton(a):
    return lax.while_loop(lambda x: abs(x * x - a) > 1e-4, lambda x: 0.5 * (x + a / x), a)


@program("while on a tuple", "loops", normal(4, 4))
def while_tuple(x):
    def body(state):
        i, y, total = state
        return i + 1, jnp.sin(y), total + y

    return lax.while_loop(lambda s: s[0] < 5, body, (0, x, jnp.zeros(4)))


@program("vmap of while", "loops", np.float32([1.0, 20.0, 300.0]))
def vmap_while(xs):
    return jax.vmap(lambda x: lax.while_loop(lambda y: y > 1.5, lambda y: y / 2, x))(xs)


@program("fori_loop", "loops", normal(5, 4))
def fori(x):
    return lax.fori_loop(0, 5, lambda i, y: y * 0.5 + i, x)


@program("scan of cond of scan", "loops", XS)
def scan_cond_scan(xs):
    def inner(x):
        return lax.scan(lambda c, y: (c + y, None), 0.0, x)[0]

    def body(c, x):
        c = lax.cond(c > 0, inner, lambda x: jnp.sum(x * 2) + 1, x)
        return c, c

    return lax.scan(body, 0.5, xs)


@program("scan in reverse", "loops", XS, H0, W_XH, W_HH)
def scan_reverse(xs, h, w_xh, w_hh):
    return lax.scan(lambda h, x: cell(h, x, w_xh, w_hh), h, xs, reverse=True)


@program("gradient of scan", "loops", XS, H0, W_XH, W_HH)
def scan_grad(xs, h, w_xh, w_hh):
    loss = lambda w: jnp.sum(scan_rnn(xs, h, w_xh, w)[1] ** 2)
    return jax.value_and_grad(loss)(w_hh)


@program("fori_loop closing over a traced value", "loops", normal(5, 4), normal(6, 4))
def fori_closure(x, w):
    w = jnp.sin(w)
    return lax.fori_loop(0, 5, lambda i, y: y * w + i, x)


@program("fori_loop with a traced bound", "loops", normal(5, 4), np.int32(4))
def fori_bound(x, n):
    return lax.fori_loop(0, n, lambda i, y: y * 0.5 + i, x)


# ---------------------------------------------------------------- branches


@program("cond", "branches", normal(7, 4))
def cond(x):
    return lax.cond(jnp.sum(x) > 0, jnp.sin, jnp.cos, x)


@program("cond with closures", "branches", normal(7, 4), normal(8, 4))
def cond_closure(x, w):
    shift = w * 2
    return lax.cond(jnp.sum(x) > 0, lambda: (x + shift, w), lambda: (x - w, shift))


@program("vmap of cond", "branches", normal(9, 6))
def vmap_cond(xs):
    return jax.vmap(lambda x: lax.cond(x > 0, jnp.sin, lambda y: y * 2, x))(xs)


@program("2-way switch", "branches", np.int32(1), normal(7, 4))
def switch_2(i, x):
    return lax.switch(i, [jnp.sin, jnp.cos], x)


@program("3-way switch", "branches", np.int32(2), normal(7, 4))
def switch_3(i, x):
    return lax.switch(i, [jnp.sin, jnp.cos, lambda y: y * 2], x)


# ---------------------------------------------------------------- indexing


@program("gather", "indexing", normal(10, 6, 3), np.int32([4, 0, 2]))
def gather(x, i):
    return x[i]


@program("gather along two axes", "indexing", normal(10, 6, 3), np.int32([4, 0, 2]))
def gather_nd(x, i):
    return x[i, jnp.array([2, 1, 0])]


@program("take_along_axis", "indexing", normal(10, 6, 3), np.int32([[1, 2, 0, 5]] * 3).T)
def take_along(x, i):
    return jnp.take_along_axis(x, i, axis=0)


@program("scatter: add", "indexing", normal(10, 6), np.int32([1, 1, 4]), normal(11, 3))
def scatter_add(x, i, y):
    return x.at[i].add(y)


@program("scatter: set", "indexing", normal(10, 6, 3), np.int32([1, 3]), normal(11, 2, 3))
def scatter_set(x, i, y):
    return x.at[i].set(y)


@program("dynamic_slice", "indexing", normal(10, 6, 3), np.int32(2))
def dynamic_slice(x, i):
    return lax.dynamic_slice(x, (i, 1), (3, 2))


@program("segment_max", "indexing", normal(12, 8), np.int32([0, 0, 1, 1, 2, 2, 2, 0]))
def segment_max(x, ids):
    return jax.ops.segment_max(x, ids, num_segments=3)


@program("argsort", "indexing", normal(13, 5, 4))
def argsort(x):
    return jnp.argsort(x, axis=1)


@program("sort and cumsum", "indexing", normal(13, 5, 4))
def sort_cumsum(x):
    return jnp.cumsum(jnp.sort(x, axis=0), axis=1)


@program("top_k", "indexing", normal(13, 5, 8))
def top_k(x):
    return lax.top_k(x, 3)


# ---------------------------------------------------------------- nets

LAYERS = [{"w": 0.4 * normal(20 + i, 8, 8), "b": 0.1 * normal(30 + i, 8)} for i in range(3)]
BATCH = normal(40, 5, 8)


@program("mlp", "nets", LAYERS, BATCH)
def mlp(layers, x):
    for layer in layers:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return x


IMAGES, KERNEL = normal(41, 2, 8, 8, 3), 0.3 * normal(42, 3, 3, 3, 4)


@program("convolution", "nets", IMAGES, KERNEL)
def conv(x, w):
    y = lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return jax.nn.relu(y)


@program("causal attention", "nets", *(normal(43 + i, 2, 6, 8) for i in range(3)))
def attention(q, k, v):
    logits = jnp.einsum("bqd,bkd->bqk", q, k) / np.sqrt(8)
    logits = jnp.where(jnp.tril(jnp.ones((6, 6), bool)), logits, -1e9)
    return jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(logits), v)


@program("gradient of mlp", "nets", LAYERS, BATCH)
def mlp_grad(layers, x):
    return jax.grad(lambda p: jnp.mean(mlp(p, x) ** 2))(layers)


@jax.custom_jvp
def softplus(x):
    return jnp.log1p(jnp.exp(-jnp.abs(x))) + jnp.maximum(x, 0)


softplus.defjvp(lambda xs, dots: (softplus(*xs), jax.nn.sigmoid(xs[0]) * dots[0]))


@program("custom_jvp", "nets", BATCH)
def custom_jvp(x):
    return softplus(x)


@jax.custom_vjp
def clipped(x):
    return jnp.clip(x, -1, 1) * 2


clipped.defvjp(lambda x: (clipped(x), None), lambda _, ct: (ct,))


@program("custom_vjp", "nets", BATCH)
def custom_vjp(x):
    return clipped(x)


@program("nested jit", "nets", BATCH)
def nested_jit(x):
    return jax.jit(lambda y: jax.jit(jnp.sin)(y) + 1)(x)


@program("remat", "nets", LAYERS, BATCH)
def remat(layers, x):
    return jax.grad(lambda p: jnp.sum(jax.checkpoint(mlp)(p, x)))(layers)


@program("where and log", "nets", BATCH)
def where_log(x):
    return jnp.where(x > 0, jnp.log(jnp.where(x > 0, x, 1.0)), 0.0)


@program("matmul in bfloat16", "nets", BATCH, LAYERS[0]["w"])
def bf16(x, w):
    return (x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)).astype(jnp.float32)


# ---------------------------------------------------------------- maths


@program("cholesky", "maths", spd(8))
def cholesky(a):
    return jnp.linalg.cholesky(a)


@program("ndtri", "maths", np.float32([0.01, 0.2, 0.5, 0.7, 0.999]))
def ndtri(p):
    return jax.scipy.special.ndtri(p)


@program("linalg.solve", "maths", spd(6), normal(50, 6))
def solve(a, b):
    return jnp.linalg.solve(a, b)


@program("rfft", "maths", normal(51, 3, 8))
def rfft(x):
    y = jnp.fft.rfft(x)
    return y.real, y.imag


@program("irfft", "maths", normal(51, 3, 5), normal(52, 3, 5))
def irfft(re, im):
    return jnp.fft.irfft(lax.complex(re, im))


@program("associative_scan", "maths", normal(53, 7, 3))
def associative_scan(x):
    return lax.associative_scan(lambda a, b: a * 0.5 + b, x)


@program("shift of an int32", "maths", np.int32([1, -5, 7]), np.int32([3, 2, 0]))
def shift(x, n):
    return (x << n) >> 1


@program("odeint", "maths", np.float32([1.0, 0.0]))
def ode(y):
    return odeint(lambda y, t: jnp.stack([y[1], -y[0]]), y, jnp.linspace(0.0, 2.0, 4))


# ---------------------------------------------------------------- other


@program("random numbers in the program", "other", BATCH)
def random_inside(x):
    return x + jax.random.normal(jax.random.key(0), x.shape)


@program("random numbers from a key", "other", jax.random.PRNGKey(3), BATCH)
def random_key(key, x):
    a, b = jax.random.split(key)
    return x * jax.random.bernoulli(a, 0.5, x.shape) + jax.random.uniform(b, x.shape)


my_tag = Primitive("my_tag")
my_tag.def_impl(lambda x, name: jnp.asarray(x) * 1)
my_tag.def_abstract_eval(lambda x, name: x)
mlir.register_lowering(my_tag, mlir.lower_fun(lambda x, name: x * 1, multiple_results=False))


@program("primitive of a library", "other", BATCH)
def custom_primitive(x):
    return my_tag.bind(jnp.sin(x), name="y") + 1


@program("pure_callback", "other", BATCH, impossible=True)
def callback(x):
    return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


@program("shard_map with psum", "other", BATCH)
def sharded(x):
    mesh = Mesh(np.array(jax.devices()[:1]), ("i",))
    spec = PartitionSpec("i")
    body = lambda y: lax.psum(jnp.sum(y, 0), "i")
    return jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=PartitionSpec())(x)


# ---------------------------------------------------------------- sizes that are symbols


@program("symbolic batch", "sizes", LAYERS, BATCH, polymorphic=(None, "b, _"), into=MORE)
def symbolic_batch(layers, x):
    return mlp(layers, x)


@program("scan of symbolic length", "sizes", XS, H0, polymorphic=("n, _", None), into=MORE)
def symbolic_scan(xs, h):
    return lax.scan(lambda h, x: cell(h, x, jnp.asarray(W_XH), jnp.asarray(W_HH)), h, xs)


# ---------------------------------------------------------------- more


@program("gradient of a net with pooling", "more", KERNEL, IMAGES, into=MORE)
def pooled_grad(w, x):
    window = (1, 2, 2, 1)
    pool = lambda y: lax.reduce_window(y, -jnp.inf, lax.max, window, window, "VALID")
    return jax.grad(lambda w: jnp.sum(pool(conv(x, w)) ** 2))(w)


@program("gradient of gelu layers", "more", LAYERS, BATCH, into=MORE)
def gelu_grad(layers, x):
    net = lambda p: sum(jnp.sum(jax.nn.gelu(x @ q["w"] + q["b"])) for q in p)
    return jax.grad(net)(layers)


@program(
    "convolution in 3 dimensions",
    "more",
    normal(60, 1, 2, 4, 4, 4),
    normal(61, 3, 2, 2, 2, 2),
    into=MORE,
)
def conv3(x, w):
    return lax.conv(x, w, (1, 1, 1), "SAME")


@program("vmap of a 3-way switch", "more", np.int32([0, 2, 1, 2]), normal(62, 4), into=MORE)
def vmap_switch(i, x):
    return jax.vmap(lambda i, x: lax.switch(i, [jnp.sin, jnp.cos, jnp.square], x))(i, x)


@program("convolution by fft", "more", normal(63, 3, 200), normal(64, 200), into=MORE)
def fft_conv(x, k):
    return jnp.fft.irfft(jnp.fft.rfft(x) * jnp.fft.rfft(k), 200)


@program("scan of complex numbers", "more", normal(65, 6, 4), into=MORE)
def complex_scan(x):
    z, zs = lax.scan(lambda z, y: (z * jnp.exp(1j * y), z), jnp.ones(4, jnp.complex64), x)
    return z.real, jnp.abs(zs), jnp.angle(zs)


@program("random walk, a key per step", "more", jax.random.PRNGKey(0), into=MORE)
def walk(key):
    step = lambda x, k: (x + jax.random.normal(k), x)
    return lax.scan(step, 0.0, jax.random.split(jax.random.wrap_key_data(key), 5))


@program("gamma variates", "more", jax.random.PRNGKey(1), into=MORE)
def gamma(key):
    return jax.random.gamma(key, 2.5, (3,))


@program("logdet and its gradient", "more", spd(6), into=MORE)
def logdet(a):
    return jax.value_and_grad(lambda a: jnp.linalg.slogdet(a)[1])(a)


@program("matrix exponential", "more", 0.3 * normal(66, 4, 4), into=MORE)
def expm(a):
    return jax.scipy.linalg.expm(a)


@program("int8 sums that wrap", "more", np.int8([100, 50, -3, 120]), into=MORE)
def wrapping(x):
    return jnp.cumsum(x, dtype=jnp.int8), x * x, x // np.int8(7)


@program("conjugate gradients", "more", spd(6), normal(67, 6), into=MORE)
def conjugate(a, b):
    return jax.scipy.sparse.linalg.cg(lambda x: a @ x, b)[0]


@program("indices outside", "more", normal(68, 4, 3), np.int32([-9, -1, 2, 7]), into=MORE)
def outside(x, i):
    return x.at[i].get(mode="clip"), x.at[i].get(mode="fill", fill_value=0), x.at[i].add(1.0)


@program("eigenvalues", "more", spd(5), impossible=True, into=MORE)
def eigenvalues(a):
    return jnp.linalg.eigvalsh(a)
