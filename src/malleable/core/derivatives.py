"""How a frame, and values of the user's, cross custom_jvp and custom_vjp.

The rule of the user is about arrays: it is run under the rules of values, and derives by the
arrays that these stand for. Where a rule changes a value inside, it is not about that; then the
body is entered, and where a result is a value, nobody may derive through it; but for functions of
JAX itself (relu, logaddexp), whose rules are the derivatives of their bodies.
"""

from dataclasses import replace
from typing import Any

import jax

from malleable import compat
from malleable.core import values
from malleable.core.frame import thread, zeros
from malleable.core.values import has_values, is_value, materialised
from malleable.errors import TransformError
from malleable.notes import note
from malleable.programs.equations import every


def custom_jvp(view: compat.CustomJvp, book, frame, args):
    run, types, body = _by_as_arrays(view, book, frame, args)
    if body is not None:
        return body()
    call = jax.custom_jvp(run)

    @call.defjvp
    def rule(primals, tangents):  # the rule is about the arguments; the state, as it is computed
        (frame, args), (dframe, (_, dargs)) = primals, tangents
        outs, douts = _as_arrays(frame, book.under(view.jvp)(frame, _rejoined(args), dargs))
        left, dleft = jax.jvp(lambda *x: run(*x)[1], primals, tangents)
        if _is_smooth(frame):
            _, more = jax.jvp(lambda frame: run(frame, args)[0], (frame,), (dframe,))
            douts = list(map(compat.add_tangents, douts, more))
        return (outs, left), (douts, dleft)

    return list(map(values.wrapped, types, thread(call, frame, _parted(frame, args))))


def custom_vjp(view: compat.CustomVjp, book, frame, args):
    run, types, body = _by_as_arrays(view, book, frame, args)
    if body is not None:
        return body()
    call, of = jax.custom_vjp(run), (frame.eqn.primitive, frame.where)
    loops = any(isinstance(compat.view(e), compat.While) for e in every(view.body.jaxpr.eqns))
    state = lambda frame, args: run(frame, args)[1]  # noqa: E731

    def fwd(frame, args):
        (frame, args), flags = compat.unsymbolic((frame, args))
        perturbed = flags[len(flags) - len(args[1]) :] if view.symbolic else None
        given = flags if view.symbolic else [True] * len(flags)
        inside = _depends(lambda frame: run(frame, args)[0], frame, given)
        if inside and loops:
            raise _by_a_value_inside(*of)

        def forward(*xs):
            outs, res = view.fwd(*xs, perturbed=perturbed)
            return outs, _held(res)

        outs, res = book.under(forward)(frame, *_rejoined(args))
        outs, res = _as_arrays(frame, outs), _loose(res)
        if view.symbolic:  # the state may have no derivative, as that of a while: nobody asks yet
            left, pull = state(frame, args), (frame, args)
        else:
            left, pull = jax.vjp(state, frame, args)
        through = None
        if inside:
            _, through = jax.vjp(lambda frame: run(frame, args)[0], frame)
        return (outs, left), (res, pull, through, frame if has_values(res) else None)

    def bwd(kept, cts):
        (res, pull, through, frame), (couts, cleft) = kept, compat.unsymbolic(cts)[0]
        if view.symbolic and all(map(compat.is_symbolic_zero, jax.tree.leaves(cts[1]))):
            cframe, cargs = jax.tree.map(lambda x: compat.zero_tangent(jax.typeof(x)), pull)
        else:
            pull = jax.vjp(state, *pull)[1] if view.symbolic else pull
            cframe, cargs = pull(cleft)
        if through is not None:
            cframe = jax.tree.map(compat.add_tangents, cframe, *through(couts))
        if frame is None:
            found = view.bwd(res, couts)
        else:
            found = book.under(lambda *x: view.bwd(_loose(x[0]), x[1]))(frame, _held(res), couts)
            found = _as_arrays(frame, found)
        return cframe, (cargs[0], list(map(compat.add_tangents, found, cargs[1])))

    call.defvjp(fwd, bwd, symbolic_zeros=view.symbolic)
    return list(map(values.wrapped, types, thread(call, frame, _parted(frame, args))))


def _as_arrays(frame, tree):
    """What a derivative rule makes, which runs under the rules of values, as arrays."""
    return values.each(lambda x: materialised(frame, x, "a derivative rule"), tree)


def _parted(frame, args: list) -> Any:
    """The values, and for a derivative rule what it is about: arrays, by which it derives.

    What no array is made of cannot be derived by.
    """
    held, arrays = [x if is_value(x) else None for x in args], list(args)
    for k, x in enumerate(args):
        if hasattr(x, "materialise") and is_value(x):
            arrays[k] = materialised(frame, x, "a derivative rule")
        elif is_value(x):
            held[k], arrays[k] = _underived(x, _no_rule(frame, x)), zeros(values.typeof(x))
    return held, arrays


def _rejoined(args) -> list:
    return [a if x is None else x for x, a in zip(*args, strict=True)]


def _by_as_arrays(view, book, frame, args):
    """The body, of `_parted` arguments, giving arrays; its results as types; what to run instead
    where the derivative rule is not about it: a value is changed inside, or is no array's wrapper.
    """
    run, symbolic = book.body(view.body, frame), getattr(view, "symbolic", False)
    outs, end = jax.eval_shape(run, frame.enter(), args)
    own = [x for x in outs if is_value(x) and not values.is_wrapper(x)]
    if not own and not end.changed:

        def arrays(inner, args):  # of the frame around, JAX would keep the tracers
            outs, end = run(inner, _rejoined(args))
            return _as_arrays(inner, outs), end

        return arrays, outs, None
    given = type(own[0]).__name__ if own else ""
    why = f"a value that a transformation changed at {end.changed}"
    what = f"entered `{frame.eqn.primitive}` without its derivative rule"
    note(what, frame.where, f"the rule is about {f'arrays, not {given}' if own else why}")
    fed, whole = _by_a_value_inside(frame.eqn.primitive, frame.where), _is_of_jax(view)

    def entered(inner, args):
        args = args if whole else _rejoined(args)
        if own and not whole:
            args = _underived(args, _no_rule(frame, own[0]))
        elif symbolic:  # the rules around a loop of equinox look at the arguments alone
            feeds, shared = _underived((inner.feeds, inner.shared), fed)
            inner = replace(inner, feeds=feeds, shared=shared)
        return run(inner, args)

    return run, outs, lambda: thread(entered, frame, args if whole else _parted(frame, args))


def _is_of_jax(view) -> bool:
    """Whether a derivative rule is JAX's own, and not a user's for a function of JAX: there, the
    function's own is inside.
    """
    inside = map(compat.view, every(view.body.jaxpr.eqns))
    customs = (v for v in inside if isinstance(v, compat.CustomJvp | compat.CustomVjp))
    return compat.has_rule_of_jax(view.body) and not any(True for _ in customs)


def _no_rule(frame, x):
    name, given = frame.eqn.primitive, type(x).__name__
    whose = f"a derivative through `{name}` is asked for, whose own rule"
    what = f"{whose} is about arrays, not {given}"
    hint = f"give jax.extend.core.primitives.{name}_p a rule for {given}, which binds arrays"
    return frame.error(what, hint)


def _underived(tree, error):
    """The same; an error where somebody wants a derivative by it, instead of another's."""

    @jax.custom_jvp
    def same(tree):
        return tree

    @same.defjvp
    def refuse(primals, tangents):
        raise error

    return same(tree)


class _Number:
    """A number of Python among residuals, which a rule may branch on: no array is made of it."""

    def __init__(self, it):
        self.it = it


def _held(residuals: list) -> list:
    return [_Number(x) if isinstance(x, bool | int | float) else x for x in residuals]


def _loose(residuals: list) -> list:
    return [x.it if isinstance(x, _Number) else x for x in residuals]


def _by_a_value_inside(primitive, where) -> TransformError:
    """The error for rules that look at their arguments alone, as those around loops of equinox."""
    return TransformError(
        f"the derivative by a value inside of `{primitive}` is asked for, whose own rule "
        "knows only derivatives by its arguments",
        where=where,
        hint="make or tag the value before it, and use it inside; or use a loop of jax.lax",
    )


def _depends(run, frame, differentiated) -> bool:
    """Whether results of a body are made of what is differentiated and comes with the frame."""
    leaves, tree = jax.tree.flatten(frame)
    smooth = [*map(compat.differentiable, leaves)]  # the flags of the frame come first
    smooth = [by and has for by, has in zip(differentiated, smooth, strict=False)]
    if not any(smooth):
        return False
    program = compat.dce(compat.trace(lambda *xs: run(jax.tree.unflatten(tree, xs)), *leaves)).jaxpr
    read = [*program.outvars, *(x for eqn in program.eqns for x in eqn.invars)]
    return any(
        by and any(x is v for x in read) for by, v in zip(smooth, program.invars, strict=True)
    )


def _is_smooth(frame) -> bool:
    """Whether anything that enters with a frame can have a derivative."""
    return any(map(compat.differentiable, jax.tree.leaves(frame)))
