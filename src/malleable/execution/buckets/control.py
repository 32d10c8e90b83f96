"""Mask rules of calls, branches and loops: the bodies run by the same rules."""

from typing import Any

from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.execution.buckets import values
from malleable.execution.common.breaks import Unsupported
from malleable.execution.common.sizes import is_symbolic


def _view(eqn) -> Any:
    view = compat.view(eqn)
    if isinstance(view, compat.Opaque):
        raise Unsupported(f"{eqn.primitive.name}: {view.why}")
    return view


@values.mask_rule("jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint")
def call(sizes, eqn, *ins):
    return values.evaluate_padded(sizes, _view(eqn).body, ins)


@values.mask_rule("custom_jvp_call", "custom_vjp_call")
def custom_derivative(sizes, eqn, *ins):
    """The body alone: a region is not differentiated once it runs in buckets."""
    return values.evaluate_padded(sizes, _view(eqn).body, ins)


def _run_body(sizes: values.Sizes, body: compat.Jaxpr, xs) -> list:
    """The arrays that a body gives for arrays."""
    avals = [v.aval for v in body.jaxpr.invars]
    args = [values.as_padded(sizes, aval, x) for aval, x in zip(avals, xs, strict=True)]
    return [values.strong(p.x) for p in values.evaluate_padded(sizes, body, args)]


def _as_arrays(ins) -> list:
    return [values.strong(jnp.asarray(p.x)) for p in ins]


@values.mask_rule("cond")
def cond(sizes, eqn, index, *ins):
    branches = [lambda *xs, body=body: _run_body(sizes, body, xs) for body in _view(eqn).branches]
    if index.x.dtype == bool:
        return lax.cond(index.x, branches[1], branches[0], *_as_arrays(ins))
    return lax.switch(index.x, branches, *_as_arrays(ins))


@values.mask_rule("while")
def while_(sizes, eqn, *ins):
    """A test of several lanes (of vmap) ends each lane by itself: those of the padding at once."""
    view = _view(eqn)
    test_consts, consts, carry = map(_as_arrays, view.split(ins))
    lanes = view.cond.jaxpr.outvars[0].aval

    def goes_on(carry):
        (test,) = _run_body(sizes, view.cond, [*test_consts, *carry])
        return values.filled(sizes, values.as_padded(sizes, lanes, test), False)

    def body(carry):
        new = _run_body(sizes, view.body, [*consts, *carry])
        if not lanes.shape:
            return new
        test = goes_on(carry)
        on = [test.reshape(test.shape + (1,) * (x.ndim - test.ndim)) for x in new]
        return [jnp.where(*xs) for xs in zip(on, new, carry, strict=True)]

    return lax.while_loop(lambda c: goes_on(c).any(), body, carry)


@values.mask_rule("scan")
def scan(sizes, eqn, *ins):
    view = _view(eqn)
    consts, carry, xs = map(_as_arrays, view.split(ins))
    count = len(carry)

    def step(carry, x):
        outs = _run_body(sizes, view.body, [*consts, *carry, *x])
        return outs[:count], outs[count:]

    if not is_symbolic(view.length):
        carry, ys = lax.scan(step, carry, xs, **view.how)
        return [*carry, *ys]
    length, room = sizes.true(view.length), sizes.room(view.length)
    rows = [v.aval for v in view.body.jaxpr.outvars[count:]]
    ys = [jnp.zeros((room, *sizes.shape(a.shape)), a.dtype) for a in rows]

    def turn(k, state):  # as many turns as there are values: no turn sees padding
        carry, ys = state
        i = length - 1 - k if view.reverse else k
        carry, y = step(carry, [lax.dynamic_index_in_dim(x, i, keepdims=False) for x in xs])
        put = lax.dynamic_update_index_in_dim
        return carry, [put(all_, one, i, 0) for all_, one in zip(ys, y, strict=True)]

    carry, ys = lax.fori_loop(0, length, turn, (carry, ys))
    return [*carry, *ys]
