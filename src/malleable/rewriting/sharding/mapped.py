"""Programs that a user has mapped over devices: their sums are made behind loops, not in them.

    deferred_sums(body)     # scan(c + psum(x))  ->  psum(scan(c + x)), in the body of a shard_map

As `local.py`, where all is in parts already: what differs between the devices is one's OWN, and a
psum leaves a SUM, which is summed where something needs the whole of it.
"""

from collections.abc import Sequence
from typing import Any

from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.notes import note
from malleable.programs.equations import every, variables
from malleable.programs.primitives import has
from malleable.programs.types import bytes_of
from malleable.rewriting.graph.slices import rebind, typed
from malleable.rewriting.sharding.local import fewer_sums
from malleable.rewriting.sharding.parts import (
    OWN,
    RULE,
    SENT,
    SUM,
    VARIED,
    WHOLE,
    Apart,
    Cost,
    PartsPlan,
    PartsStep,
    Sent,
    State,
    cost,
    entered_on_parts,
    is_number,
    is_undivided,
    linear,
    of_wholes,
    planned,
)
from malleable.rewriting.sharding.writer import OPENED, Axis, Local, Writer

SUMS = SENT & has("sum")


def _axes(eqn: compat.Eqn) -> tuple[str, ...]:
    """The axes of a mesh over which an equation sums all devices; () if it is no such sum."""
    if eqn.primitive.name not in SUMS or eqn.params.get("axis_index_groups") is not None:
        return ()
    axes = eqn.params.get("axes", ())
    return tuple(axes) if all(isinstance(a, str) for a in axes) else ()


def deferred_sums(body: compat.Jaxpr, specs: Sequence[Any] = ()) -> compat.Jaxpr:
    """The program of a device, with sums behind loops where their steps only add them up.

    specs: of each argument, where it is, if that is known: what is nowhere in parts is the same on
    all devices, also where types do not say so.
    """
    for axes in dict.fromkeys(axes for eqn in every(body.eqns) if (axes := _axes(eqn))):
        body = _deferred_along(axes, body, specs)
    return body


def _deferred_along(axes: tuple[str, ...], body: compat.Jaxpr, specs) -> compat.Jaxpr:
    summed = [v for eqn in every(body.eqns) if _axes(eqn) == axes for v in eqn.invars]
    checked = any(compat.varying(v.aval) for v in summed)
    rule = _Rule(axes, checked)
    raw = body.jaxpr
    ins = [rule.given(v) for v in raw.invars]
    for i, spec in enumerate(specs):
        ins[i] = ins[i] if {n for e in spec for n in compat.names_of(e)} & {*axes} else WHOLE
    with compat.setting(RULE, rule.step):
        try:
            plan = planned(body, ins, 1)
        except Apart as why:
            note("a collective stays in a loop", compat.where(why.eqn or body.eqns[0]), why.why)
            return body
        sent = cost(body, plan)
        ends = [WHOLE if s == SUM else s for s in plan.outs]
        outs = dict.fromkeys(variables(raw.outvars))
        sent.late += [Sent(1, bytes_of(v.aval), None) for v in outs if plan.states[v] == SUM]
        if not fewer_sums([Axis("devices", 1, plan, sent)]):
            return body

        def local(*args):
            writer = _MappedWriter(rule, plan)
            values = [Local(x, (s,)) for x, s in zip(args, plan.ins, strict=True)]
            found = writer.run(body, [plan], values, writer.constants(body))
            made = [writer.as_(v, (s,)).x for v, s in zip(found, ends, strict=True)]
            return typed(made, raw.outvars)

        return compat.trace(local, *body.in_avals)


class _Rule:
    """How values of the program of a device are summed along some axes of the mesh.

    checked: whether types say what varies over them.
    """

    def __init__(self, axes: tuple[str, ...], checked: bool):
        self.axes, self.checked = axes, checked
        self.numbers: dict[Any, Any] = {}  # what types call varying along other axes

    def given(self, v) -> State:
        """The state of a value of which only the type is known."""
        return OWN if not self.checked or compat.varying(v.aval) & set(self.axes) else WHOLE

    def step(self, eqn: compat.Eqn, ins: list[State], k: int) -> PartsStep:
        """How one equation runs: on sums that are still to be made if it is linear in them."""
        name = eqn.primitive.name
        settled = [WHOLE if s == SUM else s for s in ins]
        if _axes(eqn) == self.axes:
            return PartsStep(tuple(settled), (SUM,) * len(eqn.outvars))
        literal = lambda v: v if isinstance(v, compat.Literal) else self.numbers.get(v, v)  # noqa: E731
        written = list(map(literal, eqn.invars))
        if name in VARIED | {"convert_element_type"} and is_number(written[0]):
            number = compat.literal(getattr(written[0], "val", None), eqn.outvars[0].aval)
            self.numbers[eqn.outvars[0]] = number
        if SUM in ins and OWN not in ins and name not in VARIED | SENT:
            found = linear(eqn.replace(invars=written), ins)
            if found is not None:
                return found
        if name in OPENED and (found := self.opened(eqn, ins, k)):
            return found
        if all(map(is_undivided, settled)) and not eqn.effects and name not in SENT:
            return PartsStep(tuple(settled), tuple(of_wholes(eqn, settled)))
        return PartsStep(tuple(settled), tuple(map(self.given, eqn.outvars)))

    def opened(self, eqn, ins, k) -> PartsStep | None:
        """A loop, branch or call that is entered; None where devices go ways of their own."""
        view = compat.view(eqn)
        if isinstance(view, compat.Branch) and ins[0] == OWN:
            return None
        try:
            found = entered_on_parts(eqn, ins, k)
        except Apart:
            return None
        if isinstance(view, compat.While) and found.inside[0].outs[0] == OWN:
            return None
        return found


class _MappedWriter(Writer):
    """Writes the program of a device again, with its sums where the plan has them."""

    def __init__(self, rule: _Rule, plan: PartsPlan):
        super().__init__([Axis("devices", 1, plan, Cost())])
        self.rule = rule

    def vary(self, value: Local, names: Sequence[str] | None = None):
        x = value.x
        if not self.rule.checked:
            return x
        missing = set(self.rule.axes) - compat.varying(jnp.asarray(x)) if names != [] else ()
        return lax.pcast(jnp.asarray(x), tuple(sorted(missing)), to="varying") if missing else x

    def summed(self, x, names):
        return lax.psum(self.vary(Local(x, (SUM,))), self.rule.axes)

    def is_first(self, i: int):
        return lax.axis_index(self.rule.axes) == 0

    def pack(self, values: Sequence[Local]) -> list:
        return [(v.x,) for v in values]

    def step(self, eqn, steps, operands: list[Local], outs) -> list[Local]:
        if _axes(eqn) == self.rule.axes:
            return [Local(self.vary(v), (SUM,)) for v in operands]
        if steps[0].inside:
            return self.entered(eqn, steps, operands, outs)
        names = self.varying_axes([v.states for v in operands])
        results = rebind(eqn, [self.vary(v, names) for v in operands])
        return [Local(x, s) for x, s in zip(typed(results, eqn.outvars), outs, strict=True)]
