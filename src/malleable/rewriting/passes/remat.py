"""Rematerialization by budget: what a gradient keeps, so that it fits the memory of a device.

    optimize(loss, remat(budget=8 << 30))      # value_and_grad of it then holds at most 8 GiB

The program is cut where few bytes cross. A gradient keeps what crosses, and works the rest of a
part out again when it comes to it; of a scan it keeps the carries. As few operations as possible
are repeated. Source: Chen et al., "Training deep nets with sublinear memory cost", 2016.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Never

import jax
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.errors import TransformError
from malleable.notes import note
from malleable.programs.cost import flop_of
from malleable.programs.equations import every, variables
from malleable.programs.evaluate import evaluate, one_step
from malleable.programs.primitives import kind
from malleable.programs.types import bytes_of
from malleable.rewriting.graph.graph import Graph
from malleable.rewriting.passes.passes import configurable, first_place
from malleable.rewriting.passes.reroll import reroll
from malleable.rewriting.sharding.placement import HINT, Placement, is_sharding

MOST = 10  # parts of a program: more of them keep more than they save
TRIED = 6  # plans that are compiled: the estimate is in the right order, not exact
FREE = kind("dims", "same", "cast", "create", "place", "cut")  # nothing of them is kept for long


class Cut(NamedTuple):
    """A way to cut a program: where parts begin, and how many of the first are worked out again.

    kept: bytes that a gradient holds, estimated; again: operations that it repeats.
    """

    starts: tuple[int, ...]
    count: int
    kept: float
    again: float


def remat(
    *program: Never, budget: float | None = None, shardings: Any = None
) -> Callable[[compat.Jaxpr], compat.Jaxpr]:
    """The pass that makes the gradient of a program fit `budget` bytes of each device.

    budget: bytes of temporary memory of a device, for value, gradient and an update of the
    arguments, as `memory_analysis` of the compiled program counts them: arguments and results
    are not among them. The program is compiled for where its arguments are, to see; nothing is
    run, and a clock is not asked, so all processes decide alike.
    shardings: where the arguments are, as for `optimize`, whose own are the default.
    What is worked out again leaves a note for each part. Raises TransformError for a budget that
    cannot be met, and says what can.

    >>> remat(budget=1 << 30).__name__
    'remat'
    """
    if program:
        told = f"remat with its budget is a pass, and takes no {type(program[0]).__name__}"
        hint = "mal.optimize(loss, mal.remat(budget=8 << 30)), before the gradient"
        raise TransformError(told, hint=hint)
    is_number = isinstance(budget, int | float) and not isinstance(budget, bool)
    if budget is None or not is_number or budget <= 0:
        raise TransformError(
            f"budget is a number of bytes, not {budget!r}", hint="remat(budget=8 << 30) is 8 GiB"
        )

    def run(jaxpr: compat.Jaxpr) -> compat.Jaxpr:
        return _remat(budget, shardings, jaxpr)

    run.__name__ = "remat"
    return configurable(run)


def _remat(budget: float, shardings, jaxpr: compat.Jaxpr) -> compat.Jaxpr:
    placements = _placements(jaxpr, shardings)
    moving = [i for i, a in enumerate(jaxpr.in_avals) if compat.differentiable(a)]
    if not moving or not any(map(compat.differentiable, jaxpr.out_avals)):
        note("nothing is worked out again", first_place(jaxpr), "it has no gradient")
        return jaxpr
    sent = (eqn for eqn in every(jaxpr.eqns) if eqn.primitive.name in kind("collective"))
    if any(map(compat.varying, jaxpr.in_avals)) or (compat.is_mapped() and any(sent)):
        raise TransformError(
            "what a device of a shard_map runs cannot be compiled alone, to see what it takes",
            where=first_place(jaxpr),
            hint="use jax.checkpoint there, or let XLA partition the loss and put remat on that",
        )
    flat = Graph.of(jaxpr).jaxpr()
    if any(map(compat.has_effects, flat.eqns)):
        note("nothing is worked out again", first_place(jaxpr), "it has side effects")
        return jaxpr
    memory = functools.partial(_memory, moving=moving, placements=placements)
    plain = memory(jaxpr)
    if plain <= budget:
        return jaxpr
    least = plain
    for program in _forms(jaxpr, flat):
        for cut in _likely_cuts(program, budget, plain):
            made = _in_parts(program, cut)
            held = memory(made)
            least = min(least, held)
            if held <= budget:
                _tell(program, cut)
                return made
    what = f"a budget of {budget:.0f} bytes cannot be met: the least is {least} bytes, of {plain}"
    hint = f"remat(budget={least}), " * (least < plain)
    hint += "a smaller batch or microbatch(n), or more devices"
    if any(eqn.primitive.name == "shard_map" for eqn in jaxpr.eqns):
        hint += "; what is in a shard_map stays as it is: use jax.checkpoint there"
    if any(aval.shape for aval in jaxpr.out_avals):
        hint += "; remat goes around a loss, not around its gradient"
    raise TransformError(what, where=first_place(jaxpr), hint=hint)


def _forms(jaxpr: compat.Jaxpr, flat: compat.Jaxpr) -> Iterator[compat.Jaxpr]:
    """The program in line; then with layers that repeat as steps of a loop.

    A compiler may work out early what is to be worked out again late, and so keep it: XLA on the
    CPU does that with JAX 0.10. A loop it runs step by step.
    """
    yield flat
    rolled = reroll(jaxpr, sharded=True)
    if rolled is not jaxpr:
        yield Graph.of(rolled).jaxpr()


def _likely_cuts(program: compat.Jaxpr, budget: float, plain: int) -> list[Cut]:
    """The cuts that are compiled: those that fit by the estimate, the cheapest first."""
    plans = _cuts(program)
    scale = plain / max(1.0, _all_kept(program))
    likely = [cut for cut in plans if cut.kept * scale <= budget]
    order = sorted(likely, key=lambda cut: (cut.again, cut.kept))
    order += sorted((cut for cut in plans if cut not in likely), key=lambda cut: cut.kept)
    tried = [*order[: TRIED - 2], *sorted(plans, key=lambda cut: cut.kept)[:2]]
    return list(dict.fromkeys(tried))


def _placements(jaxpr: compat.Jaxpr, shardings) -> list:
    """A sharding or None for each argument."""
    placed = Placement.current(jaxpr)
    if shardings is not None:
        found = jax.tree.leaves(shardings, is_leaf=is_sharding)
        if len(found) != len(jaxpr.in_avals) or not all(map(is_sharding, found)):
            n = len(jaxpr.in_avals)
            told = f"shardings has {len(found)} leaves, and the program {n} arguments"
            raise TransformError(told, where=first_place(jaxpr), hint=HINT)
        placed = Placement.said(jaxpr.in_avals, found)
    if placed is None:
        return [None] * len(jaxpr.in_avals)
    named = functools.partial(jax.sharding.NamedSharding, placed.mesh)
    return [s if s is None else named(s) for s in placed.specs]


def _memory(jaxpr: compat.Jaxpr, moving: Sequence[int], placements: Sequence) -> int:
    """Bytes of temporary memory on a device, of value, gradient and an update of the arguments."""

    def step(consts, *args):
        def total(*some):
            given = list(args)
            for i, x in zip(moving, some, strict=True):
                given[i] = x
            outs = evaluate(jaxpr, given, consts=consts)
            floats = [x for x in outs if compat.differentiable(jax.typeof(x))]
            return sum(jnp.sum(jnp.real(x).astype(jnp.float32)) for x in floats), outs

        some = [args[i] for i in moving]
        grads, outs = jax.grad(total, tuple(range(len(some))), has_aux=True, holomorphic=False)(
            *some
        )
        return outs, [x - g for x, g in zip(some, grads, strict=True)]

    def like(a, sharding=None):
        return jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding)

    args = [like(a, s) for a, s in zip(jaxpr.in_avals, placements, strict=True)]
    consts = [like(jax.typeof(c), _concrete_sharding(c)) for c in jaxpr.consts]
    stats = jax.jit(step).lower(consts, *args).compile().memory_analysis()
    if stats is None:
        raise TransformError(
            f"the backend {jax.default_backend()} does not say what memory a program takes",
            hint="use jax.checkpoint with a policy of your own",
        )
    return stats.temp_size_in_bytes


def _concrete_sharding(c):
    sharding = None if isinstance(c, compat.Tracer) else getattr(c, "sharding", None)
    return sharding if isinstance(sharding, jax.sharding.NamedSharding) else None


# ---------------------------------------------------------------- where to cut


def _kept_of(eqn: compat.Eqn) -> float:
    """Bytes that a gradient keeps of an equation, about: its results, all steps of a loop."""
    view: Any = compat.view(eqn) if compat.bodies(eqn.params) else None
    own = 0.0
    if eqn.primitive.name not in FREE:
        own = sum(bytes_of(v.aval) for v in eqn.outvars if compat.differentiable(v.aval))
    match view:
        case compat.Scan(body=body, length=length):
            return own + length * _all_kept(body)
        case compat.Call(body=body):
            return own + _all_kept(body)
    return own


def _all_kept(jaxpr: compat.Jaxpr) -> float:
    return float(sum(map(_kept_of, jaxpr.eqns)))


def _crossing(jaxpr: compat.Jaxpr) -> list[float]:
    """Bytes that are made before each equation and used at it or behind; arguments are not."""
    eqns, raw = jaxpr.eqns, jaxpr.jaxpr
    last = {v: i for i, eqn in enumerate(eqns) for v in variables(eqn.invars)}
    last |= {v: len(eqns) for v in variables(raw.outvars)}
    change = [0.0] * (len(eqns) + 1)
    for i, eqn in enumerate(eqns):
        for v in eqn.outvars:
            if last.get(v, i) > i:
                change[i + 1] += bytes_of(v.aval)
                if last[v] < len(eqns):
                    change[last[v] + 1] -= bytes_of(v.aval)
    found, held = [], 0.0
    for step in change:
        held += step
        found.append(held)
    return found


def _cuts(jaxpr: compat.Jaxpr) -> list[Cut]:
    """Ways to cut a program, from few parts to many; the first of them are worked out again."""
    crossing, n = _crossing(jaxpr), len(jaxpr.eqns)
    kept = [0.0, *itertools.accumulate(map(_kept_of, jaxpr.eqns))]
    work = [0, *itertools.accumulate(map(flop_of, jaxpr.eqns))]
    found = []
    for count in range(1, min(MOST, n) + 1):
        starts = [0]
        for part in range(1, count):
            due = kept[n] * part / count
            near = [
                i for i in range(starts[-1] + 1, n) if abs(kept[i] - due) <= kept[n] / count / 2
            ]
            if near:
                starts.append(min(near, key=lambda i: (crossing[i], i)))
        ends = [*starts[1:], n]
        for m in range(1, len(starts) + 1):
            parts = [kept[b] - kept[a] for a, b in zip(starts[:m], ends[:m], strict=True)]
            rest = kept[n] - kept[ends[m - 1]]
            borders = sum(crossing[s] for s in starts[1 : m + 1])
            held = borders + max(max(parts), rest)
            found.append(Cut(tuple(starts), m, held, work[ends[m - 1]]))
    return list(dict.fromkeys(found))


# ---------------------------------------------------------------- writing it


def _in_parts(jaxpr: compat.Jaxpr, cut: Cut) -> compat.Jaxpr:
    """The program with its first parts under `checkpoint`; of a scan, each step."""
    raw, starts = jaxpr.jaxpr, (*cut.starts, len(jaxpr.eqns))
    users: dict = {}
    for i, eqn in enumerate(jaxpr.eqns):
        for v in variables(eqn.invars):
            users[v] = i
    users |= dict.fromkeys(variables(raw.outvars), len(jaxpr.eqns))

    def whole(*args):
        env = dict(zip((*raw.constvars, *raw.invars), (*jaxpr.consts, *args), strict=True))
        for k, (a, b) in enumerate(itertools.pairwise(starts)):
            eqns = jaxpr.eqns[a:b]
            made = {v for eqn in eqns for v in eqn.outvars}
            ins = [v for eqn in eqns for v in variables(eqn.invars) if v not in made]
            ins = list(dict.fromkeys(ins))
            outs = [v for eqn in eqns for v in eqn.outvars if users.get(v, -1) >= b]
            run = functools.partial(_fragment, eqns, ins, outs)
            loops = any(eqn.primitive.name == "scan" for eqn in eqns)
            if k < cut.count and not loops:
                run = jax.checkpoint(run)
            elif k < cut.count:
                run = functools.partial(_fragment, eqns, ins, outs, again=True)
            env.update(zip(outs, run(*(env[v] for v in ins)), strict=True))
        return [v.val if isinstance(v, compat.Literal) else env[v] for v in raw.outvars]

    return compat.trace(whole, *jaxpr.in_avals)


def _fragment(eqns, ins, outs, *args, again: bool = False) -> list:
    """The results of some equations; again: of a scan among them each step is a part by itself."""
    env = dict(zip(ins, args, strict=True))
    for eqn in eqns:
        given = [v.val if isinstance(v, compat.Literal) else env[v] for v in eqn.invars]
        view = compat.view(eqn) if again and eqn.primitive.name == "scan" else None
        made = _by_steps(view, given) if isinstance(view, compat.Scan) else compat.copy(eqn, given)
        env.update(zip(eqn.outvars, made, strict=True))
    return [env[v] for v in outs]


def _by_steps(view: compat.Scan, given) -> list:
    consts, carry, xs = view.split(given)
    step = jax.checkpoint(functools.partial(one_step, view))
    last, ys = lax.scan(lambda c, x: step(consts, c, x), carry, xs, **view.how)
    return [*last, *ys]


def _tell(jaxpr: compat.Jaxpr, cut: Cut) -> None:
    """A note for each part that a gradient works out again."""
    ends = (*cut.starts[1:], len(jaxpr.eqns))
    crossing = _crossing(jaxpr)
    for a, b in list(zip(cut.starts, ends, strict=True))[: cut.count]:
        eqns = jaxpr.eqns[a:b]
        again, saved = sum(map(flop_of, eqns)), sum(map(_kept_of, eqns))
        lines = compat.where(*eqns)
        why = (
            f"{saved:.3g} bytes are not kept, {crossing[b]:.3g} are; {again:.3g} flop are repeated"
        )
        note("worked out again in a gradient", lines, why)
