"""Collectives moved out of loops, and batches split into steps: gradients are summed once."""

import itertools
from collections.abc import Sequence

from malleable import compat
from malleable.errors import TransformError
from malleable.notes import listen, note, unheard
from malleable.programs.equations import every, variables
from malleable.rewriting.passes.passes import (
    Pass,
    configurable,
    first_place,
    in_bodies,
    with_bodies_by,
)
from malleable.rewriting.sharding.local import localized
from malleable.rewriting.sharding.mapped import deferred_sums
from malleable.rewriting.sharding.moved import moved_behind
from malleable.rewriting.sharding.parts import SENT, WHOLE, Apart, State
from malleable.rewriting.sharding.placement import HELD, Placement
from malleable.rewriting.sharding.steps import in_steps

STAYS = "a collective stays where it is"


@configurable
def defer_collectives(jaxpr: compat.Jaxpr) -> compat.Jaxpr:
    """Sum over the devices behind a loop what its steps only add up: one all-reduce, not n.

    Gradients that are accumulated over microbatches, or over the steps of a scan, are summed over
    the devices in each step as XLA partitions them. Here each device adds up its own parts, and
    what is left is summed once, where something that is not linear uses it or it is returned.
    Parameters in parts along the axis of the batch are gathered once; the batch are the arguments
    whose first axis is as long as that of the last.
    Where the arguments are is taken from `optimize(..., shardings=...)`, or from themselves.
    In a `shard_map` of your own, or around one, it moves the `psum` and `pmean` of a loop likewise.
    What cannot be moved leaves a note at its line. The order of sums changes, nothing else.
    Source: Rajbhandari et al., "ZeRO", SC 2020; XLA's WhileLoopAllReduceCodeMotion.
    """
    if any(eqn.primitive.name in SENT for eqn in every(jaxpr.eqns)):
        mapped = any(eqn.primitive.name == "shard_map" for eqn in every(jaxpr.eqns))
        return _inside_maps(jaxpr) if mapped else _of_device(jaxpr)
    if any(eqn.primitive.name == "shard_map" for eqn in jaxpr.eqns):
        return jaxpr
    if (placed := Placement.current(jaxpr)) is None:
        why = "it is not known where the arguments are: see `shardings` of `optimize`"
        note(STAYS, first_place(jaxpr), why)
        return jaxpr
    guesses = _batches(jaxpr, 0, None) if any(a.shape for a in jaxpr.in_avals) else [{}]
    for batch in guesses[:-1]:
        with unheard():
            made = localized(jaxpr, placed, fewer=True, batch=batch)
        if made is not None:
            return made
    return localized(jaxpr, placed, fewer=True, batch=guesses[-1]) or jaxpr


def _of_device(body: compat.Jaxpr, specs: Sequence = ()) -> compat.Jaxpr:
    """The program that is mapped over devices, with fewer collectives in its loops."""
    return in_bodies(moved_behind)(deferred_sums(body, specs))


def _inside_maps(jaxpr: compat.Jaxpr) -> compat.Jaxpr:
    """The program with fewer sums in what it maps over devices, wherever that is."""

    def chosen(eqn: compat.Eqn) -> Pass:
        if eqn.primitive.name != "shard_map":
            return _inside_maps
        return lambda body: _of_device(body, eqn.params["in_specs"])

    return with_bodies_by(chosen, jaxpr)


def microbatch(n: int, *, axis: int = 0, argnums: int | Sequence[int] | None = None) -> Pass:
    """The pass that takes a batch in n steps: a gradient holds 1/n of its activations.

        step = optimize(jax.value_and_grad(loss), microbatch(8))

    What is proved to be a sum or a mean over the batch is added up in a loop, what keeps the batch
    axis comes out in order, and what is whole is made once. On a mesh each device takes its own
    part in steps, and sums over the devices once, behind the loop. Parameters in parts along the
    axis of the batch (FSDP) are gathered once, before it. Where the program cannot run on the
    parts of the devices, XLA may sum in each step, and a note says so.
    n: steps, which divide the batch; axis: the dimension of the batch; argnums: which positional
    arguments carry it, in all their arrays; by default the arrays whose `axis` is as long as that
    of the last.
    Raises TransformError, at the line, where a result is no sum over the batch.
    Source: Huang et al., "GPipe", NeurIPS 2019.

    >>> microbatch(4).__name__
    'microbatch'
    """
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise TransformError(f"microbatch takes a number of steps, not {n!r}", hint=COUNT)
    if not isinstance(axis, int) or isinstance(axis, bool):
        raise TransformError(f"axis is a number, not {axis!r}", hint="axis=0 is the first")
    chosen = argnums if isinstance(argnums, Sequence) else (argnums,)
    if argnums is not None and not all(type(i) is int for i in chosen):
        told = f"argnums is a number or several, not {argnums!r}"
        raise TransformError(told, hint=ARGNUMS)

    def run(jaxpr: compat.Jaxpr) -> compat.Jaxpr:
        return jaxpr if n == 1 else _in_steps(jaxpr, n, axis, argnums)

    run.__name__ = "microbatch"
    return configurable(run)


COUNT = "microbatch(4): four steps, each of a quarter of the batch"
ARGNUMS = "argnums counts positional arguments; those of a pytree all have the axis"


def _in_steps(jaxpr: compat.Jaxpr, n: int, axis: int, argnums) -> compat.Jaxpr:
    refused: list[Apart | TransformError] = []
    for chosen in _batches(jaxpr, axis, argnums):
        try:
            with unheard(), listen() as heard:  # of a guess that does not fit nothing is said
                made = _taken(jaxpr, chosen, n)
        except (Apart, TransformError) as error:
            refused.append(error)
            continue
        for told in heard:
            note(told.what, told.where, told.why)
        return made
    if not isinstance(why := refused[0], Apart):
        raise why
    raise TransformError(
        f"the batch cannot be taken in {n} steps: {why.why}",
        where=compat.where(*(jaxpr.eqns[:1] if why.eqn is None else [why.eqn])),
        hint="results have to be sums or means over the batch, or keep its axis; argnums says "
        "which arguments carry it",
    )


def _taken(jaxpr: compat.Jaxpr, chosen: dict[int, int], n: int) -> compat.Jaxpr:
    """The program with the batch of these arguments in n steps. Raises Apart where it cannot."""
    placed, takers = Placement.current(jaxpr), _takers(jaxpr, chosen)
    mapped = len(takers) == 1 and jaxpr.eqns[takers[0]].primitive.name == "shard_map"
    local = jaxpr if mapped else placed and localized(jaxpr, placed, batch=chosen)
    if local is not None:
        return _steps_inside(local, chosen, n)
    made = in_steps(jaxpr, _states(jaxpr, chosen, n), n, placed is not None)
    if placed is not None:
        why = f"XLA partitions the loop: up to {n} times as much is sent, see `communication`"
        note("each step may sum over the devices", first_place(jaxpr), why)
    return made


def _batches(jaxpr: compat.Jaxpr, axis: int, argnums) -> list[dict[int, int]]:
    """What may carry the batch, the likeliest first: {argument: its dimension of the batch}."""
    shapes = [tuple(a.shape) for a in jaxpr.in_avals]
    with_axis = [i for i, s in enumerate(shapes) if len(s) > max(axis, -axis - 1)]
    if argnums is None:
        if not with_axis:
            raise TransformError(f"no argument has an axis {axis}", hint=COUNT)
        alike = _likely_batch(shapes, axis, with_axis, Placement.current(jaxpr))
        guesses = dict.fromkeys(tuple(alike[k:]) for k in (0, -2, -1))
    else:
        held, found = HELD.get() or [[i] for i in range(len(shapes))], []
        for k in argnums if isinstance(argnums, Sequence) else (argnums,):
            arrays = held[k] if -len(held) <= k < len(held) else []
            if not arrays or not set(arrays) <= set(with_axis):
                told = f"argument {k} has no axis {axis}: there are {len(held)} arguments"
                raise TransformError(told, hint=ARGNUMS)
            found += arrays
        guesses = [found]
    return [{i: axis % len(shapes[i]) for i in found} for found in guesses]


def _likely_batch(
    shapes: list[tuple], axis: int, with_axis: list[int], placed: Placement | None
) -> list[int]:
    """The arguments side by side whose axis is as long as that of the last, and on its devices."""

    def key(i: int) -> tuple:
        spec = placed.specs[i] if placed is not None else None
        at = axis % len(shapes[i])
        return shapes[i][axis], spec[at] if spec is not None and at < len(spec) else None

    *before, last = with_axis
    same = itertools.takewhile(lambda i: key(i) == key(last), reversed(before))
    return [*reversed(list(same)), last]


def _states(jaxpr: compat.Jaxpr, chosen: dict[int, int], n: int) -> list[State]:
    for i, dim in chosen.items():
        size = jaxpr.in_avals[i].shape[dim]
        if size % n:
            told = f"a batch of {size} does not divide into {n} steps"
            raise TransformError(
                told, where=first_place(jaxpr), hint="n divides the batch of a device"
            )
    return [chosen.get(i, WHOLE) for i in range(len(jaxpr.in_avals))]


def _takers(jaxpr: compat.Jaxpr, chosen: dict[int, int]) -> list[int]:
    """Which equations take the batch."""
    batch = {jaxpr.jaxpr.invars[i] for i in chosen}
    rows = enumerate(variables(eqn.invars) for eqn in jaxpr.eqns)
    return [i for i, operands in rows if not batch.isdisjoint(operands)]


def _steps_inside(local: compat.Jaxpr, chosen: dict[int, int], n: int) -> compat.Jaxpr:
    """The program of a device in steps."""
    eqn = local.eqns[at := _takers(local, chosen)[0]]
    (body,) = compat.bodies(eqn.params)
    dims = {local.jaxpr.invars[i]: dim for i, dim in chosen.items()}
    operands = ((k, v) for k, v in enumerate(eqn.invars) if not isinstance(v, compat.Literal))
    mine = {k: dims[v] for k, v in operands if v in dims}
    with compat.inside(eqn):
        made = in_steps(body, _states(body, mine, n), n, False)
    eqns = [*local.eqns[:at], compat.with_bodies(eqn, [made]), *local.eqns[at + 1 :]]
    return compat.with_equations(local, eqns)
