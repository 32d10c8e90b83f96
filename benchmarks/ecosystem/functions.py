"""Functions of the libraries that people use with JAX, each on arguments: `CASES[library, name]`.

A case is made when it is called, so that a library which is not installed is a ModuleNotFoundError
of its own. It returns the function and its arguments, arrays and pytrees of arrays.
"""

import importlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Case = tuple[Callable[..., Any], tuple]
CASES: dict[tuple[str, str], Callable[[], Case]] = {}  # what makes it, by library and name

KEY = jax.random.key(0)
X = jax.random.normal(KEY, (4, 8))
IMAGES = jax.random.normal(KEY, (2, 8, 8, 3))
WORDS = jax.random.randint(KEY, (2, 6), 0, 11)
TARGET = jnp.tanh(X.sum(-1, keepdims=True))


def case(name: str, package: str):
    """Register what makes a case."""

    def registered(make: Callable[[], Case]) -> Callable[[], Case]:
        CASES[package, name] = make
        return make

    return registered


def module(name: str) -> Any:
    return importlib.import_module(name)


# ---------------------------------------------------------------- flax


def of_linen(build: Callable[[Any], Any], *inputs, **options) -> Case:
    net = build(module("flax.linen"))
    variables = net.init({"params": KEY, "dropout": KEY}, *inputs, **options)
    return lambda v, *xs: net.apply(v, *xs, **options), (variables, *inputs)


@case("Dense, relu", "flax.linen")
def linen_dense():
    return of_linen(lambda nn: nn.Sequential([nn.Dense(16), nn.relu, nn.Dense(1)]), X)


@case("Conv, pooling", "flax.linen")
def linen_conv():
    def pool(nn):
        return lambda x: nn.max_pool(nn.relu(x), (2, 2), strides=(2, 2))

    return of_linen(
        lambda nn: nn.Sequential([nn.Conv(4, (3, 3)), pool(nn), nn.GroupNorm(2)]), IMAGES
    )


@case("attention, LayerNorm", "flax.linen")
def linen_attention():
    return of_linen(
        lambda nn: nn.Sequential([nn.LayerNorm(), nn.MultiHeadDotProductAttention(2)]),
        X.reshape(2, 2, 8),
    )


@case("LSTM", "flax.linen")
def linen_lstm():
    return of_linen(lambda nn: nn.RNN(nn.LSTMCell(5)), X.reshape(1, 4, 8))


@case("GRU, both ways", "flax.linen")
def linen_bidirectional():
    return of_linen(
        lambda nn: nn.Bidirectional(nn.RNN(nn.GRUCell(4)), nn.RNN(nn.GRUCell(4))), X[None]
    )


@case("BatchNorm, training", "flax.linen")
def linen_batch_norm():
    nn = module("flax.linen")
    net = nn.BatchNorm(use_running_average=False)
    variables = net.init(KEY, X)
    return lambda v, x: net.apply(v, x, mutable=["batch_stats"]), (variables, X)


@case("Dropout, Embed", "flax.linen")
def linen_dropout():
    nn = module("flax.linen")
    net = nn.Sequential([nn.Embed(11, 8), nn.Dropout(0.5, deterministic=False), nn.Dense(2)])
    variables = net.init({"params": KEY, "dropout": KEY}, WORDS)
    return lambda v, words, key: net.apply(v, words, rngs={"dropout": key}), (variables, WORDS, KEY)


@case("a step of training", "flax.linen")
def linen_training():
    nn, optax = module("flax.linen"), module("optax")
    state = module("flax.training.train_state").TrainState
    net = nn.Sequential([nn.Dense(16), nn.gelu, nn.Dense(1)])
    tx = optax.adam(1e-2)
    params = net.init(KEY, X)

    def step(params, opt, x, y):
        at = state(step=0, apply_fn=net.apply, params=params, tx=tx, opt_state=opt)
        loss, grads = jax.value_and_grad(lambda p: jnp.mean((at.apply_fn(p, x) - y) ** 2))(params)
        at = at.apply_gradients(grads=grads)
        return at.params, at.opt_state, loss

    return step, (params, tx.init(params), X, TARGET)


def of_nnx(build: Callable[[Any, Any], Any], *inputs) -> Case:
    nnx = module("flax.nnx")
    graph, state = nnx.split(build(nnx, nnx.Rngs(0)))
    return lambda s, *xs: nnx.merge(graph, s)(*xs), (state, *inputs)


@case("Linear, LayerNorm", "flax.nnx")
def nnx_linear():
    return of_nnx(
        lambda nnx, rngs: nnx.Sequential(
            nnx.Linear(8, 16, rngs=rngs), nnx.LayerNorm(16, rngs=rngs), nnx.gelu
        ),
        X,
    )


@case("Conv, BatchNorm", "flax.nnx")
def nnx_conv():
    return of_nnx(
        lambda nnx, rngs: nnx.Sequential(
            nnx.Conv(3, 4, (3, 3), rngs=rngs), nnx.BatchNorm(4, rngs=rngs), nnx.silu
        ),
        IMAGES,
    )


@case("attention", "flax.nnx")
def nnx_attention():
    return of_nnx(
        lambda nnx, rngs: nnx.MultiHeadAttention(2, 8, decode=False, rngs=rngs),
        X.reshape(1, 4, 8),
    )


@case("LSTM", "flax.nnx")
def nnx_lstm():
    return of_nnx(
        lambda nnx, rngs: nnx.RNN(nnx.LSTMCell(8, 5, rngs=rngs), rngs=rngs), X.reshape(1, 4, 8)
    )


@case("a step of training", "flax.nnx")
def nnx_training():
    nnx, optax = module("flax.nnx"), module("optax")
    graph, params = nnx.split(nnx.Linear(8, 1, rngs=nnx.Rngs(0)))
    tx = optax.adamw(1e-2)

    def step(params, opt, x, y):
        def loss(p):
            return jnp.mean((nnx.merge(graph, p)(x) - y) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        updates, opt = tx.update(grads, opt, params)
        return optax.apply_updates(params, updates), opt, value

    return step, (params, tx.init(params), X, TARGET)


# ---------------------------------------------------------------- equinox, haiku


def of_equinox(net: Any, *inputs, mapped: bool = True) -> Case:
    eqx = module("equinox")
    arrays, rest = eqx.partition(net, eqx.is_array)

    def run(arrays, *xs):
        fun = eqx.combine(arrays, rest)
        return jax.vmap(fun)(*xs) if mapped else fun(*xs)

    return run, (arrays, *inputs)


@case("MLP under vmap", "equinox")
def eqx_mlp():
    return of_equinox(module("equinox").nn.MLP(8, 1, 16, 2, key=KEY), X)


@case("Conv2d, pooling", "equinox")
def eqx_conv():
    nn = module("equinox").nn
    net = nn.Sequential([nn.Conv2d(3, 4, 3, key=KEY), nn.Lambda(jax.nn.relu), nn.MaxPool2d(2)])
    return of_equinox(net, IMAGES.transpose(0, 3, 1, 2))


@case("attention", "equinox")
def eqx_attention():
    net = module("equinox").nn.MultiheadAttention(2, 8, key=KEY)
    return of_equinox(net, X, X, X, mapped=False)


@case("GRUCell in a scan", "equinox")
def eqx_gru():
    eqx = module("equinox")
    arrays, rest = eqx.partition(eqx.nn.GRUCell(8, 5, key=KEY), eqx.is_array)

    def run(arrays, xs):
        cell = eqx.combine(arrays, rest)
        return jax.lax.scan(lambda h, x: (cell(x, h),) * 2, jnp.zeros(5), xs)

    return run, (arrays, X)


@case("filter_value_and_grad", "equinox")
def eqx_gradient():
    eqx = module("equinox")
    arrays, rest = eqx.partition(eqx.nn.MLP(8, 1, 16, 1, key=KEY), eqx.is_array)

    def run(arrays, x, y):
        @eqx.filter_value_and_grad
        def loss(net):
            return jnp.mean((jax.vmap(net)(x) - y) ** 2)

        value, grads = loss(eqx.combine(arrays, rest))
        return value, eqx.filter(grads, eqx.is_array)

    return run, (arrays, X, TARGET)


@case("a checkpointed while", "equinox")
def eqx_while():
    loop = module("equinox.internal").while_loop

    def run(x):
        return loop(
            lambda c: c[1].sum() < 100,
            lambda c: (c[0] + 1, c[1] * 1.5 + 1),
            (0, x),
            kind="checkpointed",
            max_steps=32,
        )

    return run, (jnp.abs(X[0]),)


def of_haiku(build: Callable[[Any], Callable], *inputs) -> Case:
    hk = module("haiku")
    made = hk.without_apply_rng(hk.transform(build(hk)))
    return made.apply, (made.init(jax.random.PRNGKey(0), *inputs), *inputs)


@case("MLP", "haiku")
def haiku_mlp():
    return of_haiku(lambda hk: lambda x: hk.nets.MLP([16, 1])(x), X)


@case("Conv2D, LayerNorm", "haiku")
def haiku_conv():
    return of_haiku(
        lambda hk: lambda x: hk.LayerNorm(-1, True, True)(hk.Conv2D(4, 3)(x)),
        IMAGES,
    )


@case("LSTM, unrolled", "haiku")
def haiku_lstm():
    def build(hk):
        def run(xs):
            core = hk.LSTM(5)
            return hk.dynamic_unroll(core, xs, core.initial_state(None))[0]

        return run

    return of_haiku(build, X)


# ---------------------------------------------------------------- solvers


@case("Tsit5, adaptive", "diffrax")
def diffrax_adaptive():
    dfx = module("diffrax")

    def run(y0, k):
        return dfx.diffeqsolve(
            dfx.ODETerm(lambda t, y, k: -k * y),
            dfx.Tsit5(),
            0.0,
            1.0,
            0.1,
            y0,
            args=k,
            saveat=dfx.SaveAt(ts=jnp.linspace(0, 1, 5)),
            stepsize_controller=dfx.PIDController(1e-4, 1e-4),
        ).ys

    return run, (X[0], jnp.float32(1.3))


@case("Euler, gradient", "diffrax")
def diffrax_gradient():
    dfx = module("diffrax")

    def run(y0, k):
        def loss(k):
            term = dfx.ODETerm(lambda t, y, k: -k * y)
            return dfx.diffeqsolve(term, dfx.Euler(), 0.0, 1.0, 0.1, y0, args=k).ys.sum()

        return jax.value_and_grad(loss)(k)

    return run, (X[0], jnp.float32(1.3))


@case("an SDE", "diffrax")
def diffrax_sde():
    dfx = module("diffrax")

    def run(y0, key):
        path = dfx.VirtualBrownianTree(0.0, 1.0, tol=1e-2, shape=(), key=key)
        terms = dfx.MultiTerm(
            dfx.ODETerm(lambda t, y, args: -y), dfx.ControlTerm(lambda t, y, args: 0.1, path)
        )
        return dfx.diffeqsolve(terms, dfx.Heun(), 0.0, 1.0, 0.1, y0).ys

    return run, (jnp.float32(1.0), KEY)


def of_optax(build: Callable[[Any], Any]) -> Case:
    optax = module("optax")
    tx, params = build(optax), {"w": X, "b": X[0]}

    def step(params, state):
        grads = jax.grad(lambda p: jnp.sum((p["w"] @ p["b"]) ** 2))(params)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    return step, (params, tx.init(params))


@case("AdamW, clipped, on a schedule", "optax")
def optax_adam():
    return of_optax(
        lambda o: o.chain(o.clip_by_global_norm(1.0), o.adamw(o.cosine_decay_schedule(0.1, 9)))
    )


@case("Lion, accumulated", "optax")
def optax_lion():
    return of_optax(lambda o: o.MultiSteps(o.lion(1e-3), 2).gradient_transformation())


@case("losses", "optax")
def optax_losses():
    optax = module("optax")

    def run(x, labels):
        ce = optax.softmax_cross_entropy_with_integer_labels(x, labels).mean()
        return ce + optax.huber_loss(x).mean() + optax.cosine_distance(x, x[::-1]).sum()

    return run, (X, jnp.arange(4))


@case("L-BFGS", "optax")
def optax_lbfgs():
    optax = module("optax")
    tx = optax.lbfgs(linesearch=None)

    def run(w):
        fun = lambda w: jnp.sum((X @ w - 1.0) ** 2)

        def body(c, _):
            w, state = c
            value, grad = jax.value_and_grad(fun)(w)
            updates, state = tx.update(grad, state, w, value=value, grad=grad, value_fn=fun)
            return (optax.apply_updates(w, updates * 0.1), state), value

        return jax.lax.scan(body, (w, tx.init(w)), None, length=4)[1]

    return run, (X[0],)


@case("a root by Newton", "optimistix")
def optimistix_root():
    optx = module("optimistix")

    def run(a):
        solver = optx.Newton(rtol=1e-4, atol=1e-4)
        return optx.root_find(lambda y, a: jnp.cos(y) - a * y, solver, a * 0 + 0.5, a).value

    return run, (jnp.float32(1.3),)


@case("least squares", "optimistix")
def optimistix_least_squares():
    optx = module("optimistix")

    def run(y):
        solver = optx.LevenbergMarquardt(rtol=1e-4, atol=1e-4)
        residuals = lambda y, args: jnp.tanh(X @ y) - TARGET[:, 0]
        return optx.least_squares(residuals, solver, y, max_steps=8, throw=False).value

    return run, (X[0] * 0.1,)


@case("conjugate gradients", "lineax")
def lineax_cg():
    lx = module("lineax")

    def run(a, b):
        operator = lx.MatrixLinearOperator(a, lx.positive_semidefinite_tag)
        return lx.linear_solve(operator, b, lx.CG(rtol=1e-4, atol=1e-4)).value

    return run, (X @ X.T + 4 * jnp.eye(4), X[:, 0])


# ---------------------------------------------------------------- probabilities


def log_normal(x):
    return -0.5 * jnp.sum((x - 1.0) ** 2)


@case("NUTS, a step", "blackjax")
def blackjax_nuts():
    nuts = module("blackjax").nuts(log_normal, 0.5, jnp.ones(3))
    return lambda key, state: nuts.step(key, state)[0].position, (KEY, nuts.init(jnp.zeros(3)))


@case("HMC in a scan", "blackjax")
def blackjax_hmc():
    hmc = module("blackjax").hmc(log_normal, 0.2, jnp.ones(3), 4)

    def run(key, state):
        body = lambda s, k: (hmc.step(k, s)[0], s.position)
        return jax.lax.scan(body, state, jax.random.split(key, 5))[1]

    return run, (KEY, hmc.init(jnp.zeros(3)))


def regression(x, y=None):
    numpyro, dist = module("numpyro"), module("numpyro.distributions")
    w = numpyro.sample("w", dist.Normal(jnp.zeros(8), 1.0).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, sigma), obs=y)


@case("log density", "numpyro")
def numpyro_density():
    log_density = module("numpyro.infer.util").log_density

    def run(w, sigma, x, y):
        return log_density(regression, (x,), {"y": y}, {"w": w, "sigma": sigma})[0]

    return run, (X[0], jnp.float32(0.7), X, TARGET[:, 0])


@case("draws from a model", "numpyro")
def numpyro_draws():
    handlers = module("numpyro.handlers")

    def run(key, x):
        with handlers.seed(rng_seed=key), handlers.trace() as sites:
            regression(x)
        return {name: site["value"] for name, site in sites.items() if site["type"] == "sample"}

    return run, (KEY, X)


@case("potential energy, gradient", "numpyro")
def numpyro_potential():
    util = module("numpyro.infer.util")

    def run(unconstrained, x, y):
        energy = lambda u: util.potential_energy(regression, (x,), {"y": y}, u)
        return jax.value_and_grad(energy)(unconstrained)

    return run, ({"w": X[0], "sigma": jnp.float32(0.1)}, X, TARGET[:, 0])


@case("ELBO, a step of SVI", "numpyro")
def numpyro_svi():
    numpyro = module("numpyro")
    guide = module("numpyro.infer.autoguide").AutoNormal(regression)
    infer = module("numpyro.infer")
    svi = infer.SVI(regression, guide, numpyro.optim.Adam(0.01), infer.Trace_ELBO())
    state = svi.init(KEY, X, TARGET[:, 0])
    return lambda s, x, y: svi.update(s, x, y)[1], (state, X, TARGET[:, 0])


@case("log_prob of a mixture", "distrax")
def distrax_mixture():
    d = module("distrax")

    def run(x, logits):
        parts = d.Normal(jnp.linspace(-1, 1, 3), jnp.ones(3))
        return d.MixtureSameFamily(d.Categorical(logits=logits), parts).log_prob(x)

    return run, (X[0], X[1, :3])


@case("filter of a Gaussian HMM", "dynamax")
def dynamax_filter():
    hmm = module("dynamax.hidden_markov_model").GaussianHMM(3, 8)
    params, _ = hmm.initialize(jax.random.PRNGKey(0))
    return lambda p, x: hmm.marginal_log_prob(p, x), (params, X)


# ---------------------------------------------------------------- physics, graphs, games


@case("Lennard-Jones, forces", "jax_md")
def jax_md_forces():
    space, energy = module("jax_md.space"), module("jax_md.energy")
    displacement, _ = space.periodic(4.0)
    total = energy.lennard_jones_pair(displacement)
    return lambda r: (total(r), jax.grad(total)(r)), (jnp.abs(X[:, :2]) * 2,)


@case("NVE in a loop", "jax_md")
def jax_md_nve():
    space, energy = module("jax_md.space"), module("jax_md.energy")
    displacement, shift = space.free()
    init, step = module("jax_md.simulate").nve(energy.soft_sphere_pair(displacement), shift, 1e-2)
    state = init(KEY, X[:, :2], kT=0.1)
    return lambda s: jax.lax.fori_loop(0, 5, lambda _, s: step(s), s).position, (state,)


@case("a step of an environment", "brax")
def brax_step():
    env = module("brax.envs").get_environment("inverted_pendulum", backend="spring")
    state = jax.jit(env.reset)(jax.random.PRNGKey(0))
    return lambda s, a: env.step(s, a).obs, (state, jnp.ones(env.action_size) * 0.1)


@case("a graph network", "jraph")
def jraph_net():
    jraph = module("jraph")
    graph = jraph.GraphsTuple(
        nodes=X,
        edges=X[:3],
        senders=jnp.array([0, 1, 2]),
        receivers=jnp.array([1, 2, 3]),
        n_node=jnp.array([4]),
        n_edge=jnp.array([3]),
        globals=jnp.ones((1, 2)),
    )

    def run(graph, w):
        net = jraph.GraphNetwork(
            update_edge_fn=lambda e, s, r, g: jnp.tanh(e + s - r),
            update_node_fn=lambda n, s, r, g: jax.nn.relu((n + s) @ w),
        )
        return net(graph).nodes

    return run, (graph, jnp.eye(8))


@case("Monte Carlo tree search", "mctx")
def mctx_search():
    mctx = module("mctx")

    def recurrent(params, key, action, embedding):
        value = jnp.tanh(embedding.sum(-1))
        out = mctx.RecurrentFnOutput(
            reward=value * 0.1, discount=value * 0 + 0.9, prior_logits=embedding, value=value
        )
        return out, embedding + action[:, None] * params

    def run(params, key, x):
        root = mctx.RootFnOutput(prior_logits=x, value=x.sum(-1), embedding=x)
        return mctx.muzero_policy(params, key, root, recurrent, num_simulations=4).action_weights

    return run, (jnp.float32(0.1), KEY, X[:, :4])


@case("CMA-ES, a generation", "evosax")
def evosax_generation():
    es = module("evosax.algorithms").CMA_ES(population_size=8, solution=jnp.zeros(3))
    params = es.default_params
    state = es.init(KEY, jnp.zeros(3), params)

    def run(key, state):
        ask, tell = jax.random.split(key)
        population, state = es.ask(ask, state, params)
        state, _ = es.tell(tell, population, jnp.sum(population**2, -1), state, params)
        return state.mean

    return run, (KEY, state)


@case("LoRA as a quax value", "quax")
def quax_lora():
    quax = module("quax")
    lora = module("quax.examples.lora")
    value = lora.LoraArray(jnp.eye(8), rank=2, key=KEY)
    return lambda v, x: quax.quaxify(lambda w, x: w @ x)(v, x), (value, X[0])
