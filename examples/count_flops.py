"""Count floating-point operations in 15 lines; a loop counts as often as it runs."""

import math

import jax
import jax.numpy as jnp
from jax import lax

import malleable as mal

ONE_EACH = {"add", "sub", "mul", "div", "max", "min", "neg", "abs", "exp", "log", "tanh"}


def count_flops(fun):
    """count_flops(fun)(*args) -> (out, operations), an int32; with `jax_enable_x64` an int64.

    A dot of (m, k) by (k, n) counts 2*m*k*n; those in ONE_EACH, one per element; others nothing.
    """

    def rule(frame, *args, **params):
        out = frame.bind(*args)
        if frame.eqn.primitive.name == "dot_general":
            (contracted, _), _ = params["dimension_numbers"]
            frame.carry += 2 * out.size * math.prod(args[0].shape[i] for i in contracted)
        elif frame.eqn.primitive.name in ONE_EACH:
            frame.carry += out.size
        return out

    return lambda *args: mal.interpret(fun, {}, carry=0, default=rule)(*args)[:2]


def rnn(w, xs):
    """xs: (steps, lanes, n); w: (n, n). A step has one matmul, one addition and one tanh."""
    return lax.scan(lambda h, x: (jnp.tanh(h @ w + x), None), jnp.zeros_like(xs[0]), xs)[0]


def root(a):
    """The square root of a by Newton's method, in as many steps as it takes."""
    off = lambda x: jnp.abs(x * x - a) > 1e-4 * a
    return lax.while_loop(off, lambda x: 0.5 * (x + a / x), a)


def main():
    w, xs = jnp.full((32, 32), 0.1), jnp.ones((10, 4, 32))
    counts = {
        "rnn, one step": count_flops(rnn)(w, xs[:1])[1],
        "rnn, ten steps": jax.jit(count_flops(rnn))(w, xs)[1],
        "its gradient": count_flops(jax.grad(lambda w: rnn(w, xs).sum()))(w)[1],
        "root of 2": count_flops(root)(2.0)[1],
        "root of 2e6": count_flops(root)(2e6)[1],
    }
    for what, count in counts.items():
        print(f"{what:>14}: {count:>7,} operations")


if __name__ == "__main__":
    main()
