"""What devices say to each other: collectives on the values of all lanes, and cutting and joining.

A lane is one device of a shard_map, at its place along the axes of the mesh. Lanes run on their
own and meet at collectives; `answer` finds the groups that are complete and what each gets.
"""

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.errors import MalleableError
from malleable.programs.primitives import has
from malleable.programs.types import is_key

Coords = Mapping[Any, tuple[int, int]]  # {name of an axis: (place, size)}, outer axes first


@dataclass(frozen=True, eq=False)
class Request:
    """A lane that stands at a collective. primitive, params: which; place: the user's line.

    under: the context in which the collective is computed.
    """

    coords: Coords
    primitive: str
    params: Mapping[str, Any]
    values: tuple
    place: str
    under: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext


def axes_of(primitive: str, params: Mapping[str, Any]) -> tuple:
    """The named axes that an operation is about; () where it is about none.

    >>> axes_of("psum", {"axes": ("x", 0)}), axes_of("sin", {})
    (('x',), ())
    """
    if primitive.removesuffix("_start") not in _RULES and primitive not in (*LOCAL, "axis_index"):
        return ()
    named = params.get("axes", params.get("axis_name", ()))
    named = named if isinstance(named, tuple | list) else (named,)
    return tuple(name for name in named if not isinstance(name, int))


def every_lane(axes: Mapping[Any, int]) -> Iterator[Coords]:
    """Every lane of a mesh {name: size}, the last axis running fastest."""
    for spot in itertools.product(*map(range, axes.values())):
        yield dict(zip(axes, zip(spot, axes.values(), strict=True), strict=True))


def spot(coords: Coords, axes: Iterable) -> int:
    """Where a lane is along some axes taken together, the last running fastest.

    >>> spot({"x": (1, 2), "y": (2, 3)}, ("x", "y"))
    5
    """
    return functools.reduce(lambda total, a: total * coords[a][1] + coords[a][0], axes, 0)


def answer(requests: Sequence[Request]) -> dict[Request, list]:
    """What each request of a complete group gets; nothing for the others.

    A group are the lanes that differ along the axes of the collective only.
    """
    answers: dict[Request, list] = {}
    for first in requests:
        axes = axes_of(first.primitive, first.params)
        if first in answers or not all(a in first.coords for a in axes):
            continue
        group = [r for r in requests if r not in answers and _meets(first, r, axes)]
        size = np.prod([first.coords[a][1] for a in axes], dtype=int)
        if len(group) == size:
            group.sort(key=lambda r: spot(r.coords, axes))
            with first.under():
                outs = combine(first.primitive, first.params, [r.values for r in group])
            answers.update(zip(group, outs, strict=True))
    return answers


def _meets(one: Request, other: Request, axes) -> bool:
    """Whether two lanes stand at the same collective, in one group of it."""
    same = one.primitive == other.primitive and one.params == other.params
    apart = [a for a in one.coords if one.coords[a] != other.coords.get(a)]
    return same and one.place == other.place and set(apart) <= set(axes)


def combine(primitive: str, params: Mapping[str, Any], values: Sequence[tuple]) -> list[list]:
    """The results of a collective for each lane of a group, given the operands of each.

    >>> [float(out) for out, in combine("psum", {"axes": ("x",)}, [(1.0,), (2.0,)])]
    [3.0, 3.0]
    """
    rule = _RULES[primitive.removesuffix("_start")]
    dims = tuple(a for a in params.get("axes", ()) if isinstance(a, int))
    outs: list[list] = [[] for _ in values]
    for xs in zip(*values, strict=True):
        if dims:  # named axes that a vmap turned into dimensions
            xs = [_WITHIN[primitive](x, dims) for x in xs]
        for group in params.get("axis_index_groups") or [range(len(xs))]:
            results = rule([xs[i] for i in group], params)
            for i, out in zip(group, results, strict=True):
                outs[i].append(out)
    return outs


def typed(values: Sequence, outvars: Sequence) -> list:
    """Results of a collective as weak in their types as the program says."""
    pairs = zip(values, outvars, strict=True)
    return [weak(x, getattr(v.aval, "weak_type", False)) for x, v in pairs]


def weak(x, is_so: bool):
    """A number of a type that is weak, or not."""
    if not isinstance(x, jax.Array) or compat.is_weak(x) == is_so:
        return x
    return compat.convert(x, x.dtype, is_so)


def _everyone(out: Any, xs: Sequence) -> list:
    return [out] * len(xs)


def _reduced(op: Callable) -> Callable:
    return lambda xs, p: _everyone(functools.reduce(op, xs), xs)


def _gather(xs, p):
    d = p["all_gather_dimension"]
    parts = xs if p["tiled"] else [jnp.expand_dims(x, d) for x in xs]
    return _everyone(lax.concatenate(parts, d), xs)


def _scatter(xs, p):
    d, total = p["scatter_dimension"], functools.reduce(lax.add, xs)
    parts = _split(total, len(xs), d)
    return parts if p["tiled"] else [lax.squeeze(x, (d,)) for x in parts]


def _exchange(xs, p):
    sent = [_split(x, len(xs), p["split_axis"]) for x in xs]
    return [lax.concatenate(list(parts), p["concat_axis"]) for parts in zip(*sent, strict=True)]


def _permute(xs, p):
    sources = {target: source for source, target in p["perm"]}
    return [xs[sources[i]] if i in sources else jnp.zeros_like(x) for i, x in enumerate(xs)]


def _split(x, n, d):
    size = x.shape[d] // n
    return [lax.slice_in_dim(x, i * size, (i + 1) * size, axis=d) for i in range(n)]


_sum, _max, _min = _reduced(lax.add), _reduced(lax.max), _reduced(lax.min)
_WITHIN = {"psum": jnp.sum, "psum_invariant": jnp.sum, "pmax": jnp.max, "pmin": jnp.min}
_RULES: dict[str, Callable] = {
    "psum": _sum,
    "psum_invariant": _sum,
    "unreduced_psum": _sum,
    "pmax": _max,
    "pmin": _min,
    "all_gather": _gather,
    "all_gather_invariant": _gather,
    "all_gather_reduced": _gather,
    "reduce_scatter": _scatter,
    "unreduced_reduce_scatter": _scatter,
    "all_to_all": _exchange,
    "ppermute": _permute,
    "pbroadcast": lambda xs, p: _everyone(xs[p["source"]], xs),
}

# What changes how a value is thought of, and not the value; and what ends what `_start` began.
LOCAL = has("local")

# What gives numbers of a type that is not weak, among devices.
STRONG = has("strong")


# What only says where values lie.
PLACING = ("sharding_constraint", "reshard", "mesh_cast")


def is_known(eqn: compat.Eqn, axes: Iterable) -> bool:
    """Whether lanes can run an equation, its bodies included: no collective without a rule."""
    inside = compat.bodies(eqn.params)
    if inside:
        return all(is_known(e, axes) for body in inside for e in body.jaxpr.eqns)
    named = eqn.params.get("axes", eqn.params.get("axis_name", ()))
    named = named if isinstance(named, tuple | list) else (named,)
    about = any(name in axes for name in named if not isinstance(name, int))
    return not about or bool(axes_of(eqn.primitive.name, eqn.params))


def index(coords: Coords, params: Mapping[str, Any]):
    """What axis_index is in a lane."""
    return jnp.int32(spot(coords, axes_of("axis_index", params)))


def stuck(asked: Sequence[Request], count: int) -> MalleableError:
    """What to say of `count` lanes that wait for each other for ever."""
    spots: dict = {}
    for r in asked:
        spots.setdefault(f"`{r.primitive}` at {r.place or 'an unknown line'}", []).append(r.coords)
    said = [f"{' '.join(map(spell_lane, coords))} at {what}" for what, coords in spots.items()]
    if len(asked) < count:
        said.append("the others are through")
    return MalleableError(
        f"devices wait for each other: {'; '.join(said)}",
        where=asked[0].place,
        hint="let all devices along the axis take part in the same collectives, in one order",
    )


def spell_lane(coords: Coords, sizes: bool = False) -> str:
    """A lane in words.

    >>> spell_lane({"x": (1, 2), "y": (0, 3)}), spell_lane({"x": (1, 2)}, sizes=True)
    ('x=1,y=0', 'x=1/2')
    """
    return ",".join(
        f"{'device' if str(name).startswith('_internal') else name}={at}" + f"/{size}" * sizes
        for name, (at, size) in coords.items()
    )


# ---------------------------------------------------------------- cutting and joining


def shard_of(value, spec, coords: Coords):
    """The part of a value that a lane gets. spec: a PartitionSpec, axes by dimension."""
    for d, names in enumerate(spec):
        names = compat.names_of(names)
        if names:
            size = value.shape[d] // int(np.prod([coords[a][1] for a in names]))
            start = spot(coords, names) * size
            value = lax.dynamic_slice_in_dim(value, start, size, axis=d)
    return value


def assemble(values: Sequence, lanes: Sequence[Coords], spec):
    """The whole, of the parts of all lanes; of lanes with the same part the first has it."""
    parts = list(zip(lanes, values, strict=True))
    for d, names in enumerate(spec):
        names = compat.names_of(names)
        if names:
            parts = _joined_parts(parts, d, names)
    return parts[0][1]


def _joined_parts(parts, d, names):
    rows: dict = {}
    for coords, value in parts:
        rest = {a: at for a, at in coords.items() if a not in names}
        row = rows.setdefault(tuple(rest.items()), (rest, {}))[1]
        row.setdefault(spot(coords, names), value)
    return [
        (rest, lax.concatenate([row[i] for i in sorted(row)], d)) for rest, row in rows.values()
    ]


def home(x):
    """A concrete array that lies on several devices, as one that is bound to none."""
    if compat.is_spread(x):
        if is_key(x):
            data = jnp.asarray(np.asarray(jax.random.key_data(x)))
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
        return compat.put(np.asarray(x), x.aval.weak_type)
    return x


def is_explicit(x) -> bool:
    """Whether the type of an array says along which axes of a mesh it lies."""
    mesh = getattr(getattr(jax.typeof(x), "sharding", None), "mesh", None)
    return mesh is not None and bool(mesh.explicit_axes)


def axes_along(x, d: int | None):
    """The axes of an explicit mesh that a dimension of an array lies along; None for none."""
    return None if d is None or not is_explicit(x) else jax.typeof(x).sharding.spec[d]


def laid_along(x, d: int, axes):
    """An array on an explicit mesh, a dimension of which lies along other axes of it, or none."""
    sharding = jax.typeof(x).sharding
    spec = [*sharding.spec]
    spec[d] = axes
    return jax.sharding.reshard(x, sharding.update(spec=jax.sharding.PartitionSpec(*spec)))


def unguarded() -> contextlib.AbstractContextManager:
    """Inside, numbers become arrays though `jax.transfer_guard` lets no array move."""
    ways = ("host_to_device", "device_to_device", "device_to_host")
    guards = (getattr(jax.config, f"jax_transfer_guard_{way}") or "" for way in ways)
    strict = any("disallow" in guard for guard in guards)
    return jax.transfer_guard("allow") if strict else contextlib.nullcontext()


def stack_lanes(values: Sequence, like):
    """Values one above the other. like: the type of one of them."""
    if isinstance(values[0], compat.Tracer):
        return jnp.stack(values)
    if is_key(like):
        data = jnp.asarray(np.stack([np.asarray(jax.random.key_data(x)) for x in values]))
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(values[0]))
    whole = np.stack([np.asarray(x) for x in values])
    return whole if like.dtype == jax.dtypes.float0 else compat.put(whole, like.weak_type)


def pick(xs: Sequence, i: int) -> list:
    """One slice of each array along its leading axis."""
    if any(x.dtype == jax.dtypes.float0 for x in xs):
        return [x[i] for x in xs]
    return _pick(list(xs), i) if xs else []


@jax.jit
def _pick(xs, i):
    return [lax.dynamic_index_in_dim(x, i, 0, keepdims=False) for x in xs]
