"""`reroll`: an unrolled stack of equal blocks (layers, time steps) becomes one scan.

The equations stand in a line, each as a token: primitive, parameters, types. A stretch of the line
that repeats its tokens is cut into blocks; where each block takes its operands from the same places
(from itself, from the blocks just before it, from outside), one block is the body of a scan. What
comes from outside is a constant if it is the same for all blocks, and is stacked if not.
Source: Karp, Miller, Rosenberg, "Rapid identification of repeated patterns in strings, trees and
arrays", STOC 1972 (names of substrings by doubling).
"""

import bisect
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.notes import note
from malleable.programs.types import is_key, short_type
from malleable.rewriting.graph.graph import Graph, Node, never, params_key
from malleable.rewriting.graph.slices import typed
from malleable.rewriting.passes.passes import configurable, in_bodies
from malleable.rewriting.passes.rows import restack, stack
from malleable.rewriting.sharding.layouts import Layouts, layouts

ALONE = 4  # blocks that do not depend on each other run side by side: rolling must save this more


@configurable
def reroll(
    jaxpr: compat.Jaxpr, *, repeats: int = 3, least: int = 16, sharded: bool = False
) -> compat.Jaxpr:
    """Roll `repeats` or more equal blocks into one scan, where `least` equations are saved.

    Operands that differ between the blocks, numbers in the program included, are stacked; results
    that are used later are stacked by the scan. Blocks that carry nothing from one to the next
    are rolled from four times as many equations on. A note tells what was rolled, and why
    blocks that look alike were not.
    sharded: roll also blocks that take from outside what is in parts over a mesh. The loop
    compiles faster; devices then send more, and hold a copy of what is stacked.

    >>> import jax.numpy as jnp
    >>> from malleable import stage
    >>> def layers(x):
    ...     for k in range(12):
    ...         x = x + jnp.sin(k * x)
    ...     return x
    >>> program = stage(layers)(1.0).jaxpr
    >>> [len(p.eqns) for p in (program, reroll(program))]
    [36, 2]
    """
    explain = True
    while True:  # a block may hold equal blocks
        known = None if sharded else layouts(jaxpr)
        again = functools.partial(
            _reroll, repeats=repeats, least=least, explain=explain, known=known
        )
        rolled = in_bodies(again)(jaxpr)
        if _weights(rolled.eqns)[-1] >= _weights(jaxpr.eqns)[-1]:
            return jaxpr
        jaxpr, explain = rolled, False


def _reroll(jaxpr, repeats, least, explain, known):
    if len(jaxpr.eqns) < repeats:
        return jaxpr
    graph = Graph.of(jaxpr, never)
    order = graph.order()
    line = Line(order, [_token(graph, node, i) for i, node in enumerate(order)], _weights(order))
    found = _plan(graph, line, repeats, least)
    if explain:
        _explain(line, found, repeats, least)
    places = _specs(graph, jaxpr, known)
    rolled = False
    for run in found:
        if known is not None and (why := _unfit(graph, run, places, known)):
            where = compat.where(*(node.eqn for node in run.blocks[0]))
            note("equal blocks were not rolled", where, f"{why}: reroll(sharded=True) rolls them")
        elif all(node in graph.nodes for block in run.blocks for node in block):
            _roll(graph, run)
            rolled = True
    return graph.jaxpr() if rolled else jaxpr


def _specs(graph, jaxpr, known: Layouts | None) -> dict:
    """{input of a graph: its spec on the mesh}, of those that are in parts."""
    if known is None or known.mesh is None:
        return {}
    rows = zip(graph.inputs, map(known.layout, jaxpr.jaxpr.invars), strict=True)
    return {value: spec for value, spec in rows if spec is not None and any(spec)}


def _unfit(graph, run, places: dict, known: Layouts) -> str:
    """Why a loop of these blocks may send more than they do one by one; "" if it does not."""
    tables, _ = _operands(run)
    for v in (*tables["shared"], *itertools.chain.from_iterable(tables["stacked"])):
        sharding = getattr(graph.avals[v], "sharding", None)
        maker = graph.maker[v]
        while maker is not None and len(maker.ins) == 1:  # a view, or a conversion
            v, maker = maker.ins[0], graph.maker[maker.ins[0]]
        if v in places or (sharding is not None and any(sharding.spec)):
            return "they take what is in parts over a mesh"
    made = [v for block in run.blocks for node in block for v in node.eqn.outvars]
    if known.mesh is not None and any(known.layout(v) is None for v in made):
        return "it is not known where values are that they make"
    return ""


class Line(NamedTuple):
    """Equations in order, their tokens, and the number of equations before each."""

    nodes: list[Node]
    tokens: list
    before: list[int]


class Run(NamedTuple):
    """Equal blocks, and per equation of a block where its operands come from.

    (lag, equation, result) for one made in the block `lag` blocks before, None for any other.
    outside: equations that take rows of an array from outside, another one in each block.
    """

    blocks: list[list[Node]]
    wiring: list[list[tuple[int, int, int] | None]]
    outside: set[int]


# ---------------------------------------------------------------- the line


def _token(graph, node, i):
    """Equal for equations that may stand at the same place of a block."""
    if node.eqn.effects:
        return i
    avals = [graph.avals[v] for v in (*node.ins, *node.outs)]
    types = tuple((aval, getattr(aval, "weak_type", False)) for aval in avals)
    params = params_key(node.eqn) if node.key is None else node.key[2]
    return node.primitive, () if node.name == "slice" else params, types


def _weights(nodes):
    """How many equations come before each node or equation, those in bodies included."""
    sizes: dict = {}

    def size(jaxpr):
        if jaxpr not in sizes:
            sizes[jaxpr] = sum(map(weight, jaxpr.eqns))
        return sizes[jaxpr]

    def weight(eqn):
        return max(1, sum(map(size, compat.bodies(eqn.params))))

    eqns = (getattr(node, "eqn", node) for node in nodes)
    return list(itertools.accumulate(map(weight, eqns), initial=0))


def repetitions(tokens: Sequence, times: int = 3) -> Iterator[tuple[int, int, int]]:
    """(start, stop, period) of the stretches of a sequence that repeat at least `times` times.

    Those of every period that is not itself a repetition; O(n log n). Each step doubles the
    length of the windows that have names; a window of one period or more is repeated first after
    exactly one period (by the theorem of Fine and Wilf).

    >>> list(repetitions("xababababy"))
    [(1, 9, 2)]
    """
    names, length, seen = _numbered(tokens), 1, set()
    while len(set(names)) < len(names) and times * length < 2 * len(tokens):
        last: dict = {}
        gaps = []
        for i, name in enumerate(names):
            gaps.append(i - last.get(name, i))
            last[name] = i
        at = 0
        for gap, same in itertools.groupby(gaps):
            start, at = at, at + len(list(same))
            found = start - gap, at - 1 + length, gap
            if gap and found[1] - found[0] >= times * gap and found not in seen:
                seen.add(found)
                yield found
        names = _numbered(zip(names, names[length:], strict=False))
        length *= 2


def _numbered(items):
    names: dict = {}
    return [names.setdefault(item, len(names)) for item in items]


# ---------------------------------------------------------------- which blocks


def _plan(graph, line, repeats, least):
    """The runs to roll, in order; where two overlap, the one that saves more."""

    def saved(found):
        start, stop, period = found
        return line.before[stop - period] - line.before[start]

    found, taken = [], []
    for start, stop, period in sorted(repetitions(line.tokens, repeats), key=saved, reverse=True):
        for low, high in _free(taken, start, stop):
            if high - low < repeats * period or saved((low, high, period)) < least:
                continue
            floor = max((end for _, end in taken if end <= low), default=0)
            cuts = _cuts(graph, line.nodes[low:high], period)
            ways = [_runs(graph, line, low + s, high, period, repeats, floor) for s in cuts]
            for at, end, run in max(ways, key=lambda way: sum(end - at for at, end, _ in way)):
                block = line.before[end] - line.before[end - period]
                chained = any(slot and slot[0] for slots in run.wiring for slot in slots)
                if (len(run.blocks) - 1) * block >= (least if chained else ALONE * least):
                    bisect.insort(taken, (at, end))
                    found.append((at, run))
    return [run for _, run in sorted(found, key=lambda pair: pair[0])]


def _free(taken, start, stop):
    """The parts of a stretch that are not taken."""
    for low, high in taken:
        if start < low < stop:
            yield start, low
        if low < stop and high > start:
            start = max(start, high)
    if start < stop:
        yield start, stop


def _cuts(graph, nodes, period):
    """Where the first block may start: where the fewest values cross the border.

    Of equally good places the first and the last: what the first block lacks of its beginning,
    because it was computed before, may be found there (_extended).
    """
    count, slack = divmod(len(nodes), period)
    at = {node: i for i, node in enumerate(nodes)}
    crossing = [0] * (len(nodes) + 1)  # how many more values cross the border before each node
    for i, node in enumerate(nodes):
        for v in node.outs:
            users = [at[user] for user in graph.users(v) if user in at]
            if users:
                crossing[i + 1] += 1
                crossing[min(max(users), i + period) + 1] -= 1
    crossing = list(itertools.accumulate(crossing))
    borders = crossing[period * (count // 2) :][: slack + 1]
    best = [shift for shift, values in enumerate(borders) if values == min(borders)]
    return best[:1] + best[1:][-1:]


def _runs(graph, line, low, high, period, repeats, floor):
    """(start, stop, run) of those of a stretch of the line, cut into blocks from its start."""
    starts = range(low, high - period + 1, period)
    found = []
    for first, run in _wired(graph, [line.nodes[i : i + period] for i in starts], repeats):
        at = low + first * period
        stop = at + len(run.blocks) * period
        run, at = _extended(graph, line, run, at, floor) if first == 0 else (run, at)
        found.append((at, stop, run))
    return found


def _wired(graph, blocks, repeats):
    """(index of the first block, run) of the stretches that take their operands alike."""
    first = 0
    while len(blocks) - first >= repeats:
        for probe in (4, 2):  # deeper in, operands of several blocks before are seen
            run = _alike(graph, blocks, first, min(first + probe, len(blocks) - 1))
            if len(run.blocks) >= repeats:
                yield first, run
                first += len(run.blocks)
                break
        else:
            first += 1


def _alike(graph, blocks, first, probe):
    """The longest run from a block on that is wired as the block `probe`."""
    at = {node: (k, p) for k, block in enumerate(blocks) for p, node in enumerate(block)}
    outside: set = set()

    def source(v, k):
        node = graph.maker[v]
        made, p = at.get(node, (-1, 0))
        return None if made < first or p in outside else (k - made, p, node.outs.index(v))

    wiring = []
    for p, node in enumerate(blocks[probe]):
        wiring.append([source(v, probe) for v in node.ins])
        if node.name == "slice" and wiring[-1] == [None]:
            outside.add(p)

    def fits(k, p, node):
        for like, v in zip(wiring[p], node.ins, strict=True):
            slot = source(v, k)
            if slot != like and (slot is not None or like[0] <= k - first):
                return False
        same = node.name != "slice" or p in outside
        return same or params_key(node.eqn) == params_key(blocks[probe][p].eqn)

    last = first
    while last < len(blocks) and all(fits(last, p, node) for p, node in enumerate(blocks[last])):
        last += 1
    return Run(blocks[first:last], wiring, outside)


def _extended(graph, line, run, at, floor):
    """The run with the block before it, among whose equations is also what all blocks share.

    Equal equations are one in a graph: the first block has all that the others have, and more.
    """
    tables, _ = _operands(run)
    shared = {graph.maker[v] for v in tables["shared"]}
    period, block, start = len(run.blocks[0]), [], at
    while start > floor and at - start < 3 * period and len(block) < period:
        start -= 1
        node = line.nodes[start]
        if node in shared:
            shared.update(graph.maker[v] for v in node.ins)
        else:
            block.insert(0, node)
    token = dict(zip(line.nodes[start:at], line.tokens[start:at], strict=True))
    if [token[node] for node in block] != line.tokens[at : at + period]:
        return run, at
    longer = _alike(graph, [block, *run.blocks], 0, min(4, len(run.blocks)))
    return (longer, start) if len(longer.blocks) > len(run.blocks) else (run, at)


# ---------------------------------------------------------------- one run becomes a scan


def _operands(run):
    """Tables of what the blocks read, {key: place}, and per equation (table, place) to read.

    shared: a value; stacked: one value per block; carried: (a result of the block, its values
    in the blocks before the first); local: a result of the same block.
    """
    tables: dict[str, dict] = {"shared": {}, "stacked": {}, "carried": {}}

    def place(p, j, slot):
        values = tuple(block[p].ins[j] for block in run.blocks)
        if slot is not None and slot[0] == 0:
            return "local", slot[1:]
        if slot is not None:
            kind, key = "carried", (slot[1:], values[: slot[0]])
        elif len(set(values)) > 1:
            kind, key = "stacked", values
        else:
            kind, key = "shared", values[0]
        return kind, tables[kind].setdefault(key, len(tables[kind]))

    reads = [
        [place(p, j, slot) for j, slot in enumerate(slots)] if p not in run.outside else []
        for p, slots in enumerate(run.wiring)
    ]
    return tables, reads


def _results(graph, run):
    """{result of the block: the blocks whose results are used after the run}."""
    inside = {node for block in run.blocks for node in block}
    outputs = set(graph.outputs)

    def is_used(v):
        return v in outputs or any(user not in inside for user in graph.users(v))

    every = ((p, o) for p, node in enumerate(run.blocks[0]) for o in range(len(node.outs)))
    used = {
        (p, o): [k for k, block in enumerate(run.blocks) if is_used(block[p].outs[o])]
        for p, o in every
        if p not in run.outside
    }
    return {result: blocks for result, blocks in used.items() if blocks}


def _roll(graph, run):
    """Put the scan into the graph in place of the blocks."""
    template, n = run.blocks[0], len(run.blocks)
    tables, reads = _operands(run)
    wanted = _results(graph, run)
    avals = {(p, o): graph.avals[template[p].outs[o]] for p, o in wanted}
    lags: dict = {}  # of how many blocks before the end a register tells
    for result, before in tables["carried"]:
        lags[result] = max(lags.get(result, 0), len(before))
    last = [r for r in wanted if wanted[r][0] >= n - lags.get(r, 0 if is_key(avals[r]) else 1)]
    rows = [r for r in wanted if r not in last]
    extra = [r for r in last if r not in lags]  # carried only to be known in the end
    stacks = [stack(graph, values) for values in tables["stacked"]]

    def step(consts, carry, xs):
        made: dict = {}
        tables = {"local": made, "shared": consts, "stacked": xs, "carried": [r[0] for r in carry]}
        for p, node in enumerate(template):
            if p not in run.outside:
                args = typed([tables[kind][i] for kind, i in reads[p]], node.eqn.invars)
                made |= {(p, o): x for o, x in enumerate(compat.copy(node.eqn, args))}
        return made

    def whole(*args):
        rest = iter(args)
        take = lambda values: list(itertools.islice(rest, len(values)))  # noqa: E731
        consts = take(tables["shared"])
        registers = [take(before) for _, before in tables["carried"]]
        xs = [fun(*take(values)) for values, fun in stacks]

        def body(carry, xs):
            registers, _ = carry
            made = step(consts, registers, xs)
            pairs = zip(registers, tables["carried"], strict=True)
            registers = [[*register[1:], made[result]] for register, (result, _) in pairs]
            return (registers, [made[r] for r in extra]), [made[r] for r in rows]

        zeros = [_zeros(template[p].eqn.outvars[o]) for p, o in extra]
        (registers, ends), ys = lax.scan(body, (registers, zeros), xs, length=n)
        known = {(r, n - 1): x for r, x in zip(extra, ends, strict=True)}
        for register, (r, before) in zip(registers, tables["carried"], strict=True):
            known |= {(r, n - len(before) + i): x for i, x in enumerate(register)}
        for r, y in zip(rows, ys, strict=True):
            known |= {(r, k): lax.index_in_dim(y, k, 0, False) for k in wanted[r]}
        return [known[r, k] for r in wanted for k in wanted[r]]

    ins = [*tables["shared"], *(v for _, before in tables["carried"] for v in before)]
    ins += [v for values, _ in stacks for v in values]
    news = graph.trace(whole, ins, template[0], "reroll")
    olds = [run.blocks[k][p].outs[o] for p, o in wanted for k in wanted[p, o]]
    inside = {node for block in run.blocks for node in block}
    graph.replace(dict(zip(olds, news, strict=True)), keep=inside)
    where = compat.where(*(node.eqn for node in template))
    note(f"{n} equal blocks of {len(template)} equations became a scan", where)
    restack(graph, set(news))


def _zeros(variable):
    aval = variable.aval
    zeros = compat.match_layout(jnp.zeros(aval.shape, aval.dtype), aval)
    return typed([zeros], [variable])[0]


# ---------------------------------------------------------------- why not


def _explain(line, found, repeats, least):
    """Leave a note for equations that look like blocks and were not rolled."""
    rolled = {node for run in found for block in run.blocks for node in block}
    names = [node.name for node in line.nodes]
    for start, stop, period in repetitions(names, repeats):
        saved = line.before[stop - period] - line.before[start]
        if saved < least or not rolled.isdisjoint(line.nodes[start:stop]):
            continue
        why = "their results are not used alike"
        for i in range(start, stop - period):
            node, later = line.nodes[i], line.nodes[i + period]
            if line.tokens[i] != line.tokens[i + period]:
                why = _difference(node, later)
                break
        where = compat.where(*(node.eqn for node in line.nodes[start : start + period]))
        note("blocks that look alike were not rolled", where, why)
        rolled.update(line.nodes[start:stop])


def _difference(node, later):
    if node.eqn.effects:
        return f"{node.name} has an effect"
    types = [[short_type(v.aval) for v in n.eqn.invars] for n in (node, later)]
    if types[0] != types[1]:
        return "{} takes {}, then {}".format(node.name, *map(" and ".join, types))
    return f"the parameters of {node.name} differ"
