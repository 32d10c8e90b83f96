"""What a change makes dirty: boxes, forwards through a program of any kind."""

from collections.abc import Mapping, Sequence
from typing import Any

from malleable import compat
from malleable.notes import note
from malleable.rewriting.boxes.dependence import Along, dirty_box, rel, runs_bodies
from malleable.rewriting.boxes.spans import Box, Span, merged, whole, whole_span
from malleable.rewriting.graph.graph import Node
from malleable.rewriting.incremental.loops import ROUNDS, Layers, Rows, forgets
from malleable.rewriting.incremental.plan import Plan, inside_of, opened

Boxes = tuple[Box, ...]


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
        made = _dirty_loop(plan, node, nominal) if node.name == "scan" else None
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
    inside = (
        tuple(span.clipped(n, limits) for span, n in zip(box, shape, strict=True)) for box in boxes
    )
    plan.boxes[v] = tuple(dict.fromkeys(inside))


def _spread(plan: Plan, node: Node, nominal: Mapping[int, Boxes], out: int) -> Boxes:
    shape = plan.shape(out)
    if runs_bodies(node.eqn):
        return (whole(shape),)
    tables = rel(node.eqn, lambda k: plan.small_constant(node.ins[k]))
    boxes = [
        dirty_box(entries, box, shape)
        for v, entries in zip(node.ins, tables, strict=True)
        for box in nominal.get(v, ())
    ]
    return merged(boxes, shape)


def _say(plan: Plan, node: Node, nominal: Mapping[int, Boxes], made: Sequence[Boxes]) -> None:
    """A note, where a part changes and all of a result that could have parts is computed."""
    parts = [v for v in node.ins if v in nominal and nominal[v][0] != plan.whole(v)]
    all_of = [v for v, boxes in zip(node.outs, made, strict=True) if boxes == (plan.whole(v),)]
    if parts and all_of and any(plan.shape(v) for v in all_of):
        tables = [] if runs_bodies(node.eqn) else rel(node.eqn)
        if not any(isinstance(entry, Along) for entries in tables for entry in entries):
            why = "each of its results may depend on the part that changes"
            note(f"`{node.name}` is computed whole", compat.where(node.eqn), why)


# ---------------------------------------------------------------- loops


def _dirty_loop(plan: Plan, node: Node, nominal: dict) -> "list | None":
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


def _layers(plan: Plan, node: Node, view: Any, nominal: dict) -> "list | None":
    """For a change of any kind: the boxes of the state are a fixpoint."""
    consts, carry, xs = view.split(node.ins)
    graph = opened(view.body)
    c, h, x = view.split(graph.inputs)
    given = {a: nominal[v] for a, v in zip(c, consts, strict=True) if v in nominal}
    for a, v in zip(x, xs, strict=True):
        if v in nominal:
            given[a] = merged([box[1:] for box in nominal[v]], plan.shape(v)[1:])
    state = {a: nominal[v] for a, v in zip(h, carry, strict=True) if v in nominal}
    shapes = {a: tuple(graph.avals[a].shape) for a in h}
    for turn in range(ROUNDS + 2):
        inner = inside_of(plan, graph, consts, c)
        found = mark_dirty(inner, given | state)
        new = dict(state)
        for a, b in zip(h, graph.outputs, strict=False):
            if b in found:
                boxes = merged([*state.get(a, ()), *found[b]], shapes[a])
                new[a] = (whole(shapes[a]),) if boxes != state.get(a) and turn >= ROUNDS else boxes
        if new == state:
            break
        state = new
    else:
        return None
    partial = [a for a, boxes in (given | state).items() if boxes != (inner.whole(a),)]
    if not partial:
        return None
    plan.loops[node.outs[0]] = Layers(node, view, inner)
    out = [state.get(a, ()) for a in h]
    for v, b in zip(node.outs[len(h) :], graph.outputs[len(h) :], strict=True):
        lead = whole_span(plan.shape(v)[0])
        out.append(tuple((lead, *box) for box in found.get(b, ())))
    return out
