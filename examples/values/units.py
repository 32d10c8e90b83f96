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


bare = lambda x: x.x if isinstance(x, Quantity) else x
powers = lambda x: dict(x.unit) if isinstance(x, Quantity) else {}
compared = lambda *xs, **_: bare(alike(*xs))
raised = lambda frame, x, y=2, **_: quantity(frame.bind(x.x), **{u: y * p for u, p in x.unit})


def quantity(x, **powers):
    unit = tuple(sorted((u, p) for u, p in powers.items() if p))
    return Quantity(jnp.asarray(x), unit) if unit else x


def alike(frame, *xs, over=(), at=(), **_):
    if others := [powers(x) for x in xs if powers(x) != powers(xs[0])]:
        raise frame.error(f"units clash: {powers(xs[0])} and {others[0]}", "convert one of them")
    return quantity(frame.bind(*over, *map(bare, xs), *at), **powers(xs[0]))


def scaled(frame, x, y, *, sign=1, **_):
    mine, theirs = powers(x), powers(y)
    both = {u: mine.get(u, 0) + sign * theirs.get(u, 0) for u in {*mine, *theirs}}
    return quantity(frame.bind(bare(x), bare(y)), **both)


ALIKE = """add add_any sub max min clamp neg abs reduce_sum reduce_max reduce_min cumsum cummax
    concatenate stack pad broadcast_in_dim reshape squeeze transpose rev slice copy
    convert_element_type"""
BY_NAME = {  # some have no name in jax.lax
    **dict.fromkeys(ALIKE.split(), alike),
    **dict.fromkeys(["gt", "ge", "lt", "le", "eq", "ne", "sign"], compared),
    **dict.fromkeys(["mul", "dot_general", "conv_general_dilated"], scaled),
    **dict.fromkeys(["integer_pow", "square"], raised),
    **dict.fromkeys(["dynamic_slice", "gather"], lambda frame, x, *at, **_: alike(frame, x, at=at)),
    "div": lambda frame, x, y: scaled(frame, x, y, sign=-1),
    "sqrt": lambda frame, x, **_: raised(frame, x, 0.5),
    "select_n": lambda frame, which, *cases: alike(frame, *cases, over=[which]),
}


def ask(frame, *xs, **params):
    if (name := frame.eqn.primitive.name) not in BY_NAME:
        raise frame.error(f"`{name}` is not known of units", "divide by a unit before")
    return BY_NAME[name](frame, *xs, **params)


RULES = {Quantity: ask}


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
