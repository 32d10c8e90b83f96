"""Where a pattern might be in a graph: a search that may guess, since every guess is proved later.

The form of a pattern is its operations, without the plumbing between them (broadcasts, reshapes,
casts, transposes): what is left hardly depends on shapes, ranks, dtypes or the version of JAX.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from malleable import compat
from malleable.programs.primitives import kind
from malleable.rewriting.graph.graph import COMMUTATIVE, Graph, Node
from malleable.rewriting.graph.spellings import SQUARES, squared

PLUMBING = kind("dims", "cast", "same") - {"bitcast_convert_type"} | {"pvary"}
LONGEST = 6  # of the chains of plumbing we look through
STEPS = 400  # of one search


class Hole(NamedTuple):
    """The place of a wildcard; depth: how much plumbing is above it in the pattern."""

    name: str
    depth: int


class Constant(NamedTuple):
    """The place of a constant, of whatever value: the proof will tell."""


class Op(NamedTuple):
    """The place of an equation; key tells it from others of its pattern."""

    key: int
    name: str
    out: int
    ins: tuple

    @property
    def height(self) -> int:
        return 1 + max((p.height for p in self.ins if isinstance(p, Op)), default=0)

    @property
    def squares(self) -> bool:
        """Whether it may be `x**2` (the proof will tell), which has other words."""
        return self.name in SQUARES and (self.name != "mul" or self.ins[0] == self.ins[1])

    @property
    def names(self) -> frozenset[str]:
        """What an equation in this place may be called."""
        return SQUARES if self.squares else frozenset([self.name])

    def operands(self, node: Node) -> tuple | None:
        """(places, values) that have to agree if the node stands here; None if it cannot."""
        if node.name == self.name and len(node.ins) == len(self.ins):
            return self.ins, node.ins
        square = squared(node.name, node.ins, node.params) if self.squares else None
        return None if square is None else (self.ins[:1], (square,))


class Form(NamedTuple):
    """The form of a pattern: one Op per result.

    bodies: {function wildcard: (key of its Op, which body of it, number of its arguments)};
    heads: what makes operands of the first Op; chosen: {operation wildcard: which one}.
    """

    roots: tuple[Op, ...]
    plumbing: frozenset[str]
    bodies: dict[str, tuple[int, int, int]]
    height: int
    heads: frozenset[str]
    chosen: dict[str, Any]


class Found(NamedTuple):
    """A guess: values each wildcard may stand for, likely ones first; the node of each Op."""

    holes: dict[str, list[int]]
    nodes: dict[int, Node]


def form(graph: Graph, names: list[str], literals: dict[str, Any], funs: list[str]) -> Form | str:
    """The form of a pattern, given as a graph; a str says why it can never match.

    names: of the inputs; literals: {wildcard: the number it was while tracing}; funs: the
    wildcards that are functions, called as jits of their names.
    """
    inputs = dict(zip(graph.inputs, names, strict=True))
    for plumbing in (PLUMBING, frozenset()):
        memo: dict[int, Any] = {}
        roots = [_place(graph, v, inputs, literals, plumbing, memo) for v in graph.outputs]
        if all(isinstance(root, Op) for root in roots):
            break
    else:
        return "its pattern is a wildcard or a constant alone"
    seen = {p.name for p in memo.values() if isinstance(p, Hole)}
    unused = [n for n in names if n not in seen]
    if unused:
        return f"its pattern does not use the wildcard {unused[0]!r}"
    homes = {}
    for f in funs:
        home = _home(memo.values(), graph, f)
        if home is None:
            return f"{f!r} is not the body of a loop or a branch in its pattern"
        homes[f] = home
    heads = frozenset(p.name for p in roots[0].ins if isinstance(p, Op) and not p.squares)
    return Form(tuple(roots), plumbing, homes, max(root.height for root in roots), heads, {})


def _place(graph, value, inputs, literals, plumbing, memo):
    depth = 0
    while value not in inputs and (node := graph.maker[value]) and node.name in plumbing:
        value, depth = node.ins[0], depth + 1
    key = value, depth
    if value in inputs:
        memo[key] = Hole(inputs[value], depth)
    elif graph.maker[value] is None:
        memo[key] = _constant(graph.value(value), literals, depth)
    else:
        key = value, 0
        if key not in memo:
            node = graph.maker[value]
            ins = tuple(_place(graph, v, inputs, literals, plumbing, memo) for v in node.ins)
            memo[key] = Op(value, node.name, node.outs.index(value), ins)
    return memo[key]


def _constant(value, literals, depth):
    if np.ndim(value) == 0:
        for name, number in literals.items():
            if np.asarray(value) == np.asarray(number, np.asarray(value).dtype):
                return Hole(name, depth)
    return Constant()


def _home(places, graph, name):
    for op in (p for p in places if isinstance(p, Op)):
        for i, body in enumerate(compat.bodies(graph.maker[op.key].params)):
            for eqn in body.jaxpr.eqns:
                if eqn.params.get("name") == name:
                    return op.key, i, len(eqn.invars)
    return None


def closure(node: Node, which: int, count: int) -> tuple[compat.Jaxpr, tuple[int, ...]]:
    """One body of a loop or branch, called with count arguments, and the values it closes over."""
    bodies = compat.bodies(node.params)
    closed = [len(body.jaxpr.invars) - count for body in bodies]
    start = 1 if node.name == "cond" else sum(closed[:which])
    return bodies[which], node.ins[start : start + closed[which]]


def _own_operands(node, count):
    """The operands of a loop or branch without what its bodies close over."""
    first = node.ins[:1] if node.name == "cond" else ()
    return (*first, *node.ins[len(node.ins) - count + len(first) :])


# ---------------------------------------------------------------- search


def chain(graph: Graph, value: int, plumbing: frozenset = PLUMBING) -> list[int]:
    """A value and what it was before the plumbing above it."""
    found = [value]
    while (node := graph.maker[found[-1]]) and node.name in plumbing and len(found) < LONGEST:
        found.append(node.ins[0])
    return found


def search(graph: Graph, form: Form, node: Node) -> Iterator[Found]:
    """The ways in which the first result of a pattern may be made by a node."""
    steps = iter(range(STEPS))
    root = form.roots[0]
    made = (graph.maker[chain(graph, v, form.plumbing)[-1]] for v in node.ins)
    if not form.heads <= {maker.name for maker in made if maker} or len(node.outs) <= root.out:
        return  # tinygrad's early reject
    for found in _agree(graph, form, [(root, node.outs[root.out])], Found({}, {}), steps):
        yield from _others(graph, form, form.roots[1:], found, steps)


def _others(graph, form, roots, found, steps):
    """The other results of a pattern: among the users of what has been found."""
    if not roots:
        yield found
        return
    root, rest = roots[0], roots[1:]
    near = [node.outs[root.out]] if (node := found.nodes.get(root.key)) else []
    if not near and not _holes(root) <= set(found.holes):
        near = _near(graph, root, found)
    elif not near:
        yield from _others(graph, form, rest, found, steps)  # the proof will find it
    for value in near:
        for more in _agree(graph, form, [(root, value)], found, steps):
            yield from _others(graph, form, rest, more, steps)


def _holes(place):
    if isinstance(place, Op):
        return set().union(*map(_holes, place.ins))
    return {place.name} if isinstance(place, Hole) else set()


def _near(graph, root, found):
    start = [v for name in _holes(root) & set(found.holes) for v in found.holes[name]]
    taken, seen = set(found.nodes.values()), {}
    for _ in range(root.height + LONGEST):
        users = [user for v in start for user in graph.users(v)][:STEPS]
        start = [v for user in users if user not in seen for v in user.outs]
        seen.update(dict.fromkeys(users))
    fitting = (n for n in seen if n.name == root.name and n not in taken)
    return [n.outs[root.out] for n in fitting]


def _agree(graph, form, goals, found, steps):
    """Walk the pattern and the graph together; both orders of commuting operands are tried."""
    if next(steps, None) is None:
        return
    if not goals:
        yield found
        return
    (place, value), rest = goals[0], goals[1:]
    links = chain(graph, value, form.plumbing)
    match place:
        case Constant():
            if graph.maker[links[-1]] is None and graph.value(links[-1]) is not None:
                yield from _agree(graph, form, rest, found, steps)
        case Hole(name, depth):
            likely = sorted(links, key=lambda v: abs(links.index(v) - depth))
            before = found.holes.get(name)
            both = likely if before is None else [v for v in before if v in links]
            if both:
                more = found._replace(holes={**found.holes, name: both})
                yield from _agree(graph, form, rest, more, steps)
        case Op(key, name, out, ins):
            node = graph.maker[links[-1]]
            if node is None or node.outs.index(links[-1]) != out:
                return
            if node.name == name and key in {body[0] for body in form.bodies.values()}:
                both = ins, _own_operands(node, len(ins))
            else:
                both = place.operands(node)
            if both is None or len(both[0]) != len(both[1]):
                return
            ins, operands = both
            if key in found.nodes:
                if found.nodes[key] is node:
                    yield from _agree(graph, form, rest, found, steps)
                return
            more = found._replace(nodes={**found.nodes, key: node})
            orders = (ins, ins[::-1]) if name in COMMUTATIVE and ins[0] != ins[-1] else (ins,)
            for order in orders:
                goals = [*zip(order, operands, strict=True), *rest]
                yield from _agree(graph, form, goals, more, steps)


# ---------------------------------------------------------------- after a change


def newer(graph, values, newest) -> list[Node]:
    """The nodes behind these values that are newer than others."""
    seen: dict[Node, None] = {}
    work = list(values)
    while work:
        v = work.pop()
        node = graph.maker[v]
        if v >= newest and node is not None and node not in seen:
            seen[node] = None
            work.extend(node.ins)
    return list(seen)


def affected(graph, changed, reach) -> Iterator[Node]:
    """The nodes at which a pattern may begin that did not match before these changed."""
    seen, level = set(), changed
    for _ in range(reach):
        above, stack = [], list(level)
        while stack:
            node = stack.pop()
            if node in seen or node not in graph.nodes:
                continue
            seen.add(node)
            users = [user for v in node.outs for user in graph.users(v)]
            if node.name in PLUMBING:  # no step up; and what is below may be a root
                stack += users
                made = graph.maker[chain(graph, node.outs[0])[-1]]
                if made is not None:
                    yield made
            else:
                above += users
            yield node
        level = above
