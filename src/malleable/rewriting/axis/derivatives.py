"""How a streamed axis passes functions that have a derivative rule of their own, which is kept."""

import contextvars
import functools

import jax

from malleable import compat
from malleable.errors import TransformError
from malleable.rewriting.axis.bodies import closed, flow_program
from malleable.rewriting.graph.slices import Flow


def custom_jvp(flow, eqn, ins, outs, n, origin):
    """One slice of the function has one slice of the derivative rule."""
    given = compat.view(eqn)
    if not isinstance(given, compat.CustomJvp):
        return closed(eqn, given)
    body = flow_program(flow, given.body, ins, n, outs)
    if isinstance(body, str):
        return body
    avals, smooth = (
        [v.aval for v in eqn.invars],
        [compat.differentiable(v.aval) for v in eqn.invars],
    )
    results = [compat.differentiable(v.aval) for v in eqn.outvars]

    def rule(*args):
        primals, dots = args[: len(avals)], compat.fill_tangents(smooth, args[len(avals) :], avals)
        made, moved = given.jvp(primals, dots)
        return [*made, *_picked(results, moved)]

    @functools.cache
    def along() -> Flow | str:
        program = compat.trace(rule, *avals, *_picked(smooth, avals))
        due = (*body.ins, *_picked(smooth, body.ins))
        moved = (*body.outs, *_picked(results, body.outs))
        return _exactly(due, flow_program(flow, program, due, n, moved))

    found = _proved(eqn, body.ins, along)
    if isinstance(found, str):
        return found
    if found is not None:  # a primal is cut where its tangent is
        tangents = iter(found.outs[len(results) :])
        cut = tuple(next(tangents) if r else ax for r, ax in zip(results, body.outs, strict=True))
        if cut != body.outs:
            return custom_jvp(flow, eqn, ins, cut, n, origin)

    def run(t, *xs):
        one = jax.custom_jvp(lambda t, *xs: tuple(body.run(t, *xs)))

        @one.defjvp
        def _(primals, dots):
            flat = _surely(eqn, along()).run(*primals, *_picked(smooth, dots[1:]))
            made, moved = flat[: len(results)], flat[len(results) :]
            return tuple(made), tuple(compat.fill_tangents(results, moved, made))

        return list(one(t, *xs))

    return body._replace(run=run)


def custom_vjp(flow, eqn, ins, outs, n, origin):
    """One slice of the function has one slice of each half of the derivative rule."""
    given, count = compat.view(eqn), len(eqn.outvars)
    if not isinstance(given, compat.CustomVjp):
        return closed(eqn, given)
    body = flow_program(flow, given.body, ins, n, outs)
    if isinstance(body, str):
        return body
    avals, types = [v.aval for v in eqn.invars], [v.aval for v in eqn.outvars]
    smooth, results = ([compat.differentiable(a) for a in side] for side in (avals, types))
    if any(s and not ax for s, ax in zip(smooth, body.ins, strict=True)):
        return "a reverse rule would add up over the axis"

    @functools.cache
    def halves():
        program = compat.trace(lambda *xs: [x for side in given.fwd(*xs) for x in side], *avals)
        kept = [v.aval for v in program.jaxpr.outvars[count:]]
        due = (*body.outs, *(None for _ in kept))
        forth = _exactly(body.ins, flow_program(flow, program, body.ins, n, due))
        if isinstance(forth, str):
            return forth

        def rule(*args):
            cts = compat.fill_tangents(results, args[len(kept) :], types)
            return _picked(smooth, given.bwd(list(args[: len(kept)]), cts))

        program = compat.trace(rule, *kept, *_picked(results, types))
        due = (*forth.outs[count:], *_picked(results, body.outs))
        back = _exactly(due, flow_program(flow, program, due, n, _picked(smooth, body.ins)))
        return back if isinstance(back, str) else (forth, back)

    found = _proved(eqn, body.ins, halves)
    if isinstance(found, str):
        return found

    def run(t, *xs):
        one = jax.custom_vjp(lambda t, *xs: tuple(body.run(t, *xs)))

        def fwd(t, *xs):
            flat = _surely(eqn, halves())[0].run(t, *xs)
            return tuple(flat[:count]), (t, tuple(flat[count:]))

        def bwd(kept, cts):
            back = _surely(eqn, halves())[1]
            found = iter(back.run(kept[0], *kept[1], *_picked(results, cts)))
            return None, *(next(found) if s else None for s in smooth)

        one.defvjp(fwd, bwd)
        return list(one(t, *xs))

    return body._replace(run=run)


def _exactly(due, found):
    """A flow whose operands carry the axis where they are due to; else why not."""
    if isinstance(found, Flow) and found.ins != tuple(due):
        return "it needs more than one slice"
    return found


_proving: contextvars.ContextVar[frozenset] = contextvars.ContextVar(
    "_proving", default=frozenset()
)


def _proved(eqn, ins, rule):
    """What goes along the axis of a derivative rule, or why it does not; None inside the rule.

    A rule may call the function it belongs to, so a function met again inside its own rule passes.
    """
    key = eqn.primitive.name, str(compat.bodies(eqn.params)[0]), ins
    if key in _proving.get():
        return None
    with compat.setting(_proving, _proving.get() | {key}):
        found = rule()
    why = f"a derivative rule does not go along the axis: {found}"
    return why if isinstance(found, str) else found


def _surely(eqn, found):
    """What was proved; of two functions that look the same, the second may have another rule."""
    if isinstance(found, str):
        raise TransformError(
            f"a derivative rule of higher order cannot be applied slice by slice: {found}",
            where=compat.where(eqn),
            hint="leave this function out of the rewrite, or write its rule for one slice",
        )
    return found


def _picked(flags, values):
    return [v for flag, v in zip(flags, values, strict=True) if flag]


RULES = {"custom_jvp_call": custom_jvp, "custom_vjp_call": custom_vjp}
