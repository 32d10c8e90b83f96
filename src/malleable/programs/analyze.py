"""The analyzer: push facts through a program without computing anything.

The one loop over equations that computes facts about values. A fact is anything, arrays too;
those of one analysis must form a lattice of finite height, or loops would not come to rest. They
are at rest where `join(old, new)` equals `old`, or is it: facts that hold arrays return `old`.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from malleable import compat


def analyze(
    jaxpr: compat.Jaxpr,
    facts: Sequence[Any],
    transfer: Callable[[compat.Eqn, list[Any]], Sequence[Any]],
    join: Callable[[Any, Any], Any],
    bottom: Any,
    *,
    backward: bool = False,
) -> tuple[list[Any], dict[Any, Any]]:
    """Dataflow through a program: (facts at its other end, {variable: fact} of this level).

    Forward, `facts` are those of the inputs and transfer(eqn, facts of operands) gives those of
    the results; backward, `facts` are those of the outputs and transfer(eqn, facts of results)
    gives those of the operands. join(a, b) holds where either may; bottom is what nothing is
    known of: constants forward, unused values backward. Bodies are entered, loops go round to a
    fixpoint, and what a branch or a loop decides on joins what it decides.
    Source: Kildall, "A unified approach to global program optimization", POPL 1973.

    >>> import jax.numpy as jnp
    >>> from malleable import stage
    >>> staged = stage(lambda x, y: (jnp.sin(x), x * y))(1.0, 2.0)
    >>> depends = lambda eqn, facts: [frozenset().union(*facts)] * len(eqn.outvars)
    >>> outs, _ = analyze(staged.jaxpr, [{"x"}, {"y"}], depends, frozenset.union, frozenset())
    >>> [sorted(names) for names in outs]
    [['x'], ['x', 'y']]
    """
    env: dict = {}
    program = jaxpr.jaxpr
    start, end = program.invars, program.outvars
    near, far, eqns = "invars", "outvars", program.eqns
    if backward:
        start, end, near, far, eqns = end, start, far, near, reversed(eqns)

    def meet(atoms, facts):
        for atom, fact in zip(atoms, facts, strict=True):
            if not isinstance(atom, compat.Literal):
                env[atom] = join(env[atom], fact) if atom in env else fact

    def read(atoms):
        return [bottom if isinstance(a, compat.Literal) else env.get(a, bottom) for a in atoms]

    def go(body, facts):
        return analyze(body, list(facts), transfer, join, bottom, backward=backward)[0]

    def through(eqn, facts):
        match compat.view(eqn) if compat.bodies(eqn.params) else None:
            case compat.Opaque() | None:
                return transfer(eqn, facts)
            case compat.Branch(branches) if backward:
                return [reduce(join, facts, bottom), *joined(*(go(b, facts) for b in branches))]
            case compat.Branch(branches):
                outs = joined(*(go(b, facts[1:]) for b in branches))
                return [join(facts[0], f) for f in outs]
            case compat.Scan(body, split) if backward:
                n, k = (len(part) for part in split(eqn.invars)[1::-1])

                def undo(c):
                    consts, carry, xs = split(go(body, [*c, *facts[n:]]))
                    return [*carry, *consts, *xs]

                ins = settle(facts[:n], undo)
                return [*ins[n : n + k], *ins[:n], *ins[n + k :]]
            case compat.Scan(body, split):
                consts, carry, xs = split(facts)
                return settle(carry, lambda c: go(body, [*consts, *c, *xs]))
            case compat.While(cond, body, split) if backward:
                m, k, n = (len(part) for part in split(eqn.invars))

                def unstep(c):
                    by_test, ins = go(cond, [reduce(join, c, bottom)]), go(body, c)
                    return [*joined(ins[k:], by_test[m:]), *by_test[:m], *ins[:k]]

                ins = settle(facts, unstep)
                return [*ins[n:], *ins[:n]]
            case compat.While(cond, body, split):
                tests, consts, carry = split(facts)

                def step(c):
                    (test,) = go(cond, [*tests, *c])
                    return [join(test, f) for f in go(body, [*consts, *c])]

                return settle(carry, step)
            case view:
                return go(view.body, facts)

    def joined(*rows):
        return [reduce(join, column) for column in zip(*rows, strict=True)]

    def settle(carry, step):  # go round a loop until its carry is at rest
        while True:
            outs = step(carry)
            new = joined(carry, outs[: len(carry)])
            if all(a is b or a == b for a, b in zip(new, carry, strict=True)):
                return [*carry, *outs[len(carry) :]]
            carry = new

    meet(start, facts)
    for eqn in eqns:
        meet(getattr(eqn, far), through(eqn, read(getattr(eqn, near))))
    return read(end), env


def propagate(
    jaxpr: compat.Jaxpr,
    ins: Sequence[Any],
    outs: Sequence[Any],
    transfer: Callable[[compat.Eqn, list[Any], list[Any]], tuple[Sequence[Any], Sequence[Any]]],
    join: Callable[[Any, Any], Any],
    constant: Callable[[Any], Any],
    bottom: Callable[[Any], Any],
) -> tuple[list[Any], list[Any]]:
    """Dataflow both ways at once, to a fixpoint: what is known of the inputs, and of the outputs.

    ins, outs: what is known at first. transfer(eqn, facts of operands, facts of results) gives
    both anew, and may add to either; bodies are its business: it calls `propagate` on them.
    join(old, new) returns `old` itself where `new` adds nothing, and so ends it; constant(value):
    the fact of a literal or a constant; bottom(type): nothing is known of a value of the type.

    >>> from malleable import stage
    >>> program = stage(lambda x, y: (x + 1) * y)(1.0, 2.0).jaxpr
    >>> def solve(eqn, ins, outs):  # numbers, from wherever they can be had
    ...     (a, b), (c,), name = ins, outs, eqn.primitive.name
    ...     if name == "mul" and None not in (b, c):
    ...         return [c / b, b], outs
    ...     return ([c - b, b], outs) if name == "add" and None not in (b, c) else (ins, outs)
    >>> fill = lambda old, new: new if old is None else old
    >>> propagate(program, [None, 2.0], [8.0], solve, fill, float, lambda aval: None)[0]
    [3.0, 2.0]
    """
    program, env = jaxpr.jaxpr, {}

    def read(atoms):
        return [constant(a.val) if isinstance(a, compat.Literal) else env[a] for a in atoms]

    def learn(atoms, facts) -> bool:
        moved = False
        for atom, fact in zip(atoms, facts, strict=True):
            if not isinstance(atom, compat.Literal):
                old = env.setdefault(atom, bottom(atom.aval))
                env[atom] = join(old, fact)
                moved |= env[atom] is not old
        return moved

    every = [*program.invars, *program.outvars, *(v for e in program.eqns for v in e.outvars)]
    learn(every, [bottom(v.aval) for v in every])
    learn(program.constvars, map(constant, jaxpr.consts))
    learn((*program.invars, *program.outvars), (*ins, *outs))
    moved = True
    while moved:
        moved = False
        for eqn in (*program.eqns, *reversed(program.eqns)):
            before, after = transfer(eqn, read(eqn.invars), read(eqn.outvars))
            moved |= learn((*eqn.invars, *eqn.outvars), (*before, *after))
    return read(program.invars), read(program.outvars)
