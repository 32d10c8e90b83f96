"""Check physical units by changing them: in metres or in half-metres, physics is the same.

`unit(x, m=1, s=-1)` says that x is in m/s. The program runs as it is, and once more per base unit
with that unit halved, where a quantity in m/s comes out 2 or 1/2 times as large. Units clash where
quantities meet that changed differently. So every operation, loop and gradient is supported
without a rule of its own; but it takes numbers to run on, and 0 passes for any unit.
"""

import jax
import jax.numpy as jnp

import malleable as mal

BASES = ("m", "s", "kg")
ALIKE = "add add_any sub max min rem eq ne lt le gt ge select_n clamp concatenate atan2".split()
PLAIN = "exp exp2 expm1 log log1p sin cos tan tanh logistic erf".split()
unit = mal.marker("unit")


def check_units(fun):
    """check_units(fun)(*args) -> (out, unit of out); raises TransformError where units clash."""
    lines = []

    def rescale(frame, x, **powers):
        for base, power in powers.items():
            x = x * frame.read(base) ** power
        return x

    def compare(frame, *args, **params):
        name, floats = frame.eqn.primitive.name, [x for x in args if x.dtype.kind == "f"]
        if floats and name in ALIKE + PLAIN:
            lines.append(frame.where)
            first, *others = map(powers_of, [*floats, jnp.ones(())] if name in PLAIN else floats)
            for other in others:
                clash = abs(first - other).max() > 0.01  # never true of nan, which 0 gives
                new = clash & (frame.carry[0] < 0)  # keep the first: others may follow from it
                found = len(lines) - 1, first, other
                frame.carry = jax.tree.map(lambda a, b: jnp.where(new, a, b), found, frame.carry)
        return frame.bind(*args)

    def checked(*args):
        def run(system):
            begin, rules = (-1, jnp.zeros(3), jnp.zeros(3)), {unit: rescale}
            ruled = mal.interpret(fun, rules, carry=begin, shared=system, default=compare)
            out, clash, _ = ruled(*args)
            return out, powers_of(out), clash

        systems = dict(zip(BASES, 1 + jnp.eye(3, 4, 1)))  # one lane each; the first is the user's
        outs = jax.vmap(run, axis_name="systems")(systems)
        out, powers, (line, first, other) = jax.tree.map(lambda x: x[0], outs)
        if line >= 0:
            what = f"{spell(first)} meets {spell(other)}"
            hint = "convert one of them, or say its unit with `unit`"
            raise mal.TransformError(what, where=lines[line], hint=hint)
        return out, spell(powers)

    return checked


def powers_of(x):
    size = jax.lax.all_gather(jnp.abs(x).sum(), "systems")
    return jnp.log2(size[1:] / size[0])


def spell(powers):
    return " ".join(f"{b}^{p:.3g}" for b, p in zip(BASES, powers) if abs(p) > 0.01) or "a number"


def orbit(radius, speed, steps=50):
    """Where a satellite is after an hour, in a scan, from its potential by `grad`."""
    gm = unit(3.986e14, m=3, s=-2)
    dt = unit(3600.0 / steps, s=1)
    force = jax.grad(lambda x: gm / jnp.linalg.norm(x))
    

    def step(state, _):
        x, v = state
        v = v + dt * force(x)
        return (x + dt * v, v), None

    start = unit(jnp.array([radius, 1.0]), m=1), unit(jnp.array([1.0, speed]), m=1, s=-1)
    (x, v), _ = jax.lax.scan(step, start, length=steps)
    return jnp.linalg.norm(x)

def main():
    print(check_units(orbit)(7e6, 7.5e3))
    def bad(x):
        t = unit(2., s=1)
        return jax.lax.scan(lambda h, _: (h + t, None), unit(x, m=1), length=3)[0]
    try: print(check_units(bad)(3.))
    except mal.TransformError as e: print(e)
if __name__ == "__main__":
    main()
