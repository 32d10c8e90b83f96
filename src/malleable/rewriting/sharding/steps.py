"""A program whose batch comes in n steps: what is a sum over the batch is added up in a loop.

As `local.py`, with the steps of a loop in the place of devices. A sum over the batch is whole when
the loop has ended: what uses it comes behind, and nothing in a step may.
"""

from collections.abc import Sequence
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp
from jax.sharding import PartitionSpec

from malleable import compat
from malleable.errors import TransformError
from malleable.programs.equations import variables
from malleable.rewriting.graph.slices import rebind, typed
from malleable.rewriting.sharding.parts import (
    CUTS_WHOLES,
    SUM,
    VARIED,
    WHOLE,
    Apart,
    Cost,
    PartsPlan,
    State,
    asked_for_sums,
    is_part,
    local_shape,
    planned,
)
from malleable.rewriting.sharding.writer import Axis, Local, Writer, on_any_mesh


def in_steps(program: compat.Jaxpr, ins: Sequence[State], n: int, spread: bool) -> compat.Jaxpr:
    """The program, with the dimensions that `ins` say in n steps. Raises Apart where it cannot.

    spread: each step takes every n-th element, so that a dimension over devices stays there; else
    those that lie side by side.
    """
    with compat.setting(CUTS_WHOLES, True):
        plan = planned(program, ins, n)
    for v, s in plan.states.items():
        if is_part(s):
            local_shape(v.aval.shape, (s,), (n,))
    before, inner, after = _phases(program, plan)
    if not inner:
        raise Apart("no result depends on the batch")
    raw = program.jaxpr

    def whole(*args):
        env: dict[Any, Any] = dict(zip(raw.constvars, program.consts, strict=True))
        env |= dict(zip(raw.invars, args, strict=True))
        _run_equations(before, env)
        env |= _batch_loop(program, plan, inner, after, env, n, spread)
        _run_equations(after, env)
        return [v.val if isinstance(v, compat.Literal) else env[v] for v in raw.outvars]

    return compat.trace(whole, *program.in_avals)


def _phases(program, plan: PartsPlan) -> tuple[list, list, list]:
    """The equations before the loop, those in it with their places, and those behind it."""
    before, inner, after = [], [], []
    late: set = set()  # what is made behind the loop
    inside: set = set()  # and in it
    for i, (eqn, step) in enumerate(zip(program.eqns, plan.steps, strict=True)):
        given = variables(eqn.invars)
        if any(is_part(s) or s == SUM for s in step.outs):
            ended = asked_for_sums(eqn.invars, step.wants, plan.states)
            if ended or any(v in late for v in given):
                raise Apart("a sum over the batch is used in each of its steps", eqn)
            inside.update(eqn.outvars)
            inner.append((i, eqn))
        elif any(plan.states[v] == SUM or v in late for v in given):
            late.update(eqn.outvars)
            after.append(eqn)
        elif any(v in inside for v in given):  # whole, beside parts: a mask that a loop draws
            inside.update(eqn.outvars)
            inner.append((i, eqn))
        else:
            before.append(eqn)
    return before, inner, after


def _run_equations(eqns, env) -> None:
    for eqn in eqns:
        args = [v.val if isinstance(v, compat.Literal) else env[v] for v in eqn.invars]
        env.update(zip(eqn.outvars, compat.copy(eqn, args), strict=True))


def _batch_loop(program, plan: PartsPlan, inner, after, env, n: int, spread: bool) -> dict:
    """What the steps make that is used behind them, or is a result: {variable: value}."""
    raw = program.jaxpr
    made = {v for _, eqn in inner for v in eqn.outvars}
    used = variables([*(v for eqn in after for v in eqn.invars), *raw.outvars])
    wanted = [v for v in dict.fromkeys(used) if v in made]
    mesh = jax.sharding.get_abstract_mesh()
    for _, eqn in inner:
        meshes = {v.aval.sharding.mesh for v in eqn.outvars if v in wanted}
        if any(not m.empty and not mesh.empty and m != mesh for m in meshes):
            raise Apart("what comes out of a step has axes of another kind", eqn)
    sums = [v for v in wanted if plan.states[v] == SUM]
    rows = [v for v in wanted if is_part(plan.states[v])]
    alike = [v for v in wanted if v not in sums and v not in rows]  # the same in each step
    cut = [v for v in raw.invars if is_part(plan.states[v])]
    given = dict.fromkeys(variables(a for _, e in inner for a in e.invars))
    given = [v for v in given if v not in made and v not in cut]

    def body(t, wholes, parts):
        writer = StepWriter(n, plan, t, spread)
        local = {v: Local(x, (plan.states[v],)) for v, x in zip(given, wholes, strict=True)}
        local |= {v: Local(x, (plan.states[v],)) for v, x in zip(cut, parts, strict=True)}
        writer.some(inner, local)
        return [[local[v].x for v in some] for some in (sums, alike, rows)]

    once = jax.checkpoint(body, prevent_cse=False)

    def step(totals, x):
        t, parts = x
        added, same, stacked = once(t, [env[v] for v in given], parts)
        added = [a + b for a, b in zip(totals[: len(sums)], added, strict=True)]
        return typed([*added, *same], kept), stacked

    kept = [*sums, *alike]
    xs = [_parts_stacked(env[v], int(plan.states[v]), n, spread) for v in cut]
    zeros = [jnp.zeros(v.aval.shape, v.aval.dtype) for v in kept]
    zeros = [compat.match_layout(z, v.aval) for z, v in zip(zeros, kept, strict=True)]
    totals, stacked = lax.scan(step, zeros, (lax.iota(jnp.int32, n), xs))
    found = dict(zip(kept, typed(totals, kept), strict=True))
    for v, x in zip(rows, stacked, strict=True):
        dim = int(plan.states[v]) + spread
        found[v] = jnp.moveaxis(x, 0, dim).reshape(v.aval.shape)
    return found


def _parts_stacked(x, dim: int, n: int, spread: bool):
    """The parts of a dimension, stacked in front: (n, ..., size / n, ...)."""
    size = x.shape[dim] // n
    split = (size, n) if spread else (n, size)
    x = x.reshape(*x.shape[:dim], *split, *x.shape[dim + 1 :])
    return jnp.moveaxis(x, dim + 1 if spread else dim, 0)


class StepWriter(Writer):
    """Writes what one step of the batch does; t: which step it is."""

    def __init__(self, n: int, plan: PartsPlan, t, spread: bool):
        super().__init__([Axis("steps", n, plan, Cost())])
        self.plan, self.t, self.spread = plan, t, spread
        self.where = ""  # the line of a function whose derivative rule is written

    def some(self, eqns, env: dict) -> None:
        """Run some equations of the program, at their places in the plan."""
        for i, eqn in eqns:
            step = self.plan.steps[i]
            with self.at(eqn):
                operands = []
                for atom, want in zip(eqn.invars, step.wants, strict=True):
                    literal = isinstance(atom, compat.Literal)
                    value = Local(on_any_mesh(atom.val), (WHOLE,)) if literal else env[atom]
                    operands.append(self.as_(value, (want,)))
                results = self.step(eqn, [step], operands, [(s,) for s in step.outs])
            env.update(zip(eqn.outvars, results, strict=True))

    def at(self, eqn):
        """At its line, and on its own mesh: steps are on the devices of the program."""
        return compat.source(eqn)

    def place(self):
        """Which step it is, in types of the mesh that is set now."""
        mesh, typed_on = jax.sharding.get_abstract_mesh(), jax.typeof(self.t).sharding.mesh
        is_other = not mesh.empty and not typed_on.empty and mesh != typed_on
        return jax.sharding.reshard(self.t, PartitionSpec()) if is_other else self.t

    def scattered(self, value: Local, want: Sequence[State]) -> Local:
        return value

    def summed(self, x, names):
        raise Apart("a sum over the batch is used in each of its steps")

    def is_first(self, i: int):
        if self.t is None:
            raise self.timeless()
        return self.place() == 0

    def timeless(self) -> TransformError:
        return TransformError(
            "a derivative rule needs a part of the batch that only the step knows",
            where=self.where,
            hint="put microbatch behind the gradient: optimize(jax.grad(loss), microbatch(n))",
        )

    def custom_jvp(self, eqn, view, steps, operands, outs) -> list[Local]:
        """As on devices; a rule outlives the step, so it does not know which step it is."""
        timeless = StepWriter(self.counts[0], self.plan, None, self.spread)
        timeless.where = compat.where(eqn)
        return Writer.custom_jvp(timeless, eqn, view, steps, operands, outs)

    def vary(self, value: Local, names=None):
        return value.x

    def cut(self, value: Local, cuts):
        ((_, dim),) = cuts
        if value.maker is not None and (made := self.made_there(value, cuts)) is not None:
            return made
        if self.t is None:
            raise self.timeless()
        x = jnp.asarray(value.x)
        if self.spread and x.shape[dim] != self.extent():
            raise Apart("a batch over devices is merged with another dimension")
        parts = _parts_stacked(x, dim, self.counts[0], self.spread)
        return lax.dynamic_index_in_dim(parts, self.place(), keepdims=False)

    def made_there(self, value: Local, cuts):
        assert value.maker is not None
        eqn, operands = value.maker
        if eqn.primitive.name in VARIED:
            inner = operands[0]
            known = None if inner.maker is None else self.made_there(inner, cuts)
            return None if known is None else rebind(eqn, [known])[0]
        spread = eqn.primitive.name == "broadcast_in_dim"
        return super().made_there(value, cuts) if spread else None

    def extent(self) -> int:
        """How long the batch is."""
        return next(v.aval.shape[s] for v, s in self.plan.states.items() if is_part(s))

    def constrained(self, eqn, x, states):
        return rebind(eqn, [x])[0]

    resharded = constrained
