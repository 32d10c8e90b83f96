"""Programs that fail in Flax, Optax or Equinox for what the user gave to them."""

import importlib.util

import jax
from jax import numpy as jnp

from tests.inspection.advice.failing import failing

if importlib.util.find_spec("flax"):
    import flax.linen as nn
    from flax import nnx

    KEY = jax.random.key(0)

    class Net(nn.Module):
        depth: int = 1
        rate: float = 0.0
        norm: bool = False

        @nn.compact
        def __call__(self, x):
            for _ in range(self.depth):
                x = nn.Dense(4)(x)
            if self.norm:
                x = nn.BatchNorm(use_running_average=False)(x)
            return nn.Dropout(self.rate, deterministic=not self.rate)(x)

    @failing(r"params\['Dense_0'\]\['kernel'\]", both=(r"\(3, 4\)", r"\(5, 4\)"), fix=(r"width 3",))
    def flax_width():
        net = Net()
        params = net.init(KEY, jnp.ones((2, 3)))
        jax.jit(net.apply)(params, jnp.ones((2, 5)))  #!

    @failing(r"params\['Dense_1'\]\['kernel'\]", both=(r"'Dense_0'",), fix=(r"\.init",))
    def flax_depth():
        params = Net(1).init(KEY, jnp.ones((2, 4)))
        Net(2).apply(params, jnp.ones((2, 4)))  #!

    @failing(r"'dropout'", fix=(r"rngs=\{'dropout': key\}",))
    def flax_rng():
        params = Net().init(KEY, jnp.ones((2, 3)))
        Net(rate=0.5).apply(params, jnp.ones((2, 3)))  #!

    @failing(r"'batch_stats'", fix=(r"mutable=\['batch_stats'\]",))
    def flax_mutable():
        net = Net(norm=True)
        params = net.init(KEY, jnp.ones((2, 3)))
        net.apply(params, jnp.ones((2, 3)))  #!

    @failing(r"`params\['params'\]`", fix=(r"\{'params': params\['params'\]\}",))
    def flax_collections():
        params = Net().init(KEY, jnp.ones((2, 3)))
        Net().apply(params["params"], jnp.ones((2, 3)))  #!

    @failing(r"Dense", fix=(r"@nn\.compact",))
    def flax_compact():
        class Plain(nn.Module):
            def __call__(self, x):
                return nn.Dense(4)(x)  #!

        Plain().init(KEY, jnp.ones((2, 3)))

    @failing(r"Dropout", fix=(r"rngs=nnx\.Rngs\(0\)",))
    def nnx_rngs():
        drop = nnx.Dropout(0.5)
        drop(jnp.ones(3))  #!


if importlib.util.find_spec("optax"):
    import optax

    @failing(r"st\[0\]\.mu", both=(r"grads\['b'\]",), fix=(r"\.init",))
    def optax_state():
        tx, grads = optax.adam(1e-3), {"w": jnp.ones(3), "b": jnp.ones(2)}
        st = tx.init({"w": jnp.ones(3)})
        tx.update(grads, st)  #!

    @failing(r"parameters", fix=(r"tx\.update\(grads, st, params\)",))
    def optax_params():
        tx, grads = optax.adamw(1e-3), {"w": jnp.ones(3)}
        st = tx.init(grads)
        tx.update(grads, st)  #!

    @failing(r"\bgrads\b", fix=(r"tx\.init\(params\)",))
    def optax_no_state():
        tx, grads = optax.adam(1e-3), {"w": jnp.ones(3), "b": jnp.ones(2)}
        tx.update(grads, grads)  #!

    @failing(r"\bparams\b", fix=(r"tx\.update\(grads, st, params\)",))
    def optax_order():
        tx, params = optax.adam(1e-3), {"w": jnp.ones(3), "b": jnp.ones(2)}
        st, grads = tx.init(params), params
        tx.update(grads, params, st)  #!


if importlib.util.find_spec("equinox"):
    import equinox as eqx

    @failing(r"\bnet\b", both=(r"\(3,\)", r"\(5, 3\)"), fix=(r"jax\.vmap\(net\)\(x\)",))
    def equinox_batch():
        net, x = eqx.nn.MLP(3, 2, 4, 1, key=jax.random.key(0)), jnp.ones((5, 3))
        net(x)  #!

    @failing(r"\bconv\b", both=(r"\b3 axes", r"\(2, 3, 8, 8\)"), fix=(r"jax\.vmap\(conv\)\(x\)",))
    def equinox_rank():
        conv, x = eqx.nn.Conv2d(3, 4, 3, key=jax.random.key(0)), jnp.ones((2, 3, 8, 8))
        conv(x)  #!

    @failing(r"\bloss\b", both=(r"\(5, 2\)",), fix=(r"jnp\.sum\(jax\.vmap\(m\)\(x\)\)",))
    def equinox_grad():
        net = eqx.nn.Linear(2, 2, key=jax.random.key(0))

        @eqx.filter_jit
        @eqx.filter_grad
        def loss(m, x):
            return jax.vmap(m)(x)  #!

        loss(net, jnp.ones((5, 2)))
