"""Functions whose files are kept under `files/`, by the version of JAX that wrote them.

python -m tests.inspection.written      # writes those of the JAX it runs on
"""

import pathlib

import jax
import jax.numpy as jnp
from jax import lax

from malleable.inspection.files.save import save

FILES = pathlib.Path(__file__).parent / "files"


def dense(params, x):
    hidden = jax.nn.relu(x @ params["w"] + params["b"])
    return {"mean": hidden.mean(), "hidden": hidden, "none": None}


def rollout(state, xs):
    def step(carry, x):
        carry = jnp.where(x > 0, jnp.sin(carry) * x, carry - x)
        return carry, carry.sum()

    return lax.scan(step, state, xs, reverse=True)


def newton(x):
    def step(state):
        i, y = state
        return i + 1, 0.5 * (y + x / y)

    return lax.while_loop(lambda state: state[0] < 6, step, (0, jnp.ones_like(x)))[1]


def branches(i, x):
    return lax.switch(i, [jnp.sin, jnp.cos, lambda x: x * 2.0], x)


@jax.custom_vjp
def clipped(x):
    return x * x


clipped.defvjp(lambda x: (x * x, x), lambda x, ct: (jnp.clip(2 * x * ct, -1.0, 1.0),))


def rules(x):
    return clipped(x).sum() + jnp.logaddexp(x, 1.0).sum() + jax.checkpoint(jnp.tanh)(x).sum()


def draws(key, x):
    one, two = jax.random.split(key)
    return x + jax.random.normal(one, x.shape) * jax.random.uniform(two)


def solves(a, b):
    return jnp.linalg.solve(a, b), jnp.linalg.cholesky(a @ a.T + jnp.eye(3))


def indexes(x, i):
    return x.at[i].add(2.0), x[i], jnp.argsort(x), jnp.cumsum(x), lax.top_k(x, 2)


A = jnp.array([[4.0, 1.0, 0.0], [1.0, 3.0, -1.0], [0.5, 0.0, 2.0]])
X = jnp.array([0.3, -0.7, 1.5])
CASES = {
    "dense": (dense, ({"w": A, "b": X}, A)),
    "rollout": (rollout, (X, A)),
    "newton": (newton, (jnp.abs(X),)),
    "branches": (branches, (1, X)),
    "rules": (rules, (X,)),
    "draws": (draws, (jax.random.key(3), X)),
    "solves": (solves, (A, X)),
    "indexes": (indexes, (X, jnp.array([2, 0]))),
}
SMOOTH = ("dense", "rollout", "rules", "solves")  # grad of the sum of what comes out


def write():
    folder = FILES / jax.__version__
    folder.mkdir(parents=True, exist_ok=True)
    for name, (fun, args) in CASES.items():
        save(folder / f"{name}.mal", fun, *args, transformable=True)
    save(folder / "portable.mal", rollout, X, A, gradient_order=1)
    save(folder / "sizes.mal", dense, *CASES["dense"][1], polymorphic=(None, "n, 3"))


if __name__ == "__main__":
    write()
