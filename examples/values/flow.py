"""A normalising flow: the density of its samples, from the inverse that its program has."""

import jax
import jax.numpy as jnp
from jax import lax

import malleable as mal


def flow(params, z):
    """Couplings in a scan: half of the entries move by what the other half says."""

    def layer(z, p):
        a, b = jnp.split(z, 2)
        b = b * jnp.exp(jnp.tanh(p["scale"] @ a)) + p["shift"] @ a
        return jnp.concatenate([b, a]), None

    return lax.scan(layer, z, params)[0]


def log_density(params, x):
    """By the change of variables: nobody wrote an inverse."""
    z, log_det = mal.inverse(lambda z: flow(params, z), x)(x)
    return jnp.sum(jax.scipy.stats.norm.logpdf(z)) + log_det


def parameters(key, layers, size):
    one, two = jax.random.normal(key, (2, layers, size // 2, size // 2))
    return {"scale": 0.3 * one, "shift": two}


def main():
    params = parameters(jax.random.key(0), 4, 6)
    z = jax.random.normal(jax.random.key(1), (6,))
    x = flow(params, z)
    jacobian = jax.jacobian(lambda z: flow(params, z))(z)
    want = jnp.sum(jax.scipy.stats.norm.logpdf(z)) - jnp.linalg.slogdet(jacobian)[1]
    slope = jax.grad(log_density)(params, x)["shift"].shape
    print(f"{log_density(params, x):.3f}, by the Jacobian {want:.3f}; a gradient of {slope}")


if __name__ == "__main__":
    main()
