"""The analyzer: push facts through a program without computing anything.

The one loop over equations that computes facts about values. A fact is anything with equality;
those of one analysis must form a lattice of finite height, or loops would not come to rest.
"""

from collections.abc import Callable, Sequence
from typing import Any

from malleable import compat


def analyze(
    jaxpr: compat.Jaxpr,
    facts: Sequence,
    transfer: Callable[[compat.Eqn, list], Sequence],
    join: Callable[[Any, Any], Any],
    bottom: Any,
    *,
    backward: bool = False,
) -> tuple[list, dict]:
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
    go = _backward if backward else _forward
    return go(jaxpr, list(facts), transfer, join, bottom)


def _forward(jaxpr, facts, transfer, join, bottom):
    env = dict(zip(jaxpr.jaxpr.invars, facts, strict=True))

    def read(atom):
        return bottom if isinstance(atom, compat.Literal) else env.get(atom, bottom)

    def go(body, facts):
        return _forward(body, list(facts), transfer, join, bottom)[0]

    def through(eqn, ins):
        match compat.view(eqn) if compat.bodies(eqn.params) else None:
            case compat.Branch(branches):
                outs = [go(b, ins[1:]) for b in branches]
                return [join(ins[0], f) for f in _join_all(join, outs)]
            case compat.Scan(body, split):
                consts, carry, xs = split(ins)
                return _settle(carry, join, lambda c: go(body, [*consts, *c, *xs]))
            case compat.While(cond, body, split):
                cond_consts, body_consts, carry = split(ins)

                def once(c):
                    (test,) = go(cond, [*cond_consts, *c])
                    return [join(test, f) for f in go(body, [*body_consts, *c])]

                return _settle(carry, join, once)
            case compat.Opaque() | None:
                return transfer(eqn, ins)
            case view:
                return go(view.body, ins)

    for eqn in jaxpr.jaxpr.eqns:
        env.update(zip(eqn.outvars, through(eqn, [read(v) for v in eqn.invars]), strict=True))
    return [read(v) for v in jaxpr.jaxpr.outvars], env


def _backward(jaxpr, facts, transfer, join, bottom):
    env: dict = {}

    def meet(atom, fact):
        if not isinstance(atom, compat.Literal):
            env[atom] = join(env[atom], fact) if atom in env else fact

    def go(body, facts):
        return _backward(body, list(facts), transfer, join, bottom)[0]

    def through(eqn, outs):
        match compat.view(eqn) if compat.bodies(eqn.params) else None:
            case compat.Branch(branches):
                decides = _join_all(join, [[f] for f in outs] or [[bottom]])
                return [*decides, *_join_all(join, [go(b, outs) for b in branches])]
            case compat.Scan(body, split):
                n = len(split(eqn.invars)[1])
                ys = outs[n:]

                def once(c):
                    consts, carry, xs = split(go(body, [*c, *ys]))
                    return [*carry, *consts, *xs]

                facts, k = _settle(outs[:n], join, once), n + len(split(eqn.invars)[0])
                return [*facts[n:k], *facts[:n], *facts[k:]]
            case compat.While(cond, body, split):
                tests, consts, _ = split(eqn.invars)

                def once(c):
                    test = _join_all(join, [[f] for f in c] or [[bottom]])
                    ins, by_test = go(body, c), go(cond, test)
                    k, m = len(consts), len(tests)
                    carry = _join_all(join, [ins[k:], by_test[m:]])
                    return [*carry, *by_test[:m], *ins[:k]]

                facts = _settle(outs, join, once)
                n = len(outs)
                return [*facts[n:], *facts[:n]]
            case compat.Opaque() | None:
                return transfer(eqn, outs)
            case view:
                return go(view.body, outs)

    for atom, fact in zip(jaxpr.jaxpr.outvars, facts, strict=True):
        meet(atom, fact)
    for eqn in reversed(jaxpr.jaxpr.eqns):
        ins = through(eqn, [env.get(v, bottom) for v in eqn.outvars])
        for atom, fact in zip(eqn.invars, ins, strict=True):
            meet(atom, fact)
    return [env.get(v, bottom) for v in jaxpr.jaxpr.invars], env


def _join_all(join, rows):
    first, *rest = rows
    for row in rest:
        first = [join(a, b) for a, b in zip(first, row, strict=True)]
    return list(first)


def _settle(carry, join, once):
    """Go round a loop until the facts of its carry are at rest; then all facts it gives."""
    while True:
        outs = once(carry)
        new = _join_all(join, [carry, outs[: len(carry)]])
        if new == carry:
            return [*carry, *outs[len(carry) :]]
        carry = new
