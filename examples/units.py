"""Check units by changing them: in metres or half-metres, physics is the same.

Each base unit has a run in which it is halved, where `unit(x, m=1, s=-1)` is 2 or 1/2 times as
large. Values that are added or compared must change alike from run to run: so loops, gradients
and libraries need no rules of their own. It takes numbers to run on; a 0 passes for any unit.
"""

import jax
import jax.numpy as jnp
from jax import lax

import malleable as mal

BASES = ["m", "s", "kg"]
ALIKE = "add sub max min eq ne lt le gt ge select_n clamp concatenate add_any".split()
unit = mal.marker("unit")


def check_units(fun):
    """check_units(fun)(*args) -> (out, its unit); raises TransformError where units clash."""

    def rescale(frame, x, **powers):
        run = lax.axis_index("runs")  # 0 is the user's own
        return x * 2.0 ** sum(p * (run == 1 + BASES.index(b)) for b, p in powers.items())

    def compare(frame, *args, **params):
        if frame.eqn.primitive.name in ALIKE and any(x.dtype.kind == "f" for x in args):
            a, *others = [lax.all_gather(abs(x).sum(), "runs") for x in args if x.dtype.kind == "f"]
            for b in others:
                clash = jnp.ptp(jnp.log2(a / b)) > 0.01  # not for a 0, which gives nan
                first = clash & ~frame.carry[0]  # others may follow from the first
                frame.carry = jax.tree.map(
                    lambda new, old: jnp.where(first, new, old), (True, a, b), frame.carry
                )
                frame.write(frame.where, first.astype(int), mode="sum")
        return frame.bind(*args)

    def checked(*args):
        runs = jax.vmap(ruled, None, axis_name="runs", axis_size=4)(*args)
        out, (clash, a, b), lines = jax.tree.map(lambda x: x[0], runs)
        if clash:
            where = max(lines, key=lines.get)
            raise mal.TransformError(f"{spell(a)} meets {spell(b)}", where=where, hint="convert it")
        return out, spell(jnp.abs(runs[0]).reshape(4, -1).sum(1))

    ruled = mal.interpret(fun, {unit: rescale}, carry=(False, *jnp.ones((2, 4))), default=compare)
    return checked


def spell(sizes):
    powers = zip(BASES, jnp.log2(sizes[1:] / sizes[0]))
    return " ".join(f"{b}^{p:.3g}" for b, p in powers if abs(p) > 0.01) or "a number"


def fall(v, dt):
    """The speed after ten steps of length dt, from the gradient of a potential."""
    force = jax.grad(lambda x: unit(9.8, m=1, s=-2) * x)(unit(1.0, m=1))
    return lax.scan(lambda v, _: (v + force * dt, None), unit(v, m=1, s=-1), length=10)[0]


def main():
    print(check_units(lambda: fall(3.0, unit(0.1, s=1)))())
    try:
        print(check_units(lambda: fall(3.0, 0.1))())
    except mal.TransformError as e:
        print(e)
    print(
        check_units(
            lambda: unit(jnp.arange(3.0), m=1) * 2 > jax.jit(jnp.sum)(unit(jnp.arange(3.0), m=1))
        )()
    )
    try:
        print(
            check_units(
                lambda: (
                    unit(jnp.arange(3.0), m=1) * 2 > jax.jit(jnp.sum)(unit(jnp.arange(3.0), s=1))
                )
            )()
        )
    except mal.TransformError as e:
        print(e)

    def loop(x):
        return lax.while_loop(lambda x: x < 10, lambda x: x * 2, unit(x, m=1))

    try:
        print(check_units(loop)(1.0))
    except mal.TransformError as e:
        print(e)

    def loop(x):
        return lax.cond(x < 10, lambda x: x * 2 + unit(2.0, s=1), lambda x: x, unit(x, m=1))

    try:
        print(check_units(loop)(1.0))
    except mal.TransformError as e:
        print(e)


main()
