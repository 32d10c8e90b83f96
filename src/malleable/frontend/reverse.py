"""A `while` loop with derivatives in every mode: `while_loop(cond, body, init, consts, bound=n)`.

Forwards it is one `lax.while_loop`. Its derivative replays at most `bound` steps, in blocks of
blocks that keep their first state only and are skipped once the loop has stopped: memory grows
with the logarithm of the bound, time by one more replay per level of nesting.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import ceil

import jax
from jax import lax
from jax import numpy as jnp
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import SymbolicZero

from malleable import compat
from malleable.errors import TransformError

BLOCK = 32  # steps, or blocks, of which all states are kept at once
MOST = 2**31 - 1  # steps that an int32 can count


def while_loop(
    cond: Callable,
    body: Callable,
    init: Sequence,
    consts: Sequence,
    *,
    bound: int | None = None,
    where: str = "",
) -> list:
    """The carry after the last step: cond(consts, carry) -> bool, body(consts, carry) -> carry.

    consts and carry are flat lists of arrays. More than `bound` steps are taken all the same,
    but all derivatives are then NaN. Without a bound there is forward mode only; reverse mode
    raises a TransformError that names `where`.
    Both functions are traced more than once when the loop is differentiated.

    >>> halve = lambda consts, carry: [carry[0] / 2]
    >>> loop = lambda x: while_loop(lambda _, c: c[0] > 1, halve, [x], [], bound=9)[0]
    >>> float(loop(6.0)), float(jax.grad(loop)(6.0))
    (0.75, 0.125)
    """
    consts, init = [*map(compat.as_array, consts)], [*map(compat.as_array, init)]
    if bound is not None:
        return _loop(cond, body, partial(_bounded_rule, cond, body, bound))(consts, init)
    outs = _plain(cond, body)(consts, init)
    moves = (compat.differentiable(jax.typeof(x)) for x in outs)
    return [forward_only.bind(x, where=where) if m else x for x, m in zip(outs, moves, strict=True)]


def _plain(cond, body):
    """loop(consts, init) -> carry, as one writes it by hand."""

    def loop(consts, init):
        test, step = partial(cond, consts), lambda carry: list(body(consts, carry))
        return lax.while_loop(test, step, init)

    return loop


def _loop(cond, body, rule):
    """loop(consts, init) -> carry: one `lax.while_loop`, differentiated as `rule` says."""
    loop = jax.custom_jvp(_plain(cond, body))

    def jvp(primals, tangents):
        dots = [[t if compat.is_array(t) else None for t in ts] for ts in tangents]
        outs, out_dots = rule(*primals, *dots)
        zeros = (SymbolicZero(jax.typeof(x).to_tangent_aval()) for x in outs)
        return outs, [z if d is None else d for d, z in zip(out_dots, zeros, strict=True)]

    loop.defjvp(jvp, symbolic_zeros=True)
    return loop


# ---------------------------------------------------------------- with a bound


def _bounded_rule(cond, body, bound, consts, init, const_dots, init_dots):
    """Replay at most `bound` steps, in a way that can be transposed, then finish the loop.

    The value is the plain loop's, whatever the bound: the rest, of no steps most often, is one.
    """
    finish = _loop(cond, body, partial(_over_bound_rule, cond, body))

    def run(*args):
        consts, init = list(args[: len(const_dots)]), list(args[len(const_dots) :])
        return finish(consts, _bounded(cond, body, bound, consts, init))

    return _push(run, [*consts, *init], [*const_dots, *init_dots])


def _push(fun, primals, tangents):
    """fun(*primals) and its tangents; None is the tangent of what does not change."""
    live = [i for i, t in enumerate(tangents) if t is not None]
    flow = []

    @jax.custom_jvp
    def watch(outs):
        return outs

    def note_flow(primals, tangents):
        flow.extend(map(compat.is_array, tangents[0]))
        return primals[0], tangents[0]

    watch.defjvp(note_flow, symbolic_zeros=True)

    def run(*moving):
        args = list(primals)
        for i, x in zip(live, moving, strict=True):
            args[i] = x
        return watch(fun(*args))

    outs, dots = jax.jvp(run, [primals[i] for i in live], [tangents[i] for i in live])
    flow = flow or [False] * len(outs)
    return outs, [d if f else None for d, f in zip(dots, flow, strict=True)]


def _bounded(cond, body, bound, consts, init):
    """The carry after the last step, or after `bound` steps.

    Blocks nested evenly, all but the outermost replayed from their first state in reverse:
    Griewank, "Achieving logarithmic growth of temporal and spatial complexity in reverse
    automatic differentiation", Optimization Methods and Software 1, 1992, with a fixed number
    of parts per level (Griewank and Walther's Algorithm 799, ACM TOMS 26, 2000, is the optimum
    for a known number of steps; here that number is not known beforehand: compare Stumm and
    Walther, SIAM J. Sci. Comput. 32, 2010).
    """
    bound = min(bound, MOST)

    def step(state):
        count, _, *carry = state
        count, carry = count + 1, list(body(consts, carry))
        return [count, cond(consts, carry) & (count < bound), *carry]

    def run(state):
        return _when(state[1], step, state)

    run = jax.checkpoint(run, prevent_cse=False)  # else constants are kept once per step
    *inner, outer = _sizes(bound)
    for size in inner:
        run = jax.checkpoint(_skippable(partial(_repeat, run, size)), prevent_cse=False)
    count, running = jnp.int32(0), jnp.asarray(cond(consts, init)) & (bound > 0)
    return _repeat(run, outer, [count, running, *init])[2:]


def _sizes(bound):
    """Parts per level, from the innermost, at most BLOCK each; their product covers the bound."""
    left, levels = max(bound, 1), 1
    while BLOCK**levels < left:
        levels += 1
    sizes = []
    for level in range(levels, 0, -1):
        sizes.append(ceil(left ** (1 / level)))
        left = ceil(left / sizes[-1])
    return sizes


def _repeat(fun, times, state):
    return lax.scan(lambda s, _: (fun(s), None), state, None, length=times)[0]


def _skippable(block):
    return lambda state: lax.cond(_any_lane(state[1]), block, list, state)


def _when(flag, fun, state, other=list):
    """fun(state) if flag else other(state), which must have the same types.

    A `cond`, since a `where` on the results makes NaN of 0 * inf in reverse. Under vmap, where
    JAX makes a select on operands and results of it, it stays a cond as long as no lane is in.
    """
    inside = lambda state: lax.cond(flag, fun, other, state)  # noqa: E731
    return lax.cond(_any_lane(flag), inside, other, state)


@custom_vmap
def _any_lane(flag):
    """The flag; under vmap whether any lane has it: one value for all, so a cond stays a cond."""
    return flag


@_any_lane.def_vmap
def _any_lane_mapped(size, mapped, flags):
    return _any_lane(flags.any(axis=0)), False


def _over_bound_rule(cond, body, consts, init, const_dots, init_dots):
    """The loop after its bound: no step is left to take, or all derivatives are NaN."""
    loop = _loop(cond, body, partial(_over_bound_rule, cond, body))
    live = [d for d in (*init_dots, *const_dots) if d is not None]
    spoilt = _when(cond(consts, init), _spoil, live, list)
    dots = iter(spoilt)
    return loop(consts, init), [None if d is None else next(dots) for d in init_dots]


def _spoil(tangents):
    """NaN in place of each; linear, so that in reverse each cotangent becomes NaN as well."""
    nan = jnp.nan * sum(jnp.sum(t.real) for t in tangents)
    return [jnp.broadcast_to(nan, t.shape).astype(t.dtype) for t in tangents]


# ---------------------------------------------------------------- without a bound


def _refuse(cotangent, operand, *, where):
    raise TransformError(
        "a loop whose number of steps is unknown has no derivatives in reverse mode",
        where=where,
        hint="give the loop a bound: loop(max_steps=...) or a range with a known end",
    )


# the identity, on results of a loop without a bound
forward_only = compat.Primitive("forward_only")
compat.define_linear(forward_only, lambda x, **_: x, _refuse)
