"""Reductions that take their array block by block, and cumulative operations, which keep its axis.

A block is (k, *slice): k consecutive slices of the streamed axis, in ascending order.
"""

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from malleable import compat
from malleable.errors import RuleError
from malleable.programs.types import identity, short_type
from malleable.python_source.misuse import called_as
from malleable.rewriting.graph.slices import in_memory, is_best, restack
from malleable.rewriting.rules.wildcards import line

WINS = "malleable: which side won"  # kept for a gradient, where all else is worked out again
LONG = 4096  # from so many elements on, a running float sum also carries what rounding lost


class Spec(NamedTuple):
    """One reduction: what its axis rule says, the types of its results, params, length, direction.

    reverse: the blocks come from the end of the axis to its start.
    """

    how: Any
    outs: tuple
    params: dict
    n: int
    reverse: bool = False


@dataclass(frozen=True)
class Sink:
    """A reduction over a stream of blocks.

    init(spec, *avals of blocks) -> acc; step(spec, acc, start, *blocks) -> acc, with the index of
    the first element; final(spec, acc) -> results; merge(spec, acc of smaller indices, acc) -> acc;
    level(spec) -> "exact", or "reassoc" if the order of rounding differs; fun: the function of
    whole arrays that a sink of the user's computes.
    """

    name: str
    init: Callable[..., Any]
    step: Callable[..., Any]
    final: Callable[..., Any]
    merge: Callable[..., Any]
    level: Callable[..., Any]
    fun: Callable[..., Any] | None = None

    def __call__(self, *args: Any) -> Any:
        """The function of whole arrays, of a sink of the user's."""
        assert self.fun is not None, self.name
        return self.fun(*args)


def full(value, shape, dtype, *likes):
    """A start value, of the type of the data inside a shard_map."""
    return compat.match_devices(jnp.full(shape, value, dtype), *likes)


def left(spec, aval):
    """The shape of a block after its reduction over the dimensions `spec.how`."""
    return tuple(s for i, s in enumerate(aval.shape) if i not in spec.how)


def wide(dtype):
    """The type to accumulate in: float32 for the half precisions.

    >>> wide(jnp.bfloat16.dtype).name, wide(jnp.dtype("int8")).name
    ('float32', 'int8')
    """
    small = jnp.issubdtype(dtype, jnp.floating) and jnp.dtype(dtype).itemsize < 4
    return jnp.dtype("float32") if small else jnp.dtype(dtype)


def rounds(spec) -> str:
    """The level of sums and products: floats round, and the order decides how."""
    return "reassoc" if jnp.issubdtype(spec.outs[0].dtype, jnp.inexact) else "exact"


def exact(spec) -> str:
    return "exact"


def answer(spec, *results) -> list:
    """Results of the types that the equation gives them."""
    return [
        compat.convert(x, aval.dtype, aval.weak_type)
        for x, aval in zip(results, spec.outs, strict=True)
    ]


# ---------------------------------------------------------------- sums


def is_long(spec, dtype) -> bool:
    return spec.n > LONG and jnp.issubdtype(dtype, jnp.inexact)


def nothing(spec, shape, dtype, *likes):
    """The empty sum: (sum, what rounding lost), or (sum,) of a short one."""
    return (full(0, shape, dtype, *likes),) * (1 + is_long(spec, dtype))


def plus(acc, term):
    """Add to a sum; what rounding loses is kept aside.

    Source: Knuth, The Art of Computer Programming 2, 4.2.2, theorem B (the sum of two errors).
    """
    total = acc[0] + term
    if len(acc) == 1:
        return (total,)
    s, x, t = map(lax.stop_gradient, (acc[0], term, total))
    virtual = t - s
    lost = (s - (t - virtual)) + (x - virtual)
    return total, acc[1] + jnp.where(jnp.isfinite(lost), lost, jnp.zeros_like(lost))


def total(spec, acc):
    return answer(spec, acc[0] if len(acc) == 1 else acc[0] + lax.stop_gradient(acc[1]))


def add_sums(spec, one, other):
    both = plus(one, other[0])
    return both if len(both) == 1 else (both[0], both[1] + other[1])


def _sum_init(spec, aval):
    return nothing(spec, left(spec, aval), wide(aval.dtype), aval)


def _sum_step(spec, acc, start, block):
    return plus(acc, lax.reduce_sum(block.astype(acc[0].dtype), spec.how))


SUM = Sink("reduce_sum", _sum_init, _sum_step, total, add_sums, rounds)


def _product(spec, dtype, *blocks):
    """Contract the leading axis, and what the equation contracts of a slice."""
    one, other = blocks
    options = {"precision": spec.params["precision"], "preferred_element_type": dtype}
    return lax.dot_general(one, other, spec.how, **options)


def _dot_init(spec, *avals):
    dtype = wide(spec.outs[0].dtype)
    shape = jax.eval_shape(lambda *blocks: _product(spec, dtype, *blocks), *map(plain, avals)).shape
    return nothing(spec, shape, dtype, *avals)


def _dot_step(spec, acc, start, *blocks):
    return plus(acc, _product(spec, acc[0].dtype, *blocks))


DOT = Sink("dot_general", _dot_init, _dot_step, total, add_sums, rounds)


def plain(aval):
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


def folded(name, join, reduce, level=exact):
    """A sink whose accumulator is its result so far: acc = join(acc, reduce(block, dims))."""

    def init(spec, aval):
        return full(identity(name, aval.dtype), left(spec, aval), wide(aval.dtype), aval)

    def step(spec, acc, start, block):
        part = reduce(block.astype(acc.dtype), spec.how)
        return join(part, acc) if spec.reverse else join(acc, part)

    merge = lambda spec, one, other: join(one, other)  # noqa: E731
    return Sink(name, init, step, answer, merge, level)


FOLDS = (
    folded("reduce_prod", lax.mul, lax.reduce_prod, rounds),
    folded("reduce_and", lax.bitwise_and, lax.reduce_and),
    folded("reduce_or", lax.bitwise_or, lax.reduce_or),
    folded("reduce_xor", lax.bitwise_xor, lax.reduce_xor),
)


# ---------------------------------------------------------------- extrema


@jax.custom_jvp
def tied(value, total, count):
    """`value`, with the derivative of total / count: an even share for each tie, as in JAX."""
    return value


@tied.defjvp
def _tied_jvp(primals, tangents):
    value, _, count = primals
    return tied(*primals), (tangents[1] / count).astype(value.dtype)  # again, for second order


def won(wins, one, other) -> list:
    """What goes with the one of two values that wins, or with both, added up, where they tie."""
    kept = [
        [jnp.where(win, x, jnp.zeros_like(x)) for x in acc]
        for win, acc in zip(wins, (one, other), strict=True)
    ]
    return [x + y for x, y in zip(*kept, strict=True)]


def extrema(name):
    """reduce_max or reduce_min: the best value; the sum and number of those equal to it."""
    better, ahead, reduce = {
        "reduce_max": (lax.max, lax.ge, lax.reduce_max),
        "reduce_min": (lax.min, lax.le, lax.reduce_min),
    }[name]

    def init(spec, aval):
        shape = left(spec, aval)
        best = full(identity(name, aval.dtype), shape, aval.dtype, aval)
        if not jnp.issubdtype(aval.dtype, jnp.floating):
            return (best,)
        dtype = wide(aval.dtype)
        return best, full(0, shape, dtype, aval), full(0, shape, dtype, aval)

    def step(spec, acc, start, block):
        value = lax.stop_gradient(block)
        best = reduce(value, spec.how)
        if len(acc) == 1:
            return (better(acc[0], best),)
        equal = is_best(reduce, spec.how, start, value)
        ties = jnp.where(equal, block, jnp.zeros_like(block)).astype(acc[1].dtype)
        count = equal.astype(acc[2].dtype)
        part = best, lax.reduce_sum(ties, spec.how), lax.reduce_sum(count, spec.how)
        return merge(spec, acc, part)

    def merge(spec, one, other):
        best = better(one[0], other[0])
        if len(one) == 1:
            return (best,)
        # compared with each other: XLA may round one of them again, elsewhere, to another best
        wins = [
            checkpoint_name(ahead(x, y), WINS) for x, y in ((one[0], other[0]), (other[0], one[0]))
        ]
        return best, *won(wins, one[1:], other[1:])

    def final(spec, acc):
        if len(acc) == 1:
            return answer(spec, *acc)
        return answer(spec, tied(*acc))

    return Sink(name, init, step, final, merge, exact)


def argument_of_extreme(name):
    """argmax or argmin: (best value, its index); the first of equals, and of NaNs, which win.

    spec.how: the dimension of a block that shares the axis with others, or None; outer and inner
    extents, so that index = outer * n * inner + position * inner + inner. An index without a place
    means that all values so far are the worst there is: their first is element 0.
    """
    better, best_of, no_better = {
        "argmax": (lax.gt, lax.reduce_max, lax.le),
        "argmin": (lax.lt, lax.reduce_min, lax.ge),
    }[name]

    def dims(spec):
        return (0,) if spec.how[0] is None else (0, spec.how[0])

    def worst(dtype):
        return identity(name.removeprefix("arg"), dtype)

    def init(spec, aval):
        shape = left(spec._replace(how=dims(spec)), aval)
        dtype, index = ordered(aval.dtype), spec.params["index_dtype"]
        return full(worst(dtype), shape, dtype, aval), full(nowhere(index), shape, index, aval)

    def step(spec, acc, start, block):
        x, index = lax.stop_gradient(block).astype(acc[0].dtype), acc[1].dtype
        start = jnp.asarray(start).astype(index)
        if x.shape[0] == 1 and spec.how[0] is None and not spec.reverse:
            return later(acc, x[0], start)
        over, inner = dims(spec), spec.how[2]
        x = in_memory(x, start)
        best = best_of(x, over)
        if x.dtype.kind not in "iu":  # XLA may lose a NaN on the way
            best = jnp.where(jnp.any(x != x, over), jnp.full_like(best, jnp.nan), best)
        at = start + lax.broadcasted_iota(index, x.shape, 0)
        if len(over) > 1:
            part = lax.broadcasted_iota(index, x.shape, over[1])
            at = part // inner * (spec.n * inner) + at * inner + part % inner
        hit = (x == lax.expand_dims(best, over)) | (x != x)
        first = lax.reduce_min(jnp.where(hit, at, jnp.full_like(at, nowhere(index))), over)
        none = best == jnp.asarray(worst(best.dtype), best.dtype)
        first = jnp.where(none, jnp.full_like(first, nowhere(index)), first)
        return merge(spec, acc, (best, first))

    def later(acc, y, j):
        """One more value: few operations, as this is the whole step of a stream."""
        x, i = acc
        take = better(y, x) if x.dtype.kind in "iu" else ~no_better(y, x) & (x == x)
        return jnp.where(take, y, x), jnp.where(take, j, i)

    def merge(spec, one, other):
        (x, i), (y, j) = one, other
        odd, strange = x != x, y != y  # a NaN
        tie = (x == y) | (odd & strange)
        take = (tie & (j < i)) | (~odd & (better(y, x) | strange))
        return jnp.where(take, y, x), jnp.where(take, j, i)

    def final(spec, acc):
        i = acc[1]
        return answer(spec, jnp.where(i == nowhere(i.dtype), jnp.zeros_like(i), i))

    return Sink(name, init, step, final, merge, exact)


def nowhere(index):
    """The index that stands for none."""
    return np.asarray(np.iinfo(index).max, index)


def ordered(dtype):
    """A type whose order is that of `dtype`: bytes for booleans."""
    return jnp.dtype("int8") if dtype == jnp.bool_ else dtype


def scattered(name, put, join, level=exact):
    """A scatter into an array that is full of what changes nothing, as large as the result.

    spec.how: where indices and updates carry the axis.
    """

    def init(spec, *avals):
        (out,) = spec.outs
        return full(identity(name, out.dtype), out.shape, wide(out.dtype), *avals)

    def step(spec, acc, start, *blocks):
        indices, updates = map(back, blocks, spec.how)
        p = spec.params
        options = {"unique_indices": p["unique_indices"], "mode": p["mode"]}
        options["indices_are_sorted"] = p["indices_are_sorted"]
        return put(acc, indices, updates.astype(acc.dtype), p["dimension_numbers"], **options)

    return Sink(name, init, step, answer, lambda spec, one, other: join(one, other), level)


def back(block, ax):
    """The array that the slices of a block are of."""
    k, shape = block.shape[0], list(block.shape[1:])
    shape[ax.dim : ax.dim + (ax.width > 1)] = [k * ax.width]
    return restack(block, ax, shape)


SCATTERS = (
    scattered("scatter-add", lax.scatter_add, jnp.add, rounds),
    scattered("scatter-max", lax.scatter_max, jnp.maximum),
    scattered("scatter-min", lax.scatter_min, jnp.minimum),
)

SINKS: tuple[Sink, ...] = (
    SUM,
    DOT,
    *FOLDS,
    *SCATTERS,
    *map(extrema, ("reduce_max", "reduce_min")),
    *map(argument_of_extreme, ("argmax", "argmin")),
)


# ---------------------------------------------------------------- yours

_serial = itertools.count()


@called_as("sink(fun, init=..., step=..., merge=..., final=...)")
def sink(
    fun: Callable[..., Any],
    *,
    init: Callable[..., Any],
    step: Callable[..., Any],
    merge: Callable[..., Any],
    final: Callable[..., Any],
) -> Sink:
    """A reduction of your own that streams: call it like `fun`, on whole arrays.

    fun reduces the leading axis of all its arguments. init(*blocks) -> acc, from blocks of which it
    may read shapes and dtypes only; step(acc, start, *blocks) -> acc, start: index of the first
    element; merge(acc of smaller indices, acc) -> acc; final(acc) -> what fun returns.

    >>> mean_square = sink(
    ...     lambda x: (x**2).mean(0),
    ...     init=lambda x: (jnp.zeros(x.shape[1:]), 0),
    ...     step=lambda acc, start, x: (acc[0] + (x**2).sum(0), acc[1] + x.shape[0]),
    ...     merge=lambda a, b: (a[0] + b[0], a[1] + b[1]),
    ...     final=lambda acc: acc[0] / acc[1],
    ... )
    >>> round(float(mean_square(jnp.arange(3.0))), 3)
    1.667
    """
    name = f"{getattr(fun, '__name__', 'fun').strip('<>')}_sink{next(_serial)}"

    def whole(*args):
        return fun(*args)

    whole.__name__, whole.__wrapped__ = name, fun  # so that errors find the user's line

    def check(what, got, due, same):
        """Raise RuleError unless what a function of the sink gives has the types that are due."""
        types, wanted = [", ".join(short_type(x) for x in xs) or "nothing" for xs in (got, due)]
        if len(got) != len(due) or not all(map(same, got, due)):
            raise RuleError(
                f"{what} of sink {name!r} gives {types} where {wanted} belongs",
                where=line(fun),
                hint="step and merge return what init does, final returns what the function does",
            )

    def asked(what, part, *args):
        """What a function of the sink gives; an error of its own tells where it was."""
        try:
            return part(*args)
        except Exception as error:
            error.add_note(f"raised by {what} of sink {name!r}, at {line(fun)}")
            raise

    def start(spec, *avals):
        acc = jax.tree.map(jnp.asarray, asked("init", init, *map(plain, avals)))
        if compat.trace(functools.partial(asked, "step", step), acc, 0, *map(plain, avals)).effects:
            hint = "how often a step runs depends on how the axis is cut: leave the effect out"
            raise RuleError(f"step of sink {name!r} has an effect", where=line(fun), hint=hint)
        return jax.tree.map(lambda x: compat.match_devices(x, *avals), acc)

    def last(spec, acc):
        got = [jnp.asarray(x) for x in jax.tree.leaves(asked("final", final, acc))]
        check("final", got, [jnp.empty(a.shape, a.dtype) for a in spec.outs], _answers)
        return answer(spec, *got)

    def alike(what, old, new):
        """A new accumulator, with the weak types of the old one, as a loop wants it."""
        (due, tree), got = jax.tree.flatten(old), [jnp.asarray(x) for x in jax.tree.leaves(new)]
        check(what, got, due, _continues)
        fit = lambda x, y: compat.convert(y, x.dtype, jax.typeof(x).weak_type)  # noqa: E731
        return jax.tree.unflatten(tree, map(fit, due, got))

    def advance(spec, acc, start, *blocks):
        return alike("step", acc, asked("step", step, acc, start, *blocks))

    def join(spec, one, other):
        return alike("merge", one, asked("merge", merge, one, other))

    return Sink(name, start, advance, last, join, rounds_any, jax.jit(whole))


def _continues(new, old) -> bool:
    return (new.shape, new.dtype) == (old.shape, old.dtype)


def _answers(new, due) -> bool:
    """Whether an array may be a result: of another width perhaps, but no float for an integer."""
    kinds = [jnp.issubdtype(x.dtype, jnp.inexact) for x in (new, due)]
    return new.shape == due.shape and kinds[0] == kinds[1]


def rounds_any(spec) -> str:
    """The level of a sink that may round: of one of the user's."""
    return "reassoc" if any(jnp.issubdtype(a.dtype, jnp.inexact) for a in spec.outs) else "exact"


# ---------------------------------------------------------------- cumulative operations


@dataclass(frozen=True)
class Runner:
    """A cumulative operation over a stream: init and level as those of a Sink.

    step(spec, acc, start, block) -> (acc, block of the result). It runs from the start of the axis,
    or from its end if spec.how: `fits(spec)` says whether the stream does so too.
    """

    name: str
    init: Callable
    step: Callable
    level: Callable

    def fits(self, spec) -> bool:
        return bool(spec.how) == bool(spec.reverse)


def running(name, join, cumulate, level=exact):
    """The cumulative operation of a block, joined with what came before."""

    def init(spec, aval):
        shape, dtype = aval.shape[1:], wide(aval.dtype)
        first = full(identity(name, aval.dtype), shape, dtype, aval)
        kept = name == "cumsum" and is_long(spec, dtype)
        return (first, jnp.zeros_like(first)) if kept else (first,)

    def step(spec, acc, start, block):
        here = cumulate(block.astype(acc[0].dtype), reverse=spec.how)
        last = here[0] if spec.how else here[-1]
        before = acc[0] if len(acc) == 1 else acc[0] + acc[1]
        after = plus(acc, last) if name == "cumsum" else (join(before, last),)
        return after, answer(spec, join(before, here))[0]

    return Runner(name, init, step, level)


RUNNERS: tuple[Runner, ...] = (
    running("cumsum", jnp.add, lax.cumsum, rounds),
    running("cumprod", jnp.multiply, lax.cumprod, rounds),
    running("cummax", jnp.maximum, lax.cummax),
    running("cummin", jnp.minimum, lax.cummin),
    running("cumlogsumexp", jnp.logaddexp, lax.cumlogsumexp, rounds),
)
