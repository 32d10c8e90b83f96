"""Name values inside a function; read them out (`reap`), replace them (`plant`), or both."""

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence

import jax
from jax import numpy as jnp

from malleable.core.frame import Frame, Masked, select, spell, spell_type
from malleable.core.interpret import Rulebook, run_staged, sites
from malleable.core.marker import marker
from malleable.core.stage import stage
from malleable.effects.names import nest, path, unnest
from malleable.errors import TransformError


@functools.cache
def markers(kind: str):
    """The two primitives of a kind of tag: its value, and a record of it.

    The record has no result and no derivative, so JAX leaves it in the loop it is written in,
    also where differentiation moves or drops the value.
    """
    record = marker(f"record:{kind}", out=lambda *_, **__: [], tangents="none")
    return marker(f"tag:{kind}"), record


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
    params = {"path": (*path.value, name), "mode": mode, "tree": tree}
    record.bind(*map(jax.lax.stop_gradient, leaves), **params)
    return jax.tree.unflatten(tree, seen.bind(*leaves, **params))


def reap(fun: Callable, *, kind: str = "tag", only: Sequence[str] | None = None) -> Callable:
    """fun(*args) -> out  becomes  reap(fun)(*args) -> (out, {name: value}).

    Inside a scan of n steps, a tagged value of shape s comes back as (n, *s); under a vmap of n
    lanes likewise; tags in a `scope` come in a dict of its name. A value that may not have been
    written (in a while loop, or in some branches) comes as `Masked(value, written)`.
    only: take these names, leave the others. Raises TransformError for a name written twice.

    >>> out, tags = reap(lambda x: tag(x + 1, "y") * 2)(1.0)
    >>> float(out), float(tags["y"])
    (4.0, 2.0)
    """
    harvested = _harvest(fun, kind, None if only is None else frozenset(only), reads=False)
    return lambda *args, **kwargs: harvested({}, *args, **kwargs)


def plant(fun: Callable, *, kind: str = "tag") -> Callable:
    """plant(fun)(values, *args): run `fun` with the tagged values replaced, as `reap` gave them.

    Inside a scan of n steps, give a value of shape (n, *s): one slice per step. A tag of mode
    "last" or "sum" gets the same value each time. Tags that are not named keep their value.
    Raises TransformError for a name that no tag has, and for a value that does not fit.

    >>> float(plant(lambda x: tag(x + 1, "y") * 2)({"y": 10.0}, 1.0))
    20.0
    """
    harvested = _harvest(fun, kind, frozenset(), reads=True)
    return lambda values, *args, **kwargs: harvested(values, *args, **kwargs)[0]


def harvest(fun: Callable, *, kind: str = "tag") -> Callable:
    """harvest(fun)(values, *args) -> (out, the other tags): `plant` and `reap` at once.

    >>> f = lambda x: tag(tag(x, "a") + 1, "b")
    >>> out, tags = harvest(f)({"a": 5.0}, 1.0)
    >>> float(out), sorted(tags)
    (6.0, ['b'])
    """
    return _harvest(fun, kind, None, reads=True)


def cotangents(fun: Callable, *, kind: str = "tag") -> Callable:
    """cotangents(fun)(*args) -> (out, {name: d out / d tagged value}), in one backward pass.

    out must be a scalar. A tag inside a scan of n steps has one cotangent per step.

    >>> out, bars = cotangents(lambda x: tag(2 * x, "h") ** 2)(3.0)
    >>> float(out), float(bars["h"])
    (36.0, 12.0)
    """

    def differentiated(*args, **kwargs):
        _, tags = jax.eval_shape(lambda: reap(fun, kind=kind)(*args, **kwargs))
        tags = jax.tree.map(
            lambda t: t.value if isinstance(t, Masked) else t,
            tags,
            is_leaf=lambda t: isinstance(t, Masked),
        )
        nudges = jax.tree.map(lambda t: jnp.zeros(t.shape, t.dtype), tags)
        nudged = _harvest(fun, kind, frozenset(), reads=True, nudge=True)
        return jax.value_and_grad(lambda n: nudged(n, *args, **kwargs)[0])(nudges)

    return differentiated


def _harvest(fun, kind, only, *, reads, nudge=False):
    book = _rules(kind, only, reads, nudge)
    seen, _ = markers(kind)

    def harvested(values: Mapping, *args, **kwargs):
        staged = stage(fun, book.markers)(*args, **kwargs)
        found = {e.params["path"]: e for e in sites(staged.jaxpr, [seen])}
        given = unnest(values, found, "tag")
        same = {q: v for q, v in given.items() if found[q].params["mode"] in ("last", "sum")}
        feeds = {q: v for q, v in given.items() if q not in same}
        frame = Frame(feeds=feeds, shared=same)
        out = run_staged(staged, book, frame)
        return out, nest({q: (w.result(), w.where) for q, w in frame.writes.items()})

    return harvested


@functools.cache
def _rules(kind: str, only: frozenset | None, reads: bool, nudge: bool) -> Rulebook:
    def wanted(frame, q):
        return (only is None or q[-1] in only) and frame.read(q, None) is None

    def on_record(frame, *leaves, path, mode, tree):
        if wanted(frame, path):
            frame.write(path, jax.tree.unflatten(tree, leaves), mode)

    def on_tag(frame, *leaves, path, mode, tree):
        if wanted(frame, path):  # the record has no derivative; the value has
            frame.rewrite(path, jax.tree.unflatten(tree, leaves))
        planted = frame.read(path, None) if reads else None
        if planted is None:
            return list(leaves)
        value = jax.tree.unflatten(tree, leaves)
        if nudge:
            return [a + b for a, b in zip(leaves, jax.tree.leaves(planted), strict=True)]
        if isinstance(planted, Masked):
            planted = select(planted.written, fit(frame, path, planted.value, value), value)
        return jax.tree.leaves(fit(frame, path, planted, value))

    seen, record = markers(kind)
    return Rulebook({record: on_record, seen: on_tag})


def fit(frame: Frame, name, given, wanted):
    """`given` with the dtypes of `wanted`; raises TransformError where it has another type."""
    given = jax.tree.map(jnp.asarray, given)
    same = jax.tree.structure(given) == jax.tree.structure(wanted)
    pairs = list(zip(jax.tree.leaves(given), jax.tree.leaves(wanted), strict=False))
    if not same or any(
        a.shape != b.shape or jnp.promote_types(a.dtype, b.dtype) != b.dtype for a, b in pairs
    ):
        raise TransformError(
            f"{spell(name)} is given as {spell_type(given)}, and {spell_type(wanted)} belongs here",
            where=frame.where,
            hint="give the shape it has at this line; inside a scan, one such value per step",
        )
    return jax.tree.map(lambda a, b: a.astype(b.dtype), given, wanted)


@contextlib.contextmanager
def scope(name: str):
    """Put the names inside under `name`: `with scope("layer1"): ...`, or `scope("layer1")(fun)`.

    >>> reap(scope("outer")(lambda x: tag(x, "y")))(1.0)[1]["outer"].keys()
    dict_keys(['y'])
    """
    with path((*path.value, name)):
        yield
