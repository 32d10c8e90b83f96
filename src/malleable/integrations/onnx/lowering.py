"""A program in the operations that jax2onnx and onnxruntime have: `lower(program, known)`.

A rule is `rule(eqn) -> fun or None`: a function of the equation's operands that says the same in
other operations, or None where the equation may stay. What the function does is lowered in turn.
Control flow and calls are entered; see `control.py`. Random keys and complex numbers are
kept as two numbers in a last axis, which ONNX has; see `pairs.py`.
"""

import contextlib
import functools
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from malleable import compat
from malleable.compat import Eqn, Jaxpr
from malleable.inspection import places
from malleable.programs.equations import every
from malleable.programs.evaluate import evaluate
from malleable.programs.types import is_key

Rule = Callable[[Eqn], Callable | None]
RULES: dict[str, list[Rule]] = {}  # by primitive; "" for all
IN_LOOP: dict[str, list[Rule]] = {}  # those that come first, inside of loops
PAIRS: dict[str, Rule] = {}  # of equations that have keys or complex numbers
FLOW: dict[str, Callable] = {}  # (lowering, eqn, args, done) -> outs
LACKING: dict[str, str] = {}  # what has no counterpart, and why
UNABLE: dict[str, Callable[[Eqn], str]] = {}  # why some equations have none, or ""
DEEPEST = 100  # rules inside of rules; more is a rule that does not end


def rule(*names: str, table: dict = RULES, once: bool = False):
    """A decorator: the rule for these primitives; once: it may not apply to what it wrote."""

    def keep(fun: Any):
        fun.once = once
        for name in names:
            if table is RULES or table is IN_LOOP:
                table.setdefault(name, []).append(fun)
            else:
                table[name] = fun
        return fun

    return keep


@dataclass(frozen=True)
class Problem:
    """where: the user's line; primitive: what is there; why it cannot be exported; a way out."""

    where: str
    primitive: str
    why: str
    hint: str = ""


def lower(program: Jaxpr, known: Container[str]) -> tuple[Jaxpr, list[Problem]]:
    """The program in other operations; `known`: the primitives that may stay. And what cannot be.

    Arguments and results of a complex type, and keys, get a last axis of two.
    """
    lowering = Lowering(known)
    avals = [pair_type(v.aval) for v in program.jaxpr.invars]
    lowered = compat.trace(lambda *args: lowering.run(program, args), *avals)
    return compat.dce(lowered), lowering.problems


class Lowering:
    """Runs programs and replaces their equations; `problems` are those it could not."""

    def __init__(self, known: Container[str]):
        self.known = known
        self.problems: list[Problem] = []
        self.around: list[Eqn] = []

    def run(self, program: Jaxpr, args: Sequence, done: frozenset = frozenset()) -> list:
        """The results of a program on `args`, pairs for keys and complex numbers."""
        step = lambda eqn, xs: self.equation(eqn, xs, done)  # noqa: E731
        consts, literal = list(map(as_pair, program.consts)), lambda atom: as_pair(atom.val)
        return evaluate(program, args, step, consts=consts, literal=literal)

    def inside(self, eqn: Eqn, program: Jaxpr, args: Sequence, done: frozenset) -> list:
        """As `run`, of a body of an equation."""
        self.around.append(eqn)
        if len(self.around) > DEEPEST:
            raise RecursionError(f"the rules for {eqn.primitive} do not end")
        outs = self.run(program, args, done)
        self.around.pop()
        return outs

    def equation(self, eqn: Eqn, args: list, done: frozenset) -> list:
        """The results of one equation: entered, replaced, or as it stands."""
        name = eqn.primitive.name
        if name in FLOW:
            with compat.source(eqn):
                return FLOW[name](self, eqn, args, done)
        if name in LACKING:
            return self.lacks(eqn, LACKING[name])
        if any(is_pair(v.aval) for v in (*eqn.invars, *eqn.outvars)):
            fun = PAIRS[name](eqn) if name in PAIRS else None
            if fun is not None:
                return self.replaced(eqn, fun, args, done)
            kind = "keys" if any(is_key(v.aval) for v in eqn.invars) else "complex numbers"
            return self.unfolded(eqn, args, done, f"ONNX has no {kind}")
        general = RULES[""] if name in self.known or name in RULES else ()
        looped = IN_LOOP.get(name, ()) if any(map(is_loop, self.around)) else ()
        for one in (*looped, *RULES.get(name, ()), *general):
            key = (one, name)
            fun = None if key in done else one(eqn)
            if fun is not None:
                return self.replaced(eqn, fun, args, done | {key} if one.once else done)
        if why := unable(eqn):
            return self.lacks(eqn, why)
        if name not in self.known:
            return self.unfolded(eqn, args, done, "jax2onnx has no plugin for it")
        return compat.copy(eqn, args)

    def unfolded(self, eqn: Eqn, args: list, done: frozenset, why: str) -> list:
        """What the author of a primitive says it stands for; or a problem."""
        program = explained(eqn)
        return self.lacks(eqn, why) if program is None else self.inside(eqn, program, args, done)

    def replaced(self, eqn: Eqn, fun: Callable, args: list, done: frozenset) -> list:
        """What a rule's function gives, in place of an equation."""
        with compat.source(eqn):
            outs = self.write(eqn, fun, args, done)
        got = [(x.shape, x.dtype) for x in map(jax.typeof, outs)]
        wanted = [(t.shape, t.dtype) for t in (pair_type(v.aval) for v in eqn.outvars)]
        assert got == wanted, f"{eqn.primitive}: {got} in place of {wanted}"
        return outs

    def write(self, eqn: Eqn, fun: Callable, args: Sequence, done: frozenset) -> list:
        """The flat results of a function, which is lowered in turn."""
        args = list(map(jnp.asarray, args))
        body = compat.trace(lambda *xs: jax.tree.leaves(fun(*xs)), *map(jax.typeof, args))
        return self.inside(eqn, body, args, done)

    def lacks(self, eqn: Eqn, why: str, hint: str = "") -> list:
        """Keep a problem, and go on with zeros, to find the others."""
        found = Problem(self.where(eqn), str(eqn.primitive), why, hint)
        if found not in self.problems:
            self.problems.append(found)
        types = [pair_type(v.aval) for v in eqn.outvars]
        return [jnp.zeros(t.shape, t.dtype) for t in types]

    def where(self, eqn: Eqn) -> str:
        """The user's line behind an equation, or behind those around it."""
        return places.spell(places.of(eqn, *reversed(self.around)))


def is_loop(eqn: Eqn) -> bool:
    return eqn.primitive.name in ("scan", "while")


def unable(eqn: Eqn) -> str:
    """Why an equation has no counterpart although others of its primitive have one, or ""."""
    return UNABLE[eqn.primitive.name](eqn) if eqn.primitive.name in UNABLE else ""


def explained(eqn: Eqn) -> Jaxpr | None:
    """The program of JAX operations that an unknown primitive stands for, if it has one.

    That is what its author gave JAX to compile it by, or to run it eagerly.
    """
    avals = [v.aval for v in eqn.invars]
    run = functools.partial(eqn.primitive.impl, **eqn.primitive.get_bind_params(eqn.params))
    for fun in filter(None, (compat.written_in_jax(eqn), run)):
        with contextlib.suppress(Exception), compat.source(eqn):  # it may not be made to be traced
            program = compat.trace(lambda *xs, f=fun: jax.tree.leaves(f(*xs)), *avals)
            if primitives(program) - {"jit", "pjit"} != {eqn.primitive.name}:
                return program
    return None


def primitives(program: Jaxpr) -> set[str]:
    """The primitives in a program, at any depth, by name."""
    return {eqn.primitive.name for eqn in every(program.jaxpr.eqns)}


def is_pair(aval) -> bool:
    """Whether a type is kept as two numbers: a random key, or complex numbers."""
    return is_key(aval) or jnp.issubdtype(aval.dtype, jnp.complexfloating)


def pair_type(aval) -> jax.ShapeDtypeStruct:
    """The type that stands for another: itself, or with a last axis for the two numbers."""
    if is_key(aval):
        last = compat.key_functions(aval.dtype).key_shape
        return jax.ShapeDtypeStruct((*aval.shape, *last), np.uint32)
    if is_pair(aval):
        part = np.empty(0, aval.dtype).real.dtype
        return jax.ShapeDtypeStruct((*aval.shape, 2), part)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


def as_pair(x):
    """A value as what stands for it."""
    aval = jax.typeof(x)
    if is_key(aval):
        return jax.random.key_data(x)
    if is_pair(aval):
        return np.stack([np.real(x), np.imag(x)], -1)
    return x
