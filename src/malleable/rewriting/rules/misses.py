"""Why a rule does not fire, `why_not(rule, fun)(*args)`: its nearest miss and what differs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from malleable import compat
from malleable.core.stage import stage
from malleable.notes import Told
from malleable.python_source.changes import unchanged
from malleable.python_source.misuse import called_as
from malleable.rewriting.graph.graph import COMMUTATIVE, Graph, Node
from malleable.rewriting.passes.passes import dce
from malleable.rewriting.rules import patterns
from malleable.rewriting.rules.rules import Match, NoMatch, Rule, forms
from malleable.signatures import P


@dataclass(frozen=True, repr=False)
class Miss(Told):
    """The place of a program that comes nearest to the pattern of a rule.

    where: the user's line there; matched, size: how many operations of the pattern are as they
    should be, and how many it has; wanted, found: the first that is not, and what is there;
    differs_at: the line of that; reason: why the rule declined, or what else is in the way.
    fires: whether it fires there after all.
    """

    rule: str
    fires: bool = False
    where: str = ""
    matched: int = 0
    size: int = 0
    wanted: str = ""
    found: str = ""
    differs_at: str = ""
    reason: str = ""

    def __str__(self) -> str:
        if self.fires:
            return f"rule {self.rule!r} fires at {self.where}"
        lines = [f"rule {self.rule!r} does not fire"]
        if self.where:
            what = f"nearest: {self.matched} of {self.size} operations are there"
            lines.append(f"{what}, at {self.where}")
        if self.wanted:
            at = f" at {self.differs_at}" * bool(self.differs_at)
            lines.append(f"its pattern has {self.wanted} where there is {self.found}{at}")
        if self.reason:
            lines.append(self.reason)
        return "\n  ".join(lines)


@called_as("why_not(rule, fun)(*args)")
def why_not(rule: Rule, fun: Callable[P, Any]) -> Callable[P, Miss]:
    """Return a function that says where `rule` comes nearest to fire in `fun`, and what differs.

    The program is looked through as `rewrite` does: broadcasts, reshapes, casts and transposes
    between operations are passed over, operands of what commutes are tried in both orders, and
    `x**2`, `x * x` and `square(x)` are one.
    Nothing is run or rewritten.

    >>> from jax import numpy as jnp
    >>> from malleable import rule
    >>> squares = rule(lambda x: jnp.log(x**2), lambda x: 2 * jnp.log(jnp.abs(x)), name="squares")
    >>> miss = why_not(squares, lambda x: jnp.log(x * 3))(1.0)
    >>> miss.matched, miss.size, miss.wanted, miss.found
    (1, 2, '`integer_pow`', '`mul`')
    """
    if not isinstance(rule, Rule):
        raise TypeError(f"why_not takes a rule, then a function, not {rule!r}")

    def found(*args: P.args, **kwargs: P.kwargs) -> Miss:
        with unchanged(fun, (args, kwargs)):
            program = dce(stage(fun)(*args, **kwargs).jaxpr)
        names = " or ".join(f"`{name}`" for name in sorted(rule.plan().starts))
        none = Miss(rule.name, reason=f"the program has no {names}, with which its pattern ends")
        return max(_misses(rule, program), key=_nearness, default=none)

    return found


def nearest(rules: Sequence[Rule], program: compat.Jaxpr) -> str:
    """Where a program comes nearest to one of the rules, and what differs there; for a note."""
    misses = (miss for r in rules for miss in _misses(r, program))
    none = "the program has no operation with which a pattern ends"
    return str(max(misses, key=_nearness, default=none)).replace("\n  ", "; ")


def _nearness(miss: Miss) -> tuple[bool, float]:
    return miss.fires, miss.matched / miss.size


def _misses(rule: Rule, program: compat.Jaxpr) -> Iterator[Miss]:
    """One for each equation with which a pattern may end, in every body."""
    graph, plan, shapes = Graph.of(program), rule.plan(), forms(rule.sides)
    for node in graph.order():
        if node.name in plan.starts:
            where, told = compat.where(node.eqn), plan.find(graph, node)
            if isinstance(told, Match):
                yield Miss(rule.name, True, where, 1, 1)
            elif isinstance(told, NoMatch):
                yield Miss(rule.name, False, where, 1, 1, reason=f"it declined: {told}")
            else:
                alike = [form for form in shapes if node.name in form.roots[0].names]
                yield from (_nearest(rule, graph, form, node) for form in alike)
        for body in compat.bodies(node.params):
            yield from _misses(rule, body)


def _nearest(rule: Rule, graph: Graph, form: patterns.Form, node: Node) -> Miss:
    root, where = form.roots[0], compat.where(node.eqn)
    size = len(set(_operations(root)))
    matched, difference = _walk(graph, form, root, node.outs[root.out], {})
    if difference is None:
        rest = "its other results, " if len(form.roots) > 1 else ""
        reason = f"the operations are there; {rest}shapes, parameters, dtypes or constants differ"
        return Miss(rule.name, False, where, size, size, reason=reason)
    wanted, found, at = difference
    return Miss(rule.name, False, where, min(matched, size - 1), size, wanted, found, at)


def _operations(place) -> Iterator[int]:
    if isinstance(place, patterns.Op):
        yield place.key
        for inner in place.ins:
            yield from _operations(inner)


def _walk(graph: Graph, form: patterns.Form, place, value: int, holes: dict) -> tuple[int, Any]:
    """(operations that agree, the first difference or None) of a pattern and a value."""
    links = patterns.chain(graph, value, form.plumbing)
    node = graph.maker[links[-1]]
    at = compat.where(node.eqn) if node is not None else ""
    there = f"`{node.name}`" if node is not None else "an argument or a constant"
    if isinstance(place, patterns.Hole):
        before = holes.setdefault(place.name, links)
        if set(before) & set(links):
            return 0, None
        return 0, (f"the same `{place.name}` again", f"another value, of {there},", at)
    if isinstance(place, patterns.Constant):
        known = node is None and graph.value(links[-1]) is not None
        return 0, None if known else ("a constant", there, at)
    both = None if node is None else place.operands(node)
    if both is None:
        return 0, (f"`{place.name}`", there, at)
    places, values = both
    orders = [places]
    if place.name in COMMUTATIVE and len(places) == 2:
        orders.append(places[::-1])
    ways = [_agreement(graph, form, order, values, dict(holes)) for order in orders]
    matched, difference, known = max(ways, key=lambda way: (way[1] is None, way[0]))
    holes.update(known)
    return matched, difference


def _agreement(graph, form, places, values, holes) -> tuple[int, Any, dict]:
    matched, first = 1, None
    for place, value in zip(places, values, strict=True):
        count, difference = _walk(graph, form, place, value, holes)
        matched, first = matched + count, first or difference
    return matched, first, holes
