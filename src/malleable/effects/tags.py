"""Name values inside a function; read them out (`reap`), replace them (`plant`), or both."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, Literal

import jax
from jax import numpy as jnp

from malleable.core.frame import Path
from malleable.core.stage import stage
from malleable.effects.harvest import harvested, rules, tag_marker
from malleable.effects.names import full_path, nest
from malleable.python_source.misuse import called_as
from malleable.signatures import P, R, T

Mode = Literal["stack", "unique", "masked", "last", "sum"]


@called_as("tag(value, 'name')")
def tag(value: T, name: str | Path, *, kind: str = "tag", mode: Mode = "stack") -> T:
    """Give `value`, any pytree of arrays, a name. Does nothing until a transformation asks.

    mode says what becomes of it in control flow. "stack": one value per step of a scan, none in
    a while loop; "unique": never in a loop; "masked": as "stack", but perhaps in some branches
    of a cond only; "last", "sum": the last one, or the sum, of all that were written.

    >>> float(tag(3.0, "x"))
    3.0
    """
    path = full_path(name)
    seen = tag_marker(kind)
    if not seen.active:
        return value
    leaves, tree = jax.tree.flatten(value)
    leaves = [jnp.asarray(x) for x in leaves]
    outs = seen.mark(*leaves, path=path, tree=tree, mode=mode)
    return jax.tree.unflatten(tree, outs)


@called_as("reap(fun)(*args)")
def reap(
    fun: Callable[P, R], *, kind: str = "tag", only: Sequence[str] | None = None
) -> Callable[P, tuple[R, dict[str, Any]]]:
    """fun(*args) -> out  becomes  reap(fun)(*args) -> (out, {name: value}).

    Inside a scan of n steps, a tagged value of shape s comes back as (n, *s); under a vmap of n
    lanes likewise, unless the lanes share it; tags in a `scope` come in a dict of its name. A
    value that may not have been written (in a while loop, or in some branches) comes as
    `Masked(value, written)`.
    only: take these names, leave the others to a transformation around this one.
    Raises TransformError for a name written twice, or asked for and not there.

    >>> out, tags = reap(lambda x: tag(x + 1, "y") * 2)(1.0)
    >>> float(out), float(tags["y"])
    (4.0, 2.0)
    """
    names = None if only is None else frozenset([only] if isinstance(only, str) else only)
    both = _harvesting(fun, kind, rules(kind, names, plants=False))
    asked = called_as("reap(fun)(*args)", of=fun)
    return asked(lambda *args, **kwargs: both({}, *args, **kwargs))


@called_as("plant(fun)(values, *args)")
def plant(
    fun: Callable[P, R], *, kind: str = "tag"
) -> Callable[Concatenate[Mapping[str, Any], P], R]:
    """plant(fun)(values, *args): run `fun` with the tagged values replaced, as `reap` gave them.

    Inside a scan of n steps, give a value of shape (n, *s): one slice per step. A tag of mode
    "last" or "sum" gets the same value each time. Tags that are not named keep their value.
    Raises TransformError for a name that no tag has, and for a value that does not fit.

    >>> float(plant(lambda x: tag(x + 1, "y") * 2)({"y": 10.0}, 1.0))
    20.0
    """
    both = _harvesting(fun, kind, rules(kind, frozenset(), plants=True))

    @called_as("plant(fun)(values, *args)", of=fun)
    def planted(values: Mapping[str, Any], *args: P.args, **kwargs: P.kwargs) -> R:
        return both(values, *args, **kwargs)[0]

    return planted


@called_as("harvest(fun)(values, *args)")
def harvest(
    fun: Callable[P, R], *, kind: str = "tag"
) -> Callable[Concatenate[Mapping[str, Any], P], tuple[R, dict[str, Any]]]:
    """harvest(fun)(values, *args) -> (out, the other tags): `plant` and `reap` at once.

    >>> f = lambda x: tag(tag(x, "a") + 1, "b")
    >>> out, tags = harvest(f)({"a": 5.0}, 1.0)
    >>> float(out), sorted(tags)
    (6.0, ['b'])
    """
    both = _harvesting(fun, kind, rules(kind, None, plants=True))

    @called_as("harvest(fun)(values, *args)", of=fun)
    def fed(values: Mapping[str, Any], *args: P.args, **kwargs: P.kwargs) -> Any:
        return both(values, *args, **kwargs)

    return fed


def _harvesting(fun, kind, book):
    def both(values, *args, **kwargs):
        staged = stage(fun, book.markers, raises=False)(*args, **kwargs)
        outs, writes = harvested(staged, kind, book, values)
        tags = nest({q: (w.result(), w.where) for q, w in writes.items()})
        return staged.finish(outs), tags

    return both
