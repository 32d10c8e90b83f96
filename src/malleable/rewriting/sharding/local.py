"""A program as each device runs it on its own parts: a `shard_map` with few collectives.

    localized(program, placement)     # {inputs in parts} -> shard_map -> {results in parts, sums}

What is said of parts is `parts.py`, and how the program is written `writer.py`.
"""

from collections.abc import Callable, Collection, Iterable, Sequence

import jax
from jax.sharding import NamedSharding

from malleable import compat
from malleable.notes import note
from malleable.programs.equations import variables
from malleable.programs.types import bytes_of
from malleable.rewriting.graph.slices import typed
from malleable.rewriting.machine import Machine, decided_for
from malleable.rewriting.sharding.made import made_in_parts
from malleable.rewriting.sharding.parts import (
    ALONG,
    SUM,
    WHOLE,
    Apart,
    PartsPlan,
    Sent,
    State,
    cost,
    is_part,
    local_shape,
    planned,
    spec_of,
)
from malleable.rewriting.sharding.placement import Placement, placed_as
from malleable.rewriting.sharding.writer import Axis, Local, Writer

NAME = "on_devices"
WHY = "a program is left to XLA to partition"


def localized(
    jaxpr: compat.Jaxpr,
    placed: Placement,
    *,
    fewer: bool = False,
    batch: Collection[int] | None = None,
) -> compat.Jaxpr | None:
    """The program as each device runs it on its parts, or None with a note that says why not.

    It sends no more than XLA would by the same rules; fewer: it has to send less often.
    batch: arguments that stay in parts; others are gathered where parts of them do not help. By
    default none is.
    """
    used = {
        name for spec in placed.specs for entry in spec or () for name in compat.names_of(entry)
    }
    names = [name for name in placed.mesh.axis_names if name in used]
    axes = [axis for name in names if (axis := _axis(jaxpr, placed, name, batch)) is not None]
    if not axes or len(axes) < len(names):
        return None
    if fewer and not fewer_sums(axes):
        return None
    try:
        return _mapped_program(jaxpr, placed, axes)
    except Apart as why:
        _note(jaxpr, why)
        return None


def on_parts(
    p: Callable, jaxpr: compat.Jaxpr, worth: Callable[..., bool] = lambda before, after: True
) -> compat.Jaxpr:
    """A pass on the program that each device runs, where arguments are in parts.

    As it is on a program of which that is not known, or that is mapped over devices already. Where
    it cannot be run on parts, nothing is done: what is cut or merged might have to be sent.
    worth(before, after) says whether what the pass made of the parts is to be kept.
    """
    placed = Placement.current(jaxpr)
    if placed is None or any(eqn.primitive.name == "shard_map" for eqn in jaxpr.eqns):
        return p(jaxpr)
    local = localized(jaxpr, placed)
    if local is None:
        return jaxpr
    with decided_for(Machine.current().shared_by(placed.mesh.size)), placed_as(None):
        after = p(local)
    return after if after is not local and worth(local, after) else jaxpr


def _note(jaxpr, why: Apart) -> None:
    note(WHY, compat.where(*([why.eqn] if why.eqn is not None else jaxpr.eqns[:1])), why.why)


def fewer_sums(axes: Sequence["Axis"]) -> bool:
    """Whether sums over the devices are made less often; a note for each that stays in a loop."""
    late = [row for axis in axes for row in axis.cost.late]
    for row in late:
        if row.times > 1 and row.eqn is not None:
            why = f"its sum is used in each step, by {row.eqn.primitive}"
            note("a collective stays in a loop", compat.where(row.eqn), why)
    return _times(late) < _times(row for axis in axes for row in axis.cost.early)


def _times(rows: Iterable[Sent]) -> float:
    return sum(row.times for row in rows)


def _bytes(rows: Iterable[Sent]) -> float:
    return sum(row.times * row.bytes for row in rows)


def _axis(jaxpr, placed: Placement, name: str, batch) -> Axis | None:
    """How the program runs on parts along an axis of the mesh; None, with a note, if not at all."""
    k = placed.mesh.shape[name]
    try:
        ins = [state_on(spec, name, placed.mesh) for spec in placed.specs]
        consts = [state_of_constant(c, name, placed.mesh) for c in jaxpr.consts]
        rows = enumerate(zip(jaxpr.jaxpr.invars, ins, strict=True))
        kept = batch or ()
        cut = any(is_part(ins[i]) for i in kept)
        rest = {v for i, (v, s) in rows if cut and i not in kept and is_part(s)}
        with compat.setting(ALONG, name):
            plan = planned(jaxpr, ins, k, consts, rest)
        made_in_parts(jaxpr, plan, k)
        sent = cost(jaxpr, plan)
        for v in dict.fromkeys(variables(jaxpr.jaxpr.outvars)):
            if plan.states[v] == SUM:
                sent.late.append(Sent(1, bytes_of(v.aval), None))
        more = _times(sent.late) > _times(sent.early) or _bytes(sent.late) > _bytes(sent.early)
        if more:
            raise Apart(f"its sums over {name!r}, made late, would send more than made at once")
    except Apart as why:
        _note(jaxpr, why)
        return None
    return Axis(name, k, plan, sent)


def state_on(spec, name, mesh) -> State:
    """Which dimension of an argument is in parts along an axis of the mesh."""
    if spec is None:
        raise Apart("it is not known where an argument is")
    for dim, entry in enumerate(spec):
        names = compat.names_of(entry)
        if list(names) != [a for a in mesh.axis_names if a in names]:
            raise Apart("an argument is on several axes of the mesh, in another order")
        if name in names:
            return dim
    return WHOLE


def state_of_constant(c, name, mesh) -> State:
    """As `state_on`, of an array that a function closes over."""
    if isinstance(c, compat.Tracer):
        raise Apart("it is not known where an array is that the function closes over")
    sharding = getattr(c, "sharding", None)
    if isinstance(sharding, NamedSharding):
        if sharding.mesh != mesh:
            raise Apart("an array that the function closes over is on another mesh")
        return state_on(sharding.spec, name, mesh)
    return WHOLE


# ---------------------------------------------------------------- writing it


def _mapped_program(jaxpr: compat.Jaxpr, placed: Placement, axes: Sequence[Axis]) -> compat.Jaxpr:
    raw = jaxpr.jaxpr
    names = [a.name for a in axes]
    counts = [a.count for a in axes]
    rows = lambda atoms: [tuple(_at(a.plan, v) for a in axes) for v in atoms]  # noqa: E731
    ends = [_due(v, s, names) for v, s in zip(raw.outvars, rows(raw.outvars), strict=True)]
    inputs = (*raw.invars, *raw.constvars)
    given = rows(inputs)
    for v, states in zip((*inputs, *raw.outvars), (*given, *ends), strict=True):
        local_shape(v.aval.shape, states, counts)
    writer = Writer(axes)
    if not jaxpr.eqns:
        raise Apart("it has no equations")
    first = jaxpr.eqns[0]
    makers = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}

    def local(*args):
        values = [Local(x, s) for x, s in zip(args, given, strict=True)]
        n = len(raw.invars)
        outs = writer.run(jaxpr, [a.plan for a in axes], values[:n], values[n:])
        found = []
        for v, value, want in zip(raw.outvars, outs, ends, strict=True):
            literal = isinstance(v, compat.Literal)
            with compat.on_line(first if literal else makers.get(v, first)):
                found.append(writer.as_(value, want).x)
        return found

    specs = [spec_of(len(v.aval.shape), s, names) for v, s in zip(inputs, given, strict=True)]
    out_specs = [
        spec_of(len(v.aval.shape), s, names) for v, s in zip(raw.outvars, ends, strict=True)
    ]
    mapped = jax.shard_map(
        compat.made_by(NAME, local),
        mesh=placed.mesh,
        in_specs=tuple(specs),
        out_specs=out_specs,
        axis_names=set(names),
        check_vma=True,
    )

    def whole_program(*args):
        outs = mapped(*args, *jaxpr.consts)
        return typed(outs, raw.outvars)

    with compat.on_line(first):
        made = compat.trace(whole_program, *jaxpr.in_avals)
    for axis in axes:
        _note_whole_sums(jaxpr, axis)
    return made


def _note_whole_sums(jaxpr: compat.Jaxpr, axis: Axis) -> None:
    """Say which results are whole on each device, where arguments in parts had to be gathered."""
    states = axis.plan.states
    rows = zip(jaxpr.eqns, axis.plan.steps, strict=True)
    asked = (pair for eqn, step in rows for pair in zip(eqn.invars, step.wants, strict=True))
    if not any(want == WHOLE and is_part(_at(axis.plan, v)) for v, want in asked):
        return
    makers = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}
    wholes = [v for v in variables(jaxpr.jaxpr.outvars) if v.aval.shape and states[v] == SUM]
    for where in dict.fromkeys(compat.where(makers[v]) for v in wholes if v in makers):
        why = f"arguments are in parts over {axis.name!r}: `out_shardings` of jit, or an update of "
        note("a sum comes back whole on each device", where, why + "them here, keeps it in parts")


def _due(v, states: Sequence[State], names: Sequence[str]) -> tuple[State, ...]:
    """The state of a result: sums made, and in parts where its type says so."""
    told = None if isinstance(v, compat.Literal) else getattr(v.aval, "sharding", None)
    typed_as = {n: d for d, e in enumerate(told.spec) for n in compat.names_of(e)} if told else {}
    found = []
    for name, s in zip(names, states, strict=True):
        want = typed_as.get(name, WHOLE if s == SUM else s)
        if is_part(s) and want != s:
            raise Apart("a result is in parts of another dimension than its type says")
        found.append(want)
    return tuple(found)


def _at(plan: PartsPlan, atom) -> State:
    return WHOLE if isinstance(atom, compat.Literal) else plan.states[atom]
