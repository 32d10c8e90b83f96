"""Interval arithmetic: bounds on all that a program may give, loops included."""

import functools

import jax
import jax.numpy as jnp
from jax import lax

import malleable as mal


@mal.value
class Interval:
    lo: jax.Array
    hi: jax.Array
    aval = property(lambda self: jax.typeof(self.lo))
    lift = classmethod(lambda cls, x, like: cls(x, x))  # a number becomes one in a loop


Some = Interval | jax.Array
lo = lambda x: x.lo if isinstance(x, Interval) else x
hi = lambda x: x.hi if isinstance(x, Interval) else x


def rising(frame, *xs: Some, **params):
    return Interval(frame.bind(*map(lo, xs)), frame.bind(*map(hi, xs)))


def falling(frame, x: Interval, **params):
    return Interval(frame.bind(x.hi), frame.bind(x.lo))


def subtract(frame, x: Some, y: Some, **params):
    return Interval(frame.bind(lo(x), hi(y)), frame.bind(hi(x), lo(y)))


def corners(frame, x: Some, y: Some, **params):
    ends = [frame.bind(a, b) for a in (lo(x), hi(x)) for b in (lo(y), hi(y))]
    return Interval(functools.reduce(jnp.minimum, ends), functools.reduce(jnp.maximum, ends))


def dot(frame, x: Some, y: Some, **params):
    middle, radius = (lambda v: (lo(v) + hi(v)) / 2), (lambda v: (hi(v) - lo(v)) / 2)
    wide = frame.bind(radius(x), abs(middle(y)) + radius(y))
    wide += frame.bind(abs(middle(x)), radius(y))
    at = frame.bind(middle(x), middle(y))
    return Interval(at - wide, at + wide)


RISING = ["add", "max", "exp", "tanh", "sqrt", "reduce_sum", "broadcast_in_dim", "reshape"]
RISING += ["squeeze", "slice", "dynamic_slice", "convert_element_type", "concatenate"]
RULES = {getattr(lax, f"{name}_p"): rising for name in RISING}
RULES |= {lax.neg_p: falling, lax.sub_p: subtract, lax.mul_p: corners, lax.div_p: corners}
RULES |= {lax.dot_general_p: dot}


def bounds(fun):
    """bounds(fun)(*args): args are arrays or intervals, and so is what comes out."""
    return lambda *args: mal.interpret(fun, RULES)(*args)[0]


def rnn(w, xs):
    return lax.scan(lambda h, x: (jnp.tanh(w @ h + x), None), jnp.zeros(w.shape[0]), xs)[0]


def newton(a):
    return lax.fori_loop(0, 3, lambda _, x: 0.5 * (x + a / x), (a + 1.0) / 2.0)


def main():
    w, xs = 0.4 * jnp.eye(3), jnp.linspace(-1, 1, 15).reshape(5, 3)
    h = bounds(rnn)(w, Interval(xs - 0.01, xs + 0.01))
    print("state of an RNN, inputs +-0.01:", *(f"+-{r:.4f}" for r in (h.hi - h.lo) / 2))
    root = bounds(newton)(Interval(jnp.float32(1.9), jnp.float32(2.1)))
    print(f"a root of 1.9 to 2.1: {root.lo:.3f} to {root.hi:.3f}")


if __name__ == "__main__":
    main()
