"""A program under other names: values that are the same as in another one are called the same."""

import dataclasses
import itertools
import string
from collections.abc import Iterator
from typing import Any

from malleable import compat
from malleable.inspection.show.rows.outline import Body, Named, Row, spell_atom


def fresh(taken: set[str]) -> Iterator[str]:
    """Short names that are not taken, each once.

    >>> names = fresh({"b"})
    >>> next(names), next(names)
    ('a', 'c')
    """
    letters = string.ascii_lowercase
    words = (itertools.product(letters, repeat=n) for n in itertools.count(1))
    for name in map("".join, itertools.chain.from_iterable(words)):
        if name not in taken:
            yield name


def known(body: Body) -> dict[Any, str]:
    """{variable: name} of a program, at any depth."""
    names = dict(zip(body.program.jaxpr.invars, (x.name for x in body.ins), strict=True))
    for row in body.rows:
        names |= zip(row.eqn.outvars, (x.name for x in row.outs), strict=True)
        for inside in row.bodies:
            names |= known(inside)
    return names


def rename(body: Body, names: dict[Any, str], unused: Iterator[str]) -> Body:
    """The same outline with these names; what has none is given one of the unused."""

    def name(v) -> str:
        if isinstance(v, compat.Literal):
            return spell_atom(v, {})
        if v not in names:
            names[v] = next(unused)
        return names[v]

    def named(variables, old) -> tuple[Named, ...]:
        return tuple(Named(name(v), x.type) for v, x in zip(variables, old, strict=True))

    def row_of(row: Row) -> Row:
        ins = tuple(map(name, row.eqn.invars))
        bodies = tuple(map(body_of, row.bodies))
        outs = named(row.eqn.outvars, row.outs)
        return dataclasses.replace(row, ins=ins, outs=outs, bodies=bodies)

    def body_of(body: Body) -> Body:
        raw = body.program.jaxpr
        ins = named(raw.invars, body.ins)
        rows = tuple(map(row_of, body.rows))
        outs = named(raw.outvars, body.outs)
        return dataclasses.replace(body, ins=ins, rows=rows, outs=outs)

    return body_of(body)


def rows_of(body: Body) -> Iterator[Row]:
    """Every row, at any depth, in program order."""
    for row in body.rows:
        yield row
        for inside in row.bodies:
            yield from rows_of(inside)
