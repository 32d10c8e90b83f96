"""A matrix that is diagonal plus low rank: products and solutions without the matrix."""

import jax
import jax.numpy as jnp
from jax import lax

import malleable as mal


@mal.value
class Split:
    """diag(d) + u v, of n rows; d: (n,), u: (n, r), v: (r, n)."""

    d: jax.Array
    u: jax.Array
    v: jax.Array
    aval = property(lambda self: jax.ShapeDtypeStruct(self.d.shape * 2, self.d.dtype))

    def materialise(self):
        return jnp.diag(self.d) + self.u @ self.v


def product(frame, m: Split, x: jax.Array, *, dimension_numbers, **params):
    (mine, theirs), batch = dimension_numbers
    if any(batch) or tuple(theirs) != (0,):
        return frame.bind(m.materialise(), x)
    d, u, v = (m.d, m.u, m.v) if tuple(mine) == (1,) else (m.d, m.v.T, m.u.T)
    return (d * x.T).T + u @ (v @ x)


def turned(frame, m: Split, **params):
    return Split(m.d, m.v.T, m.u.T)


def add(frame, m: Split, n: Split, **params):
    return Split(m.d + n.d, jnp.hstack([m.u, n.u]), jnp.vstack([m.v, n.v]))


RULES = {lax.dot_general_p: product, lax.transpose_p: turned, lax.add_p: add}


def conjugate_gradients(a, b, steps):
    def step(state, _):
        x, r, p = state
        ap = a @ p
        alpha = (r @ r) / (p @ ap)
        new = r - alpha * ap
        return (x + alpha * p, new, new + (new @ new) / (r @ r) * p), None

    return lax.scan(step, (jnp.zeros_like(b), b, b), None, length=steps)[0][0]


def main():
    n = 1000
    u = jax.random.normal(jax.random.key(0), (n, 2))
    a, b = Split(jnp.full(n, 2.0), u, u.T), jnp.ones(n)
    solve = lambda a: mal.interpret(lambda a: conjugate_gradients(a, b, 4), RULES)(a)[0]
    x = solve(a)
    print(f"residual {jnp.max(jnp.abs(a.materialise() @ x - b)):.0e},", end=" ")
    whole = any(shape == (n, n) for shape in shapes(jax.make_jaxpr(solve)(a)))
    print("the matrix is", "made" if whole else "never made")


def shapes(jaxpr):
    return [v.aval.shape for eqn in jaxpr.jaxpr.eqns for v in eqn.outvars]


if __name__ == "__main__":
    main()
