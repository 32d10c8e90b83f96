"""Lists whose length is traced: what was appended under a traced condition, or before a break.

Such a list holds one item, a `Bounded`: the items stacked in arrays, and how many there are. An
array of a traced size is what a mask selects of one that has room.
"""

import enum
import functools
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import numpy as jnp

from malleable import compat
from malleable.arrays.box import Box, any_jax, any_traced, unbox
from malleable.arrays.functions import canonical
from malleable.arrays.journal import Place
from malleable.arrays.masked import Masked
from malleable.errors import TransformError
from malleable.frontend.common.session import note_line, session
from malleable.frontend.counterparts import scalars
from malleable.frontend.counterparts.sequences import in_order
from malleable.frontend.values.conditions import narrowed
from malleable.frontend.values.copies import IN_A_LIST, disown
from malleable.frontend.values.leaves import inject, inject_list
from malleable.frontend.values.raises import fail_where, raised, refuse_floats
from malleable.frontend.values.trees import (
    Either,
    Leaf,
    Node,
    Ragged,
    Static,
    Tree,
    abstract,
    free,
    is_uniform,
    join,
    join_ragged,
    same,
)
from malleable.frontend.values.values import (
    Bounded,
    Choice,
    bounded,
    flatten,
    is_number,
    rebuild,
    refuse_uncertain,
    select,
    snapshot,
    table_of,
)

OF_ONE_END = ("append", "extend", "__iadd__", "pop", "popleft", "clear")
ROOM = 1024  # items of what nobody has said the length of


class BoundedList(NamedTuple):
    """A list as the result of a converted function: the first `length` of the items count."""

    items: Any
    length: Any


def as_jax_list(content: Bounded) -> BoundedList:
    """The result that stands for a list: its items as JAX arrays, NaN for None."""
    items = rebuild(content.tree.item, iter(content.arrays), "")
    arrays = jax.tree.map(_as_jax, items, is_leaf=lambda x: isinstance(x, Box))
    return BoundedList(arrays, content.length)


def _as_jax(x) -> Any:
    """The arrays of all items, of which one has `x` in it."""
    if type(x) is not Choice:
        return x.value if isinstance(x, Box) else x
    value = unbox(x.options[x.number]) if x.number is not None else None
    if value is None or len(x.options) > 2 or not jnp.issubdtype(value.dtype, jnp.inexact):
        raise x.mixed("in a list whose length is traced, which is a result")
    there = jnp.expand_dims(x.index == x.number, range(1, value.ndim))
    return jnp.where(there, value, jnp.nan)


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
    return item_at(content, position(content, at, "list index out of range"))


def item_at(content: Bounded, at, own: bool = False) -> Any:
    """The item at a place that is there; own: it is taken out of the list."""
    rows = [jax.lax.dynamic_index_in_dim(a, at, keepdims=False) for a in content.arrays]
    found = rebuild(content.tree.item, iter(rows), "")
    if not own:
        disown(flatten(found, [], deep=True), IN_A_LIST, content.tree.item)
    return found


def put_item(xs: list, at, value) -> None:
    """xs[at] = value."""
    put_item_at(xs, position(xs[0], at, "list assignment index out of range"), value)


def put_item_at(xs: list, at, value) -> None:
    """The same at a place that is there."""
    content = xs[0]
    tree, arrays, row = with_room(content, value, content.tree.cap)
    arrays = [a.at[at].set(x, mode="drop") for a, x in zip(arrays, row, strict=True)]
    Place("list", xs).write([Bounded(tree, content.length, arrays)])


def append(xs: list, value) -> None:
    """xs.append(value): one longer, or, around a loop, into the room that is left."""
    content, most = xs[0], getattr(xs, "maxlen", None)
    if most is not None:  # the first item makes room for it
        full = content.length == most
        content = taken(content, jnp.arange(content.tree.cap) + full, content.length - full)
    old, n = content.tree, content.length
    tree, arrays, row = with_room(content, value, old.cap + (not old.fixed and old.cap != most))
    arrays = [a.at[n].set(x, mode="drop") for a, x in zip(arrays, row, strict=True)]
    if old.fixed and not tree.sure:
        fail_where(n >= old.cap, IndexError("a list grew beyond its bound"))
    Place("list", xs).write([Bounded(tree, n + 1, arrays)])


def repeated(xs, times) -> list:
    """`xs * times` for a traced number of times: a list with a bound."""
    refuse_floats(times, text="can't multiply sequence by non-int of type '{}'")
    if type(xs) is not list or session().options.exact:
        raise TransformError(
            f"a {type(xs).__name__} is repeated a number of times that is known only at run time",
            where=compat.where(),
            hint="make it as long as it can get",
        )
    if not xs:
        return []
    most, times = bound_of("a list", jnp.maximum(unbox(times), 0))
    tree = flatten(xs * most, leaves := [])
    room = join_ragged(tree, tree)
    if room is None:
        refuse("`*` of items of several types")
    _, *arrays = inject_list(tree, iter(leaves), room)  # type: ignore[arg-type]
    return [Bounded(room, times * len(xs), arrays)]  # type: ignore[arg-type]


def bound_of(what: str, size) -> tuple:
    """How many items there are at most where a traced number says how many, and that number."""
    most = session().options.max_steps
    if most is None:
        most, why = ROOM, "one that has more is a raise; autograph(max_steps=n) makes room"
        note_line(f"{what} of a traced size has room for {most} items", compat.where(), why)
    error = ValueError(f"{what} of fewer than 0 or more than {most} items")
    fail_where((size < 0) | (size > most), error)
    return most, jnp.clip(jnp.asarray(size, np.int32), 0, most)


def array_of(name: str, args: tuple, options: dict) -> Masked | None:
    """np.name(*args), an array whose length is traced; None where that has no mask."""
    if name == "arange":
        return counted(*args, **options)
    shape, *rest = args or (options.pop("shape", None),)
    size, *others = shape if isinstance(shape, tuple | list) else (shape,)
    whole_number = any_jax(size) and not size.ndim and size.dtype.kind in "iu"
    if name not in ("zeros", "ones", "empty", "full") or not whole_number or any_jax(others):
        return None
    most, size = bound_of(f"np.{name}", size)
    make = np.zeros if name == "empty" else getattr(np, name)
    whole = make((most, *others), *rest, **options)
    return Masked(whole, jnp.arange(most) < size, Box, (name, most, size))


def counted(start, stop=None, step=1, dtype=None) -> Masked:
    """np.arange of traced bounds: from the first item on, by the step to the second."""
    start, stop = (0, start) if stop is None else (start, stop)
    whole_numbers = jnp.issubdtype(jnp.result_type(start, stop, step), np.integer)
    kind = canonical(dtype or jnp.result_type(start, stop, step, int))
    if any_jax(step):
        fail_where(step == 0, ZeroDivisionError("division by zero"))
        step = jnp.where(step == 0, 1, step)
    size = -((start - stop) // step) if whole_numbers else jnp.ceil((stop - start) / step)
    most, size = bound_of("np.arange", jnp.maximum(size, 0))
    first = jnp.asarray(start, kind)
    whole = first + (jnp.asarray(start + step, kind) - first) * jnp.arange(most, dtype=kind)
    return Masked(whole, jnp.arange(most) < size, Box, ("arange", most, size))


def with_room(content: Bounded, value, cap: int) -> tuple:
    """The tree that holds one more value, the arrays of that tree, and the leaves of the value."""
    leaves: list = []
    new = flatten(value, leaves)
    goal = free(join(content.tree.item, abstract(new)))
    if not is_uniform(goal):
        raise TransformError(
            "a list whose length is traced gets items of several types",
            where=compat.where(),
            hint="give all items one type and shape",
        )
    disown(new, IN_A_LIST, goal)
    sure = content.tree.sure and not session().open_ended
    tree = Ragged(goal, cap, content.tree.fixed, sure)
    flat = inject_list(content.tree, iter([content.length, *content.arrays]), tree)
    return tree, flat[1:], inject(new, iter(leaves), goal)


def pop(xs: list, at=-1) -> Any:
    """xs.pop(at)."""
    content = xs[0]
    fail_where(content.length == 0, IndexError("pop from empty list"))
    if type(at) is int and at in (0, -1):
        gone = at and content.length - 1
    else:
        gone = position(content, at, "pop index out of range")
    out = item_at(content, gone, own=True)
    Place("list", xs).write([shortened(content, gone)])
    return out


def shortened(content: Bounded, at) -> Bounded:
    """The items but for the one at a place that is there."""
    k = jnp.arange(content.tree.cap)
    return taken(content, k + (k >= at), content.length - 1)


def taken(content: Bounded, index, count) -> Bounded:
    """The items at these places, of which the first `count` are there."""
    index = jnp.clip(index, 0, content.tree.cap - 1)
    tree = replace(content.tree, cap=len(index))
    return Bounded(tree, jnp.asarray(count, np.int32), [a[index] for a in content.arrays])


def sliced(content: Bounded, index: slice) -> list:
    """xs[start:stop:step]."""
    cap, (first, last, step) = content.tree.cap, _bounds_of(content, index)
    count = jnp.maximum((last - first + step - (1 if step > 0 else -1)) // step, 0)
    return [taken(content, first + step * jnp.arange(cap), count)]


def part_of_list(xs: list, index: slice) -> list:
    """xs[start:stop] of a list of known length, with a traced bound."""
    content = content_of(xs)
    if content is None:
        refuse("a slice with a traced bound, of items of several types,")
    return sliced(content, index)


def content_of(xs: list) -> Bounded | None:
    """The content of a list as that of one whose length is traced; None of several types."""
    found = bounded(xs)
    if found is not None:
        return found
    tree = flatten(list(xs), leaves := [])
    items = join_ragged(tree, tree)
    if items is None:
        return None
    count, *arrays = inject_list(tree, iter(leaves), items)
    return Bounded(items, count, arrays)


def list_of_selected(x) -> Any:
    """`x[mask]` as the list of what it selects; anything else as it is."""
    if type(x) is not Masked:
        return x
    x = x.in_line()
    tree = flatten(Box(x.whole[0], x.ndim == 1), [])
    return [Bounded(Ragged(free(tree), len(x.mask)), x.mask.sum(dtype=np.int32), [x.compact()])]


def put_part(xs: list, index: slice, values) -> None:
    """xs[start:stop] = values, where a bound or the length is traced."""
    content = content_of(xs)
    if content is None or index.step not in (None, 1):
        return refuse("a slice, written to, with a step or of items of several types,")
    first, last, _ = _bounds_of(content, index)
    values = values if type(values) is list else [*values]
    rest = sliced(content, slice(jnp.maximum(first, last), None))
    new = joined(joined(sliced(content, slice(first)), values), rest)[0]
    more = bounded(values)
    cap = content.tree.cap + (len(values) if more is None else more.tree.cap)
    cap = content.tree.cap if content.tree.fixed else cap
    Place("list", xs).write([taken(new, jnp.arange(cap), new.length)])


def _bounds_of(content: Bounded, index: slice) -> tuple:
    """The first place, that behind the last, and the step of a slice."""
    n, step = content.length, 1 if index.step is None else index.step
    start, stop, step = map(unbox, (index.start, index.stop, step))
    if not isinstance(step, int) or step == 0:
        refuse("a slice with a traced step")
    low, high = (0, n) if step > 0 else (-1, n - 1)
    first, last = (low, high) if step > 0 else (high, low)
    first = first if start is None else jnp.clip(jnp.where(start < 0, start + n, start), low, high)
    last = last if stop is None else jnp.clip(jnp.where(stop < 0, stop + n, stop), low, high)
    return first, last, step


def joined(a: list, b: list) -> list:
    """a + b, where the length of one of them is traced."""
    trees, leaves = [], []
    for xs in (a, b):
        flat: list = []
        trees.append(flatten(list(xs) if isinstance(xs, tuple) else xs, flat))
        leaves.append(flat)
    if not all(isinstance(t, Ragged) or (isinstance(t, Node) and t.cls is list) for t in trees):
        refuse("`+`")
    tree = join_ragged(*trees)
    if tree is None:
        refuse("`+` of items of several types")
    tree = replace(tree, sure=tree.sure and not session().open_ended)
    one, other = (inject_list(t, iter(xs), tree) for t, xs in zip(trees, leaves, strict=True))
    sizes = [t.cap if isinstance(t, Ragged) else len(t.children) for t in trees]
    fixed = next((t.cap for t in trees if isinstance(t, Ragged) and t.fixed), None)
    k = jnp.arange(fixed or sum(sizes))
    at = jnp.where(k < one[0], k, tree.cap + k - one[0])
    arrays = [jnp.concatenate(pair)[at] for pair in zip(one[1:], other[1:], strict=True)]
    if fixed and not tree.sure:
        fail_where(one[0] + other[0] > fixed, IndexError("a list grew beyond its bound"))
    return [Bounded(replace(tree, cap=len(k)), one[0] + other[0], arrays)]


def hits(content: Bounded, x):
    """For each place in the list whether an item that is equal to x is there."""
    there = jnp.arange(content.tree.cap) < content.length
    return there & jnp.asarray(_equal(content.tree.item, iter(content.arrays), x))


def _equal(tree: Tree, columns: Iterator, x) -> Any:
    """Which of the stacked values of a tree are equal to x."""
    if isinstance(tree, Static):
        return same(tree.value, x)
    if isinstance(tree, Node) and issubclass(tree.cls, tuple):
        alike = isinstance(x, tuple) and len(x) == len(tree.children)
        parts = x if alike else [None] * len(tree.children)
        tests = [_equal(t, columns, part) for t, part in zip(tree.children, parts, strict=True)]
        return functools.reduce(jnp.logical_and, tests, alike)
    if isinstance(tree, Either):
        index = next(columns)
        tests = [(index == k) & _equal(t, columns, x) for k, t in enumerate(tree.options)]
        return functools.reduce(jnp.logical_or, tests)
    if not isinstance(tree, Leaf) or tree.shape:
        refuse("a search among arrays or objects")
    whole = next(columns)
    x = int(x) if isinstance(x, enum.IntEnum) else x
    return whole == (x.value if isinstance(x, Box) else x) if is_number(x) else False


def equal(a, b):
    """a == b for two lists, of which the length of one is traced."""
    if not (isinstance(a, list) and isinstance(b, list)):
        return False
    one, other = (masked(xs[0]) if bounded(xs) is not None else xs for xs in (a, b))
    if not isinstance(one, Masked):
        one, other = other, one
    n, cap = one.mask.sum(), one.mask.shape[0]
    if isinstance(other, Masked):
        size, xs = other.mask.sum(), other.whole
    elif all(map(is_number, other)):
        size, xs = len(other), [x.value if isinstance(x, Box) else x for x in other]
        xs = jnp.stack(list(map(jnp.asarray, xs))) if xs else jnp.zeros(0)
    else:
        return refuse("`==`")
    both = min(cap, len(xs))
    same = (one.whole[:both] == xs[:both]) | (jnp.arange(both) >= n)
    return Box((n == size) & same.all(), True)


def ordered(content: Bounded, reverse: bool = False) -> list:
    """sorted(xs)."""
    if not isinstance(content.tree.item, Leaf) or content.tree.item.shape:
        refuse("sorting the tuples or objects")
    (whole,), cap = content.arrays, content.tree.cap
    last = -jnp.inf if reverse else jnp.inf
    if not jnp.issubdtype(whole.dtype, jnp.inexact):
        limits = jnp.iinfo(whole.dtype) if whole.dtype != bool else None
        last = reverse is False if limits is None else limits.min if reverse else limits.max
    filled = jnp.where(jnp.arange(cap) < content.length, whole, jnp.asarray(last, whole.dtype))
    return [Bounded(content.tree, content.length, [in_order(filled, reverse)])]


class Unlisted:
    """Such a list in a comprehension; code of Python's, which would find one item, is refused."""

    def __init__(self, xs: list):
        self.xs = xs

    def __iter__(self):
        refuse("a generator, or a function of Python's that asks for items,")


def refuse(what: str):
    raise TransformError(
        f"{what} on a list whose length is known only at run time",
        where=compat.where(),
        hint="append to it, index it, go over it, or make an array of it",
    )


def unpacked(xs: Any, before: int, after: int) -> Any:
    """What `a, b = xs` goes over: that many items, or with `a, *b, c` that many around the rest.

    after: how many targets come after the star; -1 where there is none.
    """
    if type(xs) in (list, tuple) and bounded(xs) is None:
        return xs
    least = before + max(after, 0)
    few = "not enough values to unpack (expected {}{})".format("at least " * (after >= 0), least)
    many = f"too many values to unpack (expected {least})"
    if type(xs) is Choice:
        xs = _unpacked_one_of(xs, before, after, few, many)
    table = table_of(xs)
    content = bounded(xs if table is None else table.keys)
    if content is None:
        return xs
    n = content.length
    if content.tree.cap < least:
        raise ValueError(few)
    fail_where(n < least, ValueError(few))
    items = [item_at(content, k) for k in range(before)]
    if after < 0:
        fail_where(n > least, ValueError(many))
        return items
    rest = sliced(content, slice(before, n - after))
    return [*items, *rest, *(item_at(content, n - k) for k in range(after, 0, -1))]


def _unpacked_one_of(xs: Choice, before: int, after: int, few: str, many: str) -> Any:
    """The same of one of several, each of which may be a `raise`: column by column."""
    held: list = [_items_of(x) for x in xs.options]
    for k, items in enumerate(held):
        more = len(items) - before - max(after, 0) if type(items) is list else 0
        if more < 0 or (more and after < 0):
            held[k] = ValueError(few if more < 0 else many)
        if isinstance(held[k], Exception):
            fail_where(jnp.asarray(xs.index) == k, held[k])
    fits = [not isinstance(items, Exception) for items in held]
    if not any(fits):
        raise raised(held[0])
    one = narrowed(xs, fits)
    if type(one) is not Choice:
        return one
    if None in held:
        if all(isinstance(x, list | tuple) for x in one.options):
            return snapshot(one)
        raise one.mixed("unpacked")
    held = [items for items in held if type(items) is list]
    column = lambda at: select(one.index, [x[at] for x in held], xs.where)  # noqa: E731
    sizes = {*map(len, held)}
    if len(sizes) == 1:
        return list(map(column, range(*sizes)))
    rest = Choice(one.index, [x[before : len(x) - after] for x in held], xs.where)
    return [*map(column, range(before)), *snapshot(rest), *map(column, range(-after, 0))]


def _items_of(x: Any) -> list | Exception | None:
    """What `a, b = x` goes over; None where a value or code of the user's says what that is."""
    kind, goes = type(x), getattr(type(x), "__iter__", None)
    if not (goes or hasattr(kind, "__getitem__")) or (is_number(x) and not np.ndim(unbox(x))):
        return TypeError(f"cannot unpack non-iterable {x.__class__.__name__} object")
    if isinstance(x, dict | set):
        refuse_uncertain(x)
    plain = type(goes) is types.WrapperDescriptorType and not hasattr(kind, "__next__")
    return list(x) if (plain or goes is Box.__iter__) and bounded(x) is None else None


def spread_items(xs: Any) -> Any:
    """What `*xs` or `**xs` goes over."""
    if isinstance(xs, dict | set):
        refuse_uncertain(xs)
    return refuse("`*`") if bounded(xs) is not None else xs


def method(xs: list, name: str, args: tuple) -> Any:
    """A method of a list or deque."""
    content = xs[0]
    if getattr(xs, "maxlen", None) is not None and name not in OF_ONE_END:
        raise TransformError(
            f"`{name}` of a deque with maxlen, whose length is known only at run time",
            where=compat.where(),
            hint="fill it before: deque([0.0] * n, maxlen=n)",
        )
    match name, args:
        case "append", (value,):
            return append(xs, value)
        case "appendleft", (value,):
            return method(xs, "insert", (0, value))
        case "extend" | "__iadd__" | "extendleft", (values,):
            for value in values:
                method(xs, "appendleft" if name == "extendleft" else "append", (value,))
            return xs if name == "__iadd__" else None
        case "pop" | "popleft", _:
            return pop(xs, *(args if name == "pop" else (0,)))
        case "insert", (at, value):
            rest = sliced(content, slice(at, None))
            Place("list", xs).write(joined(joined(sliced(content, slice(at)), [value]), rest))
            return None
        case "reverse", ():
            Place("list", xs).write(sliced(content, slice(None, None, -1)))
            return None
        case "clear", ():
            return xs.clear()
        case "copy", ():
            return type(xs)(xs)
        case "count", (x,):
            return scalars.python_scalar(hits(content, x).sum(), int)
        case "index" | "remove", (x,):
            found = hits(content, x)
            words = "list.remove(x): x not in list" if name == "remove" else f"{x!r} is not in list"
            fail_where(~found.any(), ValueError(words))
            if name == "index":
                return scalars.python_scalar(jnp.argmax(found), int)
            Place("list", xs).write([shortened(content, jnp.argmax(found))])
            return None
    return refuse(f"`{name}`")


def masked(content: Bounded, rows: bool = False) -> Masked:
    """np.array(xs): an array whose length is traced, too; rows: also of lists and tuples."""
    if not (rows or isinstance(content.tree.item, Leaf)):
        refuse("this function of the tuples or objects in it")
    whole = as_rows(content.tree.item, iter(content.arrays), content.tree.cap)
    return Masked(whole, jnp.arange(content.tree.cap) < content.length, Box)


def as_rows(tree: Tree, leaves: Iterator, size: int):
    """The items of a list as rows of one array, as NumPy reads arrays, and lists of numbers."""
    if isinstance(tree, Leaf):
        return next(leaves)
    if isinstance(tree, Static) and not any_traced(tree.value):
        row = np.asarray(tree.value)
        if row.dtype.kind in "biufc":
            return jnp.broadcast_to(row, (size, *row.shape))
    index = next(leaves) if isinstance(tree, Either) else None
    if index is None and getattr(tree, "cls", None) not in (list, tuple):
        refuse("np.array of the objects in it")
    inside = tree.children if index is None else tree.options
    parts = [as_rows(part, leaves, size) for part in inside]
    if len({part.shape for part in parts}) != 1:
        refuse("np.array of the lists or arrays of several lengths in it")
    if index is None:
        return jnp.stack(parts, 1)
    which = index.reshape(-1, *[1] * (parts[0].ndim - 1))
    return jnp.select([which == k for k in range(len(parts))], parts)


def over(content: Bounded, xs: list | None = None) -> tuple[Box, Callable]:
    """How many items there are, and each; xs: the list that holds them, as it is then."""

    def get(i):
        now = bounded(xs)
        return item_at(content if now is None else now, i.value if isinstance(i, Box) else i)

    return length_of(content), get


def room(tree: Ragged, cap: int) -> Ragged:
    """The tree of such a list around a loop in which it has at most `cap` items."""
    return replace(tree, cap=cap, fixed=True)
