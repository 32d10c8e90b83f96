"""How much memory a program holds at once, run equation by equation."""

from typing import NamedTuple

from malleable import compat
from malleable.inspection import counting, places
from malleable.programs.equations import variables
from malleable.programs.types import bytes_of


class Peak(NamedTuple):
    """bytes: alive at once, arguments included; where: the line; made: (line, bytes) of these."""

    bytes: int
    where: str
    made: list[tuple[str, int]]


def peak(program: compat.Jaxpr) -> Peak:
    """The most that is alive at once: arguments, constants and results stay until the end.

    A value dies after its last use. A body adds what it holds beyond its operands and results;
    of a loop, one step's, and a second copy of its carry. Liveness as in Aho, Lam, Sethi, Ullman,
    "Compilers", 2nd edition, section 9.2.5.

    >>> import jax.numpy as jnp
    >>> x = jnp.ones(1000, jnp.float32)
    >>> peak(compat.trace(lambda x: jnp.sin(jnp.cos(x)) * x, x)).bytes
    12000
    """
    raw = program.jaxpr
    kept = {*raw.constvars, *raw.invars, *variables(raw.outvars)}
    given = list(dict.fromkeys((*raw.constvars, *raw.invars)))
    last = {v: i for i, eqn in enumerate(raw.eqns) for v in variables(eqn.invars)}
    sizes = {v: bytes_of(v.aval) for v in given}
    held = most = sum(sizes.values())
    at, inside = -1, Peak(0, "", [])
    for i, eqn in enumerate(raw.eqns):
        for v in variables(eqn.outvars):
            sizes[v] = bytes_of(v.aval)
            held += sizes[v]
        inner = _held_inside(eqn)
        if held + inner.bytes > most:
            most, at, inside = held + inner.bytes, i, inner
        for v in variables((*eqn.invars, *eqn.outvars)):
            if v in sizes and v not in kept and last.get(v, i) <= i:
                held -= sizes.pop(v)
    made = [("arguments and constants", bytes_of(v.aval)) for v in given]
    if at < 0:
        return Peak(most, "", made)
    for i, eqn in enumerate(raw.eqns[: at + 1]):
        alive = [v for v in variables(eqn.outvars) if v in kept or last.get(v, i) >= at]
        if alive:
            where = places.spell(places.of(eqn))
            made += [(where, bytes_of(v.aval)) for v in alive]
    where = inside.where if inside.bytes else ""
    where = where or places.spell(places.of(raw.eqns[at]))
    return Peak(most, where, [*made, *inside.made])


def _held_inside(eqn: compat.Eqn) -> Peak:
    """What the bodies of an equation hold beyond its operands and results."""
    most = Peak(0, "", [])
    inside = compat.bodies(eqn.params)
    for i, _ in counting.bodies_of(eqn):
        body, raw = peak(inside[i]), inside[i].jaxpr
        ends = {*raw.constvars, *raw.invars, *variables(raw.outvars)}
        beyond = body.bytes - sum(bytes_of(v.aval) for v in ends)
        view = compat.view(eqn)
        if isinstance(view, compat.Scan | compat.While):  # a step makes a new carry beside the old
            beyond += sum(bytes_of(v.aval) for v in raw.outvars)
        if beyond > most.bytes:
            most = Peak(
                beyond, body.where, [m for m in body.made if m[0] != "arguments and constants"]
            )
    return most
