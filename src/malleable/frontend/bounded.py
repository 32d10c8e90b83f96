"""Lists whose length is traced: what was appended under a traced condition, or before a break.

Such a list holds one item, a `Bounded`: the items stacked in arrays, and how many there are.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
from jax import numpy as jnp

from malleable import compat
from malleable.arrays.box import Box
from malleable.arrays.masked import Masked
from malleable.errors import TransformError
from malleable.frontend.session import session
from malleable.frontend.trees import Either, Leaf, Ragged, abstract, free, join
from malleable.frontend.values import Bounded, bounded, flatten, inject, inject_list, rebuild
from malleable.notes import note


class BoundedList(NamedTuple):
    """A list as the result of a converted function: the first `length` of the items count."""

    items: Any
    length: Any


def plain(content: Bounded) -> BoundedList:
    """The result that stands for a list: its items as JAX arrays."""
    items = rebuild(content.tree.item, iter(content.arrays), "")
    arrays = jax.tree.map(
        lambda x: x.value if isinstance(x, Box) else x, items, is_leaf=lambda x: isinstance(x, Box)
    )
    return BoundedList(arrays, content.length)


def length_of(content: Bounded) -> Box:
    integer = jnp.asarray(0).dtype
    return Box(compat.convert(content.length, integer, True), True)


def position(content: Bounded, at, error: str) -> Any:
    """An index from the start of the list: out of bounds is a `raise`."""
    n, at = content.length, at.value if isinstance(at, Box) else at
    at = jnp.where(at < 0, at + n, at) if isinstance(at, jax.Array) else at + n if at < 0 else at
    fail_where(jnp.logical_or(at < 0, at >= n), IndexError(error))
    return at


def item(content: Bounded, at) -> Any:
    """content[at]."""
    at = position(content, at, "list index out of range")
    rows = [jax.lax.dynamic_index_in_dim(a, at, keepdims=False) for a in content.arrays]
    return rebuild(content.tree.item, iter(rows), "")


def put_item(xs: list, at, value) -> None:
    """xs[at] = value."""
    content = xs[0]
    at = position(content, at, "list assignment index out of range")
    tree, arrays, row = with_room(content, value, content.tree.cap)
    arrays = [a.at[at].set(x, mode="drop") for a, x in zip(arrays, row, strict=True)]
    xs[:] = [Bounded(tree, content.length, arrays)]


def fail_where(test, error: Exception) -> None:
    """A `raise` that happens where a traced test says so."""
    note(f"`{type(error).__name__}: {error}` does not happen in a compiled program", compat.where())
    raised = session().raised
    raised.write(jnp.logical_or(raised.value, test))


def append(xs: list, value) -> None:
    """xs.append(value): one longer, or, around a loop, into the room that is left."""
    content = xs[0]
    old, n = content.tree, content.length
    tree, arrays, row = with_room(content, value, old.cap + (not old.fixed))
    arrays = [a.at[n].set(x, mode="drop") for a, x in zip(arrays, row, strict=True)]
    if old.fixed:
        fail_where(n >= old.cap, IndexError("a list grew beyond its bound"))
    xs[:] = [Bounded(tree, n + 1, arrays)]


def with_room(content: Bounded, value, cap: int) -> tuple:
    """The tree that holds one more value, the arrays of that tree, and the leaves of the value."""
    leaves: list = []
    new = flatten(value, leaves)
    goal = free(join(content.tree.item, abstract(new)))
    if isinstance(goal, Either):
        raise TransformError(
            "a list whose length is traced gets items of several types",
            where=compat.where(),
            hint="give all items one type and shape",
        )
    tree = Ragged(goal, cap, content.tree.fixed)
    flat = inject_list(content.tree, iter([content.length, *content.arrays]), tree)
    return tree, flat[1:], inject(new, iter(leaves), goal)


def pop(xs: list, at=-1) -> Any:
    """xs.pop() or xs.pop(0)."""
    content = xs[0]
    out, arrays = item(content, at), content.arrays
    if at == 0:
        arrays = [jnp.roll(a, -1, 0) for a in arrays]
    elif at != -1:
        refuse(f"pop({at})")
    xs[:] = [Bounded(content.tree, content.length - 1, arrays)]
    return out


def refuse(what: str):
    raise TransformError(
        f"{what} on a list whose length is known only at run time",
        where=compat.where(),
        hint="append to it, index it, go over it, or make an array of it",
    )


def method(xs: list, name: str, args: tuple) -> Any:
    """A method of a list."""
    match name, args:
        case "append", (value,):
            return append(xs, value)
        case "extend" | "__iadd__", (values,) if bounded(values) is None:
            for value in values:
                append(xs, value)
            return xs if name == "__iadd__" else None
        case "pop", _:
            return pop(xs, *args)
        case "clear", ():
            return xs.clear()
        case "copy", ():
            return list(xs)
    return refuse(f"`{name}`")


def masked(content: Bounded) -> Masked:
    """np.array(xs): an array whose length is traced, too."""
    if not isinstance(content.tree.item, Leaf):
        refuse("np.array of the tuples or objects in it")
    (whole,) = content.arrays
    return Masked(whole, jnp.arange(content.tree.cap) < content.length, Box)


def over(content: Bounded) -> tuple[Box, Callable]:
    """How many items there are, and each."""

    def get(i):
        at = i.value if isinstance(i, Box) else i
        rows = [jax.lax.dynamic_index_in_dim(a, at, keepdims=False) for a in content.arrays]
        return rebuild(content.tree.item, iter(rows), "")

    return length_of(content), get


def room(tree: Ragged, cap: int) -> Ragged:
    """The tree of such a list around a loop in which it has at most `cap` items."""
    return replace(tree, cap=cap, fixed=True)
