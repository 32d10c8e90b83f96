"""Check units by changing them: in metres or half-metres, physics is the same.

Each base unit has a run in which it is halved, where `unit(x, m=1, s=-1)` is 2 or 1/2 times as
large. Values that are added or compared must change alike from run to run: so loops, gradients
and libraries need no rules of their own. It takes numbers to run on; a 0 passes for any unit.
"""

import jax
import jax.numpy as jnp

import malleable as mal

BASES = ["m", "s", "kg"]
ALIKE = {"add", "sub", "max", "min", "rem", "lt", "le", "gt", "ge", "select_n", "add_any"}
unit = mal.marker("unit")


def check_units(fun, *args):
    """(fun(*args), its unit); raises TransformError for the first line where two units clash."""
    lines = []

    def rescale(frame, x, **powers):
        run = jax.lax.axis_index("runs")  # the first is the user's own
        return x * 2.0 ** sum(p * (run == 1 + BASES.index(b)) for b, p in powers.items())

    def compare(frame, *args, **params):
        if frame.eqn.primitive.name in ALIKE and args[-1].dtype.kind == "f":
            a, b = (jax.lax.all_gather(jnp.abs(x).sum(), "runs") for x in args[-2:])
            clash = jnp.ptp(jnp.log2(a / b)) > 0.01  # never true of nan, which a 0 gives
            lines.append(frame.where)
            new, first = (len(lines) - 1, a, b), clash & (frame.carry[0] < 0)
            frame.carry = [jnp.where(first, n, old) for n, old in zip(new, frame.carry)]
        return frame.bind(*args)

    ruled = mal.interpret(fun, {unit: rescale}, carry=[-1, *jnp.ones((2, 4))], default=compare)
    outs, (line, a, b), _ = jax.vmap(ruled, None, axis_name="runs", axis_size=4)(*args)
    if line[0] >= 0:
        raise mal.TransformError(f"{spell(a[0])} meets {spell(b[0])}", where=lines[line[0]])
    return outs[0], spell(jnp.abs(outs).reshape(4, -1).sum(1))


def spell(sizes):
    powers = zip(BASES, jnp.log2(sizes[1:] / sizes[0]))
    return " ".join(f"{b}^{p:.3g}" for b, p in powers if abs(p) > 0.01) or "a number"


def main():
    def fall(v, dt):
        return jax.lax.fori_loop(0, 10, lambda _, v: v + dt * unit(9.8, m=1, s=-2), v)

    print(*check_units(lambda: fall(unit(3.0, m=1, s=-1), unit(0.1, s=1))))
    try:
        check_units(lambda: fall(unit(3.0, m=1, s=-1), 0.1))
    except mal.TransformError as error:
        print(error)


if __name__ == "__main__":
    main()
