"""Loop-invariant code motion: what every step of a loop computes alike is computed before it.

XLA does it too, but after differentiation; done before, the value is kept once for the gradient
and not once per step. Source: Aho, Lam, Sethi, Ullman, "Compilers", 2nd edition, section 9.5.1.
"""

from typing import Any, NamedTuple

from jax import lax

from malleable import compat
from malleable.notes import note
from malleable.programs.equations import every, variables
from malleable.programs.evaluate import evaluate
from malleable.programs.primitives import has, kind
from malleable.programs.types import bytes_of
from malleable.rewriting.graph.graph import Graph
from malleable.rewriting.passes.passes import configurable, dce, in_bodies

CHEAP = has("cheap")
# kept, however large the result
DEAR = kind("contract", "control", "sort", "linalg", "cumulative", "write") | {"gather"}
DEAR -= {"dynamic_update_slice"}
PLACED = {"rng_uniform", "optimization_barrier"}  # where they are on purpose


class Split(NamedTuple):
    """A body in two: `before` -> the values made once, which `inside` has as its last constants."""

    before: compat.Jaxpr
    inside: compat.Jaxpr

    def made(self, args) -> list:
        return evaluate(self.before, args)

    def step(self, made, args) -> list:
        own = self.inside.consts[: len(self.inside.consts) - len(made)]
        return evaluate(self.inside, args, consts=[*own, *made])


@configurable
def hoist(jaxpr: compat.Jaxpr, *, limit: int = 64 * 1024) -> compat.Jaxpr:
    """Move equations that every step computes alike out of scan and while, at any depth.

    An operand does not change if it is a constant of the loop, or a carry that is handed on as it
    came. Effects stay, and so does all of a loop that runs no step. Out of the body of a `while`,
    which may run no step, no `while` is taken: it might not end.
    limit: a result of more bytes, and larger than all it is made of, stays too, unless it is a
    product, a loop or the like: it would take memory where it saves little time.

    >>> import jax.numpy as jnp
    >>> from malleable import stage
    >>> def decay(x, rate):
    ...     return lax.fori_loop(0, 9, lambda i, c: c * jnp.exp(-rate), x)
    >>> [eqn.primitive.name for eqn in hoist(stage(decay)(1.0, 0.1).jaxpr).eqns]
    ['neg', 'exp', 'scan']
    """
    once = in_bodies(lambda body: _hoist(body, limit))
    while (new := once(jaxpr)) is not jaxpr:  # what left an inner loop may leave the outer one
        jaxpr = dce(new)  # and what nobody needs now does not hold it there
    return jaxpr


def _hoist(jaxpr, limit):
    graph, moved = Graph.of(jaxpr), False
    for name, move in (("scan", _from_scan), ("while", _from_while)):
        for node in list(graph.by_name.get(name, ())):
            view: Any = compat.view(node.eqn)
            if isinstance(view, compat.Opaque):
                note("left a loop as it is", compat.where(node.eqn), view.why)
                continue
            loop = move(view, node, limit)
            if loop is None:
                continue
            if compat.has_effects(node.eqn):
                note("left a loop as it is", compat.where(node.eqn), "it has effects")
                continue
            new = graph.trace(loop, node.ins, node, "hoist")
            types = [[graph.avals[v] for v in outs] for outs in (new, node.outs)]
            if types[0] == types[1]:
                graph.replace(dict(zip(node.outs, new, strict=True)))
                moved = True
    return graph.jaxpr() if moved else jaxpr


def _from_scan(view: compat.Scan, node, limit):
    """The same loop with less in its body, as a function of the same operands; or None."""
    consts, carry, _ = view.split(node.ins)
    n, k = len(consts), len(carry)
    same = _handed_on(view.body, n, k)
    split = _split(view.body, [True] * n + same, limit)
    if split is None or view.length == 0 or node.params.get("_split_transpose"):
        return None

    def loop(*args):
        consts, carry, xs = view.split(args)
        made = split.made([*consts, *carry, *xs])

        def step(carry, x):
            outs = split.step(made, [*consts, *carry, *x])
            return outs[:k], outs[k:]

        carry, ys = lax.scan(step, carry, xs, **view.how)
        return [*carry, *ys]

    return loop


def _from_while(view: compat.While, node, limit):
    """As `_from_scan`; both the test and the body give."""
    tests, consts, carry = view.split(node.ins)
    if view.cond.out_avals[0].shape:  # one answer per lane of a vmap: no public function for that
        return None
    same = _handed_on(view.body, len(consts), len(carry))
    test = _split(view.cond, [True] * len(tests) + same, limit)
    body = _split(view.body, [True] * len(consts) + same, limit, maybe=True)
    if test is None and body is None:
        return None
    test = test or Split(compat.program(view.cond, [], [], {}), view.cond)
    body = body or Split(compat.program(view.body, [], [], {}), view.body)

    def loop(*args):
        tests, consts, carry = view.split(args)
        ahead, made = test.made([*tests, *carry]), body.made([*consts, *carry])
        go = lambda carry: test.step(ahead, [*tests, *carry])[0]  # noqa: E731
        return lax.while_loop(go, lambda carry: body.step(made, [*consts, *carry]), carry)

    return loop


def _handed_on(body, consts, carry) -> list[bool]:
    """Which carries are the same in every step."""
    program = body.jaxpr
    ins = program.invars[consts : consts + carry]
    return [a is b for a, b in zip(ins, program.outvars[:carry], strict=True)]


def _split(body: compat.Jaxpr, constant: list[bool], limit: int, maybe: bool = False):
    """A body in two, or None where nothing can go; constant: which of its first inputs stay."""
    body = Graph.of(body).jaxpr()  # calls substituted away, equal equations one
    program = body.jaxpr
    given = [v for v, c in zip(program.invars, constant, strict=False) if c]
    source = {v: bytes_of(v.aval) for v in (*program.constvars, *given)}  # bytes it is made of
    moved: dict = {}  # variable -> its equation, of those that go
    for eqn in program.eqns:
        ins = variables(eqn.invars)
        if not all(v in source for v in ins) or not _may_move(eqn, maybe):
            continue
        made_of = max((source[v] for v in ins), default=0)
        size = sum(bytes_of(v.aval) for v in eqn.outvars)
        dear = eqn.primitive.name in DEAR or bool(compat.bodies(eqn.params))
        goes = eqn.primitive.name not in CHEAP and (dear or size <= max(made_of, limit))
        source.update((v, size if goes else made_of) for v in eqn.outvars)
        if goes:
            moved.update((v, eqn) for v in eqn.outvars)

    rest, needed = [], set(variables(program.outvars))
    for eqn in reversed(program.eqns):
        if eqn.outvars and eqn.outvars[0] in moved:
            continue
        if compat.has_effects(eqn) or any(v in needed for v in eqn.outvars):
            rest.append(eqn)
            needed.update(variables(eqn.invars))
    frontier = [v for v in moved if v in needed]
    if not frontier:
        return None
    consts = dict(zip(program.constvars, body.consts, strict=True))
    ahead = [eqn for eqn in program.eqns if all(v in source for v in eqn.outvars)]
    ahead = [eqn for eqn in ahead if eqn.outvars and not compat.has_effects(eqn)]
    before = compat.dce(compat.program(body, ahead, frontier, consts))
    inside = compat.program(body, rest[::-1], program.outvars, consts | dict.fromkeys(frontier))
    return Split(before, inside)


def _may_move(eqn, maybe: bool) -> bool:
    """Whether an equation may run where it is not sure to have run; maybe: no step may run."""
    stays = PLACED | {"while"} if maybe else PLACED
    return not any(compat.has_effects(e) or e.primitive.name in stays for e in every([eqn]))
