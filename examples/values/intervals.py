"""Interval arithmetic: bounds on all that a program may give, loops included."""

import jax.numpy as jnp
from jax import lax

import malleable as mal
from examples.values import interval_rules as on
from examples.values.interval_rules import Interval, hi, lo


def product(frame, x, y, **_):
    middle, radius = (lambda v: (lo(v) + hi(v)) / 2), (lambda v: (hi(v) - lo(v)) / 2)
    wide = frame.bind(radius(x), abs(middle(y)) + radius(y))
    wide += frame.bind(abs(middle(x)), radius(y))
    at = frame.bind(middle(x), middle(y))
    return Interval(at - wide, at + wide)


def wave(frame, x, **_):  # of slope 1 at most
    at, reach = frame.bind(jnp.nan_to_num((x.lo + x.hi) / 2)), (x.hi - x.lo) / 2
    return Interval(jnp.maximum(at - reach, -1), jnp.minimum(at + reach, 1))


RISING = """add add_any max min clamp exp exp2 expm1 log log1p tanh logistic sqrt cbrt erf erf_inv
sinh asinh atan sign floor ceil round and or reduce_and reduce_or reduce_sum reduce_max reduce_min
cumsum cummax cummin cumlogsumexp reduce_window_sum reduce_window_max concatenate pad copy split
broadcast_in_dim reshape squeeze transpose rev slice convert_element_type stop_gradient
optimization_barrier"""
MOVED = "sort gather dynamic_slice dynamic_update_slice scatter scatter-add"
RULES = {  # by name: some have none in jax.lax
    **dict.fromkeys(RISING.split(), on.rising),
    **dict.fromkeys(MOVED.split(), on.moved),
    **dict.fromkeys(["neg", "not", "rsqrt", "erfc"], on.falling),
    **dict.fromkeys(["sub", "gt", "ge"], on.minus),
    **dict.fromkeys(["lt", "le"], on.less),
    **dict.fromkeys(["mul", "div"], on.corners),
    **dict.fromkeys(["integer_pow", "square"], on.power),
    **dict.fromkeys(["dot_general", "conv_general_dilated"], product),
    **dict.fromkeys(["sin", "cos"], wave),
    "abs": lambda frame, x: on.size(x),
    "one_minus_square": lambda frame, x, **_: on.falling(frame, on.size(x)),
    "is_finite": lambda frame, x: Interval(frame.bind(x.lo) & frame.bind(x.hi), x.lo == x.lo),
    "eq": on.equal,
    "ne": on.unequal,
    "select_n": on.choice,
}


def ask(frame, *xs, **params):
    name = frame.eqn.primitive.name
    if name not in RULES:
        raise frame.error(f"no bounds of `{name}` are known", "give RULES one for it")
    return RULES[name](frame, *xs, **params)


def bounds(fun):
    """bounds(fun)(*args): args are arrays or intervals, and so is what comes out."""
    return lambda *args: mal.interpret(fun, {Interval: ask})(*args)[0]


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
