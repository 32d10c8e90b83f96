"""What is known of a body before it runs, and of its variables while it does."""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax

from malleable import compat
from malleable.compat import Place
from malleable.inspection import places
from malleable.inspection.debugging import lanes


class Told:
    """An event in one line: a program in it may be long, and the programs around it longer."""

    eqn: compat.Eqn
    path: tuple
    place: Any

    def __repr__(self):
        number = getattr(self, "number", "")
        path = " > ".join(map(str, self.path))
        where = places.spell(self.place)
        return (
            f"<{type(self).__name__}{f' {number}' * bool(number)}: {self.eqn.primitive}"
            + f" in {path}" * bool(path)
            + f" at {where}" * bool(where)
            + ">"
        )


class Table:
    """What is known of a body before it runs. lane: whether it runs on one device of many."""

    def __init__(self, program: compat.Jaxpr, outer: tuple, lane: bool, mesh, names: Callable):
        self.program, self.lane, self.mesh, self.names = program, lane, mesh, names
        start = compat.defined(program)
        self.outer = (*outer, start) if start else outer
        raw = program.jaxpr
        self.eqns = raw.eqns
        self.known = dict(zip(raw.constvars, program.consts, strict=True))
        self.rows = [self._row(eqn) for eqn in raw.eqns]
        self.outs = [self._key(v) for v in raw.outvars]
        self._runs = [compat.alone(eqn) for eqn in raw.eqns] if lane else raw.eqns
        self._laid_out = {} if lane or mesh is None else dict.fromkeys(_laid_out(raw.eqns))
        self._chains: dict[int, tuple] = {}
        self._places: dict[int, Place | None] = {}
        self._views: dict[int, Any] = {}
        self._compiled: dict[int, Callable] = {}
        self._inside: dict = {}

    def _row(self, eqn):
        ins = [self._key(v) for v in eqn.invars]
        name = eqn.primitive.name
        axes = self.lane and (lanes.axes_of(name, eqn.params) or name in lanes.PLACING)
        return ins, eqn.outvars, not compat.bodies(eqn.params), axes

    def _key(self, atom):
        """What an operand is called in the environment of a run; numbers are known from here on."""
        if not isinstance(atom, compat.Literal):
            return atom
        key = _Number(id(atom))
        if key not in self.known:
            self.known[key] = compat.number(atom)
        return key

    def run(self, at: int, inputs: list, path: tuple) -> list:
        """The results of an equation as a whole."""
        eqn = self._runs[at]
        try:
            if eqn in self._laid_out:
                with compat.on_mesh(self.mesh):
                    return compat.copy(eqn, inputs)
            if eqn.primitive.name == "shard_map":  # JAX runs it uncompiled for some meshes only
                run = self._compiled.setdefault(at, jax.jit(lambda *xs: compat.copy(eqn, xs)))
                return run(*inputs)
            return compat.copy(eqn, inputs)
        except Exception as error:
            inside = f", inside {' > '.join(map(str, path))}" * bool(path)
            error.add_note(f"in `{eqn.primitive}` at {places.spell(self.place(at))}{inside}")
            raise

    def view(self, at: int):
        if at not in self._views:
            self._views[at] = compat.view(self.eqns[at])
        return self._views[at]

    def inside(self, at: int, body: compat.Jaxpr, lane: bool) -> "Table":
        """The table of a body of an equation."""
        key = at, body
        if key not in self._inside:
            lane = lane or self.lane
            self._inside[key] = Table(body, self.chain(at), lane, self.mesh, self.names)
        return self._inside[key]

    def chain(self, at: int) -> tuple[Place, ...]:
        if at not in self._chains:
            frames = (*compat.user_places(self.eqns[at]), *self.outer)
            self._chains[at] = tuple(dict.fromkeys(frames))
        return self._chains[at]

    def place(self, at: int) -> Place | None:
        if at not in self._places:
            self._places[at] = places.own(list(self.chain(at)))
        return self._places[at]

    @functools.cached_property
    def since(self) -> dict:
        """{variable: the number of the equation that gives it, -1 for those there at the start}."""
        raw = self.program.jaxpr
        given = dict.fromkeys((*raw.constvars, *raw.invars), -1)
        return given | {v: i for i, eqn in enumerate(self.eqns) for v in eqn.outvars}


def _laid_out(eqns) -> Iterator:
    for eqn in eqns:
        if any(compat.is_laid_out(v.aval) for v in (*eqn.invars, *eqn.outvars)):
            yield eqn


class _Number(NamedTuple):
    """A number written into a program, in the place of a variable."""

    id: int


class Env(Mapping):
    """The variables of a body after an equation of it."""

    __slots__ = ("_at", "_table", "_values")

    def __init__(self, values: dict, table: Table, at: int):
        self._values, self._table, self._at = values, table, at

    def __getitem__(self, v):
        if self._table.since[v] > self._at:
            raise KeyError(v)
        return self._values[v]

    def __iter__(self) -> Iterator:
        return (v for v, at in self._table.since.items() if at <= self._at)

    def __len__(self) -> int:
        return sum(at <= self._at for at in self._table.since.values())
