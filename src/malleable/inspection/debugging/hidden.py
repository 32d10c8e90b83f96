"""Where the first bad value is made that no result shows: one that a `where` leaves out, say.

Every equation at any depth is looked at, by a program made by `interpret`: a rule for everything
adds to a count what is bad and made from what is not. That count is taken per equation of one
body, then per step of the loop it is in, and so on down.
"""

from collections.abc import Callable

import jax
import numpy as np
from jax import numpy as jnp

from malleable import compat
from malleable.core.frame import Masked
from malleable.core.interpret import Rulebook, interpret, results, run, start
from malleable.inspection.debugging import blame
from malleable.inspection.debugging.blame import Body, Origin, Test
from malleable.inspection.debugging.stepping import Level, call_level
from malleable.programs.evaluate import evaluate


def first_made(body: Body, test: Test) -> Origin | None:
    """The first equation of a program, at any depth, to make something bad of what is not."""
    raw = body.program.jaxpr

    def each(consts, args):
        found = []

        def step(eqn, xs):
            outs, bad = looked_into(eqn, xs, test)
            found.append(bad)
            return outs

        evaluate(body.program, args, step, consts=consts)
        return jnp.array(found, bool)

    found = np.asarray(blame.compiled(each)(body.program.consts, body.args))
    if not found.any():
        return None
    eqn = raw.eqns[int(found.argmax())]
    if not blame.enters(eqn):
        return Origin(body, eqn)
    return _inside(body, eqn, test)


def _inside(body: Body, eqn: compat.Eqn, test: Test) -> Origin | None:
    args, outer = body.values(eqn.invars), (eqn, *body.outer)
    match compat.view(eqn):
        case compat.Branch(branches):
            which = int(np.clip(int(args[0]), 0, len(branches) - 1))
            path = (*body.path, Level("cond", "", which, len(branches)))
            return first_made(Body(branches[which], args[1:], path, outer), test)
        case compat.Scan() | compat.While() as view:
            loop = blame.Loop(eqn, view, args)
            step, carry = loop.run_until(
                lambda program, args: _count(lambda *xs: evaluate(program, list(xs)), args, test)
            )
            program, operands = loop.operands(step, carry)
            path = (*body.path, loop.level(step))
            return first_made(Body(program, operands, path, outer), test)
        case compat.Map():
            step = blame.first_step(body, eqn, args, test)
            return step and Origin(body, step.eqn, step=step)
        case compat.Call(inner) | compat.CustomJvp(inner) | compat.CustomVjp(inner):
            path = (*body.path, call_level(eqn, inner))
            return first_made(Body(inner, args, path, outer), test)
    return None


def looked_into(eqn: compat.Eqn, args: list, test: Test) -> tuple[list, object]:
    """(results of an equation, whether it or something in it makes what is bad)."""
    if not blame.enters(eqn):
        outs = compat.copy(eqn, args)
        return outs, _makes(args, outs, test)
    one = lambda *xs: compat.copy(eqn, list(xs))  # noqa: E731
    return _count(one, args, test)


def count(
    program: compat.Jaxpr, consts, args: list, bad: Callable, needless: set[int]
) -> tuple[list, object]:
    """(results of a program, whether any value in it is bad). bad: of each element of an array.

    One array is kept for each shape that there is, of what was bad in any value of that shape: a
    loop over elements that XLA merges with those of the program, unlike a reduction. needless:
    equations, by `id`, whose results others tell of.
    """
    raw = program.jaxpr
    closed = compat.program(
        program, raw.eqns, raw.outvars, dict(zip(raw.constvars, consts, strict=True))
    )

    def look(frame, *xs, **params):
        outs = frame.bind(*xs)
        if id(frame.eqn) in needless:
            return outs
        for x in outs if isinstance(outs, list) else [outs]:
            if blame.checkable(jax.typeof(x)):
                frame.write(str(jnp.shape(x)), bad(x), mode="sum")  # of booleans: or
        return outs

    frame = start()
    outs = run(closed, list(args), Rulebook({}, look), frame)
    return outs, _any(results(frame))


def _count(fun, args, test):
    def look(frame, *xs, **params):
        outs = frame.bind(*xs)
        listed = outs if isinstance(outs, list) else [outs]
        frame.write("bad", _makes(xs, listed, test), mode="sum")
        return outs

    outs, _, writes = interpret(fun, {}, default=look)(*args)
    return outs, _any(writes)


def _any(writes: dict):
    """Whether something is true among what was written; what was not written is false."""
    found = [w.value if isinstance(w, Masked) else w for w in writes.values()]
    return jnp.array([jnp.any(x) for x in found] or [False]).any()


def _makes(args, outs, test: Test):
    """Whether something bad comes out where nothing bad went in."""
    after = [test(x) for x in outs if blame.checkable(jnp.asarray(x).aval)]
    if not after:
        return jnp.array(False)
    before = [test(x) for x in args if blame.checkable(compat.as_array(x).aval)]
    return jnp.array(after).any() & ~jnp.array([*before, False]).any()
