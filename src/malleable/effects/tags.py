"""Name values inside a function; read them out (`reap`), replace them (`plant`), or both."""

import functools
from collections.abc import Callable, Mapping, Sequence

import jax
from jax import numpy as jnp

from malleable.core.frame import Frame, Masked, select, spell, spell_type
from malleable.core.interpret import Rulebook, run_staged, sites
from malleable.core.marker import marker
from malleable.core.stage import stage
from malleable.effects.names import full_path, nest, no_such_name, unnest
from malleable.errors import TransformError

_NONE = object()


@functools.cache
def markers(kind: str):
    """The two primitives of a kind of tag: its value, and a record of it.

    The record has no result and no derivative, so JAX leaves it in the loop it is written in,
    also where differentiation moves or drops the value.
    """
    record = marker(f"record:{kind}", out=lambda *_, **__: [], lanes="all", tangents="none")
    return marker(f"tag:{kind}", lanes="all"), record


def tag(value, name: str, *, kind: str = "tag", mode: str = "stack"):
    """Give `value`, any pytree of arrays, a name. Does nothing until a transformation asks.

    mode says what becomes of it in control flow. "stack": one value per step of a scan, none in
    a while loop; "unique": never in a loop; "masked": as "stack", but perhaps in some branches
    of a cond only; "last", "sum": the last one, or the sum, of all that were written.

    >>> float(tag(3.0, "x"))
    3.0
    """
    seen, record = markers(kind)
    if not seen.active:
        return value
    leaves, tree = jax.tree.flatten(value)
    leaves = [jnp.asarray(x) for x in leaves]
    params = {"path": full_path(name), "mode": mode, "tree": tree}
    record.bind(*map(jax.lax.stop_gradient, leaves), **params)
    return jax.tree.unflatten(tree, seen.bind(*leaves, **params))


def reap(fun: Callable, *, kind: str = "tag", only: Sequence[str] | None = None) -> Callable:
    """fun(*args) -> out  becomes  reap(fun)(*args) -> (out, {name: value}).

    Inside a scan of n steps, a tagged value of shape s comes back as (n, *s); under a vmap of n
    lanes likewise; tags in a `scope` come in a dict of its name. A value that may not have been
    written (in a while loop, or in some branches) comes as `Masked(value, written)`.
    only: take these names, leave the others to a transformation around this one.
    Raises TransformError for a name written twice, or asked for and not there.

    >>> out, tags = reap(lambda x: tag(x + 1, "y") * 2)(1.0)
    >>> float(out), float(tags["y"])
    (4.0, 2.0)
    """
    names = None if only is None else frozenset([only] if isinstance(only, str) else only)
    harvested = flat_harvest(fun, kind, rules(kind, names, plants=False))
    return lambda *args, **kwargs: _nested(harvested({}, *args, **kwargs))


def plant(fun: Callable, *, kind: str = "tag") -> Callable:
    """plant(fun)(values, *args): run `fun` with the tagged values replaced, as `reap` gave them.

    Inside a scan of n steps, give a value of shape (n, *s): one slice per step. A tag of mode
    "last" or "sum" gets the same value each time. Tags that are not named keep their value.
    Raises TransformError for a name that no tag has, and for a value that does not fit.

    >>> float(plant(lambda x: tag(x + 1, "y") * 2)({"y": 10.0}, 1.0))
    20.0
    """
    harvested = flat_harvest(fun, kind, rules(kind, frozenset(), plants=True))
    return lambda values, *args, **kwargs: harvested(values, *args, **kwargs)[0]


def harvest(fun: Callable, *, kind: str = "tag") -> Callable:
    """harvest(fun)(values, *args) -> (out, the other tags): `plant` and `reap` at once.

    >>> f = lambda x: tag(tag(x, "a") + 1, "b")
    >>> out, tags = harvest(f)({"a": 5.0}, 1.0)
    >>> float(out), sorted(tags)
    (6.0, ['b'])
    """
    harvested = flat_harvest(fun, kind, rules(kind, None, plants=True))
    return lambda values, *args, **kwargs: _nested(harvested(values, *args, **kwargs))


def _nested(harvested):
    out, writes = harvested
    return out, nest({q: (w.result(), w.where) for q, w in writes.items()})


def flat_harvest(fun: Callable, kind: str, book: Rulebook) -> Callable:
    """harvested(values, *args) -> (out, {path: Write}), under rules that plant and reap."""
    seen, _ = markers(kind)

    def harvested(values: Mapping, *args, **kwargs):
        staged = stage(fun, book.markers)(*args, **kwargs)
        found = {e.params["path"]: e.params["mode"] for e in sites(staged.jaxpr, [seen])}
        for name in book.only - {q[-1] for q in found}:
            raise no_such_name((name,), found, "tag")
        given = unnest(values, found, "tag")
        same = {q: v for q, v in given.items() if found[q] in ("last", "sum")}
        frame = Frame(feeds={q: v for q, v in given.items() if q not in same}, shared=same)
        return run_staged(staged, book, frame), frame.writes

    return harvested


class TagRules(Rulebook):
    """Rules for one kind of tag; only: the names asked for, which must be there."""

    only: frozenset = frozenset()


@functools.cache
def rules(kind: str, only: frozenset | None, plants: bool, put=None) -> TagRules:
    """Rules that reap `only` some names (None: all) and plant what is fed in.

    put(frame, path, planted, value) -> the value that takes the place of the tagged one.
    """
    seen, record = markers(kind)
    put = put or _replace

    def wanted(frame, q):
        return (only is None or q[-1] in only) and frame.read(q, _NONE) is _NONE

    def on_record(frame, *leaves, path, tree, mode):
        if wanted(frame, path):
            frame.write(path, jax.tree.unflatten(tree, leaves), mode)
        elif frame.read(path, _NONE) is _NONE:
            record(*leaves, path=path, tree=tree, mode=mode)  # for who is around

    def on_tag(frame, *leaves, path, tree, mode):
        value = jax.tree.unflatten(tree, leaves)
        if plants and (planted := frame.read(path, _NONE)) is not _NONE:
            return jax.tree.leaves(put(frame, path, planted, value))
        if wanted(frame, path):
            frame.rewrite(path, value)  # the record has no derivative; the value has
            return list(leaves)
        return seen.bind(*leaves, path=path, tree=tree, mode=mode) if seen.active else list(leaves)

    book = TagRules({record: on_record, seen: on_tag})
    book.only = only or frozenset()
    return book


def _replace(frame, path, planted, value):
    if isinstance(planted, Masked):
        return select(planted.written, fit(frame, path, planted.value, value), value)
    return fit(frame, path, planted, value)


def fit(frame: Frame, path, given, wanted, hint="give the shape and dtype it has at this line"):
    """`given` with the dtypes of `wanted`; raises TransformError where it has another type."""
    given = jax.tree.map(jnp.asarray, given)

    def fits(a, b):
        kind = a.dtype == b.dtype or (
            not jax.dtypes.issubdtype(a.dtype, jax.dtypes.extended)
            and jnp.promote_types(a.dtype, b.dtype) == b.dtype
        )
        return kind and a.shape == b.shape

    same = jax.tree.structure(given) == jax.tree.structure(wanted)
    if not same or not all(map(fits, jax.tree.leaves(given), jax.tree.leaves(wanted))):
        raise TransformError(
            f"{spell(path)} is given as {spell_type(given)}, and {spell_type(wanted)} belongs here",
            where=frame.where,
            hint=hint,
        )
    return jax.tree.map(lambda a, b: a.astype(b.dtype), given, wanted)
