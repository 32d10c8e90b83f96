"""Count floating-point operations while a program runs: 15 lines, and loops count every step."""

import math

import jax
import jax.numpy as jnp
from jax import lax

import malleable as mal

ONE_EACH = {
    "add",
    "sub",
    "mul",
    "div",
    "max",
    "min",
    "neg",
    "abs",
    "exp",
    "log",
    "tanh",
    "logistic",
}


def count_flops(fun):
    """fun(*args) -> out  becomes  count_flops(fun)(*args) -> (out, operations).

    A dot of (m, k) by (k, n) counts 2*m*k*n, the operations in ONE_EACH one per element, others
    none. The count is an int32; with `jax_enable_x64` it is an int64.
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
    """xs: (steps, lanes, n); w: (n, n). One matmul, one addition and one tanh per step."""
    return lax.scan(lambda h, x: (jnp.tanh(h @ w + x), None), jnp.zeros_like(xs[0]), xs)[0]


def root(a):
    """The square root of a by Newton's method: how many steps it takes depends on a."""
    far = lambda x: jnp.abs(x * x - a) > 1e-4 * a
    return lax.while_loop(far, lambda x: 0.5 * (x + a / x), a)


def main():
    w, xs = jnp.full((32, 32), 0.1), jnp.ones((10, 4, 32))
    grads = jax.grad(lambda w, xs: rnn(w, xs).sum())
    counts = {
        "rnn, one step": count_flops(rnn)(w, xs[:1])[1],
        "rnn, ten steps": jax.jit(count_flops(rnn))(w, xs)[1],
        "its gradient": count_flops(grads)(w, xs)[1],
        "root of 2": count_flops(root)(2.0)[1],
        "root of 2e6": count_flops(root)(2e6)[1],
    }
    for what, count in counts.items():
        print(f"{what:>15}: {count:>8,} operations")
    return counts


if __name__ == "__main__":
    main()
