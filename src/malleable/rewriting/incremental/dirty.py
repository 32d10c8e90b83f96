"""What a change makes dirty: boxes, forwards through a program of any kind."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from malleable import compat
from malleable.rewriting.boxes.dependence import Along, dirty_box, rel, runs_bodies
from malleable.rewriting.boxes.spans import Box, Span, merged, sizes_of, whole, whole_span
from malleable.rewriting.graph.graph import Graph, Node
from malleable.rewriting.incremental.loops import (
    ROUNDS,
    Choice,
    Layers,
    Redecided,
    Rows,
    Turns,
    forgets,
)
from malleable.rewriting.incremental.plan import OpenedWhile, Plan, handed_on, inside_of, opened

Boxes = tuple[Box, ...]
FEW = 32  # turns of a loop that are gone through one by one, to see how far a change spreads


def mark_dirty(plan: Plan, inputs: Mapping[int, Boxes]) -> dict[int, Boxes]:
    """Put into plan.boxes what changes when boxes of the inputs do; those before clipping.

    Boxes are nominal, at positions that may lie outside of the array, so that the hull of two of
    them is known; what is computed is each of them, moved into the array.
    """
    nominal = dict(inputs)
    for v, boxes in inputs.items():
        _put(plan, v, boxes)
    for node in plan.nodes:
        if not any(v in nominal for v in node.ins):
            continue
        made = LOOPS[node.name](plan, node, nominal) if node.name in LOOPS else None
        if made is None:
            made = [_spread(plan, node, nominal, v) for v in node.outs]
            _say(plan, node, nominal, made)
        for v, boxes in zip(node.outs, made, strict=True):
            if boxes:
                nominal[v] = boxes
                _put(plan, v, boxes)
    return nominal


def _put(plan: Plan, v: int, boxes: Boxes) -> None:
    shape, limits = plan.shape(v), plan.limits
    pairs = (zip(box, shape, strict=True) for box in boxes)
    plan.boxes[v] = tuple(dict.fromkeys(tuple(s.clipped(n, limits) for s, n in p) for p in pairs))


def _spread(plan: Plan, node: Node, nominal: Mapping[int, Boxes], out: int) -> Boxes:
    shape = plan.shape(out)
    if runs_bodies(node.eqn):
        return (whole(shape),)
    tables = rel(node.eqn, lambda k: plan.small_constant(node.ins[k]))
    pairs = zip(node.ins, tables, strict=True)
    found = [(entries, box) for v, entries in pairs for box in nominal.get(v, ())]
    # an empty array, as `roll` by 0 joins one to the rest, makes nothing dirty
    found = [(entries, box) for entries, box in found if 0 not in sizes_of(box)] or found
    return merged([dirty_box(entries, box, shape) for entries, box in found], shape)


def _say(plan: Plan, node: Node, nominal: Mapping[int, Boxes], made: Sequence[Boxes]) -> None:
    """A note, where a part changes and all of a result that could have parts is computed."""
    parts = [v for v in node.ins if v in nominal and nominal[v][0] != plan.whole(v)]
    all_of = [v for v, boxes in zip(node.outs, made, strict=True) if boxes == (plan.whole(v),)]
    if parts and all_of and any(plan.shape(v) for v in all_of):
        tables = [] if runs_bodies(node.eqn) else rel(node.eqn)
        if not any(isinstance(entry, Along) for entries in tables for entry in entries):
            why = "each of its results may depend on the part that changes"
            plan.tell(f"`{node.name}` is computed whole", node, why)


# ---------------------------------------------------------------- loops


def _scan(plan: Plan, node: Node, nominal: dict) -> list | None:
    """How a scan is gone through when parts of its operands change; None: it is run whole.

    Makes an entry in plan.loops; the boxes of the results, () for those that do not change.
    """
    view: Any = compat.view(node.eqn)
    consts, carry, xs = view.split(node.ins)
    rows = [box for v in xs for box in nominal.get(v, ())]
    if rows and not any(v in nominal for v in (*consts, *carry)):
        first = merged([(box[0],) for box in rows], (view.length,))
        steps = forgets(view, [v in nominal for v in xs])
        if len(first) == 1 and steps is not None and not (carry and view.reverse):
            start, size = first[0][0]
            if size + steps < view.length:
                span = Span(start, size + steps)
                plan.loops[node.outs[0]] = Rows(plan, node, view, span)
                last = [(plan.whole(v),) for v in node.outs[: len(carry)]]
                ys = node.outs[len(carry) :]
                return [*last, *(((span, *plan.whole(v)[1:]),) for v in ys)]
    return _layers(plan, node, view, nominal)


def _layers(plan: Plan, node: Node, view: Any, nominal: dict) -> list | None:
    """For a change of any kind: the boxes of the state are a fixpoint."""
    consts, carry, xs = view.split(node.ins)
    graph = opened(view.body)
    c, h, x = view.split(graph.inputs)
    given = handed_on(nominal, consts, c)
    for a, v in zip(x, xs, strict=True):
        if v in nominal:
            given[a] = merged([box[1:] for box in nominal[v]], plan.shape(v)[1:])
    state = handed_on(nominal, carry, h)

    def turn(state: dict) -> tuple[Plan, dict]:
        inner = inside_of(plan, graph, consts, c)
        return inner, mark_dirty(inner, given | state)

    rest = _at_rest(graph, h, state, turn, view.length)
    if rest is None:
        return None
    inner, found, state = rest
    partial = [a for a, boxes in (given | state).items() if boxes != (inner.whole(a),)]
    if not partial:
        return None
    plan.loops[node.outs[0]] = Layers(node, view, inner)
    plan.rely_on(inner)
    out = [state.get(a, ()) for a in h]
    for v, b in zip(node.outs[len(h) :], graph.outputs[len(h) :], strict=True):
        lead = whole_span(plan.shape(v)[0])
        out.append(tuple((lead, *box) for box in found.get(b, ())))
    return out


def _at_rest(
    graph: Graph, h: Sequence[int], state: dict, turn: Callable, length: int | None
) -> tuple[Plan, dict, dict] | None:
    """(plan of the body, what is dirty in it, the dirty boxes of the state) for all turns.

    length: how many turns there are, None where that is not known. Of few turns as many are
    enough; of more, the boxes of a state that does not come to rest are all of it.
    """
    shapes = {a: tuple(graph.avals[a].shape) for a in h}
    is_short = length is not None and length <= FEW
    for k in range((length or 0) + 1 if is_short else ROUNDS + 3):
        inner, found = turn(state)
        new = dict(state)
        for a, b in zip(h, graph.outputs, strict=False):
            if b in found:
                boxes = merged([*state.get(a, ()), *found[b]], shapes[a])
                grows = boxes != state.get(a) and k >= ROUNDS and not is_short
                new[a] = (whole(shapes[a]),) if grows else boxes
        if new == state or (is_short and k == length):
            return inner, found, state
        state = new
    return None


def _while(plan: Plan, node: Node, nominal: dict) -> list | None:
    """A `while` whose turns go part by part; None where how often it turns may change.

    Each lane may decide for itself, as under vmap.
    """
    loop = OpenedWhile(plan, node, nominal, mark_dirty)
    h, state = loop.h, loop.state
    for _ in range(2):
        if (rest := _at_rest(loop.body, h, state, loop.turn, None)) is None:
            return None
        inner, _, state = rest
        test, decides = loop.test(state)
        if not decides or len(state) == len(h):
            break
        lanes = test.shape(loop.cond.outputs[0])
        if len(decides) > 1 or any(inner.shape(a)[: len(lanes)] != lanes for a in h):
            return None
        state |= {a: ((*decides[0], *inner.whole(a)[len(lanes) :]),) for a in h if a not in state}
    if any(len(boxes) > 1 for p in (inner, test) for boxes in p.boxes.values()):
        return None
    for lanes in decides:  # one number that changes is how often all of it turns
        alike = all(b[: len(lanes)] == lanes for (b,) in state.values())
        if not lanes or len(state) < len(h) or not alike:
            return None
    if all(boxes == (inner.whole(a),) for a, boxes in state.items()):
        return None
    turns = Turns(node, loop.view, inner, test, bool(decides))
    if turns.needs_more():
        return None
    plan.loops[node.outs[0]] = turns
    return [state.get(a, ()) for a in h]


def _cond(plan: Plan, node: Node, nominal: dict) -> list | None:
    """A `cond`, of which parts of the operands change; the whole of it where it decides anew."""
    which, *ins = node.ins
    view: Any = compat.view(node.eqn)
    inners: list[Plan] = []
    made: list[Boxes] = [()] * len(node.outs)
    for branch in view.branches:
        graph = opened(branch)
        inner = inside_of(plan, graph, ins, graph.inputs)
        found = mark_dirty(inner, handed_on(nominal, ins, graph.inputs))
        for k, (v, u) in enumerate(zip(graph.outputs, node.outs, strict=True)):
            if boxes := found.get(v):
                made[k] = merged([*made[k], *boxes], plan.shape(u))
        inners.append(inner)
    if which in nominal:
        made = [(plan.whole(v),) for v in node.outs]
        why = "only where what decides stays, parts of its branch are enough"
        plan.tell("`cond` is computed whole where another branch is taken", node, why)
    elif not any(made):
        return made
    kind = Redecided if which in nominal else Choice
    plan.loops[node.outs[0]] = kind(plan, node, inners)
    for inner in inners:
        plan.rely_on(inner)
    return made


LOOPS = {"scan": _scan, "while": _while, "cond": _cond}
