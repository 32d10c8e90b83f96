"""How the parts of arrays along one axis of a mesh go through a program, equation by equation.

    3        each device has a part of dimension 3
    WHOLE    each has all of it, the same
    ZERO     so it has, and all of it is 0
    SUM      each has an array of the whole shape, whose sum over the devices is the value
    OWN      each has a value of its own, in a program that is mapped over devices already

A product that contracts a dimension of which each device has a part gives SUM; what is linear takes
a SUM to a SUM, so that the sum over the devices, an all-reduce, comes as late as it can.
Source: Xu et al., "GSPMD", 2021; the placements of PyTorch's DTensor; ZeRO.
"""

import contextlib
import math
from collections.abc import Callable, Collection, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeGuard

import numpy as np
from jax.sharding import PartitionSpec

from malleable import compat
from malleable.programs.equations import every, variables
from malleable.programs.primitives import has, kind
from malleable.programs.types import bytes_of
from malleable.rewriting.boxes.dependence import Along, Group, Place, rel
from malleable.rewriting.graph.slices import shapes

WHOLE, ZERO, SUM, OWN = "whole", "zero", "sum", "own"
State = int | str

LINEAR = has("linear")
SENT = kind("collective")  # rather after all is summed
ADDED = has("sum") & kind("elementwise")  # linear in both operands taken together
FIRST = frozenset({"dynamic_slice", "gather"})  # linear in the first operand, by places
CALLS = frozenset({"jit", "remat2"})
VARIED = frozenset({"pvary", "pcast"})  # the value as it is; its type says more
STAYS_ZERO = kind("dims") | (has("linear") & kind("cast", "same", "reduce")) | {"neg", "mul"}
STAYS_ZERO |= VARIED
RULED = frozenset({"custom_jvp_call", "custom_vjp_call"})
PLACED = ("sharding", "out_sharding")  # parameters that say where a result is on a mesh
SCATTERS = frozenset({"scatter-add"})
SAYS = {"sharding_constraint": "sharding", "reshard": "dst_sharding"}  # where a value is to be


class Apart(Exception):
    """A program cannot run on the parts of the devices: why, and the equation."""

    def __init__(self, why: str, eqn: compat.Eqn | None = None):
        super().__init__(why)
        self.why, self.eqn = why, eqn


@dataclass
class PartsStep:
    """One equation: what its operands have to be, what its results are, and its bodies, entered."""

    wants: tuple[State, ...]
    outs: tuple[State, ...]
    inside: tuple["PartsPlan", ...] = ()
    rule: "Rule | None" = None


class Rule(NamedTuple):
    """The derivative rule of a function as a program of primals and the tangents of floats.

    smooth, results: which operands and results are floats.
    """

    program: compat.Jaxpr
    smooth: list[bool]
    results: list[bool]


@dataclass
class PartsPlan:
    """A program, run by each device on its parts along one axis of the mesh, of k devices."""

    ins: tuple[State, ...]
    outs: tuple[State, ...] = ()
    steps: list[PartsStep] = field(default_factory=list)
    states: dict[Any, State] = field(default_factory=dict)


class Sent(NamedTuple):
    """A sum over the devices: how often it is made, its bytes, and which equation asks for it."""

    times: float
    bytes: int
    eqn: compat.Eqn | None


@dataclass
class Cost:
    """What is sent: each sum over the devices.

    `late`: as the plan has it; `early`: each as soon as there is one, as XLA does.
    """

    late: list[Sent] = field(default_factory=list)
    early: list[Sent] = field(default_factory=list)


def planned(
    program: compat.Jaxpr,
    ins: Sequence[State],
    k: int,
    consts: Sequence[State] | None = None,
    gatherable: Collection[Any] = (),
) -> PartsPlan:
    """How each of k devices runs a program on its parts. Raises Apart where it cannot.

    consts: the states of the constants, whole by default; gatherable: arguments that may be made
    whole, where an equation cannot run on their parts.

    >>> import jax.numpy as jnp
    >>> x, w = jnp.ones((8, 5)), jnp.ones((5, 3))
    >>> planned(compat.trace(lambda x, w: jnp.tanh(x @ w), x, w), [0, WHOLE], 4).outs
    (0,)
    >>> planned(compat.trace(lambda x: x.sum(), x), [0], 4).outs
    ('sum',)
    """
    early: set[Any] = set()
    consts = [WHOLE] * len(program.consts) if consts is None else consts
    while True:
        plan = _planned_once(program, ins, k, consts, gatherable, early)
        uses = [
            (v, want)
            for eqn, step in zip(program.jaxpr.eqns, plan.steps, strict=True)
            for v, want in zip(eqn.invars, step.wants, strict=True)
        ]
        asked = asked_for_sums(*zip(*uses, strict=True), plan.states) if uses else {}
        summed = (v for v, want in uses if want == SUM and not isinstance(v, compat.Literal))
        twice = {v for v in summed if v in asked}
        if twice <= early:
            return plan
        early |= twice  # summed anyway: not a second time, behind what is linear


def _planned_once(program, ins, k, consts, gatherable, early) -> PartsPlan:
    """The plan in which sums in `early` are made as soon as somebody uses them."""
    plan = PartsPlan(tuple(ins))
    states, can_be_whole = plan.states, set(gatherable)
    raw = program.jaxpr
    states.update(zip((*raw.constvars, *raw.invars), (*consts, *ins), strict=True))
    for eqn in raw.eqns:
        operands = [_state(v, states) for v in eqn.invars]
        given = variables(eqn.invars)
        if early:
            rows = zip(eqn.invars, operands, strict=True)
            operands = [WHOLE if s == SUM and v in early else s for v, s in rows]
        try:
            step = _step_or_gather(eqn, operands, k, can_be_whole)
        except Apart as why:
            if why.eqn is None or not compat.where(why.eqn):  # what JAX has in a call of its own
                why.eqn = eqn
            raise
        if len(given) == 1 and given[0] in can_be_whole:
            can_be_whole.update(eqn.outvars)  # a view, or a conversion
        plan.steps.append(step)
        states.update(zip(eqn.outvars, step.outs, strict=True))
    plan.outs = tuple(_state(v, states) for v in raw.outvars)
    return plan


def _step_or_gather(eqn, ins, k, can_be_whole) -> PartsStep:
    """A step on parts; where it cannot be, with as few operands made whole as will do."""
    if (rule := RULE.get()) is not None:
        return rule(eqn, ins, k)
    try:
        return step_on_parts(eqn, ins, k)
    except Apart as why:
        mine = [
            i
            for i, (v, s) in enumerate(zip(eqn.invars, ins, strict=True))
            if is_part(s) and not isinstance(v, compat.Literal) and v in can_be_whole
        ]
        mine.sort(key=lambda i: bytes_of(eqn.invars[i].aval))
        for chosen in (*([i] for i in mine), *([mine] if len(mine) > 1 else [])):
            whole = [WHOLE if i in chosen else s for i, s in enumerate(ins)]
            with contextlib.suppress(Apart):
                return step_on_parts(eqn, whole, k)
        raise why


# Another rule of equations to plan by than `step_on_parts`.
RULE: ContextVar[Callable[..., PartsStep] | None] = ContextVar("RULE", default=None)


def _state(atom, states) -> State:
    if isinstance(atom, compat.Literal):
        return ZERO if np.shape(atom.val) == () and atom.val == 0 else WHOLE
    return states[atom]


def is_number(atom) -> bool:
    """Whether an operand is a number that is written there: finite, and not 0."""
    if not isinstance(atom, compat.Literal) or np.shape(atom.val) != ():
        return False
    return bool(np.isfinite(atom.val)) and atom.val != 0


def is_placed(eqn: compat.Eqn) -> bool:
    """Whether an equation says where its results are on a mesh."""
    return any(eqn.params.get(name) is not None for name in PLACED)


def is_undivided(state: State) -> bool:
    return state in (WHOLE, ZERO)


def is_part(state: State) -> TypeGuard[int]:
    return not isinstance(state, str)


def step_on_parts(eqn: compat.Eqn, ins: list[State], k: int) -> PartsStep:
    """How one equation runs, given the states of its operands."""
    name = eqn.primitive.name
    if name in SAYS:
        return _said_on_parts(eqn, ins[0], k)
    if all(map(is_undivided, ins)):
        view = compat.view(eqn) if name in RULED else None
        if isinstance(view, compat.CustomJvp):
            return _ruled_on_parts(eqn, view, ins, k)
        if view is not None and any(map(is_placed, every(compat.bodies(eqn.params)[0].eqns))):
            raise Apart("a function with a reverse rule says where its values are", eqn)
        return PartsStep(tuple(ins), tuple(of_wholes(eqn, ins)))
    if name in SENT and _keeps_places(eqn):
        settled = tuple(WHOLE if s == SUM else s for s in ins)
        return PartsStep(settled, settled)
    if compat.bodies(eqn.params) and name not in SCATTERS and not name.startswith("scatter"):
        return entered_on_parts(eqn, ins, k)  # side effects are those of what is inside
    if eqn.effects and (any(map(is_part, ins)) or name not in SENT):
        raise Apart(f"{name} has a side effect", eqn)
    if SUM in ins and (step := linear(eqn, ins)):
        return step
    settled = [WHOLE if s == SUM else s for s in ins]
    if all(map(is_undivided, settled)):
        return PartsStep(tuple(settled), (WHOLE,) * len(eqn.outvars))
    wants, outs = _through(eqn, settled, k)
    return PartsStep(tuple(wants), tuple(outs))


def _said_on_parts(eqn, state: State, k: int) -> PartsStep:
    """A constraint on where a value is: what is not in parts yet is there as it says."""
    spec = getattr(eqn.params[SAYS[eqn.primitive.name]], "spec", ())
    said = next((d for d, e in enumerate(spec) if ALONG.get() in compat.names_of(e)), None)
    if state == SUM and CUTS_WHOLES.get() and eqn.primitive.name == "reshard" and not any(spec):
        return PartsStep((SUM,), (SUM,))  # of another kind of axes only
    if is_part(state) or said is None or shapes(eqn.invars)[0][said] % k:
        settled = WHOLE if state == SUM else state
        return PartsStep((settled,), (settled,))  # taken apart by axes where it is run
    return PartsStep((said,), (said,))


ALONG: ContextVar[str | None] = ContextVar("ALONG", default=None)  # the axis that is planned for


def _keeps_places(eqn) -> bool:
    """Whether a collective along another axis of the mesh leaves each element in its place."""
    same = shapes(eqn.invars) == shapes(eqn.outvars)
    return same and "split_axis" not in eqn.params and len(eqn.invars) == len(eqn.outvars)


def of_wholes(eqn, ins) -> list[State]:
    """Results of whole operands: whole, and 0 where that is plain to see."""
    name = eqn.primitive.name
    rows = list(zip(eqn.invars, ins, strict=True))
    needed = [s for v, s in rows if not is_number(v)] if name == "mul" else ins[:1]
    zero = name in STAYS_ZERO and bool(needed) and all(s == ZERO for s in needed)
    return [ZERO if zero else WHOLE] * len(eqn.outvars)


# ---------------------------------------------------------------- sums that are still to be made


def linear(eqn: compat.Eqn, ins: list[State]) -> PartsStep | None:
    """The equation as a function of SUMs that gives SUMs, or None where it is not linear."""
    if any(map(is_part, ins)) or not _is_linear(eqn, ins):
        return None
    before = max(bytes_of(v.aval) for v, s in zip(eqn.invars, ins, strict=True) if s == SUM)
    if sum(bytes_of(v.aval) for v in eqn.outvars) > before:  # more to send than now
        return None
    return PartsStep(tuple(ins), (SUM,) * len(eqn.outvars))


def _is_linear(eqn, ins: list[State]) -> bool:
    """Whether an equation is linear in those of its operands that are SUMs, taken together."""
    name, old, new = eqn.primitive.name, eqn.invars[0].aval.dtype, eqn.outvars[0].aval
    if name in ADDED or name in ("pad", "concatenate"):
        return WHOLE not in ins
    if name == "mul":  # by what is not finite, a part of 0 would not stay 0
        return any(map(is_number, eqn.invars))
    if name == "div":
        return compat.differentiable(new) and is_number(eqn.invars[1])
    if name == "select_n":
        return ins[0] != SUM and WHOLE not in ins[1:]
    if name == "convert_element_type":  # floats stay as precise as they are
        return old.kind in "fV" and new.dtype.kind in "fV" and new.dtype.itemsize >= old.itemsize
    if name in FIRST:
        exact = compat.differentiable(new) and eqn.params.get("fill_value") is None
        return SUM not in ins[1:] and exact
    if name == "dynamic_update_slice":
        return WHOLE not in ins[:2] and SUM not in ins[2:]
    if name in SCATTERS:
        return ins[0] != WHOLE and ins[1] != SUM and ins[2] != WHOLE
    return name in LINEAR and name not in SENT and len(ins) == 1


# ---------------------------------------------------------------- parts of a dimension


def _through(eqn: compat.Eqn, ins: list[State], k: int) -> tuple[list[State], list[State]]:
    """What operands must be and results are, where some operands are there in parts."""
    name, p = eqn.primitive.name, eqn.params
    sizes = shapes(eqn.invars)
    if name == "optimization_barrier" or name in VARIED:
        return ins, ins
    if name in SCATTERS:
        return _scatter_on_parts(eqn, ins, k)
    tables = rel(eqn)
    out = shapes(eqn.outvars)[0]
    at: int | None = None
    ended = []
    for i, (s, entries) in enumerate(zip(ins, tables, strict=True)):
        if not is_part(s):
            continue
        match entries[s]:
            case Along(dim, 1, 0, 0) if out[dim] == sizes[i][s]:
                found = dim
            case Place(dim, _):
                found = dim
            case Group(dim, _) if out[dim] % k == 0:
                found = dim
            case None:
                ended.append(i)
                continue
            case _:
                raise Apart(f"{name} needs the other parts", eqn)
        if at is not None and at != found:
            raise Apart(f"the operands of {name} are in parts of different dimensions", eqn)
        at = found
    wants = list(ins)
    if ended:
        if at is not None:
            raise Apart(f"{name} joins parts of different dimensions", eqn)
        return _summed(eqn, wants, ended)
    assert at is not None
    for i, entries in enumerate(tables):
        for d, entry in enumerate(entries):
            if getattr(entry, "dim", None) != at:
                continue
            exact = isinstance(entry, Place | Group) or (
                entry == Along(at, 1, 0, 0) and sizes[i][d] == out[at]
            )
            if not exact or wants[i] not in (WHOLE, ZERO, d):
                raise Apart(f"{name} needs the other parts", eqn)
            wants[i] = d
    if name == "reshape" and p.get("dimensions") is not None:
        raise Apart("a reshape that also transposes", eqn)
    return wants, [at] * len(eqn.outvars)


def _summed(eqn, wants, ended) -> tuple[list[State], list[State]]:
    """A dimension in parts ends here: by a sum, or not at all."""
    name, p = eqn.primitive.name, eqn.params
    if name == "reduce_sum" and wants[0] in p["axes"]:
        return wants, [SUM]
    is_conv = name == "conv_general_dilated" and p["feature_group_count"] == 1
    if name == "dot_general" or is_conv:
        numbers, side = p["dimension_numbers"], ended[0]
        contract = (numbers[0][1:2], numbers[1][1:2]) if is_conv else numbers[0]
        pairs = dict(zip(map(int, contract[side]), map(int, contract[1 - side]), strict=True))
        partner, other = pairs.get(wants[side]), wants[1 - side]
        if partner is not None and is_undivided(other) and not CUTS_WHOLES.get():
            # on devices XLA cuts it, or makes the other whole: who knows
            raise Apart("a product contracts what is in parts with what is whole", eqn)
        if partner is not None and (other == partner or is_undivided(other)):
            wants[1 - side] = partner
            return wants, [SUM]
    raise Apart(f"{name} needs all parts at once", eqn)


# Whether a part of what is whole is at hand and sends nothing, as in steps of a loop.
CUTS_WHOLES: ContextVar[bool] = ContextVar("CUTS_WHOLES", default=False)


def _scatter_on_parts(eqn, ins, k) -> tuple[list[State], list[State]]:
    """Added at places, each device for its indices: a SUM, if what is added to is 0.

    Along a batch each device adds to its own part.
    """
    numbers = eqn.params["dimension_numbers"]
    operand, places, updates = ins
    rank = len(shapes(eqn.invars)[2])
    windows = numbers.update_window_dims
    scattered = [d for d in range(rank) if d not in windows]
    along = dict(
        zip(numbers.scatter_indices_batching_dims, numbers.operand_batching_dims, strict=True)
    )
    at = places if is_part(places) else None
    if at is None and is_part(updates) and updates in scattered:
        at = scattered.index(updates)
    if at is None:
        at = next((i for i, d in along.items() if is_part(operand) and d == operand), None)
    if at is None or at >= len(scattered) or (at not in along and operand != ZERO):
        raise Apart("scatter-add into what is in parts", eqn)
    due = scattered[at]
    mixed = is_part(operand) and operand != along.get(at)
    if mixed or (is_part(updates) and updates != due) or (is_part(places) and places != at):
        raise Apart("the operands of scatter-add are in parts of different dimensions", eqn)
    if at in along:
        return [along[at], at, due], [along[at]]
    return [ZERO, at, due], [SUM]


# ---------------------------------------------------------------- bodies


def joined_state(one: State, other: State, eqn=None) -> State:
    """What holds of a value that is one or the other, each made into it."""
    if one == other:
        return one
    for a, b in ((one, other), (other, one)):
        if a == ZERO:
            return b
        if a == WHOLE:
            return WHOLE if b == SUM else b
    if OWN in (one, other):
        return OWN
    if SUM in (one, other):
        raise Apart("a value is a sum here, and in parts there", eqn)
    raise Apart("a value is in parts of different dimensions", eqn)


def entered_on_parts(eqn: compat.Eqn, ins: list[State], k: int) -> PartsStep:
    """An equation with bodies: they run on parts, too."""
    name = eqn.primitive.name
    match compat.view(eqn):
        case compat.Call(body, _, lost) if name in CALLS and not lost:
            if name == "jit" and not compat.is_transparent(eqn):
                raise Apart("a jit says where its operands are", eqn)
            plan = planned(body, ins, k)
            return PartsStep(tuple(ins), plan.outs, (plan,))
        case compat.CustomJvp() as view:
            return _ruled_on_parts(eqn, view, ins, k)
        case compat.Branch(branches):
            return _cond_on_parts(eqn, branches, ins, k)
        case compat.Scan() as loop:
            return _scan_on_parts(eqn, loop, ins, k)
        case compat.While() as loop:
            return _while_on_parts(eqn, loop, ins, k)
    raise Apart(f"nothing is known of parts in {name}", eqn)


def _ruled_on_parts(eqn, view, ins, k) -> PartsStep:
    """A function with a derivative rule, which runs on parts as the function does."""
    settled = [WHOLE if s == SUM else s for s in ins]
    plan = planned(view.body, settled, k)
    if SUM in plan.outs:
        raise Apart("a function with a derivative rule of its own sums parts", eqn)
    key = str(view.body), tuple(settled)
    if key in _inside_rules.get():  # met in its own rule
        return PartsStep(tuple(settled), plan.outs, (plan,), derivative(eqn, view))
    with compat.setting(_inside_rules, _inside_rules.get() | {key}):
        made = derivative(eqn, view)
        program, smooth, results = made
        due = [*settled, *(s for s, f in zip(settled, smooth, strict=True) if f)]
        rule = planned(program, due, k)
    moved = [s for s, f in zip(plan.outs, results, strict=True) if f]
    if [is_undivided(s) or s for s in rule.outs] != [
        is_undivided(s) or s for s in (*plan.outs, *moved)
    ]:
        raise Apart("a derivative rule has its results elsewhere than the function", eqn)
    return PartsStep(tuple(settled), plan.outs, (plan,), made)


_inside_rules: ContextVar[frozenset] = ContextVar("_inside_rules", default=frozenset())


def derivative(eqn, view) -> Rule:
    """The rule of a custom_jvp as a program."""
    avals = [v.aval for v in eqn.invars]
    smooth = [compat.differentiable(a) for a in avals]
    results = [compat.differentiable(v.aval) for v in eqn.outvars]

    def rule(*args):
        dots = compat.fill_tangents(smooth, args[len(avals) :], avals)
        made, moved = view.jvp(list(args[: len(avals)]), dots)
        return [*made, *(t for t, f in zip(moved, results, strict=True) if f)]

    tangents = [a for a, f in zip(avals, smooth, strict=True) if f]
    with compat.on_mesh_of(eqn):  # a rule may be asked for on the devices, too
        return Rule(compat.trace(rule, *avals, *tangents), smooth, results)


def with_bodies_planned(eqn: compat.Eqn, step: PartsStep, k: int) -> PartsStep:
    """The step of an equation whose operands are whole, with plans for its bodies."""
    return step if step.inside else entered_on_parts(eqn, list(step.wants), k)


def _cond_on_parts(eqn, branches, ins, k) -> PartsStep:
    if is_part(ins[0]):
        raise Apart("each device would take a branch of its own", eqn)
    wants = (WHOLE if ins[0] == SUM else ins[0], *ins[1:])
    plans = [planned(b, ins[1:], k) for b in branches]
    columns = zip(*(plan.outs for plan in plans), strict=True)
    outs = []
    for column in columns:
        state = column[0]
        for other in column[1:]:
            state = joined_state(state, other, eqn)
        outs.append(state)
    return PartsStep(wants, tuple(outs), tuple(plans))


def _scan_on_parts(eqn, loop, ins, k) -> PartsStep:
    consts, carry, xs = loop.split(list(ins))
    if any(s == 0 for s in xs):
        raise Apart("the steps of a loop are those of different devices", eqn)
    rows = [s - 1 if is_part(s) else s for s in xs]
    n = len(carry)

    def body(carry):
        return planned(loop.body, (*consts, *carry, *rows), k)

    plan, state = _settled(eqn, loop.body, body, carry, n)
    ys = [s + 1 if is_part(s) else (WHOLE if s == ZERO else s) for s in plan.outs[n:]]
    wants = _merged(eqn, loop, consts, state, xs)
    return PartsStep(wants, (*state, *ys), (plan,))


def _settled(eqn, program, body: Callable, carry, n) -> tuple[PartsPlan, list[State]]:
    """The plan of a loop whose carry has the same state before a step and after it.

    A value to which steps only add sums starts as one: one device has it, and the others 0.
    """
    plan, state = _fixpoint(eqn, body, carry, n)
    sent = _sums_in(program, plan, state)
    if not sent or WHOLE not in carry:
        return plan, state
    from_zero = [ZERO if s == WHOLE else s for s in carry]
    try:
        _, hoped = _fixpoint(eqn, body, from_zero, n)
        start = [h if s == WHOLE and h == SUM else s for s, h in zip(carry, hoped, strict=True)]
        other, found = _fixpoint(eqn, body, start, n)
    except Apart:
        return plan, state
    kept = all(b == SUM for a, b in zip(start, found, strict=True) if a == SUM)
    return (other, found) if kept and _sums_in(program, other, found) < sent else (plan, state)


def _fixpoint(eqn, body: Callable, carry, n) -> tuple[PartsPlan, list[State]]:
    state = list(carry)
    while True:
        plan = body(state)
        new = [joined_state(a, b, eqn) for a, b in zip(state, plan.outs[:n], strict=True)]
        if new == state:
            return plan, state
        state = new


def _sums_in(program, plan: PartsPlan, state) -> float:
    """How many sums over the devices a step of a loop makes."""
    into = Cost()
    _body(program, plan, (*state, *plan.outs[len(state) :]), 1, into)
    return sum(row.times for row in into.late)


def _merged(eqn, loop, *parts) -> tuple[State, ...]:
    """The states of operands, as `split` takes them apart, in the order they came."""
    places = loop.split(list(range(len(eqn.invars))))
    found: dict[int, State] = {}
    for at, states in zip(places, parts, strict=True):
        found |= dict(zip(at, states, strict=True))
    return tuple(found[i] for i in range(len(eqn.invars)))


def _while_on_parts(eqn, loop, ins, k) -> PartsStep:
    tests, consts, carry = loop.split(list(ins))

    def body(carry):
        return planned(loop.body, (*consts, *carry), k)

    plan, state = _settled(eqn, loop.body, body, carry, len(carry))
    test = planned(loop.cond, (*tests, *state), k)
    if is_part(test.outs[0]):
        raise Apart("how often a loop runs differs between the devices", eqn)
    return PartsStep(_merged(eqn, loop, tests, consts, state), tuple(state), (test, plan))


# ---------------------------------------------------------------- what is sent


def cost(
    program: compat.Jaxpr, plan: PartsPlan, times: float = 1, into: Cost | None = None
) -> Cost:
    """The sums over the devices that a plan makes, and those that XLA makes of the program."""
    into = Cost() if into is None else into
    made = set()
    for eqn, step in zip(program.jaxpr.eqns, plan.steps, strict=True):
        for v in asked_for_sums(eqn.invars, step.wants, plan.states):
            if v not in made:  # once for all its users
                into.late.append(Sent(times, bytes_of(v.aval), eqn))
                made.add(v)
        inner = compat.bodies(eqn.params) if step.inside else []
        if not inner and SUM in step.outs and SUM not in step.wants:
            into.early += [Sent(times, bytes_of(v.aval), eqn) for v in eqn.outvars]
        if inner:
            _cost_inside(eqn, step, times, into)
    return into


def asked_for_sums(atoms, wants, states):
    """The operands that are SUMs and have to be whole; each once."""
    rows = zip(atoms, wants, strict=True)
    asked = (v for v, want in rows if want != SUM and not isinstance(v, compat.Literal))
    return dict.fromkeys(v for v in asked if states.get(v) == SUM)


def _cost_inside(eqn, step, times, into) -> None:
    match compat.view(eqn):
        case compat.Scan() as loop:
            (plan,) = step.inside
            n = len(loop.split(list(eqn.invars))[1])
            due = (*step.outs[:n], *plan.outs[n:])
            _body(loop.body, plan, due, times * loop.length, into)
        case compat.While() as loop:
            test, plan = step.inside
            _body(loop.cond, test, (WHOLE,), 2 * times, into)  # it takes some steps, at least two
            _body(loop.body, plan, step.outs, 2 * times, into)
        case compat.Branch(branches):
            for branch, plan in zip(branches, step.inside, strict=True):
                _body(branch, plan, step.outs, times, into)
        case compat.Call(body=body) | compat.CustomJvp(body=body) | compat.Map(body=body):
            _body(body, step.inside[0], step.outs, times, into)


def _body(program, plan, due, times, into) -> None:
    cost(program, plan, times, into)
    for v in asked_for_sums(program.jaxpr.outvars, due, plan.states):
        into.late.append(Sent(times, bytes_of(v.aval), None))


def local_shape(shape: Sequence[int], states: Sequence[State], counts: Sequence[int]) -> tuple:
    """The shape of what a device has; one state for each axis of the mesh.

    >>> local_shape((8, 6), [0, WHOLE], [4, 2]), local_shape((8, 6), [0, 0], [4, 2])
    ((2, 6), (1, 6))
    """
    found = list(shape)
    for s, k in zip(states, counts, strict=True):
        if is_part(s):
            if found[int(s)] % k:
                raise Apart(f"a dimension of {math.prod(shape)} elements does not divide by {k}")
            found[int(s)] //= k
    return tuple(found)


def spec_of(rank: int, states: Sequence[State], names: Sequence[str]) -> PartitionSpec:
    """The spec of an array in such a state along each axis of a mesh."""
    entries: list = [()] * rank
    for s, name in zip(states, names, strict=True):
        if is_part(s):
            entries[int(s)] = (*entries[int(s)], name)
    return PartitionSpec(*(e[0] if len(e) == 1 else e or None for e in entries))
