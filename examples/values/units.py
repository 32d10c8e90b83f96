"""Units as part of the type: a sum of metres and seconds is an error at its line."""

import jax
import jax.numpy as jnp
from jax import lax

import malleable as mal


@mal.value(static="unit")
class Quantity:
    x: jax.Array
    unit: tuple  # of (name, power), sorted
    aval = property(lambda self: jax.typeof(self.x))


Some = Quantity | jax.Array


def quantity(x, **powers):
    return Quantity(jnp.asarray(x), tuple(sorted((u, p) for u, p in powers.items() if p)))


def parts(x):
    return (x.x, dict(x.unit)) if isinstance(x, Quantity) else (x, {})


def scaled(sign):
    def rule(frame, x: Some, y: Some, **params):
        (a, mine), (b, theirs) = parts(x), parts(y)
        powers = {u: mine.get(u, 0) + sign * theirs.get(u, 0) for u in {*mine, *theirs}}
        return quantity(frame.bind(a, b), **powers)

    return rule


def alike(frame, *xs: Some, **params):
    if len(units := {str(parts(x)[1]) for x in xs}) > 1:
        raise frame.error(f"units clash: {' and '.join(sorted(units))}", "convert one of them")
    return quantity(frame.bind(*(parts(x)[0] for x in xs)), **parts(xs[0])[1])


RULES = dict.fromkeys([lax.add_p, lax.sub_p, lax.max_p, lax.neg_p, lax.reduce_sum_p], alike)
RULES |= {lax.mul_p: scaled(1), lax.dot_general_p: scaled(1), lax.div_p: scaled(-1)}


def fall(v, g, dt):
    return lax.fori_loop(0, 10, lambda _, v: v + g * dt, v)


def main():
    v, g, dt = quantity(3.0, m=1, s=-1), quantity(9.8, m=1, s=-2), quantity(0.1, s=1)
    out, *_ = mal.interpret(fall, RULES)(v, g, dt)
    print(f"{out.x:.1f}", dict(out.unit))
    try:
        mal.interpret(fall, RULES)(v, g, 0.1)
    except mal.TransformError as error:
        print(error)


if __name__ == "__main__":
    main()
