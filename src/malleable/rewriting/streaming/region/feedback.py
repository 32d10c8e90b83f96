"""Results of an axis that its own elements need: a softmax, a variance, a difference to the first.

Such a result is known at the end only. What may be done is to go on with a provisional one, and to
put right what was accumulated whenever it moves; or to leave a factor out until the end.
Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018.
"""

import numpy as np

from malleable import compat
from malleable.programs.primitives import has, kind
from malleable.rewriting.axis.axes import flow
from malleable.rewriting.graph.slices import Ax, Flow
from malleable.rewriting.streaming.region.region import Alias, Ended, Kept, Mapped, Mark, Stream

LINEAR = has("linear") & (kind("same", "dims", "reduce") | {"neg"})


def is_settled(grower, value, windows) -> bool:
    """Whether a result is known at the first element of all windows already."""
    found = grower.roots[value]
    kept = [grower.region.actions[node] for node in found or ()]
    if found is None or not all(isinstance(a, Kept) and a.at is not None for a in kept):
        return False
    if grower.region.reverse:
        first = max(w.start + w.step * (w.count - 1) for w in windows)
        return all(a.at >= first for a in kept)
    first = min(w.start for w in windows)
    return all(a.at <= first for a in kept)


def reference(grower, value, x) -> str:
    """The sink that a result comes from, if it may stand for itself while it is provisional.

    "reduce_max": it is the largest x so far, so that exp(x - it) is at most 1; "reduce_sum": it is
    the mean of x so far. "" for any other: on the way it might be far off, or not a number.
    """
    graph, late = grower.region.graph, grower.roots

    def upright(v):
        """What a value is a transpose of: under a vmap, maps and reductions see different ones."""
        while (node := graph.maker[v]) is not None and node.name == "transpose":
            (v,) = node.ins
        return v

    def follow(v):
        node = graph.maker[v]
        action = grower.region.actions.get(node)
        if isinstance(action, Ended):
            same = [*map(upright, node.ins)] == [upright(x)]
            plain = not action.marks and same
            return action.sink.name if plain else None
        rest = [u for u in node.ins if u in late]
        allowed = SAFE.get(node.name, ())
        kinds = {follow(u) for u in rest}
        kind = kinds.pop() if len(kinds) == 1 else None
        return kind if kind in allowed else None

    found = follow(value)
    return found if found in ("reduce_max", "reduce_sum") else ""


# what may be done to a provisional maximum, or to a provisional sum, on the way to its user
SAFE = {
    **dict.fromkeys(kind("same", "dims") - {"transpose"}, ("reduce_max", "reduce_sum")),
    **dict.fromkeys(("max", "is_finite", "select_n"), ("reduce_max",)),
    **dict.fromkeys(("div", "mul"), ("reduce_sum",)),
}


def fed_back(grower, node, known, late):
    if len(node.ins) != 2 or len(late) != 1 or node.name not in ("sub", "mul", "div"):
        return "it needs a result that is known at the end of the axis only"
    (i,) = late
    stream, by = known[1 - i], node.ins[i]
    if stream is None or (i == 0 and node.name != "mul"):
        return "it needs a result that is known at the end of the axis only"
    graph = grower.region.graph
    shape, other = graph.avals[by].shape, graph.avals[node.ins[1 - i]].shape
    if len(shape) != len(other) or graph.avals[node.outs[0]].shape != other:
        return "it spreads over a result of the axis"
    if shape[stream.ax.dim] != 1 or not compat.differentiable(graph.avals[by]):
        return "it needs a result that is known at the end of the axis only"
    dims = tuple((d, Ax(d)) for d, extent in enumerate(shape) if extent != 1)
    if node.name == "sub":
        kind = reference(grower, by, node.ins[1 - i])
        whole = stream.window == grower.region.full
        if not kind or (kind == "reduce_max" and not whole):  # a gradient would take twice as long
            return "it needs a result that is known at the end of the axis only"
        mark = Mark("shift", by, dims, power=int(kind == "reduce_sum"))
        ins = tuple(s and s.ax for s in known)
        found = flow(node.eqn, ins, (None,), stream.window.count)
        if not isinstance(found, Flow):
            return "it cannot be cut"
        grower.origin[mark] = node
        made = [Stream(ax, stream.window, (mark,)) for ax in found.outs if ax is not None]
        return Mapped(found, stream.window, (0, 0)), made
    if not any(m.kind == "scale" for m in stream.marks):
        return "a sum without this factor could overflow"
    mark = Mark(node.name, by, dims)
    grower.origin[mark] = node
    return Alias(1 - i), [stream._replace(marks=(mark,))]


def marked(grower, node, known, marked, late):
    """An equation of a value that is not final: linear ones keep the marks."""
    if len(set(marked)) > 1 and node.name not in ("add", "sub", "mul"):
        return "several of its operands are not final"
    i = marked[0]
    marks = known[i].marks
    if late:
        if marks[0].kind == "shift" or any(v in grower.roots for v in (node.ins[i],)):
            return "it uses two results of the axis"
        if node.name == "sub":
            return "it uses two results of the axis"
        found = fed_back(grower, node, known, late)
        if isinstance(found, str) or not isinstance(found[0], Alias):
            return "it uses two results of the axis"
        action, (made,) = found
        return action, [made._replace(marks=(*marks, *made.marks))]
    kinds = {m.kind for m in marks}
    if kinds == {"shift"}:
        return shifted(grower, node, known, marks)
    if not is_linear(grower, node, known, marked):
        return "it is not linear in a value that is not final yet"
    found = grower.mapped(node, known, marks)
    if isinstance(found, str):
        return found
    action, made = found
    moved = []
    for mark in marks:
        dims = move(grower, node, i, mark)
        if dims is None:
            return "it mixes the dims of a result that is not known yet"
        moved.append(mark._replace(dims=dims))
        grower.origin.setdefault(moved[-1], grower.origin[mark])
    if made is None:
        return action._replace(marks=tuple(moved)), None
    return action, [s._replace(marks=tuple(moved)) for s in made]


def shifted(grower, node, known, marks):
    """x - by: exp makes it proportional to exp(-by), powers make moments."""
    (mark,) = marks
    power = {"square": 2, "integer_pow": node.params.get("y"), "mul": 2}.get(node.name)
    if node.name == "exp" and not mark.power:
        new = mark._replace(kind="scale", power=1)
    elif mark.power and power and power > 0 and len(set(node.ins)) == 1:
        new = mark._replace(kind="power", power=power)
    else:
        return "it uses a difference to a result of the axis"
    found = grower.mapped(node, known)
    if isinstance(found, str):
        return found
    grower.origin.setdefault(new, grower.origin[mark])
    return found[0], [s._replace(marks=(new,)) for s in found[1]]


def is_linear(grower, node, known, marked) -> bool:
    marks = known[marked[0]].marks
    if any(m.kind == "power" for m in marks):
        return node.name == "reduce_sum"
    match node.name:
        case "add" | "sub":
            both = len(marked) == 2 and known[0].marks == known[1].marks
            return both and node.ins[0] != node.ins[1]
        case "mul" | "dot_general":
            return len(marked) == 1
        case "div":
            return marked == [0]
        case "select_n":
            others = [i for i in (1, 2) if i not in marked]
            return (
                len(node.ins) == 3
                and 0 not in marked
                and all(is_zero(grower, node.ins[i]) for i in others)
            )
        case "convert_element_type":
            return compat.differentiable(grower.region.graph.avals[node.outs[0]])
    return node.name in LINEAR


def is_zero(grower, value) -> bool:
    """Whether a value is the constant 0, however spread."""
    graph = grower.region.graph
    node = graph.maker[value]
    while node is not None and node.name in ("broadcast_in_dim", "convert_element_type"):
        (value,) = node.ins[:1]
        node = graph.maker[value]
    known = graph.value(value)
    return known is not None and np.ndim(known) == 0 and bool(known == 0)


def move(grower, node, operand, mark):
    """Where the dims of a mark go through an equation, or None where they are mixed."""
    graph, dims = grower.region.graph, []
    for d, ax in mark.dims:
        extent = graph.avals[mark.by].shape[d]
        ins = [None] * len(node.ins)
        ins[operand] = ax
        found = flow(node.eqn, tuple(ins), (None,) * len(node.outs), extent)
        if not isinstance(found, Flow) or len(found.outs) != 1 or found.outs[0] is None:
            return None
        if found.outs[0].outer * found.outs[0].inner != 1:
            return None
        dims.append((d, found.outs[0]))
    return tuple(dims)
