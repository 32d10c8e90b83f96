"""Metropolis, one latent at a time: `prob.update` scores again only what a move changes."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpyro.distributions import Normal

import malleable as mal

MANY = 1000
SEEN = np.random.default_rng(0).normal(size=MANY).astype(np.float32)


def model():
    """Each latent is seen through noise; the mean of z given y is y / 2, the variance 1 / 2."""

    def one(y):
        return mal.prob.sample("y", Normal(mal.prob.sample("z", Normal(0.0, 1.0)), 1.0), obs=y)

    return jax.vmap(one)(SEEN)


def metropolis(key, moves):
    """The latents after so many moves of single ones, and their log density."""
    begin = {"z": jnp.asarray(SEEN / 2)}
    init, step = mal.prob.update(model, (), begin, {"z": (1,)})

    def move(chain, key):
        z, density, state = chain
        which, how, chance = jax.random.split(key, 3)
        at = jax.random.randint(which, (), 0, MANY)
        new = z[at] + jax.random.normal(how)
        proposed, after = step(state, {"z": (new[None], (at,))})
        taken = jnp.log(jax.random.uniform(chance)) < proposed - density
        moved = z.at[at].set(new), proposed, after
        return jax.tree.map(lambda a, b: jnp.where(taken, a, b), moved, chain), None

    (z, density, _), _ = lax.scan(move, (begin["z"], *init()), jax.random.split(key, moves))
    return z, density


def main():
    z, density = jax.jit(metropolis, static_argnums=1)(jax.random.key(0), 20_000)
    whole = mal.prob.log_prob(model)({"z": z})
    print("density as of the whole model:", bool(jnp.allclose(density, whole, rtol=1e-4)))
    print("spread around y / 2:", round(float(jnp.var(z - SEEN / 2)), 1))


if __name__ == "__main__":
    main()
