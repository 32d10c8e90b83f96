"""Does a rule keep the meaning? `check_rule` compares both sides on random, and on odd, input."""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.errors import RuleError
from malleable.programs.evaluate import evaluate
from malleable.programs.types import identity
from malleable.progress import working
from malleable.rewriting.axis.axes import flow
from malleable.rewriting.graph.graph import Graph
from malleable.rewriting.graph.slices import Ax, Sunk
from malleable.rewriting.rules.rules import Rule
from malleable.rewriting.rules.traced import MISFITS, Sides, Traced
from malleable.rewriting.rules.wildcards import Arr, Fun, Lit, Prim, Static, extent, line
from malleable.rewriting.streaming.region.region import origin_of
from malleable.rewriting.streaming.region.sinks import Sink, Spec

DTYPES = ("float32", "int32", "bfloat16", "complex64", "bool", "float16", "float64", "complex128")
MIXED = ("float32", "int8", "bool")  # what some of the arrays may be instead
POOLS = ((2, 3), (3, 3), (1, 4), (0, 2), (4, 4), (1, 1), (5, 5))  # extents in one signature
ODD = (np.inf, -np.inf, np.nan, -0.0, 0.0, 1e-30)
LONG = (24, 24)  # once; numbers in float16 are then large enough to overflow in a sum
TRIES = 40  # signatures drawn until one has a meaning
ULPS = 64  # by how many roundings the two sides may differ

Draw = Callable[[np.random.Generator, tuple[int, ...], np.dtype], np.ndarray]


def check_rule(
    rule: Rule | Sink,
    *,
    n: int = 14,
    dtypes: Sequence[str] = DTYPES,
    grad: bool = True,
    vmap: bool = True,
    seed: int = 0,
) -> None:
    """Raise RuleError unless pattern and replacement agree, on n random signatures.

    Shapes include 0 and 1; inputs have ties, infinities, NaN and -0.0, and in float16 numbers
    that overflow in a sum. Compared are the value, the
    derivatives in both directions (grad) and the value under vmap, in float64 too where x64 is on.
    "exact": bit by bit, also where odd; "reassoc": up to 64 roundings, wherever the pattern is
    finite; "fast": the same on ordinary numbers in single precision or better. A rounding is what
    the pattern itself changes by when its input moves in the last place, so that a system
    that is hard to solve is allowed its error.

    A `Sink` is fed in random blocks, in both directions, and has to give what its function gives on
    the whole; its merge has to be associative.

    >>> from malleable.rewriting.rules.rules import rule
    >>> check_rule(rule(lambda x: -(-x), lambda x: x, name="neg_neg", level="exact"), n=3)
    """
    rng = np.random.default_rng(seed)
    dtypes = [d for d in dtypes if jnp.dtype(d) == jax.dtypes.canonicalize_dtype(d)]
    if isinstance(rule, Sink):
        return _check_sink(rule, n, dtypes, rng)
    if not isinstance(rule, Rule):
        raise TypeError(f"check_rule takes a rule with a pattern, or a Sink, not {rule!r}")
    if rule.level == "fast":
        dtypes = [d for d in dtypes if jnp.dtype(d).itemsize >= 4]
    with working(f"check rule {rule.name}"):
        drawn = _compared(rule, n, dtypes, rng, grad, vmap)
    if not drawn:
        raise RuleError(
            f"no input was found for rule {rule.name!r}",
            where=rule.where,
            hint="say with Arr['n d'] and Arr[dtype] which arrays it takes",
        )


def _compared(rule, n, dtypes, rng, grad, vmap) -> int:
    """Compare both sides of a rule on random signatures; how many it takes."""
    drawn = 0
    for i in range(n):
        turned = dtypes[i % len(dtypes) :] + dtypes[: i % len(dtypes)]
        case = _signature(rule, rng, turned, POOLS[i % len(POOLS)])
        if case is not None:
            drawn += 1
            _compare(rule, *case, rng, grad, vmap)
    for some in ([d for d in dtypes if d != "float16"], [d for d in dtypes if d == "float16"]):
        case = _signature(rule, rng, some, LONG)
        if case is not None:
            drawn += 1
            _compare(rule, *case, rng, False, False, long=True)
    return drawn


# ---------------------------------------------------------------- input


def _signature(rule, rng, dtypes, pool) -> tuple[Traced, list, dict] | None:
    """(the rule traced, types of its arrays, its other values), of a kind that has a meaning."""
    sides = rule.sides
    for dtype, _ in itertools.product(dtypes, range(TRIES)):
        known: dict = {}
        mixed = (dtype, *MIXED) if pool != LONG and rng.random() < 0.3 else (dtype,)
        kinds = [kind for kind in sides.kinds.values() if isinstance(kind, Arr)]
        found = [_random_dtype(kind, rng, mixed, known) for kind in kinds]
        if None in found:
            continue
        shapes = [_random_shape(kind, rng, pool, known) for kind in kinds]
        avals = list(map(jax.ShapeDtypeStruct, shapes, found))
        values = {n: _other(n, k, rng) for n, k in sides.kinds.items() if not isinstance(k, Arr)}
        traced = sides.at(avals, values)
        if isinstance(traced, Traced):
            if traced.problem:
                raise RuleError(
                    f"the replacement of rule {rule.name!r} {traced.problem}",
                    where=rule.where,
                    hint=f"it was given {', '.join(map(str, avals))}",
                )
            return traced, avals, values
    return None


def _random_shape(kind, rng, pool, sizes):
    if kind.dims is None:
        return tuple(rng.choice(pool, rng.choice([0, 1, 2, 2, 3])).tolist())
    shape = []
    for name in kind.dims.split():
        if name == "...":
            shape += rng.choice(pool, rng.integers(3)).tolist()
            continue
        if name.isidentifier():
            sizes.setdefault(name, int(rng.choice(pool)))
        shape.append(extent(name, sizes))
    return tuple(shape)


def _random_dtype(kind, rng, likely, known):
    first = likely[rng.integers(len(likely))]
    fitting = (d for d in map(jnp.dtype, (first, *DTYPES)) if kind.takes(d, known))
    return next(fitting, None)


def _other(name, kind, rng):
    match kind:
        case Lit():
            choices = (2.0, -0.5, 3, 1.0, 2)
        case Static():
            choices = (*kind.examples, *((1, -1) if 0 in kind.examples else ()))
        case Prim():
            choices = kind.members
        case Fun():
            choices = (kind.example or _curve,)
        case _:
            raise TypeError(f"a wildcard {name!r} that is {kind!r}")
    return choices[rng.integers(len(choices))]


def _curve(*args):
    return jnp.sin(args[0]) * 2 if len(args) == 1 else (jnp.cos(args[0]), args[0] + args[1])


def _ordinary(rng, shape, dtype):
    if jnp.issubdtype(dtype, jnp.bool_):
        return rng.integers(0, 2, shape) > 0
    if jnp.issubdtype(dtype, jnp.integer):
        return rng.integers(0 if jnp.issubdtype(dtype, jnp.unsignedinteger) else -3, 7, shape)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return rng.normal(size=shape) + 1j * rng.normal(size=shape)
    return rng.normal(size=shape) * 1.5


def _tied(rng, shape, dtype):
    return rng.integers(-1, 3, shape)


def _odd(rng, shape, dtype):
    plain = np.asarray(_ordinary(rng, shape, dtype))
    if jnp.issubdtype(dtype, jnp.integer):  # large enough to wrap around
        least, most = jnp.iinfo(dtype).min, jnp.iinfo(dtype).max
        ends = np.array([least, least + 1, 0, 1, most - 1, most], dtype)
        large = rng.integers(least, most, shape, dtype, endpoint=True)
        return np.where(rng.random(shape) < 0.5, rng.choice(ends, shape), large)
    if dtype == jnp.bool_:
        return plain
    return np.where(rng.random(shape) < 0.4, rng.choice(ODD, shape), plain)


def _large(rng, shape, dtype):
    if dtype != jnp.float16:
        return _ordinary(rng, shape, dtype)
    return rng.uniform(0.5, 1, shape) * rng.choice([4e4, 1e-4])


def _draw(how: Draw, rng, avals) -> list[jax.Array]:
    with np.errstate(all="ignore"):
        return [jnp.asarray(np.asarray(how(rng, a.shape, a.dtype)).astype(a.dtype)) for a in avals]


# ---------------------------------------------------------------- two sides


def _compare(rule, traced, avals, values, rng, grad, vmap, long=False):
    moving = [i for i, a in enumerate(avals) if compat.differentiable(a)]
    odd = [("tied", _tied), *[("odd", _odd)] * 4]
    kinds = [("ordinary", _ordinary), *(odd if rule.level != "fast" else [])]
    if long:
        kinds = [("large", _large)] * (8 if any(a.dtype == jnp.float16 for a in avals) else 1)
    sides = [
        functools.partial(_everything, side, moving, grad, vmap)
        for side in (traced.pattern, traced.replacement)
    ]
    if not long:  # compiled, a sum in float16 may stay in float32 until it is multiplied
        sides = list(map(jax.jit, sides))
    for kind, how in kinds:
        xs = _draw(how, rng, avals)
        try:
            wants, *near = (sides[0](x) for x in (xs, _nudged(rng, xs), _nudged(rng, xs)))
        except MISFITS:
            return  # traced, but not compiled, for such arrays
        try:
            gots = sides[1](xs)
        except MISFITS as why:
            raise RuleError(
                f"the replacement of rule {rule.name!r} does not compile where the pattern does",
                where=rule.where,
                hint=f"{why}; it was given {', '.join(map(str, avals))}",
            ) from None
        tame = [np.isfinite(np.asarray(out).astype(np.complex128)) for out in wants["value"]]
        for what in (what for what in ("value", "vmap", "jvp", "vjp") if what in wants):
            exact = rule.level == "exact" and what in ("value", "vmap")
            smooth = kind == "ordinary" and all(ok.all() for ok in tame)
            if what in ("jvp", "vjp") and not smooth and rule.level != "exact":
                continue
            pairs = zip(wants[what], gots[what], *(m[what] for m in near), strict=True)
            for want, got, *moved in pairs:
                wrong = _differs(want, got) if exact else _is_far(want, got, moved, xs)
                if wrong is not None:
                    raise _different(rule, what, wrong, want, got, xs, values)


def _everything(program, moving, grad, vmap, xs):
    """{"value", "jvp", "vjp", "vmap": results} of a program."""
    fun = lambda *xs: evaluate(program, xs)  # noqa: E731
    found = {"value": fun(*xs)}
    if vmap:
        found["vmap"] = jax.vmap(fun)(*(jnp.stack([x, x]) for x in xs)) if xs else []
    outs = [i for i, out in enumerate(found["value"]) if compat.differentiable(out)]
    if grad and moving and outs:

        def smooth(*some):
            args = list(xs)
            for i, x in zip(moving, some, strict=True):
                args[i] = x
            made = fun(*args)
            return [made[i] for i in outs]

        some = [xs[i] for i in moving]
        made, found["jvp"] = jax.jvp(smooth, some, list(map(_direction, some)))
        found["vjp"] = list(jax.vjp(smooth, *some)[1](list(map(_direction, made))))
    return found


def _direction(x):
    """A tangent or cotangent with no symmetry; a constant, since XLA may round it in two ways."""
    return jnp.asarray(np.cos(1.7 * np.arange(x.size) + 0.3).reshape(x.shape), x.dtype)


def _nudged(rng, xs):
    """The same input, moved by about one unit in the last place."""
    return [
        (x * (1 + 2 * jnp.finfo(x.dtype).eps * rng.choice([-1, 1], x.shape))).astype(x.dtype)
        if compat.differentiable(x)
        else x
        for x in xs
    ]


def _differs(want, got):
    """The first index at which two arrays differ in a bit that matters (NaN is NaN), or None."""
    a, b = (np.asarray(x).astype(np.complex128) for x in (want, got))
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    for part in (np.real, np.imag):
        same &= (np.signbit(part(a)) == np.signbit(part(b))) | np.isnan(a)
    return None if same.all() else tuple(np.argwhere(~same)[0].tolist())


def _is_far(want, got, moved, xs, still=None):
    """The first index at which got is off by more than rounding, where want is finite; or None.

    moved: what `still` (else want) became when the input moved in its last place.
    """
    still = want if still is None else still
    a, b, c, *near = (np.asarray(x).astype(np.complex128) for x in (want, got, still, *moved))
    if not compat.differentiable(want):
        same = (a == b) | np.any([c != m for m in near], axis=0)
    else:
        sizes = [np.abs(np.asarray(x).astype(np.complex128)) for x in (want, *xs)]
        largest = max((s[np.isfinite(s)].max(initial=0) for s in sizes), default=0)
        with np.errstate(all="ignore"):
            ill = np.max([np.abs(c - m) for m in near], axis=0)
            allowed = ULPS * (ill + float(jnp.finfo(want.dtype).eps) * max(1.0, largest))
            same = ~np.isfinite(a) | ~np.isfinite(ill) | (np.abs(a - b) <= allowed)
    return None if same.all() else tuple(np.argwhere(~same)[0].tolist())


def _different(rule, what, index, want, got, xs, values):
    sides: Sides = rule.sides
    given = dict(zip(sides.arrays, xs, strict=True)) | values
    shown = "; ".join(f"{name} = {_array_text(x)}" for name, x in given.items())
    figures = f"{np.asarray(want)[index]} became {np.asarray(got)[index]}"
    at = f" at {list(index)}" if index else ""
    return RuleError(
        f"rule {rule.name!r} (level {rule.level!r}) changes the {what}{at}: {figures}",
        where=rule.where,
        hint=f"seen with {shown}",
    )


def _array_text(x):
    if not isinstance(x, jax.Array):
        return getattr(x, "__name__", repr(x))
    return f"{x.dtype}{list(x.shape)} {np.array2string(np.asarray(x), threshold=24)}"


# ---------------------------------------------------------------- sinks


def _check_sink(sink, n, dtypes, rng):
    drawn = 0
    for i in range(n):
        case = _stream(sink, rng, dtypes, i)
        if case is None:
            continue
        drawn += 1
        avals, fun, spec = case
        cuts = sorted(rng.choice(range(1, spec.n), 2, False).tolist()) if spec.n > 2 else [1]
        run = jax.jit(functools.partial(_ways, sink, spec, fun, cuts))
        for how in (_ordinary, _tied, _odd, _odd, _odd):
            xs = _draw(how, rng, avals)
            try:
                near = [jax.tree.leaves(fun(*_nudged(rng, xs))) for _ in range(2)]
            except MISFITS:
                break  # traced, but not compiled, for such arrays
            found = run(xs)
            for way, reference, what in _WAYS:
                if way not in found:
                    continue
                sides = zip(found[reference], found[way], found["whole"], *near, strict=True)
                for want, got, whole, *moved in sides:
                    exact = sink.level(spec) == "exact"
                    wrong = _differs(want, got) if exact else _is_far(want, got, moved, xs, whole)
                    if wrong is not None:
                        shown = "; ".join(map(_array_text, xs))
                        figures = f"{np.asarray(want)[wrong]} and {np.asarray(got)[wrong]}"
                        raise RuleError(
                            f"sink {sink.name!r}: {what}: {figures}",
                            where=line(sink.fun) if sink.fun else "",
                            hint=f"seen with the splits {cuts} of {shown}",
                        )
    if not drawn:
        raise RuleError(f"no input was found for sink {sink.name!r}", hint="it takes 1 to 3 arrays")


# what was computed, what it must be, and what is wrong otherwise
_WAYS = (
    ("blocks", "whole", "block by block it is not what it is on the whole"),
    ("back", "whole", "from the end it is not what it is on the whole"),
    ("left", "right", "merge is not associative"),
    ("left", "whole", "merged from parts it is not what it is on the whole"),
)


def _stream(sink, rng, dtypes, i):
    """(types of the arrays, the function of the whole, the reduction) of a sink's stream."""
    size = (3, 1, 7, 2, 12)[i % 5]
    for k, (count, _) in enumerate(itertools.product((1, 2, 3), range(TRIES // 4))):
        rest = [tuple(rng.choice((1, 2, 3), rng.integers(3)).tolist()) for _ in range(count)]
        if sink.name.startswith("scatter"):
            rest[0] = (1,)  # an index each
        dtype = jnp.dtype(dtypes[(i + k) % len(dtypes)])
        avals = [jax.ShapeDtypeStruct((size, *shape), dtype) for shape in rest]
        fun = sink.fun or functools.partial(_stock, sink.name)
        try:
            outs = jax.eval_shape(fun, *avals)
        except MISFITS:
            continue
        if sink.fun:
            return avals, fun, Spec(None, _types(outs), {}, size)
        graph = Graph.of(compat.trace(fun, *avals))
        node: Any = graph.maker[graph.outputs[0]]
        eqn, before = node.eqn, [None] * (len(node.ins) - count)  # what is scattered into
        axes, origin = [*before, *[Ax(0)] * count], origin_of(graph, node)
        found = flow(eqn, axes, [None] * len(eqn.outvars), size, origin)
        if isinstance(found, Sunk):
            types = tuple(v.aval for v in eqn.outvars)
            return avals, fun, Spec(found.how, types, eqn.params, size)
    return None


def _types(outs):
    return tuple(jax.typeof(jnp.zeros(x.shape, x.dtype)) for x in jax.tree.leaves(outs))


def _stock(name, *xs):
    """The primitive of a sink that comes along, over the leading axis."""
    if name == "dot_general":
        x, y = xs
        return lax.dot_general(x, y, (((0,), (0,)), ((), ())))
    if name.startswith("scatter"):
        at, x = xs
        how, dims = name.removeprefix("scatter-"), range(1, x.ndim)
        numbers = lax.ScatterDimensionNumbers(tuple(dims), (0,), (0,))
        start = jnp.full((3, *x.shape[1:]), identity(name, x.dtype))
        return getattr(lax, f"scatter_{how}")(start.astype(x.dtype), at, x, numbers)
    if name in ("argmax", "argmin"):
        (x,) = xs
        return getattr(lax, name)(x, 0, np.int32)
    (x,) = xs
    return getattr(lax, name)(x, (0,))


def _ways(sink, spec, fun, cuts, xs):
    """{way: results} of the reduction, computed in several ways."""

    def fed(spec, *bounds):
        pieces = list(itertools.pairwise(bounds))
        acc = None
        for a, b in reversed(pieces) if spec.reverse else pieces:
            blocks = [x[a:b] for x in xs]
            if acc is None:
                acc = sink.init(spec, *map(jax.typeof, blocks))
            acc = sink.step(spec, acc, jnp.int32(a), *blocks)
        return acc

    back, ends = spec._replace(reverse=True), sorted({0, *cuts, spec.n})
    found = {
        "whole": jax.tree.leaves(fun(*xs)),
        "blocks": sink.final(spec, fed(spec, *ends)),
        "back": sink.final(back, fed(back, *ends)),
    }
    if len(ends) == 4:
        one, two, three = (fed(spec, *pair) for pair in itertools.pairwise(ends))
        merge = functools.partial(sink.merge, spec)
        found["left"] = sink.final(spec, merge(merge(one, two), three))
        found["right"] = sink.final(spec, merge(one, merge(two, three)))
    return found
