"""`unbuffer`: a loop that writes one row of an array per step puts the rows out instead.

The array is carried no longer: the rows are stacked by the scan, and what was not written of the
array it started with is joined to them. What follows the loop then sees the rows of a scan.
`take_rows` is the same for what a loop reads.
"""

import operator
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.programs.primitives import kind
from malleable.rewriting.graph.graph import Graph, never
from malleable.rewriting.graph.slices import typed
from malleable.rewriting.passes.passes import configurable, in_bodies


@configurable
def unbuffer(jaxpr: compat.Jaxpr) -> compat.Jaxpr:
    """Turn buffers that a loop fills row by row into outputs of a scan.

    A buffer is carried by a scan, or by a `while` that counts from one known number to another;
    each step writes one row (`buf.at[i].set(row)`, `lax.dynamic_update_slice`, along any axis),
    one further or one back than the step before. What the loop reads of the buffer was written a
    fixed number of steps before: so many rows are carried in its place.

    >>> import jax.numpy as jnp
    >>> from malleable import stage
    >>> squares = lambda buf: lax.fori_loop(2, 5, lambda i, buf: buf.at[i].set(i * i), buf)
    >>> [eqn.primitive.name for eqn in unbuffer(stage(squares)(jnp.zeros(9)).jaxpr).eqns]
    ['scan', 'slice', 'slice', 'concatenate']
    """
    return in_bodies(lambda jaxpr: _of_loops(_without_buffers, jaxpr))(jaxpr)


def take_rows(jaxpr: compat.Jaxpr) -> compat.Jaxpr:
    """Turn loops that read the next rows of a constant at each step into scans over these rows.

    Each step reads a block along one axis, where that of the step before ends, or begins.

    >>> import jax.numpy as jnp
    >>> from malleable import stage
    >>> total = lambda x: lax.fori_loop(0, 9, lambda i, h: 0.5 * h + x[i], 0.0)
    >>> (*_, loop) = take_rows(stage(total)(jnp.zeros(9)).jaxpr).eqns
    >>> len(compat.view(loop).split(loop.invars)[2])
    1
    """
    return in_bodies(lambda jaxpr: _of_loops(_over_rows, jaxpr))(jaxpr)


def first_steps(jaxpr: compat.Jaxpr) -> compat.Jaxpr:
    """Take out of a loop its first steps, where what it compares is the same in all later ones.

    >>> import jax.numpy as jnp
    >>> from malleable import stage
    >>> step = lambda t, y: y.at[t].set(jnp.where(t > 0, y[t - 1] + 1, 0))
    >>> program = stage(lambda y: lax.fori_loop(0, 9, step, y))(jnp.zeros(9)).jaxpr
    >>> first_steps(program).eqns[-1].params["length"]
    8
    """
    return _of_loops(_without_first, jaxpr)


def _of_loops(change, jaxpr):
    if not any(eqn.primitive.name in ("scan", "while") for eqn in jaxpr.eqns):
        return jaxpr
    graph = Graph.of(jaxpr, never)
    done = [change(graph, n) for n in graph.order() if n.name in ("scan", "while")]
    return graph.jaxpr() if any(done) else jaxpr


MOST_FIRST = 5  # steps, one more than may be taken out of a loop


class Line(NamedTuple):
    """An integer (or bool) of a loop, known at each step t: start + t * step."""

    start: int
    step: int = 0

    def at(self, t: int) -> int:
        return self.start + t * self.step

    def ends(self, length: int) -> tuple[int, int]:
        """The least and the greatest value in a loop of this length."""
        first, last = self.start, self.at(max(length - 1, 0))
        return min(first, last), max(first, last)

    def fits(self, aval, length: int) -> bool:
        """Whether the integers of this type go that far: a counter of eight bits wraps at 256."""
        kind = None if aval.dtype == bool else jnp.iinfo(aval.dtype)
        low, high = (int(kind.min), int(kind.max)) if kind else (0, 1)
        least, most = self.ends(length)
        return low <= least and most <= high


class Steps(NamedTuple):
    """A loop whose number of steps is known, and the lines of values of its body."""

    body: Graph
    consts: list[int]
    carry: list[int]
    xs: list[int]
    how: tuple[int, bool, int]  # length, reverse, unroll
    lines: dict[int, Line]


class Write(NamedTuple):
    """A carried buffer, the value that is written, along which dimension, and where.

    reads: the equations that read a row, and how many steps before it was written.
    """

    carry: int
    row: int
    dim: int
    at: Line
    reads: tuple[tuple[Any, int], ...] = ()

    def depth(self) -> int:
        return max([0, *(k for _, k in self.reads)])


def _without_buffers(graph, node):
    """Put a loop without buffers in the place of one; whether there were any."""
    steps = _steps(graph, node)
    if steps is None:
        return False
    found = [_write(steps, j) for j in range(len(steps.carry))]
    writes = [write for write in found if write]
    if not writes:
        return False
    body, (length, reverse, _) = steps.body, steps.how
    rest = [j for j, write in enumerate(found) if not write]
    rows = body.outputs[len(found) :]
    body.outputs = [*(body.outputs[j] for j in rest), *rows, *(write.row for write in writes)]
    reads = [(w, node, k) for w, write in enumerate(writes) for node, k in write.reads]
    body.inputs = [*body.inputs, *(node.outs[0] for _, node, _ in reads)]

    def whole(consts, carry, xs):
        def step(state, xs):
            left, late = state
            full = dict(zip(rest, left, strict=True))
            behind = [late[w][k - 1] for w, _, k in reads]
            outs = _play(body, [*consts, *(full.get(j) for j in range(len(found))), *xs, *behind])
            made = outs[len(outs) - len(writes) :]
            late = [
                [lax.reshape(y, of[0].shape), *of[:-1]] if of else []
                for y, of in zip(made, late, strict=True)
            ]
            return (outs[: len(rest)], late), outs[len(rest) :]

        # the rows of a buffer that would have been written 1, 2, ... steps before the first one
        before = [[w.at.at(-1 - k) for k in range(w.depth())] for w in writes]
        late = [
            [lax.slice_in_dim(carry[w.carry], at, at + 1, axis=w.dim) for at in places]
            for w, places in zip(writes, before, strict=True)
        ]
        (left, _), ys = lax.scan(step, ([carry[j] for j in rest], late), xs, *steps.how)
        new = dict(zip(rest, left, strict=True))
        for write, made in zip(writes, ys[len(rows) :], strict=True):
            line = Line(write.at.at(length - 1), -write.at.step) if reverse else write.at
            new[write.carry] = _join(carry[write.carry], made, line, write.dim)
        return typed([*(new[j] for j in range(len(found))), *ys[: len(rows)]], node.eqn.outvars)

    _replace(graph, node, steps, whole, "unbuffer")
    return True


def _replace(graph, node, steps, whole, name):
    """Put whole(consts, carry, xs) in the place of a loop."""

    def run(*args):
        given = iter(args)
        return whole(*([next(given) for _ in part] for part in steps[1:4]))

    graph.rewrite(node, run, [*steps.consts, *steps.carry, *steps.xs], name)


def _without_first(graph, node):
    """Put the first steps of a loop before it, if it is another one without; whether it is."""
    steps = _steps(graph, node)
    if steps is None or steps.how[1]:
        return False
    body, (length, _, unroll) = steps.body, steps.how
    first, n = max((_differs(steps, user) for user in body.order()), default=0), len(steps.carry)
    if not 0 < first < length:
        return False
    lines = [steps.lines.get(v) for v in body.inputs[len(steps.consts) :]]

    def whole(consts, carry, xs):
        def known(numbers, x):
            with jax.ensure_compile_time_eval():
                weak = jnp.asarray(numbers)  # as a counter that begins with 0 is
                return weak if jax.typeof(weak) == jax.typeof(x) else weak.astype(x.dtype)

        def at(t, carry, rows):
            pairs = zip([*carry, *rows], lines, strict=True)
            return [x if of is None else known(of.at(t), x) for x, of in pairs]

        def step(carry, xs):
            outs = _play(body, [*consts, *carry, *xs])
            return outs[:n], outs[n:]

        made = []
        for t in range(first):
            now = at(t, carry, [x[t] for x in xs])
            carry, ys = step(now[:n], now[n:])
            made.append(ys)
        rows = [
            x[first:] if of is None else known([of.at(t) for t in range(first, length)], x)
            for x, of in zip(xs, lines[n:], strict=True)
        ]
        begin = at(first, carry, [x[0] for x in xs])[:n]
        last, ys = lax.scan(step, begin, rows, length - first, unroll=unroll)
        before = [jnp.stack(y) for y in zip(*made, strict=True)]
        ys = [lax.concatenate(pair, 0) for pair in zip(before, ys, strict=True)]
        return typed([*last, *ys], node.eqn.outvars)

    _replace(graph, node, steps, whole, "first_steps")
    return True


def _differs(steps, node):
    """How many of the first steps decide otherwise at a node than all later ones; 0 if unknown."""
    last = steps.how[0] - 1
    lines = [steps.lines.get(v) or _constant(steps.body, v) for v in node.ins]
    match node.name:
        case "max" | "min" if steps.lines.get(node.outs[0]) is None:
            holds, (a, b) = operator.ge, lines
        case "dynamic_slice":
            cut = [v for v in lines[1:] if v and v.step > 0]
            holds, (a, b) = operator.ge, (*cut[:1], Line(0)) if cut else (None, None)
        case name if name in COMPARED and steps.lines.get(node.outs[0]) is None:
            holds, (a, b) = COMPARED[name], lines
        case _:
            return 0
    if a is None or b is None:
        return 0
    says = [holds(a.at(t), b.at(t)) for t in (*range(min(MOST_FIRST, last)), last)]
    first = max((t + 1 for t, x in enumerate(says) if x != says[-1]), default=0)
    return first if first < MOST_FIRST else 0


class Read(NamedTuple):
    """A read of a constant: which one, the equation, along which dimension, and where."""

    const: int
    node: Any
    dim: int
    at: Line


def _over_rows(graph, node):
    """Put a loop over rows in the place of one that reads them; whether there were any."""
    steps = _steps(graph, node)
    if steps is None:
        return False
    reads = [
        Read(k, user, *found)
        for k in range(len(steps.consts))
        for user in steps.body.users(steps.body.inputs[k])
        if (found := _read(steps, steps.body.inputs[k], user))
    ]
    if not reads:
        return False
    body, n = steps.body, len(steps.carry)
    body.inputs = [*body.inputs, *(read.node.outs[0] for read in reads)]

    def whole(consts, carry, xs):
        rows = [_blocks(consts[read.const], read, steps.how) for read in reads]

        def step(carry, xs):
            outs = _play(body, [*consts, *carry, *xs])
            return outs[:n], outs[n:]

        last, ys = lax.scan(step, carry, [*xs, *rows], *steps.how)
        return typed([*last, *ys], node.eqn.outvars)

    _replace(graph, node, steps, whole, "take_rows")
    return True


def _read(steps, const, node):
    """(dimension, line) of a read of a constant block by block, or None."""
    if node.name != "dynamic_slice" or node.ins[0] != const:
        return None
    shape, sizes, length = steps.body.avals[const].shape, node.params["slice_sizes"], steps.how[0]
    cut = [d for d, (n, size) in enumerate(zip(shape, sizes, strict=True)) if size < n]
    line = steps.lines.get(node.ins[1 + cut[0]]) if len(cut) == 1 else None
    if line is None or (abs(line.step) != sizes[cut[0]] and length > 1):
        return None
    low, high = line.ends(length)
    return (cut[0], line) if low >= 0 and high + sizes[cut[0]] <= shape[cut[0]] else None


def _blocks(x, read, how):
    """The blocks that a loop reads of an array, along a new first dimension."""
    (length, reverse, _), (_, node, d, line) = how, read
    size, (low, high) = node.params["slice_sizes"][d], line.ends(length)
    x = lax.slice_in_dim(x, low, high + size, axis=d)
    x = jnp.moveaxis(x.reshape(*x.shape[:d], length, size, *x.shape[d + 1 :]), d, 0)
    return x if (line.step < 0) == reverse else lax.rev(x, (0,))


def _play(body, args) -> list[Any]:
    """The results of a graph, each equation under its own line."""
    env = dict(zip(body.inputs, args, strict=True))
    read = lambda v: env[v] if v in env else body.value(v)  # noqa: E731
    for node in body.order():
        if node.outs and node.outs[0] in env:  # it is given
            continue
        ins = typed(list(map(read, node.ins)), node.eqn.invars)
        env.update(zip(node.outs, compat.copy(node.eqn, ins), strict=True))
    return list(map(read, body.outputs))


def _join(buffer, rows, line, dim):
    """The buffer with rows (n, *shape without dim) put where the line says."""
    n = rows.shape[0]
    rows = jnp.moveaxis(rows.reshape(n, *buffer.shape[:dim], *buffer.shape[dim + 1 :]), 0, dim)
    if line.step < 0:
        rows = lax.rev(rows, (dim,))
    low, high = line.ends(n)
    before = lax.slice_in_dim(buffer, 0, low, axis=dim)
    after = lax.slice_in_dim(buffer, high + 1, None, axis=dim)
    return lax.concatenate([x for x in (before, rows, after) if x.shape[dim]], dim)


def _write(steps, j):
    """How a loop fills its carry j row by row, or None."""
    body, (length, *_) = steps.body, steps.how
    buffer, made = body.inputs[len(steps.consts) + j], body.outputs[j]
    node = body.maker[made]
    if node is None or node.name not in ("dynamic_update_slice", "scatter"):
        return None
    read = body.users(made) or body.outputs.count(made) > 1 or buffer in body.outputs
    if read or node.ins[0] != buffer or node.ins.count(buffer) > 1:
        return None
    shape, (row, places) = body.avals[buffer].shape, row_places(body, node)
    for dim, v in places.items():
        line = steps.lines.get(v)
        if line and (abs(line.step) == 1 or length == 1):
            low, high = line.ends(length)
            if low >= 0 and high < shape[dim]:
                return _with_reads(steps, buffer, node, Write(j, row, dim, line))
    return None


def row_places(graph, node):
    """The row that a node writes, and {dimension: the index of its place} for where it may be."""
    shape = graph.avals[node.ins[0]].shape
    if node.name == "scatter":
        _, index, row = node.ins
        numbers = node.params["dimension_numbers"]
        window = tuple(range(len(shape) - 1))
        plain = numbers.update_window_dims == window and not numbers.operand_batching_dims
        dims = numbers.inserted_window_dims
        if not plain or len(dims) != 1 or dims != numbers.scatter_dims_to_operand_dims:
            return row, {}
        return row, {dims[0]: index} if graph.avals[row].shape == _without(shape, dims[0]) else {}
    _, row, *starts = node.ins
    size = graph.avals[row].shape
    alike = [d for d, n in enumerate(size) if n == 1 and _without(size, d) == _without(shape, d)]
    return row, {d: starts[d] for d in alike}


def _with_reads(steps, buffer, node, write):
    """A write, with what reads the buffer; None where that is not a row of a fixed step before."""
    reads = []
    for user in steps.body.users(buffer):
        if user is node:
            continue
        found = _read(steps, buffer, user)
        if found is None or found[0] != write.dim or found[1].step != write.at.step:
            return None
        k, rest = divmod(write.at.start - found[1].start, write.at.step or 1)
        if rest or k < 1 or user.params["slice_sizes"][write.dim] != 1:
            return None
        reads.append((user, k))
    return write._replace(reads=tuple(reads))


def _without(shape, dim):
    return (*shape[:dim], *shape[dim + 1 :])


# ---------------------------------------------------------------- what a loop counts


def _steps(graph, node):
    """The loop behind a scan or a `while`, if the number of its steps is known; or None."""
    view: Any = compat.view(node.eqn)
    if node.eqn.effects or isinstance(view, compat.Opaque):
        return None
    if node.name == "scan":
        body, how = Graph.of(view.body), (view.length, view.reverse, view.unroll)
        consts, carry, xs = view.split(node.ins)
    else:
        test_consts, consts, carry = view.split(node.ins)
        test, body = Graph.of(view.cond), Graph.of(view.body)
        known = dict(zip(test.inputs, (_constant(graph, v) for v in test_consts), strict=False))
        counts = _counts(graph, body, consts, carry)
        known |= {
            v: counts.get(i) for i, v in enumerate(test.inputs[len(test_consts) :], len(consts))
        }
        # how often the test holds, from the start on; 0 if unknown
        length = _turn(test, known, 1) or 0
        sure = length and _turn(test, known, length + 1) == length
        xs, how = [], (length if sure else 0, False, 1)
    if not how[0]:
        return None
    lines = {body.inputs[i]: line for i, line in _counts(graph, body, consts, carry).items()}
    lines = {v: line for v, line in lines.items() if line.fits(body.avals[v], how[0])}
    for v, x in zip(body.inputs[len(consts) + len(carry) :], xs, strict=True):
        if line := _along(graph, x):
            lines[v] = Line(line.at(how[0] - 1), -line.step) if how[1] else line
    _follow(body, lines, how[0])
    for choice in [n for n in body.order() if n.name == "cond"]:
        if (line := lines.get(choice.ins[0])) and not line.step:
            body.take_branch(choice, line.start)
            _follow(body, lines, how[0])
    return Steps(body, consts, carry, xs, how, lines)


def _counts(graph, body, consts, carry):
    """{input of a body: line} of the constants that are known, and of the carries that count."""
    numbers = [_number(graph, v) for v in (*consts, *carry)]
    lines = {i: Line(x) for i, x in enumerate(numbers[: len(consts)]) if x is not None}
    for i, x in enumerate(numbers[len(consts) :], len(consts)):
        if x is None:
            continue
        made, v = body.outputs[i - len(consts)], body.inputs[i]
        node = body.maker[made]
        if made == v:
            lines[i] = Line(x)
        elif node is not None and node.name in ("add", "sub") and v in node.ins:
            by = node.ins[1] if node.ins[0] == v else node.ins[0]
            step = _number(body, by)
            if by in body.inputs[: len(consts)]:
                step = numbers[body.inputs.index(by)]
            if step is not None and (node.name == "add" or node.ins[0] == v):
                lines[i] = Line(x, step if node.name == "add" else -step)
    return lines


def _number(graph, v):
    """The integer that a value of a graph is, or None."""
    if not _counts_with(graph.avals[v]) or graph.avals[v].shape != ():
        return None
    node, x = graph.maker[v], graph.value(v)
    if node is not None and node.name in SAME and graph.avals[v].dtype != bool:
        known = _number(graph, node.ins[0])
        return known if known is not None and Line(known).fits(graph.avals[v], 1) else None
    return None if x is None or isinstance(x, compat.Tracer) else int(np.asarray(x))


def _counts_with(aval) -> bool:
    """Whether a value of this type is an integer, or a bool."""
    return getattr(getattr(aval, "dtype", None), "kind", None) in tuple("iub")


def _turn(test, lines, length):
    """The step at which a test first fails, if what it compares are lines for that long."""
    lines = {v: line for v, line in lines.items() if line and line.fits(test.avals[v], length)}
    _follow(test, lines, length)
    node = test.maker[test.outputs[0]]
    if node is None or node.name not in COMPARED or node.name == "eq":
        return None
    holds, (a, b) = COMPARED[node.name], (lines.get(v) or _constant(test, v) for v in node.ins)
    if a is None or b is None:
        return None
    gap, step = b.start - a.start, a.step - b.step
    if not step:
        return None
    guess = max(0, gap // step)  # about where the two are equal
    for t in (guess, guess + 1):
        turns = holds(a.at(0), b.at(0)) and holds(a.at(t - 1), b.at(t - 1))
        if t and turns and not holds(a.at(t), b.at(t)):
            return t
    return None


def _along(graph, v):
    """The line of a vector outside of the loop: an iota, or numbers at equal distances."""
    node, x, aval = graph.maker[v], graph.value(v), graph.avals[v]
    if not _counts_with(aval) or len(aval.shape) != 1:
        return _constant(graph, v)
    if isinstance(x, np.ndarray | jax.Array) and not isinstance(x, compat.Tracer):
        x = np.asarray(x)  # an element of a jax.Array would be staged
        steps = np.diff(x.astype(np.int64))
        if not len(x) or (steps != steps[:1]).any():
            return None
        line = Line(int(x[0]), int(steps[0]) if len(steps) else 0)
        return line if line.fits(aval, len(x)) else None
    if node is None:
        return None
    if node.name == "iota":
        return Line(0, 1) if Line(0, 1).fits(aval, aval.shape[0]) else None
    if node.name in RESHAPED and graph.avals[node.ins[0]].shape:
        return None
    return _line(node, [_along(graph, x) for x in node.ins], aval.shape[0])


def _follow(graph, lines, length):
    """Add what the equations of a body make of integers that are known."""
    for node in graph.order():
        ins = [lines.get(v) or _constant(graph, v) for v in node.ins]
        line = _line(node, ins, length) if len(node.outs) == 1 else None
        if line is not None:
            lines[node.outs[0]] = line


def _constant(graph, v):
    number = _number(graph, v)
    return None if number is None else Line(number)


RESHAPED = kind("dims") - {"transpose"}
SAME = kind("same") | RESHAPED | {"convert_element_type"}
COMPARED = {
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
}


def _line(node, ins, length):
    """The line of a result, from those of the operands (None: unknown)."""
    aval = node.eqn.outvars[0].aval
    if node.name == "select_n" and ins[0] and not ins[0].step:
        return ins[1 + ins[0].start]
    known = _counts_with(aval) and ins and all(line is not None for line in ins)
    line = _combined(node.name, ins, length) if known else None
    return line if line is not None and line.fits(aval, length) else None


def _combined(name, ins, length):
    a, b = ins[0], ins[-1]
    (low, high), (least, most) = a.ends(length), b.ends(length)
    if name in SAME:
        return a
    if name in COMPARED:
        first, last = (COMPARED[name](a.at(t), b.at(t)) for t in (0, length - 1))
        still = a.step == b.step or high < least or low > most
        return Line(int(first)) if first == last and (still or name not in ("eq", "ne")) else None
    match name:
        case "add":
            return Line(a.start + b.start, a.step + b.step)
        case "sub":
            return Line(a.start - b.start, a.step - b.step)
        case "neg":
            return Line(-a.start, -a.step)
        case "mul" if not a.step or not b.step:
            return Line(a.start * b.start, a.start * b.step + a.step * b.start)
        case "max" | "min" if low >= most or high <= least:
            return a if (low >= most) == (name == "max") else b
        case "rem" if low >= 0 and high < least:
            return a
        case "clamp" if ins[1].ends(length)[0] >= high and ins[1].ends(length)[1] <= least:
            return ins[1]
    return None
