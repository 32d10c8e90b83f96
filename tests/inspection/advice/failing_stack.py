"""Errors of programs that pass modules, labels, plates and fields between JAX and libraries."""

import diffrax
import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import numpyro
import numpyro.distributions as dist
import optax
from flax import nnx
from flax.training import train_state
from jax import numpy as jnp

from tests.inspection.advice.failing import failing


@failing(r"params", both=(r"size 3", r"size 8"), fix=(r"in_axes=\(None, 0\)$",))
def vmap_params():
    def apply(params, x):
        return jnp.tanh(params["w"] @ x + params["b"])

    params = {"w": jnp.ones((3, 4)), "b": jnp.ones(3)}
    jax.vmap(apply)(params, jnp.ones((8, 4)))  #!


@failing(r"train", fix=(r"hint: mark it static, jax\.jit\(step, static_argnames='train'\)",))
def linen_train():
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x, train):
            return nn.Dropout(0.5, deterministic=not train)(nn.Dense(4)(x))  #!

    net = Net()
    params = net.init(jax.random.key(0), jnp.ones((2, 3)), False)

    def step(params, x, train):
        return net.apply(params, x, train, rngs={"dropout": jax.random.key(1)}).sum()

    jax.jit(step)(params, jnp.ones((2, 3)), True)


@failing(
    r"mask",
    both=(r"4, 2, 6, 6", r"1, 1, 8, 8"),
    fix=(r"hint: perhaps check .* has shape \(8, 8\)",),
)
def nnx_mask():
    attention = nnx.MultiHeadAttention(2, 8, decode=False, rngs=nnx.Rngs(0))
    attention(jnp.ones((4, 6, 8)), mask=jnp.tril(jnp.ones((8, 8))))  #!


@failing(r"key", fix=(r"hint: for a key .* write jax\.random\.fold_in\(key, i\)",))
def key_noise():
    def noise(key, i):
        return jax.random.normal(key + i * 0.1, (3,))  #!

    jax.vmap(noise, in_axes=(None, 0))(jax.random.key(0), jnp.arange(4))


@failing(r"`model`", both=(r"Equinox", r"jax\.grad"), fix=(r"hint: write eqx\.filter_grad",))
def eqx_grad():
    mlp = eqx.nn.MLP(2, 1, 8, 2, key=jax.random.key(0))

    def loss(model, x, y):
        return jnp.mean((jax.vmap(model)(x) - y) ** 2)

    jax.grad(loss)(mlp, jnp.ones((4, 2)), jnp.ones((4, 1)))  #!


@failing(r"`model`", both=(r"Equinox", r"jax\.jit"), fix=(r"hint: write eqx\.filter_jit",))
def eqx_jit():
    mlp = eqx.nn.MLP(2, 1, 8, 2, key=jax.random.key(0))

    @jax.jit  #!
    def forward(model, x):
        return jax.vmap(model)(x)

    forward(mlp, jnp.ones((4, 2)))


@failing(r"accuracy", both=(r"int32", r"gradient is 0"), fix=(r"perhaps return a loss that",))
def argmax_loss():
    def accuracy(w, x, y):
        return jnp.sum(jnp.argmax(x @ w, axis=-1) == y)  #!

    jax.grad(accuracy)(jnp.ones((3, 4)), jnp.ones((5, 3)), jnp.zeros(5))


@failing(r"Conv2d", both=(r"\(3, ", r"\(32, 32, 3\)"), fix=(r"jnp\.moveaxis\(x, -1, 1\)",))
def eqx_channels():
    conv = eqx.nn.Conv2d(3, 8, 3, key=jax.random.key(0))
    jax.vmap(conv)(jnp.ones((4, 32, 32, 3)))  #!


@failing(r"field", both=(r"float32\[4\]", r"float32\[2\]"), fix=(r"the shape that y has",))
def diffrax_shape():
    def field(t, y, args):
        return jnp.concatenate([y, y])  #!

    term = diffrax.ODETerm(field)
    diffrax.diffeqsolve(term, diffrax.Tsit5(), 0.0, 1.0, 0.1, jnp.ones(2))


@failing(r"vector field f", both=(r"three arguments", r"takes 2"), fix=(r"f\(t, y, args\)",))
def diffrax_arguments():
    def f(t, y):  #!
        return -y

    diffrax.diffeqsolve(diffrax.ODETerm(f), diffrax.Tsit5(), 0.0, 1.0, 0.1, jnp.ones(2))


@failing(r"`a`", both=(r"size 4", r"size 3"), fix=(r"perhaps write a @ a\.T",))
def product_of_one():
    a = jnp.ones((3, 4))
    a @ a  #!


@failing(r"`mlp`", both=(r"Equinox",), fix=(r"eqx\.filter\(mlp, eqx\.is_inexact_array\)",))
def eqx_optimizer():
    mlp = eqx.nn.MLP(2, 1, 8, 2, key=jax.random.key(0))
    optax.adam(1e-3).init(mlp)  #!


@failing(r"`m`", fix=(r"m = eqx\.tree_at\(lambda m: m\.w, m, jnp\.zeros\(3\)\)",))
def eqx_attribute():
    class Module(eqx.Module):
        w: jax.Array

    m = Module(jnp.ones(3))
    m.w = jnp.zeros(3)  #!


@failing(r"'obs'", both=(r"size 5", r"float32\[7\]"), fix=(r"make the plate 'N' of size 7",))
def numpyro_plate():
    def model(x):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        with numpyro.plate("N", 5):
            numpyro.sample("obs", dist.Normal(mu, 1), obs=x)

    kernel = numpyro.infer.NUTS(model)
    mcmc = numpyro.infer.MCMC(kernel, num_warmup=2, num_samples=2, progress_bar=False)
    mcmc.run(jax.random.key(0), jnp.ones(7))  #!


@failing(r"'x'", fix=(r"numpyro\.handlers\.seed",))
def numpyro_key():
    def model():
        numpyro.sample("x", dist.Normal(0, 1))  #!

    model()


@failing(r"`up`", both=(r"a pair", r"takes the updates"), fix=(r"hint: pass up\[0\]",))
def optax_pair():
    optimizer, params = optax.adam(1e-3), {"w": jnp.ones(3)}
    up = optimizer.update({"w": jnp.ones(3)}, optimizer.init(params))
    optax.apply_updates(params, up)  #!


@failing(r"`y`", both=(r"int32\[8,1\]", r"float32\[8,10\]"), fix=(r"hint: write y\[\.\.\., 0\]",))
def optax_columns():
    logits, y = jnp.ones((8, 10)), jnp.ones((8, 1), int)
    optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()  #!


@failing(r"`y`", both=(r"float32\[8\]", r"whole"), fix=(r"hint: write y\.astype\(jnp\.int32\)",))
def optax_floats():
    logits, y = jnp.ones((8, 10)), jnp.ones(8)
    optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()  #!


@failing(r"Haiku", fix=(r"hk\.transform\(f\)",))
def haiku_transform():
    hk.Linear(3)(jnp.ones((2, 4)))  #!


@failing(r"key", fix=(r"\.apply\(params, key, \.\.\.\)",))
def haiku_key():
    net = hk.transform(lambda x: x * jax.random.uniform(hk.next_rng_key()))  #!
    net.apply(net.init(jax.random.key(0), 1.0), None, 1.0)


@failing(r"'linear/w'", both=(r"\(4, 3\)", r"\(5, 3\)"), fix=(r"\.init\(key, x\)",))
def haiku_width():
    net = hk.without_apply_rng(hk.transform(lambda x: hk.Linear(3)(x)))  #!
    params = net.init(jax.random.key(0), jnp.ones((2, 4)))
    net.apply(params, jnp.ones((2, 5)))


@failing(r"self\.h", fix=(r"self\.sow\('intermediates', 'h'",))
def linen_attribute():
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            self.h = nn.Dense(3)(x)  #!
            return self.h

    Net().init_with_output(jax.random.key(0), jnp.ones((2, 4)))


@failing(r"BatchStat", fix=(r"nnx\.jit, nnx\.grad",))
def nnx_closure():
    norm = nnx.BatchNorm(3, rngs=nnx.Rngs(0))
    jax.jit(lambda x: norm(x))(jnp.ones((2, 3)))  #!


@failing(
    r"\ba\b", fix=(r"hint: write a, b = jnp\.where\(a > b, b, a\), jnp\.where\(a > b, a, b\)",)
)
def swap():
    def ordered(a, b):
        if a > b:  #!
            a, b = b, a
        return a, b

    jax.jit(ordered)(2.0, 1.0)


@failing(r"\bx\b", fix=(r"hint: write jnp\.where\(x > 1, 1\.0, jnp\.where\(x > 0, x, 0\.0\)\)",))
def clamp():
    def clip(x):
        if x > 1:  #!
            return 1.0
        elif x > 0:
            return x
        return 0.0

    jax.jit(clip)(0.5)


@failing(
    r"\bx\b", fix=(r"hint: write jnp\.where\(jnp\.any\(x == jnp\.array\(\[1, 2, 3\]\)\), x, 0\)",)
)
def membership():
    def few(x):
        if x in [1, 2, 3]:  #!
            return x
        return 0

    jax.jit(few)(2)


@failing(r"`s`", fix=(r"hint: do not map what is the same for all: in_axes=\(0, None\)",))
def vmap_number():
    def scale(x, s):
        return x * s

    jax.vmap(scale)(jnp.ones((3, 2)), 2.0)  #!


@failing(
    r"`b`", both=(r"\(8, 3\)", r"\(8,\)"), fix=(r"hint: line up the axes: write b\[:, None\]",)
)
def rows():
    def add(x, b):
        y = x * 2
        return y + b  #!

    jax.jit(add)(jnp.ones((8, 3)), jnp.ones(8))


@failing(r"`train`", both=(r"__call__", r"\.init"), fix=(r"\.init\(key, \.\.\., train=",))
def linen_lacks_train():
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x, train):
            return nn.Dense(3)(x) if train else x

    Net().init(jax.random.key(0), jnp.ones((2, 3)))  #!


@failing(r"`out`", both=(r"float32\[4,3\]", r"net\.apply"), fix=(r"\(output, variables\)",))
def linen_output():
    net, x = nn.Dense(3), jnp.ones((4, 3))
    out, _ = net.init_with_output(jax.random.key(0), x)
    net.apply(out, x)  #!


@failing(r"`out`", both=(r"a tuple of 2",), fix=(r"hint: perhaps take an element, out\[0\]",))
def linen_pair():
    net, x = nn.BatchNorm(use_running_average=False), jnp.ones((4, 3))
    variables = net.init(jax.random.key(0), x)

    def loss(params):
        out = net.apply(variables | {"params": params}, x, mutable=["batch_stats"])
        return jnp.mean(out**2)  #!

    jax.grad(loss)(variables["params"])


@failing(r"`grads`", both=(r"a tuple of 2", r"apply_gradients"), fix=(r"pass grads\[1\]",))
def train_state_pair():
    net, x = nn.Dense(3), jnp.ones((4, 3))
    params = net.init(jax.random.key(0), x)
    made = train_state.TrainState.create
    state = made(apply_fn=net.apply, params=params, tx=optax.adam(1e-3))
    grads = jax.value_and_grad(lambda p: net.apply(p, x).sum())(params)
    state.apply_gradients(grads=grads)  #!


@failing(r"`state`", both=(r"TrainState",), fix=(r"state = state\.replace\(params=\{\}\)",))
def train_state_attribute():
    made = train_state.TrainState.create
    state = made(apply_fn=None, params={}, tx=optax.adam(1e-3))
    state.params = {}  #!


@failing(r"`out`", both=(r"the carry is expected", r"`new`"), fix=(r"`return new, out`",))
def linen_cell():
    cell, x = nn.LSTMCell(8), jnp.ones((5, 2, 4))
    carry = cell.initialize_carry(jax.random.key(0), (2, 4))
    params = cell.init(jax.random.key(0), carry, x[0])

    def body(carry, now):
        new, out = cell.apply(params, carry, now)
        return out, new  #!

    jax.lax.scan(body, carry, x)


@failing(r"Embed", both=(r"float32\[2,5\]",), fix=(r"\.astype\(jnp\.int32\)",))
def linen_tokens():
    nn.Embed(10, 4).init(jax.random.key(0), jnp.ones((2, 5)))  #!


@failing(r"Linear", fix=(r"write nnx\.Linear\(4, 8, rngs=nnx\.Rngs\(0\)\)",))
def nnx_lacks_rngs():
    nnx.Linear(4, 8)  #!


@failing(r"self\.layers", fix=(r"self\.layers = nnx\.List\(",))
def nnx_list():
    class Deep(nnx.Module):
        def __init__(self, rngs):
            self.layers = [nnx.Linear(4, 4, rngs=rngs) for _ in range(3)]  #!

    Deep(nnx.Rngs(0))


@failing(r"`x` has size 8", fix=(r"hint: perhaps do not map .*: in_axes=\(None, 0\)$",))
def nnx_vmap():
    model = nnx.Linear(4, 2, rngs=nnx.Rngs(0))
    nnx.vmap(lambda m, x: m(x))(model, jnp.ones((8, 4)))  #!


@failing(r"train", fix=(r"nnx\.jit\(step, static_argnames='train'\)",))
def nnx_train():
    @nnx.jit
    def step(model, x, train):
        return model(x) if train else x  #!

    step(nnx.Linear(3, 3, rngs=nnx.Rngs(0)), jnp.ones((2, 3)), True)


@failing(r"`updates`", both=(r"a tuple of 2", r"apply_updates"), fix=(r"pass updates\[0\]",))
def eqx_pair():
    net, opt = eqx.nn.Linear(3, 2, key=jax.random.key(0)), optax.sgd(0.1)
    grads = eqx.filter_grad(lambda m: jnp.sum(m(jnp.ones(3))))(net)
    updates = opt.update(grads, opt.init(net))
    eqx.apply_updates(net, updates)  #!


@failing(r"`drop`", fix=(r"drop\(x, key=key\)",))
def eqx_dropout():
    drop, x = eqx.nn.Dropout(0.5), jnp.ones(3)
    drop(x)  #!


@failing(r"max_steps", fix=(r"a larger max_steps=",))
def diffrax_steps():
    term = diffrax.ODETerm(lambda t, y, args: -y)
    y = jnp.ones(2)
    diffrax.diffeqsolve(term, diffrax.Euler(), 0.0, 1.0, 0.01, y, max_steps=4)  #!


@failing(r"'x'", fix=(r"a name of its own",))
def numpyro_names():
    def model():
        numpyro.sample("x", dist.Normal(0, 1))
        numpyro.sample("x", dist.Normal(0, 2))  #!

    kernel = numpyro.infer.NUTS(model)
    mcmc = numpyro.infer.MCMC(kernel, num_warmup=1, num_samples=1, progress_bar=False)
    mcmc.run(jax.random.key(0))


@failing(r"Normal", both=(r"`loc` is float32\[3\]", r"`scale` is float32\[4\]"), fix=(r"plate",))
def numpyro_parameters():
    dist.Normal(jnp.zeros(3), jnp.ones(4))  #!


@failing(r"scale", both=(r"Normal",), fix=(r"softplus",))
def numpyro_scale():
    dist.Normal(0, -1.0, validate_args=True)  #!


@failing(r"`x > 0 and x < 1`", fix=(r"hint: write \(x > 0\) & \(x < 1\)",))
def both_of_many():
    def inside(x):
        return jnp.where(x > 0 and x < 1, x, 0.0)  #!

    jnp.sum(inside(jnp.array([0.5, 2.0])))


@failing(r"`int\(\)`", fix=(r"hint: write jnp\.asarray\(jnp\.sum\(x\)\)\.astype\(jnp\.int32\)$",))
def whole_part():
    def times(x):
        return x * int(jnp.sum(x))  #!

    jax.jit(times)(jnp.ones(3) * 0.5)
