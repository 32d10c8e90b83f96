"""Each device makes its own part of what depends on the place alone: random numbers, counts.

    made_in_parts(program, plan, k)     # s * normal(key, s.shape): each draws for its part of s

Backward dataflow over a plan of `parts.py`: a value that is whole, of which each user takes the
same part, is made in parts, if it can be made without what the other devices have.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.programs.primitives import kind
from malleable.rewriting.graph.slices import shapes
from malleable.rewriting.sharding.parts import (
    CALLS,
    WHOLE,
    Apart,
    PartsPlan,
    PartsStep,
    State,
    is_part,
    is_undivided,
    step_on_parts,
    with_bodies_planned,
)

BY_ELEMENT = kind("elementwise", "cast", "same")
VIEWS = kind("dims")
Dims = frozenset[int]


def made_in_parts(
    program: compat.Jaxpr,
    plan: PartsPlan,
    k: int,
    due: Sequence[State] | None = None,
    given: Mapping = MappingProxyType({}),
) -> None:
    """Have each of k devices make its part, and not the whole, in a plan and in its bodies.

    due: how the results are used, by default as they are; given: what arguments may be made in.
    """
    raw, due = program.jaxpr, plan.outs if due is None else due
    free: dict[Any, Dims] = dict(given)
    for eqn in raw.eqns:
        free |= _free(eqn, [_of(free, v) for v in eqn.invars], k)
    used: dict[Any, set[State]] = {}

    def use(atoms, states) -> None:
        for v, s in zip(atoms, states, strict=True):
            if not isinstance(v, compat.Literal):
                used.setdefault(v, set()).add(s)

    use(raw.outvars, due)
    for i in reversed(range(len(raw.eqns))):
        eqn, step = raw.eqns[i], plan.steps[i]
        outs = [
            _state_wanted(v, s, used, free) for v, s in zip(eqn.outvars, step.outs, strict=True)
        ]
        operands = [_of(free, v) for v in eqn.invars]
        changed = outs != list(step.outs)
        if eqn.primitive.name in CALLS and (changed or step.inside):
            step = _call_made(eqn, step, outs, operands, k)
        elif changed:
            wants = _operands_of_part(eqn, int(outs[0]), operands, k)
            assert wants is not None
            step = dataclasses.replace(step, wants=tuple(wants), outs=tuple(outs))
        elif step.inside:
            for body, inner in zip(_bodies_of_step(eqn), step.inside, strict=True):
                made_in_parts(body, inner, k)
        plan.steps[i] = step
        plan.states.update(zip(eqn.outvars, step.outs, strict=True))
        use(eqn.invars, step.wants)
    plan.ins = tuple(
        _state_wanted(v, s, used, given) for v, s in zip(raw.invars, plan.ins, strict=True)
    )
    plan.states.update(zip(raw.invars, plan.ins, strict=True))
    ends = zip(raw.outvars, plan.outs, strict=True)
    plan.outs = tuple(plan.states[v] if _is_var(v) else s for v, s in ends)


def _call_made(eqn, step: PartsStep, outs: list[State], ins: list[Dims], k: int) -> PartsStep:
    """The step of a call, with what is passed to it and comes from it made in parts."""
    step = with_bodies_planned(eqn, step, k)
    (body,), (inner,) = compat.bodies(eqn.params), step.inside
    made_in_parts(body, inner, k, outs, dict(zip(body.jaxpr.invars, ins, strict=True)))
    return dataclasses.replace(step, wants=inner.ins, outs=inner.outs)


def _bodies_of_step(eqn: compat.Eqn) -> Sequence[compat.Jaxpr]:
    """The programs of an equation, in the order of the plans of its step."""
    match compat.view(eqn):
        case compat.While(cond, body):
            return cond, body
        case compat.Branch(branches):
            return branches
        case compat.Scan(body=body) | compat.Call(body=body) | compat.CustomJvp(body=body):
            return (body,)
    return compat.bodies(eqn.params)


def _is_var(atom) -> bool:
    return not isinstance(atom, compat.Literal)


def _of(free, atom) -> Dims:
    return free.get(atom, frozenset()) if _is_var(atom) else frozenset()


def _state_wanted(v, state: State, used, free) -> State:
    """The state in which a result is wanted: in parts, if all of its users want the same part."""
    wants = used.get(v, set())
    if not is_undivided(state) or len(wants) != 1:
        return state
    (want,) = wants
    return want if is_part(want) and want in _of(free, v) else state


# ---------------------------------------------------------------- dimensions that are free


def _free(eqn: compat.Eqn, ins: list[Dims], k: int) -> dict[Any, Dims]:
    """{result: the dimensions along which each device can make its own part of it}."""
    name = eqn.primitive.name
    if name in CALLS:
        return dict(zip(eqn.outvars, _free_of_call(eqn, ins, k), strict=True))
    if len(eqn.outvars) != 1:
        return {}
    (out,) = shapes(eqn.outvars)
    dims = [d for d, size in enumerate(out) if size and size % k == 0]
    found = frozenset(d for d in dims if _operands_of_part(eqn, d, ins, k) is not None)
    return {eqn.outvars[0]: found} if found else {}


def _free_of_call(eqn, ins: list[Dims], k: int) -> list[Dims]:
    (body,) = compat.bodies(eqn.params)
    free: dict[Any, Dims] = dict(zip(body.jaxpr.invars, ins, strict=True))
    for inner in body.eqns:
        free |= _free(inner, [_of(free, v) for v in inner.invars], k)
    return [_of(free, v) for v in body.jaxpr.outvars]


def _operands_of_part(eqn, d: int, ins: list[Dims], k: int) -> Sequence[State] | None:
    """What the operands must be for a part of dimension d; None where more is needed than that."""
    name = eqn.primitive.name
    sizes, (out,) = shapes(eqn.invars), shapes(eqn.outvars)
    if name == "iota":
        return []
    if name == "random_bits":
        # whether each number is made of the key and of its place alone
        counted = str(eqn.invars[0].aval.dtype) == "key<fry>" and compat.context_key(eqn)[0]
        if not counted or math.prod(eqn.params["shape"]) >= 1 << 32:
            return None
        along: State = d if d < len(sizes[0]) else WHOLE
        return [along]
    if name == "broadcast_in_dim":
        to = list(map(int, eqn.params["broadcast_dimensions"]))
        if d not in to or sizes[0][to.index(d)] == 1:
            return [WHOLE] * len(ins)
        return [to.index(d)] if to.index(d) in ins[0] and len(ins) == 1 else None
    if name in VIEWS:
        for dim in sorted(ins[0]):
            try:
                if step_on_parts(eqn, [dim], k).outs == (d,):
                    return [dim]
            except Apart:
                continue
        return None
    if name not in BY_ELEMENT or eqn.effects or eqn.params.get("sharding") is not None:
        return None
    wants: list[State] = []
    for size, dims in zip(sizes, ins, strict=True):
        cut = len(size) == len(out) and size[d] == out[d]
        if cut and d not in dims:
            return None
        wants.append(d if cut else WHOLE)
    return wants if d in wants else None


# ---------------------------------------------------------------- random numbers


def drawn_by_place(eqn: compat.Eqn, key, starts: Sequence, sizes: Sequence[int]):
    """What a `random_bits` draws in a part of its array, which starts there (None: at 0).

    Source: jax._src.random.threefry2x32, `_threefry_random_bits_partitionable`.
    """
    width, whole = eqn.params["bit_width"], eqn.params["shape"]
    dtype, shape = jnp.dtype(f"uint{width}"), (*key.shape, *sizes)
    zero = place = jnp.zeros(shape, "uint32")
    for d, start in enumerate(starts):
        at = lax.broadcasted_iota("uint32", shape, key.ndim + d)
        at = at if start is None else at + start.astype("uint32")
        place = place * np.uint32(whole[d]) + at
    halves = jax.random.key_data(key)
    ones = [1] * (len(sizes) if key.ndim else 0)
    pair = (jnp.reshape(halves[..., i], (*key.shape, *ones)) for i in (0, 1))
    first, second = (jnp.broadcast_to(x, shape) if key.ndim else x for x in pair)
    operands = [compat.match_devices(x, halves, place) for x in (first, second, zero, place)]
    high, low = compat.named_primitives()["threefry2x32"].bind(*operands)
    if width == 64:
        return high.astype(dtype) << np.uint64(32) | low.astype(dtype)
    return (high ^ low).astype(dtype)
