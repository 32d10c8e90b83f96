"""A causal function of a sequence, as a step from row to row: what has to be kept is found.

carry, step = as_scan(model, tokens)
carry, y = step(carry, token)          # the next row of model(tokens)
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.core.stage import stage
from malleable.errors import TransformError
from malleable.notes import note
from malleable.programs.types import bytes_of, type_text
from malleable.python_source.misuse import called_as
from malleable.rewriting.boxes.spans import Span, Start, whole_span
from malleable.rewriting.graph.graph import Graph
from malleable.rewriting.graph.slices import typed
from malleable.rewriting.incremental.causal import prove
from malleable.rewriting.incremental.derivatives import ODD, OWN, own_derivative, without_derivative
from malleable.rewriting.incremental.forms import (
    ends_first,
    in_other_words,
    leave_out_zeros,
    map_at_once,
    unrolled,
)
from malleable.rewriting.incremental.loops import TIME
from malleable.rewriting.incremental.masks import FINITE, NO_NUMBER
from malleable.rewriting.incremental.plan import Plan, asked_for, cleared, opened
from malleable.rewriting.incremental.recurrences import row_by_row
from malleable.rewriting.incremental.run import Run, zeros
from malleable.rewriting.incremental.times import WAYS, NotCausal, Rows, refuse
from malleable.rewriting.incremental.windows import narrow
from malleable.rewriting.passes.buffers import first_steps, take_rows, unbuffer
from malleable.rewriting.passes.loops import scan_trim
from malleable.rewriting.passes.reroll import reroll
from malleable.rewriting.passes.writes import written_rows

MOST = 32  # ways that are tried to prove that a program is causal


@called_as("carry, step = as_scan(fun, xs)")
def as_scan(
    fun: Callable[..., Any], xs: Any, *, axis: int = 0, width: int = 1, poison: bool = False
) -> tuple[Any, Callable[[Any, Any], tuple[Any, Any]]]:
    """`fun`, causal along an axis, as (carry, step): each step takes the next rows.

    xs: an example of what `fun` takes, of which only the types are used, arrays or
    `jax.ShapeDtypeStruct`s with `axis` of one length; width: how many rows a step takes; poison: to
    debug, put NaN in the carry where rows are not known yet: a step that read one would show it.

    step(carry, rows) gives (carry, the rows of fun(xs) at the same places); rows are without the
    axis for a width of 1, and with it otherwise. step(carry) gives (the same carry, the rows of
    fun(xs)) where they do not depend on those of the input that come at the same time.
    Only what is new is computed: what of the rows before is still needed (keys and values of
    attention, the inputs of convolutions, states) is kept in the carry, a pytree of arrays of
    fixed shapes; of a window that slides, the rows within it. `step.kept` says what, and why,
    {name: (type, bytes, your line)}, and `mal.show(step)(carry, rows)` prints it.
    That a row needs no later ones is proved, from masks, pads and triangles; a function for which
    it is not is a TransformError at the line in the way. Assumed is that scores are finite and
    above -1e9, and that each row has one that is not masked; and that what is masked by a product
    or a sum is finite. A note names each line that relies on one of the last two.
    Source: fastar (Hoyer and Johnson), jax#1663; Silvestre and Pietzuch, "Tempo", 2025.

    >>> from jax import lax
    >>> xs = jnp.arange(5.0)
    >>> carry, step = as_scan(lambda x: jnp.cumsum(jnp.sin(x)), xs)
    >>> bool(jnp.allclose(lax.scan(step, carry, xs)[1], jnp.cumsum(jnp.sin(xs))))
    True
    >>> [text for text, _, _ in step.kept.values()]
    ['float32[1]']
    """
    steps = Steps(fun, xs, axis, width, poison)
    return steps.carry(), steps.step()


def in_rows(program: compat.Jaxpr) -> compat.Jaxpr:
    """A program whose loops go over rows, where they are unrolled, or read and write them by index.

    It is the same object where there are none.
    """
    rolled = reroll(written_rows(program))
    return take_rows(unbuffer(first_steps(scan_trim(rolled))))


def is_sequence(x: Any) -> bool:
    return compat.is_array(x) or isinstance(x, jax.ShapeDtypeStruct)


class Steps:
    """A program that was proved to be causal, and the plan of its step."""

    def __init__(self, fun: Callable, xs: Any, axis: int, width: int, poison: bool):
        self.fun, self.poison = fun, poison
        self.axis, self.width, self.stride = axis, width, width
        self.length = self._length([jax.typeof(x) for x in jax.tree.leaves(xs) if is_sequence(x)])
        with row_by_row(self.length):
            self.staged = stage(fun)(xs)
        self.staged.refuse(self.staged.changes.names, "which a step could not repeat")
        self.own = own_derivative(self.staged.jaxpr)
        try:
            graph = self._opened()
        except NotCausal as refused:
            if not refused.one_by_one or width == 1:
                raise
            self.stride = 1
            graph = self._opened()
        for told in self.plan.told:
            note(*told)
        self.outs = [
            tuple(
                Span(Start(TIME, 1), self.stride) if d == rows.dim else whole_span(n)
                for d, n in enumerate(self.plan.shape(v))
            )
            for v, rows in zip(graph.outputs, self.rows, strict=True)
        ]
        self._clean: dict[int, Any] = {}
        self.keep = self._asked()

    def _length(self, avals) -> int:
        there = [a for a in avals if -a.ndim <= self.axis < a.ndim]
        found = {a.shape[self.axis] for a in there}
        if len(found) != 1 or len(there) < len(avals):
            shapes = ", ".join(type_text(a) for a in avals)
            raise TransformError(
                f"as_scan needs arrays with one length along axis {self.axis}, "
                f"not {shapes or 'none'}",
                hint="close over what is no sequence: as_scan(lambda x: fun(x, other), xs)",
            )
        (n,) = found
        if type(self.width) is not int:
            raise TransformError(
                f"a width of {self.width!r} is no number of rows", hint="give an int"
            )
        if self.width < 1 or n % self.width:
            raise TransformError(
                f"a width of {self.width} does not divide the length {n} of the axis",
                hint="pad the sequence, or take a width that divides it",
            )
        return n

    def _opened(self) -> Graph:
        """The graph of the program, as it is written, or with its loops told in another way."""
        plain = scan_trim(self.staged.jaxpr)
        try:
            return self._open(plain, again=False)
        except NotCausal as refused:
            program = in_rows(plain)
            if refused.one_by_one:
                raise
            try:
                return self._open(program, again=True)
            except NotCausal as again:
                raise again if again.one_by_one else refused from None

    def _open(self, program: compat.Jaxpr, again: bool) -> Graph:
        """The graph of a program that is proved to be causal."""
        graph = opened(program)
        map_at_once(graph, self.length)
        known = lambda v: Plan(graph, {}).small_constant(v)  # noqa: E731
        ends_first(graph, self.length, known)
        without = leave_out_zeros(graph, known)
        if again:
            without += in_other_words(graph, graph.inputs, self.length, known)
        error: NotCausal | None = None
        while True:
            try:
                self.plan, found = self._proved(graph, again)
                self.rows = [self._rows(v, found) for v in graph.outputs]
                break
            except NotCausal as refused:
                error = error or refused
                if refused.one_by_one or refused.loop is None:
                    raise error from None
                if not unrolled(graph, refused.loop):
                    raise error from None
                cleared(graph)
        for node in without:
            self.plan.assume(FINITE, node, NO_NUMBER)
        return graph

    def _proved(self, graph, by_masks: bool) -> tuple[Plan, dict]:
        """The plan, by the first way of those that there are on which rows need no later ones."""
        error: NotCausal | None = None
        ways = [*WAYS]
        for way in ways:
            plan = Plan(graph, {TIME: (0, self.length - self.stride)}, poison=self.poison)
            plan.by_masks = by_masks
            try:
                given = {v: Rows(self.axis % len(plan.shape(v)), 0, {}) for v in graph.inputs}
                found = prove(plan, given, self.stride, way)
                narrow(plan, found, self.stride)
                return plan, found
            except NotCausal as refused:
                if refused.one_by_one:
                    raise
                error = error or refused
                error.loop = refused.loop if error.loop is None else error.loop
                ways += way.others(refused) if len(ways) < MOST else ()
        assert error is not None
        raise error

    def _rows(self, v: int, found: dict) -> Rows:
        node = self.plan.graph.maker[v]
        rows = found.get(v, ())
        if rows == ():
            raise refuse(node, "a result does not depend on the rows at all")
        if rows is None:
            raise refuse(node, "the last state of a loop over all rows is a result")
        if rows.dim is None:
            raise refuse(node, "a result depends on a few rows only, and has none of its own")
        if rows.lag < 0:
            raise refuse(node, f"row s of a result depends on row s + {-rows.lag}, which is later")
        if rows.loose:
            raise refuse(node, "a result has two dimensions along the axis")
        if rows.chunk > 1:
            raise refuse(node, "the rows of a result are in chunks")
        if self.plan.shape(v)[rows.dim] != self.length:
            n = self.plan.shape(v)[rows.dim]
            raise refuse(node, f"a result has {n} rows along the axis, the input {self.length}")
        return rows

    # ------------------------------------------------------------ running

    def _run(self, kept, loops, t, blocks) -> Run:
        fresh = {v: [x] for v, x in zip(self.plan.graph.inputs, blocks, strict=True)}
        return Run(self.plan, kept, loops, {TIME: t}, fresh, self._clean)

    def _asked(self) -> list[int]:
        plan = self.plan
        for node in plan.nodes:  # what does not change is made here, once
            for v in node.ins:
                if v not in plan.boxes and not plan.is_constant(v):
                    plan.value(v, self._clean)
        every = {v: plan.type_of(v) for v in plan.boxes}

        def trial(kept):
            begin = [jnp.zeros(plan.shape(v), plan.graph.avals[v].dtype) for v in plan.graph.inputs]
            loops = plan.values(begin)[1]
            blocks = [zeros(plan, v)[0] for v in plan.graph.inputs]
            run = self._run(kept, loops, jnp.int32(0), blocks)
            return [run.read(v, box) for v, box in zip(plan.graph.outputs, self.outs, strict=True)]

        keep, reads = asked_for(every, trial)
        plan.keep_rings(reads, TIME)
        return keep

    def carry(self) -> Any:
        """The carry before the first row: what is kept, for a sequence of zeros."""

        def begin(*rows):
            values, loops = self.plan.values(rows)
            return jnp.int32(0), {v: self.plan.begun(v, values[v]) for v in self.keep}, loops

        types = [self.plan.graph.avals[v] for v in self.plan.graph.inputs]
        rows = (compat.match_devices(jnp.zeros(t.shape, t.dtype), t) for t in types)
        return jax.jit(begin)(*rows)

    def step(self) -> Callable:
        graph = self.plan.graph

        @called_as("carry, rows = step(carry, rows)")
        def step(carry, rows=None):
            """The next rows: (carry, rows of the result); without rows, what they do not change."""
            for text, size, where in step.kept.values():
                note(f"{text} is kept from step to step", where, f"{size} bytes, of rows before")
            if rows is None:
                self._check_ahead()
                blocks = [zeros(self.plan, v)[0] for v in graph.inputs]
                return carry, self.staged.rebuild(self._results(self._step(carry, blocks)[1]))
            blocks = self._blocks(rows)
            if self.stride == self.width:
                carry, ys = self._step(carry, blocks)
            else:
                carry, ys = self._one_by_one(carry, blocks)
            return carry, self.staged.rebuild(self._results(ys))

        made = {v: graph.maker[v] for v in self.keep}
        step.kept = {
            f"{node.name if node else 'input'} {v}": (
                type_text(self.plan.kept_type(v)),
                bytes_of(self.plan.kept_type(v)),
                compat.where(node.eqn) if node else "",
            )
            for v, node in made.items()
        }
        step.__signature__, step.__wrapped__ = inspect.signature(step), self.fun  # shown as its
        step.__qualname__ = f"step of {getattr(self.fun, '__qualname__', type(self.fun).__name__)}"
        return step

    def _step(self, carry: Any, blocks: Sequence) -> tuple[Any, list]:
        """The carry, and the rows of the results, with the axis."""
        t, kept, loops = self._checked(carry)
        run = self._run(kept, loops, t, blocks)
        ys = [run.read(v, box) for v, box in zip(self.plan.graph.outputs, self.outs, strict=True)]
        return (t + self.stride, {v: run.carried(v) for v in kept}, loops | run.new_loops), ys

    def _checked(self, carry: Any) -> Any:
        try:
            _, kept, loops = carry
            shapes = {v: jnp.shape(x) for v, x in kept.items()}
        except (TypeError, ValueError, AttributeError):
            shapes, loops = None, {}
        wanted = {v: self.plan.kept_type(v).shape for v in self.keep}
        if shapes != wanted or loops.keys() != self.plan.loops.keys():
            raise TransformError(
                "a step takes the carry of as_scan, or of a step before, of the same function",
                hint="carry, step = as_scan(fun, xs); carry, row = step(carry, rows)",
            )
        return carry

    def _one_by_one(self, carry: Any, blocks: Sequence) -> tuple[Any, list]:
        """`_step` of some rows, one after the other."""
        rows = [jnp.moveaxis(x, self.axis, 0)[:, None] for x in blocks]

        def one(carry, row):
            return self._step(carry, [jnp.moveaxis(x, 0, self.axis) for x in row])

        carry, ys = lax.scan(one, carry, rows)
        pairs = zip(ys, self.rows, strict=True)
        return carry, [jnp.moveaxis(jnp.squeeze(y, r.dim + 1), 0, r.dim) for y, r in pairs]

    def _results(self, ys: list) -> list:
        """The rows of the results, as the function has them."""
        if self.width == 1:
            ys = [jnp.squeeze(y, r.dim) for y, r in zip(ys, self.rows, strict=True)]
        ys = without_derivative(self.own, OWN, without_derivative(self.plan.odd, ODD, ys))
        return typed(ys, self.staged.jaxpr.outvars)

    def _check_ahead(self) -> None:
        """Whether the next rows of the result are there before those of the input."""
        for v, rows in zip(self.plan.graph.outputs, self.rows, strict=True):
            if rows.lag < self.width or self.stride < self.width:
                node = self.plan.graph.maker[v]
                raise TransformError(
                    f"row s of a result depends on row s - {rows.lag}, so a step of {self.width} "
                    "needs its rows",
                    where=compat.where(node.eqn) if node else "",
                    hint="give them: step(carry, rows)",
                )

    def _blocks(self, rows: Any) -> list:
        graph = self.plan.graph
        leaves = [x for x in jax.tree.leaves(rows) if compat.is_array(x)]
        types = [graph.avals[v] for v in graph.inputs]
        if len(leaves) != len(types):
            raise TransformError(
                f"a step takes {len(types)} arrays of rows, not {len(leaves)}",
                hint="give the next rows in the pytree of the example",
            )
        blocks = []
        for x, aval in zip(leaves, types, strict=True):
            x = jnp.asarray(x)
            shape, axis = list(aval.shape), self.axis % aval.ndim
            shape[axis : axis + 1] = [self.width] if self.width > 1 else []
            if x.shape != tuple(shape):
                hint = "rows are without the axis for a width of 1, and with it otherwise"
                others = [
                    d
                    for d in range(aval.ndim)
                    if x.shape == (*aval.shape[:d], *aval.shape[d + 1 :])
                ]
                if others and self.width == 1:
                    hint = (
                        f"as_scan(fun, xs, axis={others[0]}) takes such rows: a batch is in front"
                    )
                raise TransformError(
                    f"a step along axis {axis} of {tuple(aval.shape)} takes rows of shape "
                    f"{tuple(shape)}, not {x.shape}",
                    hint=hint,
                )
            if jnp.promote_types(x.dtype, aval.dtype) != aval.dtype:
                raise TransformError(
                    f"rows of {x.dtype} do not fit into a sequence of {aval.dtype}",
                    hint=f"convert them: rows.astype({aval.dtype})",
                )
            x = x.astype(aval.dtype)
            blocks.append(jnp.expand_dims(x, axis) if self.width == 1 else x)
        return blocks
