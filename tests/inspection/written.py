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


ELEMENTS = [
    *(jnp.sin, jnp.tan, jnp.arcsin, jnp.sinh, jnp.arctanh, jnp.tanh, jnp.exp2, jnp.expm1),
    *(jnp.log2, jnp.log1p, jnp.cbrt, jnp.sqrt, lax.rsqrt, jnp.square, jnp.abs, jnp.floor),
    *(lax.logistic, lax.erf, lax.erfc, lax.erf_inv, lax.lgamma, lax.digamma, lax.bessel_i1e),
    *(lambda x: x**3, lambda x: x**x, lambda x: jnp.arctan2(x, 2 * x), lambda x: x % 0.3),
    *(lambda x: jnp.hypot(x, 1.0), lambda x: jnp.clip(x, 0.2, 0.5), lax.reciprocal, lax.neg),
    *(lambda x: lax.igamma(x + 1, x), lambda x: lax.igamma(2.0 + 0 * x, x), lambda x: x / (1 + x)),
    lambda x: lax.betainc(*jnp.full((2, 3), 2.0), x),
    *(lambda x: abs(jnp.exp(1j * x) - x), lambda x: jnp.angle(lax.complex(x, 2 * x))),
    *(lambda x: jnp.real(jnp.conj(x * 1j) * 1j), lambda x: jnp.imag(jnp.sinh(1j * x))),
]
ARRAYS = [
    *(jnp.max, jnp.min, jnp.prod, jnp.sort, jnp.cumprod, jnp.cumsum, jnp.median, jnp.std),
    *(jax.nn.softmax, jax.nn.logsumexp, jnp.linalg.norm, jnp.linalg.det, jnp.linalg.inv),
    *(lax.cummax, lax.cummin, lax.cumlogsumexp, jnp.transpose, jnp.flip, jnp.diag, jnp.tril),
    *(lambda x: jnp.linalg.qr(x)[1], lambda x: jnp.linalg.eigh(x @ x.T)[0], jnp.fft.rfft),
    *(lambda x: jnp.linalg.svd(x, compute_uv=False), lambda x: jnp.linalg.cholesky(x @ x.T)),
    *(lambda x: jax.scipy.linalg.lu(x)[2], lambda x: jnp.where(x > 0.4, x, -x), lax.stop_gradient),
    *(lambda x: x[jnp.array([0, 2])], lambda x: x.at[1].mul(2 * x[0]), lambda x: x.at[0].max(x[2])),
    *(lambda x: x.at[jnp.array([0, 0])].min(x[1:]), lambda x: x.at[0].add(x[1]), jnp.atleast_3d),
    *(lambda x: lax.dynamic_update_slice(x, 2 * x[:1], (1, 0)), lambda x: jnp.pad(x, 1)),
    *(lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (1, 1), "VALID"), jnp.ravel),
    *(lambda x: lax.reduce_window(x, 0.0, lax.add, (2, 2), (1, 1), "SAME"), lambda x: x @ x),
    *(lambda x: lax.conv(x[None, None], x[None, None, :2, :2], (1, 1), "SAME"), jnp.split),
    *(lambda x: jnp.concatenate([x, 2 * x]), lambda x: jnp.repeat(x, 2, 0), jnp.roll),
    *(lambda x: lax.associative_scan(jnp.multiply, x), lambda x: lax.top_k(x, 2)[0]),
    *(lambda x: lax.map(jnp.max, x), lambda x: jnp.interp(0.5, x[0], x[1]), jax.nn.gelu),
]
MORE = {jnp.split: (3,), jnp.roll: (1,)}


def primitives(x):
    """Every kind of primitive that has a derivative, at a place where it is smooth."""
    outs = [f(x[0]) for f in ELEMENTS] + [f(x, *MORE.get(f, ())) for f in ARRAYS]
    return [jnp.abs(y) for y in jax.tree.leaves(outs)]


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
PLACE = jnp.array([[0.31, 0.77, 0.52], [0.9, 0.13, 0.44], [0.25, 0.61, 0.86]])
SMOOTH = ("dense", "rollout", "rules", "solves")  # grad of the sum of what comes out


def write():
    folder = FILES / jax.__version__
    folder.mkdir(parents=True, exist_ok=True)
    for name, (fun, args) in CASES.items():
        save(folder / f"{name}.mal", fun, *args, transformable=True)
    save(folder / "primitives.mal", primitives, PLACE, transformable=True)
    save(folder / "portable.mal", rollout, X, A, gradient_order=1)
    save(folder / "sizes.mal", dense, *CASES["dense"][1], polymorphic=(None, "n, 3"))


if __name__ == "__main__":
    write()
