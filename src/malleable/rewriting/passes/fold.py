"""Constant folding: what depends on no argument is computed once, when the program is made."""

from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.programs.equations import every
from malleable.programs.primitives import has, kind
from malleable.programs.types import bytes_of
from malleable.rewriting.graph.graph import Graph, Node
from malleable.rewriting.passes.passes import configurable, in_bodies, settled

# An array of these is cheaper to make again than to keep; they are computed for their users only.
CHEAP = has("cheap") - {"pvary", "stop_gradient"}

# What is left to the run, and why.
LEFT = kind("random")  # other bits on another device
LEFT |= kind("kernel", "callback") | {"scan", "while"}  # it may take long
LEFT |= kind("place") - {"name"} | {"shard_map"}  # on purpose, or no value outside of a mesh


@configurable
def fold(jaxpr: compat.Jaxpr, *, limit: int = 64 * 1024) -> compat.Jaxpr:
    """Replace equations on constants by their values, in every body; take branches that are known.

    limit: what has more bytes stays an equation, and so does what is made of it. Never folded:
    effects, random bits, loops. The values of one body are computed in one compiled program.

    >>> import jax.numpy as jnp
    >>> from malleable import stage
    >>> program = stage(lambda x: x * jnp.sum(jnp.arange(10.0) ** 2))(jnp.ones(3)).jaxpr
    >>> [eqn.primitive.name for eqn in fold(program).eqns]
    ['mul']
    """
    return in_bodies(lambda body: _fold(body, limit))(jaxpr)


def _fold(jaxpr, limit):
    graph = Graph.of(jaxpr)
    folded = _fold_equations(graph, limit)
    while _take_branch(graph):
        folded = True
        _fold_equations(graph, limit)
    return settled(jaxpr, graph.jaxpr()) if folded else jaxpr


def _fold_equations(graph: Graph, limit: int) -> bool:
    """Put constants in the place of what is known; whether there was any."""
    known: dict[int, Node] = {}
    wanted: dict[int, Node] = {}  # by the rest of the program, or by an array made again

    def is_known(value):
        return value in known or _is_number(graph.value(value))

    def want(values):
        wanted.update((v, known[v]) for v in values if v in known and known[v].name not in CHEAP)

    rest = []
    for node in graph.order():
        if all(map(is_known, node.ins)) and _is_foldable(node) and _size(graph, node) <= limit:
            known.update(dict.fromkeys(node.outs, node))
        else:
            rest.append(node)
    want(graph.outputs)
    for node in rest:
        want(node.ins)
    for node in dict.fromkeys(known.values()):
        if node.name in CHEAP:
            want(node.ins)
    if not wanted:
        return False
    values = _values(graph, list(wanted), dict.fromkeys(known.values()))
    new = {}
    for (v, node), value in zip(wanted.items(), values, strict=True):
        made = _add_constant(graph, value, graph.avals[v], node)
        if made is not None:
            new[v] = made
    graph.replace(new)
    return bool(new)


def _values(graph, wanted, nodes):
    """The values of known nodes, all in one program."""
    known = {v: graph.value(v) for node in nodes for v in node.ins}
    arrays = {v: x for v, x in known.items() if np.ndim(x)}

    def run(arrays):  # as arguments: XLA is slow at folding large constants
        env = known | arrays
        for node in nodes:
            ins = [env[v] for v in node.ins]
            env.update(zip(node.outs, compat.bind(node.eqn, ins), strict=True))
        return [env[v] for v in wanted]

    return jax.jit(run).lower(arrays).compile()(arrays)  # at once, also while tracing


def _add_constant(graph, value, aval, node):
    """A value of the graph for an array: a literal, or one number at every place."""
    array = np.asarray(value)
    first = array.reshape(-1)[:1]
    if not aval.shape:
        number = array.item() if aval.weak_type else array[()]
        return graph.constant(number, aval, compat.literal(number, aval))
    if first.size and array.tobytes() == first.tobytes() * array.size:
        scalar = _add_constant(graph, first[0], aval.update(shape=(), sharding=None), node)
        (same,) = graph.trace(lambda x: [lax.broadcast(x, aval.shape)], [scalar], node, "fold")
        return same if graph.avals[same] == aval else None
    if jax.typeof(value) != aval:
        return None
    return graph.constant(value, aval, compat.literal(value, aval))


def _take_branch(graph: Graph) -> bool:
    """Put one known branch of a cond in its place; whether there was any."""
    for node in graph.by_name.get("cond", ()):
        index: Any = graph.value(node.ins[0])
        if _is_number(index) and not node.eqn.effects:
            branches = compat.bodies(node.params)
            taken = branches[int(np.clip(int(index), 0, len(branches) - 1))]
            outs = graph.splice(taken, node.ins[1:])
            if all(graph.avals[a] == graph.avals[b] for a, b in zip(outs, node.outs, strict=True)):
                graph.replace(dict(zip(node.outs, outs, strict=True)))
                return True
    return False


def _is_foldable(node) -> bool:
    """Whether an equation gives the same values whenever it runs, soon, wherever it runs."""
    pure = not any(e.effects or e.primitive.name in LEFT for e in every([node.eqn]))
    return pure and (bool(node.ins) or node.name == "iota")


def _is_number(value) -> bool:
    """Whether this is a constant whose value is at hand."""
    if isinstance(value, compat.Tracer) or not compat.is_array(value):
        return False
    if isinstance(value, jax.Array):
        plain = not jnp.issubdtype(value.dtype, jax.dtypes.extended)
        return plain and len(value.sharding.device_set) == 1 and value.is_fully_addressable
    return True


def _size(graph, node) -> int:
    """Bytes of the largest result."""
    types = [graph.avals[v] for v in node.outs]
    return max(map(bytes_of, types))
