"""Where the values of a program are on a mesh: `layouts(program).layout(var)`, for your own passes.

Forward dataflow along each axis of the mesh, from the shardings of the arguments, by the rules of
`parts.py`; constraints and explicit types say the rest. Loops go round to a fixpoint. XLA can be
asked for what it decides itself, as where parameters are in parts along the axis of the batch.
Source: Xu et al., "GSPMD", 2021.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from malleable import compat
from malleable.errors import TransformError
from malleable.programs.evaluate import evaluate
from malleable.rewriting.sharding.local import state_of_constant, state_on
from malleable.rewriting.sharding.parts import (
    SAYS,
    SUM,
    WHOLE,
    ZERO,
    Apart,
    State,
    is_part,
    spec_of,
    step_on_parts,
)
from malleable.rewriting.sharding.placement import Placement
from malleable.rewriting.sharding.writer import OPENED

UNKNOWN = "unknown"


class Layouts:
    """What is known of where the values of a program are.

    mesh: the mesh of its arguments, or None where no argument is on one.
    """

    def __init__(
        self,
        program: compat.Jaxpr,
        mesh: Any,
        states: dict[str, dict[Any, State]],
        compiled: dict[Any, PartitionSpec | None] | None = None,
    ):
        self.mesh: Any = mesh
        self._program, self._states, self._compiled = program, states, compiled or {}

    def layout(self, var: Any) -> PartitionSpec | None:
        """The spec of a variable, also of one in the body of a loop; None if it is not known.

        A sum over parts has the spec that it has once the devices have added it up.
        """
        if isinstance(var, compat.Literal):
            return PartitionSpec() if self.mesh is not None else None
        told = getattr(var.aval, "sharding", None)
        if told is not None and any(told.spec):
            return told.spec  # an explicit type
        rank = len(getattr(var.aval, "shape", ()))
        found = [states.get(var, UNKNOWN) for states in self._states.values()]
        if not found or UNKNOWN in found:
            return self._compiled.get(var)
        return spec_of(rank, found, list(self._states))

    def constrained(self, wish: Callable[[compat.Eqn], PartitionSpec | None]) -> compat.Jaxpr:
        """The program, told where the result of each equation is for which `wish` gives a spec.

        Bodies of loops, branches and calls are entered. Without a mesh, the program as it is.
        """
        if self.mesh is None:
            return self._program

        def step(eqn: compat.Eqn, results: list) -> list:
            spec = wish(eqn)
            if spec is not None:
                there = NamedSharding(self.mesh, spec)
                results[0] = lax.with_sharding_constraint(results[0], there)
            return results

        return _after_each(step, self._program)


def layouts(
    program: compat.Jaxpr, shardings: Sequence[Any] | None = None, *, compiled: bool = False
) -> Layouts:
    """Where the values of a program are on a mesh; in a pass, where `optimize` puts its arguments.

    shardings: outside of a pass, a NamedSharding, or a PartitionSpec under `jax.set_mesh`, or None
    for each argument.
    compiled: ask XLA for what it decides for itself, and is not known otherwise; the program is
    compiled for it. Where two ways are as good, XLA may choose another one when it is not asked.
    Raises TransformError for shardings that are not one for each argument, or do not fit it.

    >>> from malleable import stage
    >>> layouts(stage(abs)(1.0).jaxpr).mesh is None
    True
    """
    placed = Placement.current(program)
    if shardings is not None:
        if len(shardings) != len(program.in_avals):
            told = f"{len(shardings)} shardings are given for {len(program.in_avals)} arguments"
            raise TransformError(told, hint="one, or None, for each of program.in_avals")
        placed = Placement.said(program.in_avals, shardings)
    if placed is None:
        return Layouts(program, None, {})
    found = {}
    for name in placed.mesh.axis_names:
        axis = _Axis(name, placed.mesh)
        ins = [axis.at(state_on, spec) for spec in placed.specs]
        axis.flow(program, ins, [axis.at(state_of_constant, c) for c in program.consts])
        found[name] = axis.states
    return Layouts(program, placed.mesh, found, _by_xla(program, placed) if compiled else None)


def _after_each(step: Callable[[compat.Eqn, list], list], program: compat.Jaxpr) -> compat.Jaxpr:
    """The program with step(equation, results) in the place of the results of each equation.

    Bodies of loops, branches and calls are entered.
    """

    def one(eqn: compat.Eqn, operands: list) -> list:
        bodies = compat.bodies(eqn.params) if eqn.primitive.name in OPENED else []
        inner = [_after_each(step, body) for body in bodies]
        copied = compat.copy(compat.with_bodies(eqn, inner) if inner else eqn, operands)
        return step(eqn, list(copied))

    return compat.trace(lambda *args: evaluate(program, args, one), *program.in_avals)


def _by_xla(program: compat.Jaxpr, placed: Placement) -> dict[Any, PartitionSpec | None]:
    """Where XLA has the values of a program; None where it has a value in several ways."""
    found: dict[Any, PartitionSpec | None] = {}

    def heard(v, rank: int, sharding) -> None:
        whole = sharding.is_fully_replicated
        spec = PartitionSpec(*[None] * rank) if whole else getattr(sharding, "spec", None)
        if spec is not None:
            spec = PartitionSpec(*spec, *[None] * (rank - len(spec)))
        found[v] = spec if found.get(v, spec) == spec else None

    def step(eqn: compat.Eqn, results: list) -> list:
        for v, x in zip(eqn.outvars, results, strict=True):
            if rank := len(getattr(v.aval, "shape", ())):
                callback = functools.partial(heard, v, rank)
                jax.debug.inspect_array_sharding(x, callback=callback)
        return results

    watched = _after_each(step, program)
    there = [None if spec is None else NamedSharding(placed.mesh, spec) for spec in placed.specs]
    evaluated = jax.jit(lambda *args: evaluate(watched, args), in_shardings=there)
    evaluated.lower(*program.in_avals).compile()
    return found


class _Axis:
    """The states of all values along one axis of the mesh."""

    def __init__(self, name: str, mesh):
        self.name, self.mesh, self.k = name, mesh, mesh.shape[name]
        self.states: dict[Any, State] = {}

    def at(self, rule: Callable, x) -> State:
        try:
            return rule(x, self.name, self.mesh)
        except Apart:
            return UNKNOWN

    def flow(self, program: compat.Jaxpr, ins: Sequence[State], consts=None) -> list[State]:
        """The states of the results; those of all values between are kept."""
        raw = program.jaxpr
        known = [WHOLE] * len(raw.constvars) if consts is None else consts
        self.states.update(zip((*raw.constvars, *raw.invars), (*known, *ins), strict=True))
        for eqn in raw.eqns:
            outs = self.through(eqn, list(map(self.read, eqn.invars)))
            settled = [WHOLE if s == SUM else s for s in outs]
            self.states.update(zip(eqn.outvars, settled, strict=True))
        return list(map(self.read, raw.outvars))

    def read(self, atom) -> State:
        return WHOLE if isinstance(atom, compat.Literal) else self.states[atom]

    def through(self, eqn: compat.Eqn, ins: list[State]) -> Sequence[State]:
        unknown = [UNKNOWN] * len(eqn.outvars)
        name = eqn.primitive.name
        if name in SAYS:
            return [self.said(getattr(eqn.params[SAYS[name]], "spec", None))]
        if name == "shard_map":
            return [self.said(spec) for spec in eqn.params.get("out_specs", unknown)]
        if compat.bodies(eqn.params) and not name.startswith("scatter"):
            return self.entered(eqn, ins) or unknown
        if UNKNOWN in ins:
            return unknown
        try:
            return step_on_parts(eqn, ins, self.k).outs
        except Apart:
            return unknown

    def said(self, spec) -> State:
        """What a spec says of this axis."""
        if not isinstance(spec, PartitionSpec) or PartitionSpec.UNCONSTRAINED in spec:
            return UNKNOWN
        return next(
            (d for d, entry in enumerate(spec) if self.name in compat.names_of(entry)), WHOLE
        )

    def entered(self, eqn: compat.Eqn, ins: list[State]) -> Sequence[State] | None:
        match compat.view(eqn):
            case compat.Scan(body=body, split=split):
                consts, carry, xs = split(ins)
                rows = [_row(s) for s in xs]
                outs, carry = self.settled(lambda c: self.flow(body, [*consts, *c, *rows]), carry)
                return [*carry, *(s + 1 if is_part(s) else s for s in outs[len(carry) :])]
            case compat.While(cond, body, split):
                tests, consts, carry = split(ins)
                _, carry = self.settled(lambda c: self.flow(body, [*consts, *c]), carry)
                self.flow(cond, [*tests, *carry])
                return carry
            case compat.Branch(branches):
                columns = zip(*(self.flow(b, ins[1:]) for b in branches), strict=True)
                return [_either(*column) for column in columns]
            case compat.Call(body=body) | compat.CustomJvp(body=body):
                return self.flow(body, ins) if len(body.in_avals) == len(ins) else None
        return None

    def settled(self, body: Callable, carry) -> tuple[list[State], list[State]]:
        """The results of a loop's body, and its carry: the same before a step and after it."""
        while True:
            outs = body(carry)
            new = [_either(a, b) for a, b in zip(carry, outs[: len(carry)], strict=True)]
            if new == list(carry):
                return outs, new
            carry = new


def _row(state: State) -> State:
    """One step's part of what a scan takes in steps."""
    if not is_part(state):
        return state
    return state - 1 if state > 0 else UNKNOWN


def _either(*states: State) -> State:
    """What holds of a value that is one or another; what is whole is cut where it meets parts."""
    parts = {s for s in states if s not in (WHOLE, ZERO)}
    return WHOLE if not parts else parts.pop() if len(parts) == 1 else UNKNOWN
