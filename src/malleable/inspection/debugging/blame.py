"""Where a bad value comes from: it is followed back through a program, body by body, compiled.

One pass over a body says which of its values are bad; what is bad and made from what is not is
the origin. A loop is run up to the first step that has it, then that step is looked into. Bodies
that have nothing to do with it run whole, and nothing runs equation by equation.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.inspection.debugging.spreading import has_nan, heirs, infer
from malleable.inspection.debugging.stepping import Level, Step, call_level, walk
from malleable.inspection.modules import module_of
from malleable.programs.evaluate import evaluate
from malleable.programs.reach import reach

Test = Callable[[Any], Any]  # whether an array has a bad element: as a boolean of JAX
Look = Callable[[compat.Jaxpr, list], tuple[list, Any]]  # (results of a body, whether to stop)


_APART = 8  # of so many values one has a test, whether it needs it or not


class Lost(Exception):
    """A bad value was there, and is not when its program runs in parts."""


@dataclass(frozen=True, eq=False)
class Body:
    """A program and its operands, all concrete. back(i, test): where operand i has it from."""

    program: compat.Jaxpr
    args: Sequence
    path: tuple[Level, ...]
    outer: tuple[compat.Eqn, ...]  # the equations around, innermost first
    back: Callable[[int, Test], "Origin"] | None = None  # None outside of everything

    def toward(self, atoms: Sequence) -> "Body":
        """With the equations that some values need, and these values as results."""
        raw, closed = self.program.jaxpr, self.program
        consts = dict(zip(raw.constvars, closed.consts, strict=True))
        smaller = compat.dce(compat.program(closed, raw.eqns, atoms, consts))
        return Body(smaller, self.args, self.path, self.outer, self.back)

    def values(self, atoms: Sequence) -> list:
        """What some values are."""
        body = self.toward(atoms)
        return compiled(lambda consts, args: evaluate(body.program, args, consts=consts))(
            body.program.consts, body.args
        )

    def marks(self, test: Test) -> dict:
        """{variable: whether it is bad} of what is computed here and may make a result bad.

        A NaN is looked for at few values first, and then where it may be after that.
        """
        raw = self.program.jaxpr
        known = heirs(raw.eqns) if test is has_nan else {}
        made = [v for eqn in raw.eqns for v in eqn.outvars]
        shown = [v for v in (*raw.constvars, *raw.invars, *made) if checkable(v.aval)]
        bad = self.tested(
            [v for i, v in enumerate(shown) if i % _APART == 0 or v not in known], test
        )
        infer(bad, known, shown)
        maker = {v: eqn for eqn in raw.eqns for v in eqn.outvars}

        def suspects(v):
            eqn = maker.get(v)
            operands = [] if eqn is None or enters(eqn) else eqn.invars
            return [u for u in operands if not isinstance(u, compat.Literal) and is_suspect(u)]

        def is_suspect(v):
            return checkable(v.aval) and bad.get(v, True)

        outs = [v for v in raw.outvars if not isinstance(v, compat.Literal) and is_suspect(v)]
        left = [v for v in reach(outs, suspects) if v not in bad]
        return bad | self.tested(left, test)

    def tested(self, atoms: Sequence, test: Test) -> dict:
        """{value: whether it is bad} of some values."""
        if not atoms:
            return {}
        program = self.toward(atoms).program

        def run(consts, args):
            return [test(x) for x in evaluate(program, args, consts=consts)]

        marks = compiled(run)(program.consts, self.args)
        return {v: bool(mark) for v, mark in zip(atoms, marks, strict=True)}


@dataclass(frozen=True, eq=False)
class Origin:
    """What made a bad value: an equation, or else an operand or a constant that was bad already.

    step: where devices ran it equation by equation.
    """

    body: Body
    eqn: compat.Eqn | None = None
    argument: int | None = None  # of the whole program
    constant: Any = None
    user: compat.Eqn | None = None  # the equation that the constant goes into
    step: Step | None = None

    @property
    def is_made(self) -> bool:
        return self.eqn is not None

    @functools.cached_property
    def values(self) -> tuple[list, list]:
        """The operands and the results of the equation."""
        if self.eqn is None:
            return [], []
        if self.step:
            return list(self.step.inputs), list(self.step.outputs)
        known = self.body.values([*self.eqn.invars, *self.eqn.outvars])
        return known[: len(self.eqn.invars)], known[len(self.eqn.invars) :]

    @property
    def path(self) -> tuple[Level, ...]:
        return (*self.body.path, *(self.step.path if self.step else ()))

    @property
    def chain(self) -> tuple[compat.Place, ...]:
        """All lines, those of the equations around it after its own."""
        around = compat.user_places(*self.body.outer)
        if self.step:
            return tuple(dict.fromkeys((*self.step.chain, *around)))
        own = self.eqn or self.user
        return tuple(dict.fromkeys((*(compat.user_places(own) if own else ()), *around)))

    @property
    def program(self) -> compat.Jaxpr:
        return self.step.program if self.step else self.body.program

    @property
    def transformed(self) -> str:
        """What JAX says was done to the code: `transpose(jvp())` in a gradient."""
        stacks = [str(e.source_info.name_stack) for e in self._around]
        return "/".join(reversed([s for s in stacks if s]))

    @property
    def module(self) -> str:
        """The modules of a library, and the name scopes, that it was made in."""
        return module_of(*self._around)

    @property
    def _around(self) -> list[compat.Eqn]:
        inner = [self.step.eqn] if self.step else [self.eqn] if self.eqn else []
        return [*inner, *self.body.outer]


def origin(body: Body, atoms: Sequence, test: Test, *, made: bool = False) -> Origin:
    """Where the bad ones among some values of a body come from: the earliest of their sources.

    made: rather from something an equation makes than from what an operand was already.
    Raises Lost where none of them is bad any more.
    """
    known = [a for a in atoms if isinstance(a, compat.Literal) and is_bad(a.val, test)]
    if known:
        return Origin(body, constant=known[0].val)
    body = body.toward([a for a in atoms if not isinstance(a, compat.Literal)])
    raw = body.program.jaxpr
    if len(raw.eqns) == 1 and _is_call(raw.eqns[0]) and set(raw.outvars) <= {*raw.eqns[0].outvars}:
        outs = [raw.eqns[0].outvars.index(v) for v in raw.outvars]
        return _inside(body, raw.eqns[0], outs, test, made)  # the same again, a level deeper
    bad = body.marks(test)
    maker = {v: i for i, eqn in enumerate(raw.eqns) for v in eqn.outvars}
    reach: set = set()
    todo = [a for a in raw.outvars if bad.get(a)]
    found: dict[int, list] = {}  # {index of an equation: its bad results}
    constants, operands = [], []
    while todo:
        v = todo.pop()
        if v in reach:
            continue
        reach.add(v)
        if v not in maker:
            (operands if v in raw.invars else constants).append(v)
            continue
        eqn = raw.eqns[maker[v]]
        inputs = [] if enters(eqn) else [u for u in eqn.invars if _is_marked(u, bad, test)]
        if not inputs:
            found.setdefault(maker[v], []).append(v)
        todo += [u for u in inputs if not isinstance(u, compat.Literal)]
        constants += [u for u in inputs if isinstance(u, compat.Literal)]

    def from_equations():
        for i in sorted(found):
            eqn = raw.eqns[i]
            if enters(eqn):
                yield _inside(body, eqn, [eqn.outvars.index(v) for v in found[i]], test, made)
            else:
                yield Origin(body, eqn)

    def from_outside():
        for v in operands:
            i = raw.invars.index(v)
            yield Origin(body, argument=i) if body.back is None else body.back(i, test)
        for v in constants:
            known = dict(zip(raw.constvars, body.program.consts, strict=True))
            value = v.val if isinstance(v, compat.Literal) else known[v]
            user = next((e for e in raw.eqns if any(u is v for u in e.invars)), None)
            yield Origin(body, constant=value, user=user)

    ways = (from_equations, from_outside) if made else (from_outside, from_equations)
    first = None
    for one in (one for way in ways for one in way()):
        first = first or one
        if one.is_made or not made:
            return one
    if first is None:
        raise Lost
    return first


def _inside(body: Body, eqn: compat.Eqn, outs: list[int], test: Test, made: bool) -> Origin:
    """The origin of some results of an equation that has bodies."""
    args = body.values(eqn.invars)
    outer = (eqn, *body.outer)

    def outside(i, test):
        return origin(body, [eqn.invars[i]], test, made=made)

    def enter(program, args, level, back):
        inner = Body(program, args, (*body.path, level), outer, back)
        return origin(inner, [program.jaxpr.outvars[i] for i in outs], test, made=made)

    match compat.view(eqn):
        case compat.Branch(branches):
            which = int(np.clip(int(args[0]), 0, len(branches) - 1))
            level = Level("cond", "", which, len(branches))
            return enter(branches[which], args[1:], level, lambda i, test: outside(i + 1, test))
        case compat.Scan() | compat.While() as view:
            return _inside_loop(body, eqn, view, args, outs, test, made)
        case compat.Map():
            return _inside_devices(body, eqn, args, test, outside)
        case compat.Call(inner) | compat.CustomJvp(inner) | compat.CustomVjp(inner):
            return enter(inner, args, call_level(eqn, inner), outside)
    raise Lost


def _inside_loop(body, eqn, view, args, outs, test, made, before=None) -> Origin:
    """The origin of some results of one step of a loop: the first step where one is bad."""
    loop = Loop(eqn, view, args)

    def look(program, args):
        results = evaluate(program, args)
        return results, jnp.array([test(results[i]) for i in outs]).any()

    step, carry = loop.run_until(look, before)
    program, operands = loop.operands(step, carry)
    level = loop.level(step)
    consts, slots = loop.consts, len(loop.carry)

    def back(i, test):
        j = i - consts
        if 0 <= j < slots and step > 0:  # it came round the loop, or was there from the start
            try:
                return _inside_loop(body, eqn, view, args, [j], test, made, before=step)
            except Lost:
                pass
        return origin(body, [eqn.invars[loop.places[i]]], test, made=made)

    inner = Body(program, operands, (*body.path, level), (eqn, *body.outer), back)
    return origin(inner, [program.jaxpr.outvars[i] for i in outs], test, made=made)


def _inside_devices(body, eqn, args, test, outside) -> Origin:
    """The first equation to make something bad on one of several devices, which run in turn."""
    step = first_step(body, eqn, args, test)
    if step is not None:
        return Origin(body, step.eqn, step=step)
    for i, x in enumerate(args):
        if is_bad(x, test):
            return outside(i, test)
    raise Lost


def first_step(body: Body, eqn: compat.Eqn, args: Sequence, test: Test) -> Step | None:
    """The first step inside an equation that makes something bad of what is not."""
    given = set(body.program.jaxpr.invars)
    pairs = zip(eqn.invars, args, strict=True)
    known = {v: x for v, x in pairs if not isinstance(v, compat.Literal) and v not in given}
    alone = compat.program(body.program, [eqn], eqn.outvars, known)
    for event in walk(alone, body.args):
        if not isinstance(event, Step) or any(is_bad(x, test) for x in event.inputs):
            continue
        if any(is_bad(x, test) for x in event.outputs):
            return event
    return None


def first_steps(program: compat.Jaxpr, args: Sequence, tests: Sequence[Test]) -> tuple:
    """({test: the first step that makes something bad of what is not}, results), one by one.

    For programs that work on mutable references; the steps have what these hold in their place.
    """
    found: dict[Test, Step] = {}
    spoilt: dict[Test, set[int]] = {
        t: {id(x) for x in (*args, *program.consts) if is_bad(x, t)} for t in tests
    }
    events = walk(program, args)
    while True:
        try:
            event = next(events)
        except StopIteration as stop:
            return found, stop.value
        if not isinstance(event, Step):
            continue
        given = [x for x in event.inputs if not compat.is_ref(jax.typeof(x))]
        changed = [x for x in event.inputs if compat.is_ref(jax.typeof(x))]
        for test in tests:
            before = any(id(x) in spoilt[test] for x in changed)
            before = before or any(is_bad(x, test) for x in given)
            bad = [x for x in (*event.outputs, *changed) if is_bad(x, test)]
            now = [x for x in (*event.outputs, *changed) if compat.is_ref(jax.typeof(x))]
            spoilt[test] -= {id(x) for x in now}
            spoilt[test] |= {id(x) for x in now if is_bad(x, test)}
            if bad and not before and test not in found:
                outs = event.outputs or tuple(changed)
                found[test] = replace(
                    event, inputs=tuple(map(held, event.inputs)), outputs=tuple(map(held, outs))
                )


def held(x):
    return x[...] if compat.is_ref(jax.typeof(x)) else x


class Loop:
    """A scan or a while on concrete operands."""

    def __init__(self, eqn, view, args):
        self.eqn, self.view = eqn, view
        parts = view.split(list(range(len(args))))
        if isinstance(view, compat.Scan):
            own, carry, xs = parts
        else:
            _, own, carry = parts
            xs = []
        self.places = [*own, *carry, *xs]  # of the operands of the body among those of the loop
        self.consts, self.args = len(own), args
        self.carry, self.xs = ([args[i] for i in part] for part in (carry, xs))
        self.own = [args[i] for i in own]

    def index(self, step: int) -> int:
        """Of the slice that a step works on, which a reversed loop starts with the last of."""
        backward = isinstance(self.view, compat.Scan) and self.view.reverse
        return self.view.length - 1 - step if backward else step

    def level(self, step: int) -> Level:
        name = compat.lanes_of(self.eqn)
        if isinstance(self.view, compat.While):
            return Level("while", "body", step, None)
        kind = "scan" if name is None else "vmap"
        return Level(kind, name or "", self.index(step), self.view.length)

    def operands(self, step: int, carry: list):
        """(body, its operands in a step)."""
        xs = [x[self.index(step)] for x in self.xs]
        return self.view.body, [*self.own, *carry, *xs]

    def run_until(self, look: Look, before: int | None = None) -> tuple[int, list]:
        """(the first step where `look` finds something, the carry it starts from)."""
        view, count = self.view, len(self.carry)
        if isinstance(view, compat.Scan):
            limit = view.length if before is None else before
        else:
            limit = np.iinfo(np.int32).max if before is None else before
        tests = [] if isinstance(view, compat.Scan) else view.split(self.args)[0]

        def run(limit, tests, own, carry, xs):
            def goes_on(state):
                step, bad, _, now = state
                more = (step < limit) & ~bad
                if isinstance(view, compat.Scan):
                    return more
                return more & evaluate(view.cond, [*tests, *now])[0]

            def one(state):
                step, _, _, now = state
                at = self.index(step)
                slices = [lax.dynamic_index_in_dim(x, at, 0, False) for x in xs]
                results, bad = look(view.body, [*own, *now, *slices])
                return step + 1, bad, now, results[:count]

            start = jnp.int32(0), jnp.array(False), carry, carry
            step, bad, last, _ = lax.while_loop(goes_on, one, start)
            return step - 1, bad, last

        args = jnp.int32(limit), tests, self.own, self.carry, self.xs
        step, bad, carry = compiled(run)(*args)
        if not bad:
            raise Lost
        return int(step), carry


def enters(eqn: compat.Eqn) -> bool:
    """Whether what is bad is looked for inside an equation."""
    if not compat.bodies(eqn.params):
        return False
    return not isinstance(compat.view(eqn), compat.Opaque)


def _is_call(eqn: compat.Eqn) -> bool:
    """Whether an equation only calls a program: the results of that are its own."""
    return enters(eqn) and isinstance(compat.view(eqn), compat.Call)


def checkable(aval) -> bool:
    """Whether values of a type can be bad; a reference is none, what is read from it is."""
    return not compat.is_ref(aval) and jnp.issubdtype(getattr(aval, "dtype", bool), jnp.inexact)


def is_bad(value, test: Test) -> bool:
    """Whether a concrete value, of whatever type, has a bad element."""
    value = held(value)
    return checkable(jax.typeof(value)) and bool(test(jnp.asarray(value)))


def _is_marked(atom, bad: dict, test: Test) -> bool:
    if isinstance(atom, compat.Literal):
        return is_bad(atom.val, test)
    return bad.get(atom, False)


def compiled(fun: Callable, *, once: bool = True) -> Any:
    """A function under jit; one that runs once is compiled in haste on a CPU, where XLA is slow."""
    hasty = once and jax.default_backend() == "cpu"
    with jax.disable_jit(False):
        return jax.jit(fun, compiler_options=_HASTY if hasty else None)


_HASTY = {"xla_backend_optimization_level": 0}  # a third of the time to compile: nonfinite.py
