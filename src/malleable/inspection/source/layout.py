"""Pieces of the text of `export.source`: tuples, targets, names; and a program that leaves room.

Names that the module uses itself (`RESERVED`) are taken from no variable: `roomy` renames those.
"""

import dataclasses
from collections.abc import Iterable, Sequence

from malleable.inspection.files.format.program import Atom, Body, Number, Program
from malleable.inspection.source.values import spell_number

RESERVED = {
    *("jax", "jnp", "np", "lax", "partial", "primitives", "compat", "base64", "collections"),
    *("float", "complex", "list", "tuple", "isinstance", "bytes", "map", "str", "int", "bool"),
    *("_flat", "_array", "_argument", "_decided", "_no_derivative", "_where"),
    *("TypeError", "RuntimeError"),
}


def roomy(program: Program) -> Program:
    """The program, its variables called otherwise where they are called as what it needs."""
    return dataclasses.replace(program, bodies={n: _roomy(b) for n, b in program.bodies.items()})


def variables(body: Body) -> set[str]:
    """The names of the variables of a body."""
    return {n for n, _ in body.ins} | {n for eqn in body.equations for n, _ in eqn.outs}


def fresh(wish: str, taken: Iterable[str]) -> str:
    """The wish, underscores behind it until it is free."""
    taken = set(taken)
    while wish in taken:
        wish += "_"
    return wish


def _roomy(body: Body) -> Body:
    taken = variables(body)
    new: dict = {}
    for name in sorted(taken & RESERVED):
        new[name] = fresh(name, taken | RESERVED | set(new.values()))
    if not new:
        return body

    def typed(pairs) -> list:
        return [(new.get(n, n), kind) for n, kind in pairs]

    def read(atoms: Sequence[Atom]) -> list:
        return [a if isinstance(a, Number) else new.get(a, a) for a in atoms]

    equations = [
        dataclasses.replace(eqn, outs=tuple(typed(eqn.outs)), ins=tuple(read(eqn.ins)))
        for eqn in body.equations
    ]
    return Body(body.name, typed(body.ins), equations, read(body.outs), body.called)


def atom(found: Atom) -> str:
    """An operand as an array, wherever it stands."""
    if isinstance(found, Number):
        text = spell_number(found, False)
        if text.startswith(("jnp.asarray", "np.zeros")):
            return text
        return f"jnp.asarray({text[1:-1] if text.startswith('(') else text})"
    return found


def pack(found: list[str]) -> str:
    """One value alone, several as a tuple."""
    return found[0] if len(found) == 1 else tupled(found)


def tupled(found: Sequence[str]) -> str:
    """A tuple of values.

    >>> tupled(["a"]), pack(["a"]), target(["a", "b"]), target([])
    ('(a,)', 'a', '(a, b)', '_')
    """
    return f"({', '.join(found)}{',' * (len(found) == 1)})"


def target(outs: list[str]) -> str:
    """What results are assigned to."""
    return pack(outs) if outs else "_"


def unpack(found: list[str], whole: str, count: int | None = None) -> list[str]:
    """Statements that give the parts of a tuple their names; one that stands alone, its own."""
    if not found:
        return []
    if count == 1:
        return [f"{found[0]} = {whole}"]
    return [f"{', '.join(found)}{',' * (len(found) == 1)} = {whole}"]


def indent(found: list[str]) -> list[str]:
    return [f"    {line}" for line in found]
