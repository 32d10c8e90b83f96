"""Scans that say less: `scan_trim` drops what a scan carries and stacks for nothing, `scan_merge`
makes one scan of several.
"""

from typing import Any, NamedTuple

from jax import lax

from malleable import compat
from malleable.programs.evaluate import evaluate
from malleable.rewriting.graph.graph import Graph, Node, never
from malleable.rewriting.graph.slices import typed
from malleable.rewriting.passes.passes import configurable, each_body, in_bodies, settled

TURNS = (
    40  # after so many, carries that look alike are taken apart: a shift register takes one each
)


class Loop(NamedTuple):
    """A scan of a graph: what it does, and the values it is given."""

    view: compat.Scan
    consts: list[int]
    carry: list[int]
    xs: list[int]

    @staticmethod
    def of(node: Node) -> "Loop":
        """The loop behind a scan equation."""
        view: Any = compat.view(node.eqn)
        return Loop(view, *view.split(node.ins))

    @property
    def kind(self):
        """Equal for loops that go through the same steps."""
        return self.view.length, self.view.reverse, self.view.unroll

    def run(self, step, carry, xs):
        """A new scan of the same kind: step(carry, xs_i) -> (carry, ys_i)."""
        return lax.scan(step, carry, xs, *self.kind)


def scans(graph: Graph) -> list[Node]:
    """The scans of a graph that have no effects and use no reference, operands first."""
    found = [node for node in graph.order() if node.name == "scan" and not node.eqn.effects]
    return [node for node in found if isinstance(compat.view(node.eqn), compat.Scan)]


# ---------------------------------------------------------------- one scan


@configurable
def scan_trim(jaxpr: compat.Jaxpr) -> compat.Jaxpr:
    """Scans without unused carries and outputs, which carry and stack each value once.

    A carry that never changes becomes a constant, carries that are always equal become one, and
    an output is not stacked that is an operand of the loop, a constant, or another output.

    >>> import jax.numpy as jnp
    >>> from malleable import stage
    >>> def loop(xs):
    ...     return lax.scan(lambda c, x: ((c[0] + x, c[1]), (x, c[1], c[0])), (0.0, 1.0), xs)
    >>> program = stage(loop)(jnp.ones(3)).jaxpr
    >>> [max(len(eqn.outvars) for eqn in p.eqns) for p in (program, scan_trim(program))]
    [3, 2]
    """
    trim = in_bodies(_trim)
    while (trimmed := trim(jaxpr)) is not jaxpr:  # a smaller loop gives less to those inside it
        jaxpr = trimmed
    return jaxpr


def _trim(jaxpr):
    if not any(eqn.primitive.name == "scan" for eqn in jaxpr.eqns):
        return jaxpr
    jaxpr = settled(jaxpr, compat.dce(jaxpr))  # unused carries and outputs
    graph = Graph.of(jaxpr, never)
    smaller = [_trim_scan(graph, node) for node in scans(graph)]
    return graph.jaxpr() if any(smaller) else jaxpr


def _trim_scan(graph, node):
    """Put a smaller scan in the place of one; whether there is one."""
    loop = Loop.of(node)
    labels, body = _labels(loop)
    label_of = dict(zip(body.inputs, labels, strict=True))
    ends = labels[len(loop.consts) :][: len(loop.carry)]
    rows = []  # what each output is: an operand of the loop, a constant, or made by it
    for out, v in zip(node.outs[len(ends) :], body.outputs[len(ends) :], strict=True):
        label = label_of.get(v, ("made" if body.value(v) is None else "known", v))
        same = label[0] != "stacked" or graph.avals[label[1]] == graph.avals[out]
        rows.append(label if same else ("made", v))
    distinct = list(dict.fromkeys(labels))
    shared, carried, stacked = (
        [label for label in distinct if label[0] == kind]
        for kind in ("shared", "carried", "stacked")
    )
    ys = [label for label in dict.fromkeys(rows) if label[0] in ("carried", "made")]
    if list(map(len, (*loop[1:], rows))) == list(map(len, (shared, carried, stacked, ys))):
        return False

    def whole(*args):
        given = dict(zip((*shared, *carried, *stacked), args, strict=True))

        def step(carry, xs):
            now = given | dict(zip((*carried, *stacked), (*carry, *xs), strict=True))
            outs = evaluate(loop.view.body, [now[label] for label in labels])
            last = dict(zip(reversed(ends), outs[: len(ends)][::-1], strict=True))
            made = dict(zip(rows, outs[len(ends) :], strict=True))
            return [last[label] for label in carried], [made[label] for label in ys]

        carry, made = loop.run(step, [given[c] for c in carried], [given[x] for x in stacked])
        last = given | dict(zip(carried, carry, strict=True))
        made = given | dict(zip(ys, made, strict=True))
        for label in rows:
            if label[0] in ("shared", "known"):
                x: Any = given[label] if label[0] == "shared" else body.value(label[1])
                made[label] = lax.broadcast(x, (loop.view.length,))
        outs = [*(last[label] for label in ends), *(made[label] for label in rows)]
        return typed(outs, node.eqn.outvars)

    ins = [label[1] for label in (*shared, *carried, *stacked)]
    graph.rewrite(node, whole, ins, "scan_trim")
    return True


def _labels(loop):
    """What each input of the body is, and the body with those of one label made one.

    ("shared", v) for the constant v, ("carried", v, j) for what starts as v and goes on as carry
    j does, ("stacked", v) for rows of v. At first every carry is taken for a constant, then for
    equal to all that start alike; what the body contradicts is split until nothing is left to
    split. Source: Hopcroft, "An n log n algorithm for minimizing states in a finite automaton".
    """
    start, count = len(loop.consts), len(loop.carry)
    labels: list = [("shared", v) for v in (*loop.consts, *loop.carry)]
    labels += [("stacked", v) for v in loop.xs]
    turn = 0
    while True:
        body = Graph.of(loop.view.body, never)
        if turn == TURNS:  # apart, but for those that are handed on as they came
            ends = zip(loop.carry, body.inputs[start:], body.outputs, strict=False)
            labels[start : start + count] = [
                ("shared", v) if into == out else ("carried", v, j)
                for j, (v, into, out) in enumerate(ends)
            ]
        first = dict(zip(reversed(labels), reversed(body.inputs), strict=True))
        body.replace({v: first[label] for v, label in zip(body.inputs, labels, strict=True)})
        before, goes_on = list(labels), {}
        for j, made in enumerate(body.outputs[:count]):
            kind, v, *_ = label = before[start + j]
            if kind == "carried":
                labels[start + j] = kind, v, goes_on.setdefault((label, made), j)
            elif made != first[label]:
                labels[start + j] = "carried", v, -1
        if labels == before:
            return labels, body
        turn += 1


# ---------------------------------------------------------------- several scans


@configurable
def scan_merge(jaxpr: compat.Jaxpr) -> compat.Jaxpr:
    """One scan in place of several that go through the same steps in the same direction.

    Scans are merged that do not depend on each other, and those of which one takes, step by step,
    what another puts out: that is then stacked only where it is used elsewhere.

    >>> import jax.numpy as jnp
    >>> from malleable import stage
    >>> add = lambda c, x: (c + x, c * x)
    >>> program = stage(lambda x: lax.scan(add, 1.0, lax.scan(add, 0.0, x)[1]))(jnp.ones(3)).jaxpr
    >>> len(program.eqns), len(scan_merge(program).eqns)
    (2, 1)
    """
    return each_body(_merge)(jaxpr)  # one body of two may have scans to merge


def _merge(jaxpr):
    if sum(eqn.primitive.name == "scan" for eqn in jaxpr.eqns) < 2:
        return jaxpr
    graph = Graph.of(jaxpr, never)
    groups = [group for group in _groups(graph) if group[1:]]
    for group in groups:
        _merge_scans(graph, group)
    return graph.jaxpr() if groups else jaxpr


def _groups(graph) -> list[list[Node]]:
    """Scans that may become one: no other scan, and no other equation, is between two of them."""
    nodes = scans(graph)
    loops = [Loop.of(node) for node in nodes]
    direct = _dependences(graph, nodes, loops)
    groups: list[list[int]] = []
    group_of: dict[int, int] = {}
    before: list[set[int]] = []  # the groups that a group depends on
    for i, loop in enumerate(loops):
        stepwise, whole = direct[i]
        needs = {group_of[j] for j in (*stepwise, *whole)}
        needs |= set().union(*(before[g] for g in needs))
        for g in dict.fromkeys([*(group_of[j] for j in stepwise), *range(len(groups))]):
            apart = g in {group_of[j] for j in whole} or any(g in before[h] for h in needs - {g})
            if loops[groups[g][0]].kind == loop.kind and not apart:
                before[g] |= needs - {g}
                for other in before:
                    other |= before[g] if g in other else set()
                break
        else:
            g = len(groups)
            groups.append([])
            before.append(needs)
        groups[g].append(i)
        group_of[i] = g
    return [[nodes[i] for i in group] for group in groups]


def _dependences(graph, nodes, loops):
    """Per scan, the scans it depends on by no other: (those it follows step by step, the rest)."""
    index = {node: i for i, node in enumerate(nodes)}
    reach: dict[int, set[int]] = {}  # the scans behind a value
    direct, effects = [], set()
    for node in graph.order():
        if node not in index:
            behind = set().union(*(reach.get(v, ()) for v in node.ins))
            if node.eqn.effects:  # these stay in their order
                effects = behind = behind | effects
            reach |= dict.fromkeys(node.outs, behind)
            continue
        loop = loops[index[node]]
        stepwise, whole = (
            set(),
            set().union(*(reach.get(v, ()) for v in (*loop.consts, *loop.carry))),
        )
        for v in loop.xs:
            made = graph.maker[v]
            made = index.get(made) if made is not None else None
            follows = made is not None and v in nodes[made].outs[len(loops[made].carry) :]
            if follows and loops[made].kind == loop.kind:
                stepwise.add(made)
            else:
                whole |= reach.get(v, set())
        direct.append((stepwise, whole))
        reach |= {v: {index[node]} for v in node.outs}
    return direct


def _merge_scans(graph, group):
    """Put one scan in the place of several; operands first."""
    loops = [Loop.of(node) for node in group]
    pairs = list(zip(group, loops, strict=True))
    made = [v for node, loop in pairs for v in node.outs[len(loop.carry) :]]
    outputs, members = set(graph.outputs), set(group)
    ys = [v for v in made if v in outputs or not members.issuperset(graph.users(v))]
    xs = list(dict.fromkeys(v for loop in loops for v in loop.xs if v not in made))
    ins = list(dict.fromkeys([*(v for loop in loops for v in (*loop.consts, *loop.carry)), *xs]))

    def whole(*args):
        given = dict(zip(ins, args, strict=True))

        def step(carry, rows):
            row, after = dict(zip(xs, rows, strict=True)), []
            for (node, loop), mine in zip(pairs, carry, strict=True):
                rest = [*mine, *(row[v] for v in loop.xs)]
                outs = evaluate(loop.view.body, [*(given[v] for v in loop.consts), *rest])
                after.append(outs[: len(mine)])
                row |= dict(zip(node.outs[len(mine) :], outs[len(mine) :], strict=True))
            return after, [row[v] for v in ys]

        carry = [[given[v] for v in loop.carry] for loop in loops]
        carry, rows = loops[0].run(step, carry, [given[v] for v in xs])
        return [x for part in carry for x in part] + rows

    olds = [v for node, loop in pairs for v in node.outs[: len(loop.carry)]] + ys
    new = graph.trace(whole, ins, group[-1], "scan_merge")
    graph.replace(dict(zip(olds, new, strict=True)))
