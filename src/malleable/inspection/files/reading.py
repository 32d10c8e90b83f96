"""From a jaxpr to a `Program`: variables get names, bodies too, functions inside become bodies."""

import itertools
import keyword
import re
import string
from collections.abc import Callable, Sequence

import jax
import numpy as np

from malleable import compat
from malleable.compat import Place
from malleable.errors import MalleableError
from malleable.inspection import places as lines
from malleable.inspection.files import names as chosen
from malleable.inspection.files.format import places, types
from malleable.inspection.files.format.program import (
    Atom,
    Body,
    Constant,
    Equation,
    Number,
    Program,
    Ref,
)

CONTEXT = {"threefry_partitionable": True, "compute_type": None, "xla_metadata": {}}


class Reader:
    """Bodies and constants read so far. take(reader, eqn) -> (operation, params, operands)."""

    def __init__(self, take: Callable, around: Sequence[Place] = (), depth=1, budget=None):
        self.take, self.around = take, tuple(around)
        self.depth, self.budget, self.spent = depth, budget, 0  # of rules: see `derivatives`
        self.bodies: dict[str, Body] = {}
        self.constants: dict[str, Constant] = {}
        self.rules: dict = {}  # of custom derivatives: see `derivatives`
        self.outer: list[compat.Eqn] = []  # equations whose bodies are being read, outermost first
        self._names: dict = {}  # body -> name; kept alive, so that no other gets its id
        self._arrays: dict = {}

    def reserve(self, wish: str) -> str:
        """A name for a body that no other has."""
        wish = re.sub(r"\W+", "_", wish).strip("_") or "body"
        wish = f"{wish}_" if keyword.iskeyword(wish) or wish[0].isdigit() else wish
        name = chosen.free(wish, self.bodies)
        self.bodies[name] = Body(name, [], [], [])
        return name

    def body(self, jaxpr: compat.Jaxpr, wish: str = "") -> Ref:
        """A body, read once however often it is met."""
        if id(jaxpr.jaxpr) in self._names:
            return Ref(self._names[id(jaxpr.jaxpr)][0])
        return self.read(jaxpr, self.reserve(wish or compat.spoken_of(jaxpr)[0]))

    def read(self, jaxpr: compat.Jaxpr, name: str, arguments: Sequence[str] = ()) -> Ref:
        """A body under a name that was reserved for it."""
        raw = jaxpr.jaxpr
        self._names[id(raw)] = name, raw
        called, spoken = compat.spoken_of(jaxpr)
        consts = zip(raw.constvars, jaxpr.consts, strict=True)
        known: dict = {v: self.constant(c, v.aval) for v, c in consts}
        frames = [places.without(lines.frames(eqn), self.around) for eqn in raw.eqns]
        wishes = chosen.wishes(raw, arguments or spoken, frames)
        taken, short = set(known.values()), _letters()
        for v in (*raw.invars, *(v for eqn in raw.eqns for v in eqn.outvars)):
            known[v] = _fresh(wishes.get(v), taken, short)
            taken.add(known[v])

        def atom(v) -> Atom:
            return number(v) if isinstance(v, compat.Literal) else known[v]

        body = self.bodies[name]
        body.called = called
        body.ins = [(known[v], types.unparse(v.aval)) for v in raw.invars]
        for eqn, at in zip(raw.eqns, frames, strict=True):
            self.outer.append(eqn)
            try:
                operation, params, operands = self.take(self, eqn)
                outs = tuple((known[v], types.unparse(v.aval)) for v in eqn.outvars)
            except MalleableError as err:
                if err.where:
                    raise
                where = chosen.spell_frames(lines.frames(*reversed(self.outer)))
                raise type(err)(err.what, where=where, hint=err.hint) from err.__cause__
            finally:
                self.outer.pop()
            ins = tuple(atom(v) for v in operands)
            stack = tuple(compat.names_around(eqn))
            body.equations.append(Equation(operation, outs, ins, params, at, stack, context(eqn)))
        body.outs = [atom(v) for v in raw.outvars]
        self.bodies[name] = self.bodies.pop(name)  # after those it refers to
        return Ref(name)

    def constant(self, value, aval) -> str:
        """The name of an array, kept once."""
        if isinstance(value, compat.Tracer):
            raise MalleableError(
                "the program needs a value that is being traced outside of it",
                hint="save the function outside of jit, grad and vmap; hand the value in",
            )
        if id(value) not in self._arrays:
            name = f"const_{len(self.constants)}"
            kind = types.unparse(aval)
            data = jax.random.key_data(value) if kind.lstrip("~").startswith("key<") else value
            self.constants[name] = Constant(np.asarray(data), kind)
            self._arrays[id(value)] = name, value
        return self._arrays[id(value)][0]

    def checkpoint(self) -> tuple:
        """What was read so far, to go back to: see `restore`."""
        rules = {name: dict(x) for name, x in self.rules.items() if isinstance(x, dict)}
        return dict(self.bodies), dict(self.constants), dict(self._names), dict(self._arrays), rules

    def restore(self, before: tuple) -> None:
        """Forget what was read since."""
        self.bodies, self.constants, self._names, self._arrays, rules = before
        for name, kept in rules.items():
            self.rules[name].clear()
            self.rules[name].update(kept)

    def program(self, main: Ref) -> Program:
        return Program(main.name, self.bodies, self.constants)


def number(literal) -> Number:
    """A number written into a program."""
    return Number(np.asarray(literal.val, literal.aval.dtype), types.unparse(literal.aval))


def context(eqn: compat.Eqn) -> dict:
    """What an equation depends on beside its operands and parameters, where it is not as usual."""
    now = {name: getattr(eqn.ctx, name, None) for name in CONTEXT}
    now["xla_metadata"] = dict(now["xla_metadata"] or {})
    return {name: value for name, value in now.items() if value != CONTEXT[name]}


def _letters():
    words = (itertools.product(string.ascii_lowercase, repeat=n) for n in itertools.count(1))
    return (word for word in map("".join, itertools.chain.from_iterable(words)))


def _fresh(wish: str | None, taken: set, short) -> str:
    """The wish, or with a number behind it; a short name where there is none."""
    if not wish:
        return next(n for n in short if n not in taken and not keyword.iskeyword(n))
    return chosen.free(wish, taken)
