"""Any program, when a part of its arguments changes: only what depends on that is computed.

init, update = incremental(fun, change={0: (1, None)})
y, state = init(x)
y, state = update(state, {0: (row, (7, 0))})      # fun(x with another row 7)
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.core.stage import stage, staged_arguments
from malleable.errors import TransformError
from malleable.notes import note
from malleable.programs.cost import flop, flop_of
from malleable.programs.primitives import kind
from malleable.python_source.misuse import called_as
from malleable.rewriting.boxes.blocks import identity_of
from malleable.rewriting.boxes.dependence import Along, rel
from malleable.rewriting.boxes.spans import Box, Span, Start, sizes_of, whole_span
from malleable.rewriting.graph.graph import Graph, Node
from malleable.rewriting.graph.slices import typed
from malleable.rewriting.incremental.derivatives import OWN, own_derivative, without_derivative
from malleable.rewriting.incremental.dirty import mark_dirty
from malleable.rewriting.incremental.plan import Plan, asked_for, opened
from malleable.rewriting.incremental.run import Run
from malleable.signatures import P, R

LONG = 256  # from here on a sum is one of partial sums of about as many numbers as there are sums
DRIFT = (
    "each update leaves a rounding of the largest sum so far, and an inf or NaN of before stays; "
    'sums="parts" leaves nothing'
)
PARTED = kind("reduce") - {"reduce", "reduce_xor"}  # reductions that may be made by parts


@called_as("init, update = incremental(fun, change={0: (1,)})")
def incremental(
    fun: Callable[P, R],
    *,
    change: Mapping[int | str, Any],
    sums: Literal["parts", "delta"] = "parts",
) -> tuple[Callable[P, tuple[R, Any]], Callable[[Any, Mapping[int | str, Any]], tuple[R, Any]]]:
    """`fun` as (init, update): an update computes again only what depends on what is new.

    change: for each argument that changes, by its position or name, the sizes of the block that
    is new, None for a dimension that changes as a whole; for a pytree a tree of such tuples.
    sums: "delta" to update a sum, or a product of matrices along what they contract, by the sum of
    new less old numbers: a cost that does not grow with their length, but not exact.

    init(*args) gives (fun(*args), state); update(state, {argument: (block, starts)}) gives
    (fun of the new arguments, new state), where `block` stands at the indices `starts`, which may
    be traced, and are clipped as those of `lax.dynamic_update_slice`. A state is a pytree of
    arrays of fixed shapes: updates may be compiled, mapped, differentiated and put into loops.
    What it gives is computed by the same operations as in `fun`, but that long sums are sums of
    partial sums; nothing is ever subtracted. With sums="delta", integers are exact; of other
    numbers an error of about a rounding of the largest sum so far is left by each update, an inf or
    NaN that a sum ever had stays, and a note names each line. Where all of a value depends on what
    is new, all of it is computed, with a note; a side effect is a TransformError.
    Source: Acar, "Self-adjusting computation", 2005; fastar (Hoyer and Johnson), jax#1663.

    >>> def smooth(x):
    ...     return jnp.convolve(jnp.tanh(x), jnp.ones(3), "same")
    >>> init, update = incremental(smooth, change={0: (1,)})
    >>> y, state = init(jnp.zeros(1000))
    >>> y, state = update(state, {0: (jnp.ones(1), (500,))})
    >>> y[498:503]
    Array([0.       , 0.7615942, 0.7615942, 0.7615942, 0.       ], dtype=float32)
    """
    if not isinstance(change, Mapping):
        raise TransformError(
            f"change is {change!r}, which names no arguments",
            hint="give {argument: sizes of the block that changes}",
        )
    if sums not in ("parts", "delta"):
        raise ValueError(f'sums is "parts" or "delta", not {sums!r}')
    programs: dict[Signature, Program] = {}
    name = getattr(fun, "__name__", "function")

    def program(of: "Signature") -> "Program":
        if of not in programs:
            programs[of] = Program(fun, change, sums, *of.arguments())
        return programs[of]

    @called_as("out, state = init(*args)", of=fun)
    @functools.wraps(fun, assigned=("__module__", "__doc__"), updated=())
    def init(*args, **kwargs):
        of, leaves = Signature.of(fun, args, kwargs)
        return program(of).init(leaves, of)

    @called_as("out, state = update(state, {argument: (block, starts)})")
    def update(state: State, changes: Mapping[int | str, tuple]):
        if not isinstance(state, State):
            raise TypeError(f"update takes a state that init or update gave, not {state!r}")
        return program(state.of).update(state, changes)

    init.__name__, update.__name__ = f"init_{name}", f"update_{name}"
    return init, update


class Signature:
    """The types of the arguments of a call, and what of them is no array."""

    def __init__(self, tree, leaves: Sequence, traced: Sequence[bool]):
        self.tree, self.traced = tree, tuple(traced)
        self.leaves = tuple(leaves)  # types of what is traced, the others themselves

    @staticmethod
    def of(fun: Callable, args: tuple, kwargs: dict) -> tuple["Signature", list]:
        leaves, tree, traced = staged_arguments(fun, args, kwargs)
        types = [type_of(x) if t else x for x, t in zip(leaves, traced, strict=True)]
        return Signature(tree, types, traced), [x for x, t in zip(leaves, traced, strict=True) if t]

    def arguments(self) -> tuple[tuple, dict]:
        return jax.tree.unflatten(self.tree, self.leaves)

    def _key(self):
        return self.tree, self.traced, self.leaves

    def __eq__(self, other):
        return isinstance(other, Signature) and self._key() == other._key()

    def __hash__(self):
        return hash((self.tree, self.traced))


def type_of(x: Any) -> jax.ShapeDtypeStruct:
    aval = jax.typeof(x)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)


@jax.tree_util.register_pytree_node_class
class State:
    """What is kept between two updates: arrays, and the signature of the call they belong to."""

    def __init__(self, kept: dict, loops: dict, of: Signature):
        self.kept, self.loops, self.of = kept, loops, of

    def tree_flatten(self):
        return (self.kept, self.loops), self.of

    @classmethod
    def tree_unflatten(cls, of, children):
        kept, loops = children
        return cls(kept, loops, of)

    def __repr__(self):
        n = sum(np.size(x) for x in jax.tree.leaves(self))
        return f"State of {len(self.kept)} values, {n} numbers"


class Program:
    """`fun` for arguments of some types, and the plan of its updates."""

    def __init__(self, fun: Callable, change: Mapping, sums: str, args: tuple, kwargs: dict):
        staged = stage(fun)(*args, **kwargs)
        staged.refuse(staged.changes.names, "which an update could not repeat")
        self.staged, self.places = staged, paths(fun, args, kwargs)
        graph = opened(staged.jaxpr)
        self.blocks: dict[Any, tuple[int, Box]] = {}
        limits: dict[str, tuple[int, int]] = {}
        for argument, sizes in change.items():
            for path, of in blocks_of(argument, sizes):
                k = self._input(argument, path)
                v = graph.inputs[k]
                self.blocks[argument, path] = k, self._box(graph, v, k, argument, of, limits)
        nominal = {graph.inputs[k]: (box,) for k, box in self.blocks.values()}
        plan = Plan(graph, limits)
        dirty = mark_dirty(plan, nominal)
        if sums == "delta":
            by_differences(plan)
        elif split_long(graph, dirty):
            plan = Plan(graph, limits)
            mark_dirty(plan, nominal)
        self.plan, self.inputs = plan, list(nominal)
        self.own = own_derivative(staged.jaxpr)
        self.keep = self._asked()
        if self._is_dearer():
            boxes = {v: plan.boxes[v] for v in nominal}
            self.plan = plan = Plan(graph, limits)
            mark_dirty(plan, {v: (plan.whole(v),) for v in nominal})
            plan.boxes |= boxes
            self.keep = self._asked()
            note("an update computes all", compat.where(), "parts cost more than the function")
        for told in plan.told:
            note(*told)

    def _input(self, argument, path) -> int:
        if (argument, path) not in self.places:
            known = ", ".join(repr(a) for a in dict.fromkeys(a for a, _ in self.places))
            name = f"{argument!r}" + jax.tree_util.keystr(path)
            raise TransformError(
                f"change names {name}, which is no array among the arguments ({known})",
                hint="name an argument by its position, or a keyword argument by its name",
            )
        return self.places[argument, path]

    def _box(self, graph: Graph, v: int, k: int, argument, sizes, limits: dict) -> Box:
        shape = tuple(graph.avals[v].shape)
        if len(sizes) != len(shape) or any(
            s is not None and not 0 < s <= n for s, n in zip(sizes, shape, strict=False)
        ):
            raise TransformError(
                f"a block of sizes {tuple(sizes)} does not fit into argument {argument!r} "
                f"of shape {shape}",
                hint="give a size for each dimension, None for one that changes as a whole",
            )
        box = []
        for d, (size, n) in enumerate(zip(sizes, shape, strict=True)):
            if size is None or size == n:
                box.append(whole_span(n))
            else:
                limits[f"{k}.{d}"] = (0, n - size)
                box.append(Span(Start(f"{k}.{d}", 1), size))
        return tuple(box)

    # ------------------------------------------------------------ running

    def _asked(self) -> list[int]:
        """What an update reads from before."""
        plan = self.plan
        made = [*plan.graph.inputs, *(v for node in plan.nodes for v in node.outs)]
        every = {v: plan.type_of(v) for v in made if not plan.is_constant(v)}
        changes = self._no_changes()

        def trial(kept):
            loops = plan.values([kept[v] for v in plan.graph.inputs])[1]
            kept.asked.clear()
            run = self._run(kept, loops, changes)
            return [run.whole(v) for v in plan.graph.outputs]

        return sorted({*asked_for(every, trial)[0], *self.inputs})

    def _is_dearer(self) -> bool:
        """Whether an update would do more operations than the function, for all it computes."""
        plan, parts, whole = self.plan, 0.0, 0
        for node in plan.nodes:
            first = node.outs[0]
            made = math.prod(plan.shape(first))
            work = max(flop_of(node.eqn), made)  # what only moves numbers does no operations
            whole += work
            numbers = sum(math.prod(sizes_of(box)) for box in plan.boxes.get(first, ()))
            parts += work * min(1.0, numbers / max(1, made))
        if 2 * parts < whole:
            return False
        types = [plan.type_of(v) for v in plan.graph.inputs]
        kept, loops = jax.eval_shape(self._state, types)

        def update(kept, loops, changes):
            run = self._run(kept, loops, changes)
            return [run.whole(v) for v in plan.graph.outputs]

        return flop(compat.trace(update, kept, loops, self._no_changes())) > flop(self.staged.jaxpr)

    def _state(self, args: Sequence) -> tuple[dict, dict]:
        values, loops = self.plan.values(args)
        return {v: values[v] for v in self.keep}, loops

    def _no_changes(self) -> dict[int, tuple]:
        """Changes of the types of all there are."""
        pairs = zip(self.blocks.values(), self.inputs, strict=True)
        kinds = {k: (box, self.plan.graph.avals[v].dtype) for (k, box), v in pairs}
        zero = jnp.int32(0)
        return {
            k: (jnp.zeros(sizes_of(box), t), [zero] * len(box)) for k, (box, t) in kinds.items()
        }

    def _run(self, kept: Mapping, loops: Mapping, changes: Mapping[int, tuple]) -> Run:
        plan = self.plan
        at, fresh = {}, {}
        for k, (block, starts) in changes.items():
            fresh[plan.graph.inputs[k]] = [block]
            at |= {f"{k}.{d}": s for d, s in enumerate(starts) if f"{k}.{d}" in plan.limits}
        return Run(plan, kept, loops, at, fresh, {})

    def init(self, leaves: Sequence, of: Signature) -> tuple[Any, State]:
        types = [self.plan.graph.avals[v] for v in self.plan.graph.inputs]
        args = [compat.convert(x, t.dtype, t.weak_type) for x, t in zip(leaves, types, strict=True)]
        values, loops = self.plan.values(args)
        outs = typed((values[v] for v in self.plan.graph.outputs), self.staged.jaxpr.outvars)
        return self.staged.rebuild(outs), State({v: values[v] for v in self.keep}, loops, of)

    def update(self, state: State, changes: Mapping) -> tuple[Any, State]:
        plan, given = self.plan, {}
        self._check(state, changes)
        for argument, new in changes.items():
            for path, block, starts in new_blocks(argument, new, self.blocks):
                k, box = self.blocks[argument, path]
                given[k] = self._checked(argument, k, box, block, starts)
        for k, box in self.blocks.values():  # what does not change this time, is put there again
            if k not in given:
                x = state.kept[plan.graph.inputs[k]]
                zero = [jnp.int32(0)] * len(box)
                given[k] = lax.dynamic_slice(x, zero, sizes_of(box)), zero
        run = self._run(state.kept, state.loops, given)
        outs = [run.whole(v) for v in plan.graph.outputs]
        outs = typed(without_derivative(self.own, OWN, outs), self.staged.jaxpr.outvars)
        kept = {v: run.whole(v) for v in state.kept}
        return self.staged.rebuild(outs), State(kept, state.loops | run.new_loops, state.of)

    def _check(self, state: State, changes: Any) -> None:
        if not isinstance(changes, Mapping):
            raise TransformError(
                f"an update takes what changes, not {changes!r}",
                hint="give {argument: (block, starts)}",
            )
        shapes = {v: np.shape(x) for v, x in state.kept.items()}
        if shapes != {v: self.plan.shape(v) for v in self.keep}:
            raise TransformError(
                f"{state} is not of this function", hint="give what its own init or update gave"
            )

    def _checked(self, argument, k: int, box: Box, block: Any, starts: Any) -> tuple[Any, list]:
        """A block of the type of its argument, and indices inside of it."""
        aval = self.plan.graph.avals[self.plan.graph.inputs[k]]
        hint = "give (block, starts) with a start for each dimension, an integer"
        if isinstance(starts, str) or not (isinstance(starts, Sequence) or np.ndim(starts) == 1):
            raise TransformError(f"the starts of argument {argument!r} are {starts!r}", hint=hint)
        block, starts = jnp.asarray(block), list(starts)
        for s in starts:
            if isinstance(s, str) or np.ndim(s) or jnp.result_type(s).kind not in "iu":
                raise TransformError(f"a start of argument {argument!r} is {s!r}", hint=hint)
        if block.shape != sizes_of(box) or len(starts) != len(box):
            raise TransformError(
                f"argument {argument!r} takes blocks of shape {sizes_of(box)} at {len(box)} "
                f"indices, not of shape {block.shape} at {len(starts)}", hint=hint,
            )  # fmt: skip
        if jnp.promote_types(block.dtype, aval.dtype) != aval.dtype:
            raise TransformError(
                f"a block of {block.dtype} does not fit into argument {argument!r} of {aval.dtype}",
                hint=f"convert it: block.astype({aval.dtype})",
            )
        at = []
        for s, size, n in zip(starts, sizes_of(box), aval.shape, strict=True):
            s = jnp.asarray(s, jnp.int32)
            at.append(jnp.clip(jnp.where(s < 0, s + n, s), 0, n - size))
        return block.astype(aval.dtype), at


# ---------------------------------------------------------------- arguments by name


def is_sizes(x: Any) -> bool:
    return isinstance(x, tuple | list) and all(n is None or type(n) is int for n in x)


def blocks_of(argument, sizes: Any) -> list[tuple[tuple, tuple]]:
    """(path, sizes) for each leaf of an argument that changes."""
    found = jax.tree_util.tree_flatten_with_path(sizes, is_leaf=is_sizes)[0]
    if not found or not all(is_sizes(of) for _, of in found):
        raise TransformError(
            f"change says {sizes!r} of argument {argument!r}, which are no sizes",
            hint="give a tuple of sizes, None for a dimension that changes as a whole",
        )
    return [(path, tuple(of)) for path, of in found]


def new_blocks(argument, new: Any, known: Mapping) -> list[tuple[tuple, Any, Any]]:
    """(path, block, starts) for each leaf of a change to an argument."""
    mine = [path for a, path in known if a == argument]
    if not mine or not isinstance(new, tuple | list) or len(new) != 2:
        raise TransformError(
            f"an update of argument {argument!r} is {new!r}",
            hint="give {argument: (block, starts)} for an argument that `change` names",
        )
    block, starts = new
    if mine == [()]:
        return [((), block, starts)]
    found = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(block)[0]:
        if path not in mine:
            raise TransformError(
                f"{jax.tree_util.keystr(path)} of argument {argument!r} is not said to change",
                hint="name it in `change`",
            )
        at = starts
        for key in path:
            at = at[_key_of(key)]
        found.append((path, leaf, at))
    return found


def _key_of(key: Any) -> Any:
    return getattr(key, "key", getattr(key, "idx", getattr(key, "name", None)))


def paths(fun: Callable, args: tuple, kwargs: dict) -> dict[tuple, int]:
    """{(argument, path within it): its place among the arrays that are traced}."""
    leaves = jax.tree_util.tree_flatten_with_path((args, kwargs))[0]
    _, _, traced = staged_arguments(fun, args, kwargs)
    arrays = [path for (path, _), is_array in zip(leaves, traced, strict=True) if is_array]
    return {(_key_of(path[1]), path[2:]): k for k, path in enumerate(arrays)}


# ---------------------------------------------------------------- sums


def split_long(graph: Graph, dirty: Mapping[int, Sequence[Box]]) -> bool:
    """Write long reductions over what is dirty in part as reductions of partial ones.

    So one partial sum is added up again and no digit is lost. Whether there was any.
    """
    found = False
    for node in graph.order():
        if node.name not in PARTED or node.ins[0] not in dirty:
            continue
        shape, boxes = graph.avals[node.ins[0]].shape, dirty[node.ins[0]]
        axes = [
            d
            for d in node.params["axes"]
            if shape[d] >= LONG and all(box[d].size < shape[d] for box in boxes)
        ]
        if axes and math.prod(graph.avals[node.outs[0]].shape) <= math.prod(shape[d] for d in axes):
            graph.rewrite(node, lambda x, node=node, axes=axes: [_by_parts(node, axes, x)])
            found = True
    return found


def by_differences(plan: Plan) -> None:
    """Put into plan.deltas the sums, and products of matrices, that follow one part of theirs.

    Elsewhere they are added up again: where that is all, or two operands change.
    """
    for node in plan.nodes:
        moving = [k for k, v in enumerate(node.ins) if v in plan.boxes]
        if node.name not in ("reduce_sum", "dot_general") or len(moving) != 1:
            continue
        (k,), (out,) = moving, node.outs
        boxes: Any = plan.boxes[node.ins[k]]
        entries, types = rel(node.eqn)[k], [plan.type_of(v).dtype for v in (node.ins[k], out)]
        if types[0] != types[1] or types[0].kind == "b":  # a difference may not fit into its type
            continue
        part = [d for d, e in enumerate(entries) if e is None]
        if len(boxes) > 1 or all(boxes[0][d] == plan.whole(node.ins[k])[d] for d in part):
            continue
        made = list(plan.whole(out))
        for span, entry in zip(boxes[0], entries, strict=True):
            if isinstance(entry, Along):
                made[entry.dim] = span
        if plan.boxes[out] == (tuple(made),):
            plan.deltas[out] = k
            plan.tell(f"`{node.name}` is updated by a difference", node, DRIFT)


def _by_parts(node: Node, long: Sequence[int], x: Any) -> Any:
    """A reduction, one axis at a time, the long ones by parts; the dims of the others stay."""
    unit = identity_of(node.name, x.dtype)

    def reduce(x, axis):
        eqn = node.eqn.replace(params=node.params | {"axes": (axis,)})
        return compat.bind(eqn, [x])[0]

    for axis in sorted(node.params["axes"], reverse=True):
        n = x.shape[axis]
        if axis in long:
            part = math.isqrt(n)
            pads = [(0, -n % part if d == axis else 0, 0) for d in range(x.ndim)]
            x = lax.pad(x, unit, pads)
            shape = (*x.shape[:axis], x.shape[axis] // part, part, *x.shape[axis + 1 :])
            x = reduce(lax.reshape(x, shape), axis + 1)
        x = reduce(x, axis)
    return x
