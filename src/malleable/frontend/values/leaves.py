"""The leaves of a value as those of a wider type, and rows of leaves as one array."""

import functools
from collections.abc import Iterable, Iterator, Sequence

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.arrays.journal import ABSENT
from malleable.frontend.values import trees
from malleable.frontend.values.copies import IN_A_LIST, disown
from malleable.frontend.values.picked import entry


def inject(tree: trees.Tree, leaves: Iterator, target: trees.Tree) -> list:
    """The leaves of a value of `tree`, as those of one of `target`."""
    if isinstance(target, trees.Static):
        trees.drop(tree, leaves)
        return []
    if isinstance(target, trees.Either):
        parts: dict = {}
        if isinstance(tree, trees.Either):
            index = next(leaves)
            found = [trees.option_of(option, target) for option in tree.options]
            for i, (option, k) in enumerate(zip(tree.options, found, strict=True)):
                new = inject(option, leaves, target.options[k])
                if k in parts:  # two options of the value are one of the wider type
                    here = jnp.asarray(index) == i
                    pairs = zip(new, parts[k], strict=True)
                    new = [jnp.where(here, a, b) for a, b in pairs]
                parts[k] = new
            if found != list(range(len(found))):
                index = entry(found, index)
        else:
            k = trees.option_of(tree, target)
            index, parts = np.int32(k), {k: inject(tree, leaves, target.options[k])}
        rest = [parts.get(i) or trees.fill(option) for i, option in enumerate(target.options)]
        return [jnp.asarray(index, np.int32), *(x for part in rest for x in part)]
    if isinstance(tree, trees.Static) and (tree.value is trees.UNSET or tree.value is ABSENT):
        return trees.fill(target)
    if isinstance(tree, trees.Either):  # all of its options are of one kind by now
        index = jnp.asarray(next(leaves), np.int32)
        columns = [inject(option, leaves, target) for option in tree.options]
        columns = [map(jnp.asarray, column) for column in zip(*columns, strict=True)]
        return [lax.select_n(index, *column) for column in columns]
    if isinstance(target, trees.Ragged):
        return inject_list(tree, leaves, target)
    if isinstance(target, trees.Leaf):
        return inject_leaf(tree, leaves, target)  # type: ignore[arg-type]
    if isinstance(tree, trees.Leaf | trees.Static):  # an array as a selection of all of it
        held, mask = target.children  # type: ignore[union-attr]
        return [*inject(tree, leaves, held), jnp.ones(mask.shape, bool)]
    if tree.keys is None:  # type: ignore[union-attr]
        pairs = zip(tree.children, target.children, strict=True)  # type: ignore[union-attr]
        return [x for t, goal in pairs for x in inject(t, leaves, goal)]
    goals = dict(zip(target.keys, target.children, strict=True))  # type: ignore[arg-type]
    found = {
        k: inject(t, leaves, goals[k])
        for k, t in zip(tree.keys, tree.children, strict=True)  # type: ignore[union-attr]
    }
    return [
        x
        for k, goal in goals.items()
        for x in (found[k] if k in found else inject(trees.MISSING, iter(()), goal))
    ]


def inject_leaf(tree: trees.Leaf | trees.Static, leaves: Iterator, target: trees.Leaf) -> list:
    """A number or array as one of the target's type, and whether it is each of its `links`."""
    flags: dict = {}
    if isinstance(tree, trees.Leaf):
        x, thing = next(leaves), trees.IMMUTABLE if trees.is_immutable(tree) else tree.origin
        flags = {id(link.value): next(leaves) for link in tree.links}
    else:
        x = tree.value
        leaf = trees.number_leaf(x)
        thing = trees.IMMUTABLE if leaf is not None and trees.is_immutable(leaf) else x
    tests = (link.value is thing or flags.get(id(link.value), False) for link in target.links)
    return [trees.fit(x, target), *tests]


def inject_list(tree: trees.Tree, leaves: Iterator, target: trees.Ragged) -> list:
    """The length of a list and its items stacked, `target.cap` of them."""
    goals = trees.leaves_of(target.item)
    if isinstance(tree, trees.Ragged):
        length = next(leaves)
        columns = [next(leaves) for _ in range(trees.count_leaves(tree.item))]
        if trees.free(tree.item) != trees.free(target.item):  # other types, options, or lists in it
            each = functools.partial(as_item, tree.item, target=target.item)
            columns = jax.vmap(lambda *xs: each(xs), axis_size=tree.cap)(*columns)
    else:
        length = np.int32(len(tree.children))
        for child in tree.children:
            disown(child, IN_A_LIST, target.item)
        rows = [as_item(child, leaves, target.item) for child in tree.children]
        columns = [jnp.stack(xs) for xs in zip(*rows, strict=True)]
        columns = columns or [jnp.zeros((0, *g.shape), g.dtype) for g in goals]
    out = [jnp.asarray(length, np.int32)]
    for x, goal in zip(columns, goals, strict=True):
        more = target.cap - x.shape[0]
        x = jnp.concatenate([x, jnp.zeros((more, *x.shape[1:]), x.dtype)]) if more else x
        out.append(compat.convert(x, goal.dtype, goal.weak))
    return out


def as_item(tree: trees.Tree, leaves: Iterable, target: trees.Tree) -> list:
    """The same leaves as `inject` gives, all of them arrays."""
    return list(map(jnp.asarray, inject(tree, iter(leaves), target)))


def stack(rows: Sequence) -> jax.Array:
    """jnp.stack(rows), n rows of shape s as one array (n, *s).

    Its gradient takes the rows out again at indices that XLA cannot see: it compiles a slice at
    each known index as a kernel of its own, 14 ms each, but one for all those at unknown ones.
    """
    return compat.linear_call(_stack, _unstack, [], list(map(jnp.asarray, rows)))[0]


def _stack(_, rows):
    return [jnp.stack(rows)]


def _unstack(_, cotangents):
    (stacked,) = cotangents
    order, out = lax.optimization_barrier(jnp.arange(len(stacked))), []
    for _ in range(len(stacked)):
        i, order = lax.optimization_barrier((order[0], jnp.roll(order, -1)))
        out.append(lax.dynamic_index_in_dim(stacked, i, keepdims=False))
    return out
