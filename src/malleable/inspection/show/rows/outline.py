"""A program as rows to read: `outline(program)`; each row an equation with its line and bodies."""

import functools
import itertools
import string
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from malleable import compat
from malleable.compat import Place
from malleable.inspection import counting, places
from malleable.inspection.modules import module_of
from malleable.programs.types import bytes_of, short_type

_ROLES = {"cond": ("if false", "if true"), "while": ("test", "body")}
_COUNTS = {
    *("num_consts", "num_carry", "cond_nconsts", "body_nconsts", "unroll", "name"),
    *("ft_in", "ft_out"),
    *("ctx_mesh", "context_mesh", "inline", "keep_unused", "unconstrained_dims"),
}
_LONG = 24  # characters of a parameter that is still worth reading


class Named(NamedTuple):
    """A variable or a number: name, and its type as text such as f32[3]."""

    name: str
    type: str


@dataclass(frozen=True)
class Body:
    """A program, or one inside an equation. role: what it is for, such as "if true"."""

    role: str
    ins: tuple[Named, ...]
    outs: tuple[Named, ...]
    rows: tuple["Row", ...]
    program: compat.Jaxpr

    @functools.cached_property
    def size(self) -> int:
        """How many equations there are, at any depth."""
        return len(self.rows) + sum(body.size for row in self.rows for body in row.bodies)


@dataclass(frozen=True)
class Row:
    """An equation. number: in program order, from 1; ins: as written, numbers spelled out.

    place: the user's own line; chain: the frames of this equation, then those around it; module:
    for what a library computes, its modules and name scopes.
    """

    number: int
    outs: tuple[Named, ...]
    primitive: str
    params: tuple[tuple[str, str], ...]
    ins: tuple[str, ...]
    place: Place | None
    chain: tuple[Place, ...]
    bodies: tuple[Body, ...]
    eqn: compat.Eqn
    module: str = ""

    @functools.cached_property
    def count(self) -> counting.Count:
        """The cost of one run of it, bodies by their steps."""
        return counting.count(self.eqn)

    @property
    def bytes(self) -> int:
        """The size of its results."""
        return sum(bytes_of(v.aval) for v in self.eqn.outvars)

    @property
    def steps(self) -> int | None:
        """How many steps a scan has."""
        length = self.eqn.params.get("length") if self.primitive == "scan" else None
        return length if isinstance(length, int) else None


def outline(program: compat.Jaxpr) -> Body:
    """The rows of a program, bodies inside their equations.

    >>> import jax
    >>> body = outline(compat.trace(jax.jit(lambda x: abs(x) + 1), 1.0))
    >>> body.size, [row.primitive for row in body.rows], body.rows[0].bodies[0].rows[1].ins
    (3, ['jit'], ('c', '1.0'))
    """
    names, numbers = name_variables(program), itertools.count(1)

    def grow(role, jaxpr, outer, start, around=()) -> Body:
        rows, start = [], compat.defined(jaxpr) or start
        for eqn in jaxpr.jaxpr.eqns:
            number = next(numbers)
            chain = tuple(dict.fromkeys((*places.frames(eqn), *outer)))
            lines = chain or tuple(filter(None, [start]))
            inside = compat.bodies(eqn.params)
            pairs = zip(roles(eqn.primitive.name, len(inside)), inside, strict=True)
            bodies = tuple(grow(role, body, chain, start, (eqn, *around)) for role, body in pairs)
            rows.append(
                Row(
                    number=number,
                    outs=named(eqn.outvars, names),
                    primitive=str(eqn.primitive),
                    params=params_of(eqn),
                    ins=tuple(spell_atom(v, names) for v in eqn.invars),
                    place=places.own(list(lines)),
                    chain=lines,
                    bodies=bodies,
                    eqn=eqn,
                    module="" if _is_own_line(lines) else module_of(eqn, *around),
                )
            )
        raw = jaxpr.jaxpr
        return Body(role, named(raw.invars, names), named(raw.outvars, names), tuple(rows), jaxpr)

    return grow("program", program, (), None)


def _is_own_line(lines: tuple[Place, ...]) -> bool:
    """Whether an equation is written in a line of the user's own."""
    return bool(lines) and places.is_own(lines[0].file)


def roles(primitive: str, count: int) -> tuple[str, ...]:
    """What the bodies of an equation are for."""
    known = _ROLES.get(primitive, ())
    if len(known) == count:
        return known
    return ("body",) if count == 1 else tuple(f"body {i}" for i in range(count))


def name_variables(program: compat.Jaxpr) -> dict:
    """Short names for the variables of a program and its bodies, in program order."""
    letters = string.ascii_lowercase
    fresh = ("".join(w) for n in itertools.count(1) for w in itertools.product(letters, repeat=n))
    names: dict = {}

    def walk(jaxpr):
        for v in (*jaxpr.jaxpr.constvars, *jaxpr.jaxpr.invars):
            names.setdefault(v, next(fresh))
        for eqn in jaxpr.jaxpr.eqns:
            for body in compat.bodies(eqn.params):
                walk(body)
            for v in eqn.outvars:
                names.setdefault(v, next(fresh))

    walk(program)
    return names


def params_of(eqn: compat.Eqn) -> tuple[tuple[str, str], ...]:
    """What an equation was told, as far as it is short and says something."""
    known = {"length"} if eqn.primitive.name == "scan" else set()  # `steps` has it
    plain = ((k, v) for k, v in eqn.params.items() if not compat.bodies({k: v}))
    said = ((k, _param_text(v)) for k, v in plain if k not in _COUNTS | known and not _is_dull(v))
    return tuple((k, v) for k, v in said if len(v) <= _LONG)


def _param_text(value) -> str:
    """A parameter as text; a number of NumPy is a number."""
    if type(value) is tuple:
        return f"({', '.join(map(_param_text, value))}{',' * (len(value) == 1)})"
    return str(value.item() if isinstance(value, np.generic) else value)


def _is_dull(value) -> bool:
    """Whether a parameter says nothing: nothing is given, for none of the operands."""
    if isinstance(value, tuple | list):
        return all(map(_is_dull, value))
    return value is None or value is False or "Unspecified" in type(value).__name__


def named(atoms, names: dict) -> tuple[Named, ...]:
    return tuple(Named(spell_atom(v, names), short_type(v.aval)) for v in atoms)


def spell_atom(atom, names: dict) -> str:
    """The name of a variable, or a number as it is."""
    if not isinstance(atom, compat.Literal):
        return names.get(atom, "_")
    return str(atom.val if getattr(atom.val, "shape", None) else np.asarray(atom.val)[()])
