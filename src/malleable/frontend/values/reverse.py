"""A `while` loop with derivatives in every mode: `while_loop(cond, body, init, consts, bound=n)`.

Forwards it is one `lax.while_loop`. In reverse the steps that were taken are taken back one by one,
from states of which every so many-th was kept: nothing is ever computed for a step that was not
taken, so that no derivative of such a step can spoil the others.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import ceil

import jax
from jax import lax
from jax import numpy as jnp
from jax.custom_derivatives import SymbolicZero

from malleable import compat
from malleable.errors import TransformError

KEPT = 64  # states that are kept of the steps of one stretch


def while_loop(
    cond: Callable,
    body: Callable,
    init: Sequence,
    consts: Sequence,
    *,
    bound: int | None = None,
    where: str = "",
    silent: Callable | None = None,
) -> list:
    """The carry after the last step: cond(consts, carry) -> bool, body(consts, carry) -> carry.

    consts and carry are flat lists of arrays. In reverse mode at most `bound` steps can be taken
    back: if there were more, the gradient is NaN. Without a bound there is forward mode only, and
    reverse mode raises a TransformError that names `where`. A derivative takes steps of `silent`,
    the body without what it prints.
    Memory in reverse: 64 states for each of log64(bound) levels; time: every step that was taken,
    once per level forwards and once back. The levels are those of Griewank, "Achieving logarithmic
    growth of temporal and spatial complexity in reverse automatic differentiation", Optimization
    Methods and Software 1, 1992.

    >>> halve = lambda consts, carry: [carry[0] / 2]
    >>> loop = lambda x: while_loop(lambda _, c: c[0] > 1, halve, [x], [], bound=9)[0]
    >>> float(loop(6.0)), float(jax.grad(loop)(6.0))
    (0.75, 0.125)
    """
    consts, init = [*map(compat.as_array, consts)], [*map(compat.as_array, init)]
    if compat.is_mapped():
        test = jax.eval_shape(cond, consts, init)
        consts = [
            compat.match_devices(x, test) for x in consts
        ]  # so that no step sums over devices
        silent = silent and varied(silent, consts, init, cond)[0]
        body, init = varied(body, consts, init, cond)
    return _differentiated(cond, body, silent or body, bound, where)(consts, init)


def varied(body: Callable, consts, init: list, cond: Callable | None = None) -> tuple:
    """The body and the first carry, varying over the mesh axes that some step makes them vary over.

    Where devices may take different numbers of steps all of it varies, which JAX does not say.
    """

    def step(consts, carry):
        outs = zip(body(consts, carry), carry, strict=True)
        return [compat.match_devices(compat.as_array(x), old) for x, old in outs]

    while True:
        test = [] if cond is None else [jax.eval_shape(cond, consts, init)]
        outs = jax.eval_shape(body, consts, init)
        new = [compat.match_devices(x, y, *test) for x, y in zip(init, outs, strict=True)]
        if all(x is y for x, y in zip(init, new, strict=True)):
            return step, init
        init = new


def silenced(program: compat.Jaxpr) -> compat.Jaxpr:
    """A program without what it prints: a derivative has no place for it."""
    eqns = []
    for eqn in program.jaxpr.eqns:
        if eqn.effects and (inside := compat.bodies(eqn.params)):
            quiet = [*map(silenced, inside)]
            left, had = ({e for b in bs for e in b.jaxpr.effects} for bs in (quiet, inside))
            eqn = compat.with_bodies(eqn, quiet).replace(effects=eqn.effects - (had - left))
        if eqn.primitive.name not in ("debug_callback", "debug_print"):
            eqns.append(eqn)
    return compat.with_equations(program, eqns)


def _differentiated(cond, body, silent, bound, where):
    """loop(consts, init) -> carry: one `lax.while_loop`, and its derivative."""

    @jax.custom_jvp
    def loop(consts, init):
        test, step = partial(cond, consts), lambda carry: list(body(consts, carry))
        return lax.while_loop(test, step, init)

    def jvp(primals, tangents):
        (consts, init), (moved, started) = primals, tangents
        by = _moving(consts, moved)
        carry = _reached(silent, consts, init, by, _moving(init, started))
        steps = _Steps(cond, silent, bound, where, len(consts), by, carry)
        outs = loop(consts, init)
        linear = [moved[i] for i in steps.consts]
        dense = lambda t, x: jnp.zeros_like(x) if isinstance(t, SymbolicZero) else t  # noqa: E731
        linear += [dense(started[i], init[i]) for i in steps.carry]
        dots = iter(compat.linear_call(steps.forward, steps.backward, [*consts, *init], linear))
        zero = lambda x: SymbolicZero(jax.typeof(x).to_tangent_aval())  # noqa: E731
        return outs, [next(dots) if i in steps.carry else zero(x) for i, x in enumerate(outs)]

    loop.defjvp(jvp, symbolic_zeros=True)
    return loop


def _inexact(xs) -> tuple:
    return tuple(i for i, x in enumerate(xs) if compat.differentiable(jax.typeof(x)))


def _moving(consts, tangents) -> tuple:
    """The arrays that the loop is differentiated by."""
    return tuple(i for i in _inexact(consts) if not isinstance(tangents[i], SymbolicZero))


def _reached(silent, consts, init, by, moving) -> tuple:
    """The carries that depend on what the loop is differentiated by, after any number of steps."""
    n, kinds = len(consts), _inexact(init)
    program = compat.trace(
        lambda *xs: list(silent(list(xs[:n]), list(xs[n:]))), *consts, *init
    ).jaxpr
    while True:
        moved = {program.invars[i] for i in by} | {program.invars[n + i] for i in moving}
        for eqn in program.eqns:
            if any(not isinstance(v, compat.Literal) and v in moved for v in eqn.invars):
                moved.update(eqn.outvars)
        outs = [not isinstance(v, compat.Literal) and v in moved for v in program.outvars]
        now = tuple(i for i in kinds if i in moving or outs[i])
        if now == tuple(moving):
            return now
        moving = now


class _Steps:
    """The derivative of a loop: forwards along its steps, and back along them.

    consts, carry: the places of those constants and carries that have tangents.
    """

    def __init__(self, cond, body, bound, where, n_consts, consts, carry):
        self.cond, self.body, self.bound, self.where = cond, body, bound, where
        self.n_consts, self.consts, self.carry = n_consts, consts, carry

    def split(self, residuals) -> tuple[list, list]:
        return residuals[: self.n_consts], residuals[self.n_consts :]

    def moved(self, consts, carry) -> Callable:
        """One step as a function of what has tangents: -> (its carries with tangents, all)."""

        def step(some_consts, some_carry):
            full = _replaced(consts, self.consts, some_consts)
            outs = list(self.body(full, _replaced(carry, self.carry, some_carry)))
            return [outs[i] for i in self.carry], outs

        return step

    def at(self, consts, carry) -> tuple[list, list]:
        return [consts[i] for i in self.consts], [carry[i] for i in self.carry]

    def forward(self, residuals, linear) -> list:
        """The tangents of the carry: the loop again, with tangents beside it."""
        consts, init = self.split(residuals)
        n, m = len(init), len(self.consts)

        def cond(all_consts, both):
            return self.cond(all_consts[: self.n_consts], both[:n])

        def body(all_consts, both):
            fixed, carry = all_consts[: self.n_consts], both[:n]
            dots = (all_consts[self.n_consts :], both[n:])
            step = self.moved(fixed, carry)
            _, moved, outs = jax.jvp(step, self.at(fixed, carry), dots, has_aux=True)
            return [*outs, *moved]

        both, every = [*init, *linear[m:]], [*consts, *linear[:m]]
        return while_loop(cond, body, both, every, bound=self.bound, where=self.where)[n:]

    def backward(self, residuals, cotangents) -> list:
        """The cotangents of constants and initial carry, from those of the last carry."""
        if self.bound is None:
            raise TransformError(
                "the gradient of a loop needs to know how many steps it takes at most",
                where=self.where,
                hint="give the loop a bound: loop(max_steps=...) or a range with a known end",
            )
        consts, init = self.split(residuals)
        sums = [jnp.zeros_like(consts[i]) for i in self.consts]
        last, out = self.undo(consts, init, self.bound, [*sums, *cotangents])
        over = self.cond(consts, last)  # there would be more: then this is not the gradient
        return [x * jnp.where(over, jnp.nan, 1.0).astype(x.dtype) for x in out]

    def undo(self, consts, first, bound: int, ct: list, count=None) -> tuple[list, list]:
        """Take at most `bound` steps, or `count`, and take them back: (the last state, cotangents).

        Where that would be too many states to keep, a part of them is, and each stretch between
        two of these is undone in the same way.
        """
        if bound == 0:
            return first, ct
        stride = ceil(bound / KEPT)
        taken, last, kept = self.walk(consts, first, bound, stride, count)
        n, c = len(kept), len(consts)

        def stretch(every, carry):
            k, *ct = carry
            fixed = every[:c]
            state = [lax.dynamic_index_in_dim(x, k - 1, keepdims=False) for x in every[c : c + n]]
            if stride == 1:
                return [k - 1, *self.back(fixed, state, ct)]
            left = jnp.minimum(every[-1] - (k - 1) * stride, stride)
            return [k - 1, *self.undo(fixed, state, stride, ct, left)[1]]

        every, some = [*consts, *kept, taken], (taken + stride - 1) // stride
        more = lambda _, carry: carry[0] > 0  # noqa: E731
        most = ceil(bound / stride)
        return last, while_loop(more, stretch, [some, *ct], every, bound=most)[1:]

    def back(self, consts, state, ct) -> list:
        """Take back one step, from the state before it."""
        m = len(self.consts)
        _, pull, _ = jax.vjp(self.moved(consts, state), *self.at(consts, state), has_aux=True)
        by_consts, by_carry = pull(list(ct[m:]))
        return [*(a + b for a, b in zip(ct[:m], by_consts, strict=True)), *by_carry]

    def walk(self, consts, init, most: int, stride: int, count=None) -> tuple:
        """At most `most` steps, or `count`: (how many, the last state, every stride-th state)."""
        room = [jnp.broadcast_to(x, (ceil(most / stride), *x.shape)) for x in init]
        n, c, counted = len(init), len(consts), count is not None  # no arrays: JAX keeps these

        def cond(every, carry):
            i, *state = carry
            if counted:
                return i < every[-1]
            return jnp.logical_and(i < most, self.cond(every[:c], state[:n]))

        def body(every, carry):
            i, *state = carry
            state, kept = state[:n], state[n:]
            at, rows = i // stride, []
            for old, x in zip(kept, state, strict=True):
                if stride > 1:
                    here = lax.dynamic_index_in_dim(old, at, keepdims=False)
                    x = jnp.where(i % stride == 0, x, here)
                rows.append(lax.dynamic_update_index_in_dim(old, x, at, 0))
            return [i + 1, *self.body(every[:c], state), *rows]

        every = [*consts, *([] if count is None else [count])]
        out = while_loop(cond, body, [jnp.asarray(0), *init, *room], every, bound=most)
        return out[0], out[1 : n + 1], out[n + 1 :]


def _replaced(values, places, new) -> list:
    values = list(values)
    for i, x in zip(places, new, strict=True):
        values[i] = x
    return values
