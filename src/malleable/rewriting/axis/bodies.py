"""How a streamed axis passes equations with programs inside: calls, branches, loops.

Each rule is handed `flow`, which says how the axis goes through one equation.
"""

from collections.abc import Sequence

from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.programs.primitives import kind
from malleable.rewriting.axis.shapes import ELEMENTWISE
from malleable.rewriting.axis.windows import Origin
from malleable.rewriting.graph.slices import Ax, Flow, Running, Sunk, take, typed

REMATS = ("remat", "remat2", "checkpoint")

# What is cheaper made slice by slice than made whole and cut.
MADE_ALONG = ELEMENTWISE | kind("dims") | {"concatenate", "iota"}


def flow_program(
    flow, program: compat.Jaxpr, ins: Sequence, n: int, outs: Sequence | None = None
) -> Flow | str:
    """How an axis goes through a program whose operands carry it as `ins` say; None: whole.

    outs: where results must carry it; None, for one, leaves that open. An operand that had better
    be sliced too, to meet one that carries the axis, is so in the answer. A str says why not.
    """
    ins, outs = tuple(ins), tuple(outs or (None,) * len(program.jaxpr.outvars))
    if not any(ins) and any(alike := _alike(program, outs)):
        found = flow_program(flow, program, alike, n, outs)
        if isinstance(found, Flow):
            return found
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


def _alike(program, outs) -> tuple:
    """Where operands carry the axis of results element by element: as one of their shape does."""
    places = {v.aval.shape: ax for v, ax in zip(program.jaxpr.outvars, outs, strict=True) if ax}
    return tuple(places.get(v.aval.shape) for v in program.jaxpr.invars)


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
        self.prune()
        return ""

    def prune(self) -> None:
        """Drop what nothing needs: wholes of which only slices are used."""
        variables = self.program.jaxpr.outvars
        needed = set(zip(map(id, variables), self.outs, strict=True))
        kept = []
        for eqn, found in reversed(self.steps):
            if eqn is None:
                made, used = [found], [(found[0], None)]
            else:
                whole = [None] * len(eqn.invars), [None] * len(eqn.outvars)
                ins, outs = (found.ins, found.outs) if found else whole
                made = list(zip(eqn.outvars, outs, strict=True))
                used = list(zip(eqn.invars, ins, strict=True))
            if any((id(v), ax) in needed for v, ax in made):
                needed.update((id(v), ax) for v, ax in used)
                kept.append((eqn, found))
        self.steps = kept[::-1]

    def add(self, eqn) -> str:
        if eqn.effects:
            return f"{eqn.primitive} has a side effect"
        ins = [self.place(v) for v in eqn.invars]
        self.makers.update(dict.fromkeys(eqn.outvars, eqn))
        if not any(ins):
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
        if isinstance(v, compat.Literal) or (v, ax) in self.parts:
            return
        eqn = self.makers.get(v)
        found = None
        if eqn is not None and eqn.primitive.name in MADE_ALONG:
            found = self.flow(eqn, [None] * len(eqn.invars), [ax], self.n, self.origin(eqn))
        elif eqn is None and v not in self.whole:
            self.wanted[v] = ax
        self.parts.add((v, ax))
        if eqn is None or not isinstance(found, Flow):
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
                return take(jnp.asarray(v.val), ax, self.n, t) if ax else v.val
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


def closed(eqn, inside) -> str:
    """Why an equation with a body is not entered."""
    why = getattr(inside, "why", "") or f"it would lose {inside.lost}"
    return f"the axis is inside {eqn.primitive}: {why}"


# ---------------------------------------------------------------- calls and branches


def call(flow, eqn, ins, outs, n, origin):
    """A jit is put in place; a remat stays one."""
    inside = compat.view(eqn)
    if not isinstance(inside, compat.Call) or inside.lost:
        return closed(eqn, inside)
    body = flow_program(flow, inside.body, ins, n, outs)
    if isinstance(body, str):
        return body
    if eqn.primitive.name not in REMATS:
        return body

    def run(t, *xs):
        kept = inside.wrap(lambda state, t, *xs: (tuple(body.run(t, *xs)), state))
        return list(kept((), t, *xs)[0])

    return body._replace(run=run)


def cond(flow, eqn, ins, outs, n, origin):
    """All branches agree on where the axis is."""
    inside = compat.view(eqn)
    if not isinstance(inside, compat.Branch):
        return closed(eqn, inside)
    axes, results = tuple(ins[1:]), tuple(outs)
    while True:
        found: list[Flow] = []
        for branch in inside.branches:
            one = flow_program(flow, branch, axes, n, results)
            if isinstance(one, str):
                return one
            found.append(one)
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
    if not isinstance(loop, compat.Scan):
        return closed(eqn, loop)
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
        parts = loop.split(body.ins)
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

        carry, ys = lax.scan(step, tuple(carry), tuple(xs), **loop.how)
        return [*carry, *ys]

    return Flow(axes, results, run)


def _deeper(ax, by):
    return ax and ax._replace(dim=ax.dim + by)


def while_loop(flow, eqn, ins, outs, n, origin):
    """The number of rounds does not depend on the axis."""
    loop = compat.view(eqn)
    if not isinstance(loop, compat.While):
        return closed(eqn, loop)
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
    lanes = loop.cond.out_avals[0].ndim  # of a vmap, whose examples end one by one
    if any(ax and ax.dim < lanes for ax in state):
        return "how often a loop runs depends on the axis"
    consts = body.ins[: len(body_ins)]

    def run(t, *args):
        test_args, body_args, carry = loop.split(args)
        going = lambda state: test.run(t, *test_args, *state)[0]  # noqa: E731

        def advance(state):
            new, on = body.run(t, *body_args, *state), going(state)
            if not lanes:
                return tuple(new)
            spread = [lax.broadcast_in_dim(on, x.shape, range(on.ndim)) for x in new]
            return tuple(map(lax.select, spread, new, state))

        some = (lambda state: jnp.any(going(state))) if lanes else going
        return list(lax.while_loop(some, advance, tuple(carry)))

    return Flow((*test_ins, *consts, *state), state, run)


RULES = {
    **dict.fromkeys(("jit", "pjit", "closed_call", "core_call", "eval_jaxpr"), call),
    **dict.fromkeys(REMATS, call),
    "cond": cond,
    "scan": scan,
    "while": while_loop,
}
