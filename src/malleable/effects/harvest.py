"""How tags are read out and replaced: the rules behind `reap`, `plant` and `cotangents`."""

import functools
from collections.abc import Mapping

import jax
from jax import numpy as jnp

from malleable.core.frame import Frame, Masked, quoted, select, spell_type
from malleable.core.interpret import Rulebook, run_flat, sites
from malleable.core.marker import Marker, marker
from malleable.core.stage import Staged
from malleable.effects.names import no_such_name, unnest
from malleable.errors import TransformError

_NONE = object()


@functools.cache
def tag_marker(kind: str) -> Marker:
    """The primitive of a kind of tag, so that two kinds do not see each other."""
    return marker(f"tag:{kind}")


def harvested(staged: Staged, kind: str, book: "TagRules", values: Mapping) -> tuple[list, dict]:
    """(flat results, {path: Write}) of a program, under rules that plant `values` and reap."""
    found = {e.params["path"]: e.params["mode"] for e in sites(staged.jaxpr, [tag_marker(kind)])}
    for name in book.only - {q[-1] for q in found}:
        raise no_such_name((name,), found, "tag")
    given = unnest(values, found, "tag")
    same = {q: v for q, v in given.items() if found[q] in ("last", "sum")}
    frame = Frame(feeds={q: v for q, v in given.items() if q not in same}, shared=same)
    return run_flat(staged, book, frame), frame.writes


class TagRules(Rulebook):
    """Rules for one kind of tag; only: the names asked for, which must be there."""

    only: frozenset = frozenset()


@functools.cache
def rules(kind: str, only: frozenset | None, plants: bool, put=None) -> TagRules:
    """Rules that reap `only` some names (None: all) and plant what is fed in.

    put(frame, path, planted, value) -> the value that takes the place of the tagged one.
    """
    seen = tag_marker(kind)
    put = put or _replace

    def on_tag(frame, *leaves, path, tree, mode):
        value = jax.tree.unflatten(tree, leaves)
        if plants and (planted := frame.read(path, _NONE)) is not _NONE:
            return jax.tree.leaves(put(frame, path, planted, value))
        if only is not None and path[-1] not in only:  # for a transformation around this one
            return seen.mark(*leaves, path=path, tree=tree, mode=mode)
        frame.write(path, value, mode)
        return list(leaves)

    book = TagRules({seen: on_tag})
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
            not jnp.issubdtype(a.dtype, jax.dtypes.extended)
            and jnp.promote_types(a.dtype, b.dtype) == b.dtype
        )
        return kind and a.shape == b.shape

    same = jax.tree.structure(given) == jax.tree.structure(wanted)
    if not same or not all(map(fits, jax.tree.leaves(given), jax.tree.leaves(wanted))):
        raise TransformError(
            f"{quoted(path)} is given as {spell_type(given)}, "
            f"and {spell_type(wanted)} belongs here",
            where=frame.where,
            hint=hint,
        )
    return jax.tree.map(lambda a, b: a if a.dtype == b.dtype else a.astype(b.dtype), given, wanted)
