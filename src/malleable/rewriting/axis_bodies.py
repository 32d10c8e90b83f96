"""How a streamed axis passes equations with programs inside: calls, branches, loops, custom rules.

Each rule is handed `flow`, which says how the axis goes through one equation.
"""

import contextvars
import functools
from collections.abc import Sequence

import jax
from jax import lax

from malleable import compat
from malleable.errors import TransformError
from malleable.rewriting.axis_shapes import ELEMENTWISE
from malleable.rewriting.axis_windows import Origin
from malleable.rewriting.slices import Ax, Flow, Running, Sunk, take, typed

# What is cheaper made slice by slice than made whole and cut.
MADE_ALONG = ELEMENTWISE | {"broadcast_in_dim", "iota", "reshape", "squeeze", "transpose"}


def flow_program(
    flow, program: compat.Jaxpr, ins: Sequence, n: int, outs: Sequence | None = None
) -> Flow | str:
    """How an axis goes through a program whose operands carry it as `ins` say; None: whole.

    outs: where results must carry it; None, for one, leaves that open. An operand that had better
    be sliced too, to meet one that carries the axis, is so in the answer. A str says why not.
    """
    ins, outs = tuple(ins), tuple(outs or (None,) * len(program.jaxpr.outvars))
    plan = _Plan(flow, program, ins, n)
    why = plan.fill(outs)
    if why:
        return why
    if plan.wanted:
        more = tuple(
            ax or plan.wanted.get(v) for ax, v in zip(ins, program.jaxpr.invars, strict=True)
        )
        found = flow_program(flow, program, more, n, outs)
        if isinstance(found, Flow):
            return found
    return Flow(ins, tuple(plan.outs), plan.run)


class _Plan:
    """The steps that run one slice of a program: (equation, its Flow or None: whole, inputs)."""

    def __init__(self, flow, program, ins, n):
        self.flow, self.program, self.n, self.ins = flow, program, n, ins
        self.steps: list[tuple] = []
        self.places = {v: ax for v, ax in zip(program.jaxpr.invars, ins, strict=True) if ax}
        self.whole = dict(zip(program.jaxpr.constvars, program.consts, strict=True))
        self.makers: dict = {}
        self.parts: set = set()  # (variable, axis) made by slices although the whole is at hand
        self.wanted: dict = {}  # operands of the program that are cut, and where
        self.outs: list[Ax | None] = []

    def fill(self, outs) -> str:
        """Plan every step; why that cannot be, or ""."""
        for eqn in self.program.jaxpr.eqns:
            why = self.add(eqn)
            if why:
                return why
        for v, due in zip(self.program.jaxpr.outvars, outs, strict=True):
            ax = self.place(v)
            if due and ax and due != ax:
                return "a result carries the axis elsewhere than it should"
            if due and not ax:
                self.cut(v, due)
            self.outs.append(due or ax)
        return ""

    def add(self, eqn) -> str:
        ins = [self.place(v) for v in eqn.invars]
        if not any(ins):
            self.makers.update(dict.fromkeys(eqn.outvars, eqn))
            self.steps.append((eqn, None))
            return ""
        found = self.flow(eqn, ins, [None] * len(eqn.outvars), self.n, self.origin(eqn))
        match found:
            case str():
                return found
            case Sunk() | Running():
                return f"{eqn.primitive} runs along the axis inside of another equation"
        for v, known, ax in zip(eqn.invars, ins, found.ins, strict=True):
            if ax and not known:
                self.cut(v, ax)
        self.places |= {v: ax for v, ax in zip(eqn.outvars, found.outs, strict=True) if ax}
        self.steps.append((eqn, found))
        return ""

    def place(self, v):
        return None if isinstance(v, compat.Literal) else self.places.get(v)

    def cut(self, v, ax) -> None:
        """Have slices of a value that is whole: made one by one, where that is cheap."""
        if (v, ax) in self.parts:
            return
        eqn = self.makers.get(v)
        found = None
        if eqn is not None and eqn.primitive.name in MADE_ALONG:
            found = self.flow(eqn, [None] * len(eqn.invars), [ax], self.n, self.origin(eqn))
        elif eqn is None and v not in self.whole:
            self.wanted[v] = ax
        self.parts.add((v, ax))
        if not isinstance(found, Flow):
            self.steps.append((None, (v, ax)))
            return
        for w, its in zip(eqn.invars, found.ins, strict=True):
            if its:
                self.cut(w, its)
        self.steps.append((eqn, found))

    def origin(self, eqn):
        """Who makes operand i of an equation: see `Origin`."""

        def made(i):
            v = eqn.invars[i]
            if isinstance(v, compat.Literal):
                return v.val
            maker = self.makers.get(v)
            return Origin(maker, self.origin(maker)) if maker else self.whole.get(v)

        return made

    def run(self, t, *slices) -> list:
        """One slice of the results."""
        whole, parts = dict(self.whole), {}
        for v, ax, x in zip(self.program.jaxpr.invars, self.ins, slices, strict=True):
            if ax:
                parts[v, ax] = x
            else:
                whole[v] = x

        def read(v, ax):
            if isinstance(v, compat.Literal):
                return v.val
            return parts[v, ax] if ax else whole[v]

        for eqn, found in self.steps:
            if eqn is None:
                parts[found] = take(whole[found[0]], found[1], self.n, t)
            elif found is None:
                args = [read(v, None) for v in eqn.invars]
                whole.update(zip(eqn.outvars, compat.copy(eqn, args), strict=True))
            else:
                args = [read(v, ax) for v, ax in zip(eqn.invars, found.ins, strict=True)]
                results = zip(eqn.outvars, found.outs, found.run(t, *args), strict=True)
                for v, ax, x in results:
                    if ax:
                        parts[v, ax] = x
                    else:
                        whole[v] = x
        variables = self.program.jaxpr.outvars
        return typed([read(v, ax) for v, ax in zip(variables, self.outs, strict=True)], variables)


# ---------------------------------------------------------------- calls and branches


def call(flow, eqn, ins, outs, n, origin):
    """A jit is put in place; a remat stays one."""
    inside = compat.view(eqn)
    if not isinstance(inside, compat.Call) or inside.lost:
        why = getattr(inside, "lost", "") or getattr(inside, "why", "")
        return f"an axis in {eqn.primitive}: {why}"
    body = flow_program(flow, inside.body, ins, n, outs)
    if isinstance(body, str) or not any(ins) and any(body.ins) < any(outs):
        return body if isinstance(body, str) else f"{eqn.primitive} makes the axis"
    if eqn.primitive.name not in ("remat", "remat2", "checkpoint"):
        return body

    def run(t, *xs):
        kept = inside.wrap(lambda state, t, *xs: (tuple(body.run(t, *xs)), state))
        return list(kept((), t, *xs)[0])

    return body._replace(run=run)


def cond(flow, eqn, ins, outs, n, origin):
    """All branches agree on where the axis is."""
    branches = compat.view(eqn).branches
    axes, results = tuple(ins[1:]), tuple(outs)
    while True:
        found = [flow_program(flow, b, axes, n, results) for b in branches]
        why = next((f for f in found if isinstance(f, str)), None)
        if why:
            return why
        joined = _join(axes, *(f.ins for f in found)), _join(results, *(f.outs for f in found))
        if joined == (axes, results):
            break
        axes, results = joined

    def run(t, index, *xs):
        return list(lax.switch(index, [lambda *a, f=f: tuple(f.run(*a)) for f in found], t, *xs))

    return Flow((None, *axes), results, run)


def _join(*sides):
    return tuple(next((ax for ax in each if ax), None) for each in zip(*sides, strict=True))


# ---------------------------------------------------------------- loops


def scan(flow, eqn, ins, outs, n, origin):
    """The axis is another than the loop's own; a carry has it before the step and after."""
    loop = compat.view(eqn)
    consts, carry, xs = loop.split(ins)
    k = len(carry)
    if any(ax and ax.dim == 0 for ax in (*xs, *outs[k:])):
        return "the axis is that of a loop"
    state = _join(carry, outs[:k])
    rows = [_deeper(ax, -1) for ax in xs]
    ys = [_deeper(ax, -1) for ax in outs[k:]]
    while True:
        body = flow_program(flow, loop.body, (*consts, *state, *rows), n, (*state, *ys))
        if isinstance(body, str):
            return body
        parts = [part for part in loop.split(body.ins)]
        joined = _join(state, body.outs[:k], parts[1])
        if joined == state:
            break
        state = joined
    axes = (*parts[0], *state, *(_deeper(ax, 1) for ax in parts[2]))
    results = (*state, *(_deeper(ax, 1) for ax in body.outs[k:]))

    def run(t, *args):
        consts, carry, xs = loop.split(args)

        def step(carry, x):
            outs = body.run(t, *consts, *carry, *x)
            return tuple(outs[:k]), tuple(outs[k:])

        options = {"length": loop.length, "reverse": loop.reverse, "unroll": loop.unroll}
        carry, ys = lax.scan(step, tuple(carry), tuple(xs), **options)
        return [*carry, *ys]

    return Flow(axes, results, run)


def _deeper(ax, by):
    return ax and ax._replace(dim=ax.dim + by)


def while_loop(flow, eqn, ins, outs, n, origin):
    """The number of rounds does not depend on the axis."""
    loop = compat.view(eqn)
    test_ins, body_ins, carry = loop.split(ins)
    state = _join(carry, outs)
    while True:
        body = flow_program(flow, loop.body, (*body_ins, *state), n, state)
        if isinstance(body, str):
            return body
        joined = _join(state, body.outs, body.ins[len(body_ins) :])
        if joined == state:
            break
        state = joined
    test = flow_program(flow, loop.cond, (*test_ins, *state), n)
    if isinstance(test, str) or any(test.outs) or test.ins != (*test_ins, *state):
        return "how often a loop runs depends on the axis"
    consts = body.ins[: len(body_ins)]

    def run(t, *args):
        test_args, body_args, carry = loop.split(args)
        return list(
            lax.while_loop(
                lambda state: test.run(t, *test_args, *state)[0],
                lambda state: tuple(body.run(t, *body_args, *state)),
                tuple(carry),
            )
        )

    return Flow((*test_ins, *consts, *state), state, run)


# ---------------------------------------------------------------- custom derivatives


def custom_jvp(flow, eqn, ins, outs, n, origin):
    """One slice of the function has one slice of the derivative rule."""
    given = compat.view(eqn)
    body = flow_program(flow, given.body, ins, n, outs)
    if isinstance(body, str):
        return body
    avals, smooth = [v.aval for v in eqn.invars], [compat.differentiable(v.aval) for v in eqn.invars]
    results = [compat.differentiable(v.aval) for v in eqn.outvars]

    def rule(*args):
        primals, dots = args[: len(avals)], _filled(smooth, args[len(avals) :], avals)
        made, moved = given.jvp(primals, dots)
        return [*made, *_picked(results, moved)]

    @functools.cache
    def along() -> Flow | str:
        program = compat.trace(rule, *avals, *_picked(smooth, avals))
        due = (*body.ins, *_picked(smooth, body.ins))
        moved = (*body.outs, *_picked(results, body.outs))
        return _exactly(due, flow_program(flow, program, due, n, moved))

    why = _refused(eqn, body.ins, along)
    if why:
        return why

    def run(t, *xs):
        one = jax.custom_jvp(lambda t, *xs: tuple(body.run(t, *xs)))

        @one.defjvp
        def _(primals, dots):
            flat = _surely(eqn, along()).run(*primals, *_picked(smooth, dots[1:]))
            made, moved = flat[: len(results)], iter(flat[len(results) :])
            zeros = map(compat.zero_tangent, made)
            moved = [next(moved) if r else z for r, z in zip(results, zeros, strict=True)]
            return tuple(made), tuple(moved)

        return list(one(t, *xs))

    return body._replace(run=run)


def custom_vjp(flow, eqn, ins, outs, n, origin):
    """One slice of the function has one slice of each half of the derivative rule."""
    given, count = compat.view(eqn), len(eqn.outvars)
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
            cts = _filled(results, args[len(kept) :], types)
            return _picked(smooth, given.bwd(list(args[: len(kept)]), cts))

        program = compat.trace(rule, *kept, *_picked(results, types))
        due = (*forth.outs[count:], *_picked(results, body.outs))
        back = _exactly(due, flow_program(flow, program, due, n, _picked(smooth, body.ins)))
        return back if isinstance(back, str) else (forth, back)

    why = _refused(eqn, body.ins, halves)
    if why:
        return why

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


_proving: contextvars.ContextVar[frozenset] = contextvars.ContextVar("_proving", default=frozenset())


def _refused(eqn, ins, rule) -> str:
    """Why the derivative rule does not go along the axis, or "".

    A rule may call the function it belongs to, so a function met again inside its own rule passes.
    """
    key = eqn.primitive.name, str(compat.bodies(eqn.params)[0]), ins
    if key in _proving.get():
        return ""
    token = _proving.set(_proving.get() | {key})
    try:
        found = rule()
    finally:
        _proving.reset(token)
    return f"a derivative rule does not go along the axis: {found}" if isinstance(found, str) else ""


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


def _filled(flags, values, avals):
    """The tangents of all, given those of the differentiable ones."""
    rest = iter(values)
    return [next(rest) if f else compat.zero_tangent(a) for f, a in zip(flags, avals, strict=True)]


RULES = {
    **dict.fromkeys(
        "jit pjit closed_call core_call eval_jaxpr remat remat2 checkpoint".split(), call
    ),
    "cond": cond,
    "scan": scan,
    "while": while_loop,
    "custom_jvp_call": custom_jvp,
    "custom_vjp_call": custom_vjp,
}
