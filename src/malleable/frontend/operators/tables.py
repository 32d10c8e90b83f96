"""Dicts and sets with traced keys: a list of the keys, and one of what is under them, in order.

From its first traced key on, such a dict holds a `Table` alone, and that holds the two lists. They
grow, go around loops and are joined as any others are: see `counterparts.bounded`.
"""

import collections
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from jax import numpy as jnp

from malleable import compat
from malleable.arrays import journal
from malleable.arrays.box import Box, any_traced, unbox
from malleable.arrays.content import refused_key
from malleable.arrays.journal import Place
from malleable.errors import TransformError
from malleable.frontend.common.session import session
from malleable.frontend.counterparts import bounded as lists
from malleable.frontend.counterparts.builtins import Once, len_, pick
from malleable.frontend.operators import lookups
from malleable.frontend.operators.hidden import is_iterator
from malleable.frontend.values.conditions import if_, ifexp, only
from malleable.frontend.values.keys import KEY, KEYED, ORDER, Table, kind_of_place, table_of, tabled
from malleable.frontend.values.raises import fail_where
from malleable.frontend.values.trees import Node, Ragged
from malleable.frontend.values.values import Bounded, bounded, is_thing, lacks, refuse_uncertain
from malleable.notes import note
from malleable.python_source import iterators

_WRITES = frozenset(
    ("add", "discard", "remove", "setdefault", "pop", "update", "__setitem__", "__delitem__")
)
FEW = 64  # pairs with known keys up to which a dict is made of them one by one
_OVER_DICTS = frozenset(("update", "fromkeys", "__or__", "__ror__", "__ior__", "__eq__", "__ne__"))


class BoundedDict(NamedTuple):
    """A dict with traced keys as a result: the first `length` of the keys and values count."""

    keys: Any
    values: Any
    length: Any


def as_jax_table(x) -> Any:
    """The result that stands for a dict: its keys and values as arrays, and how many there are.

    That for a set is as for a list.
    """
    table = keyed(x)
    if type(x) is set:
        return lists.as_jax_list(_content(table.keys))
    keys, values = (_content(xs) for xs in (table.keys, table.values))
    return BoundedDict(lists.as_jax_list(keys).items, lists.as_jax_list(values).items, keys.length)


def _content(xs: list) -> Bounded:
    """What a list holds, or would, whose length is traced."""
    found = lists.content_of(xs)
    if found is None:
        raise TransformError(
            "traced keys of a dict or set, or what is under them, are of several types",
            where=compat.where(),
            hint="give all keys one type, and all that is under them one type and shape",
        )
    return found


def keyed(x) -> Table:
    """The table of a dict or set, made if it has none yet."""
    table = table_of(x)
    if table is not None:
        return table
    if type(x) not in KEYED:
        raise refused_key()
    refuse_uncertain(x)
    return tabled(x)


def put_back(returned: bool) -> None:
    """Dicts and sets that outlive the call are as they were before it; a note says so.

    returned: the call did not end in an exception, which says enough, and whose frames hold them.
    """
    for x, before, where in session().keyed:
        if table_of(x) is not None and sys.getrefcount(x) > 3:
            Place(kind_of_place(x), x).write(before)
            if returned:
                what = f"a {type(x).__name__} outlives the call in which traced keys were put in"
                note(what, where, "it is as it was before; return it, or what is to be kept")
    session().keyed.clear()


# ---------------------------------------------------------------- to look up


def find_key(table: Table, key) -> tuple:
    """(whether the key is there: a bool or a traced one, its place in the lists)"""
    key, content = lookups.hashed(key), bounded(table.keys)
    if content is not None:
        found = lists.hits(content, key)
        return found.any(), jnp.argmax(found)
    tests = [lookups.agrees(key, known) for known in table.keys]
    if all(type(test) is bool for test in tests):
        return True in tests, tests.index(True) if True in tests else 0
    found = lookups.every_hit(tests)
    return found.any(), jnp.argmax(found)


def contains_key(x, key) -> Any:
    """key in x"""
    present, _ = find_key(keyed(x), key)
    return present if type(present) is bool else Box(present, True)


def value_at(table: Table, at) -> Any:
    content = bounded(table.values)
    if content is not None:
        return lists.item_at(content, at)
    return table.values[at] if type(at) is int else pick(table.values, Box(at, True))


def look_up_key(x, key, call: Callable) -> Any:
    """x[key]; a key that is not there is made by a defaultdict, and is 0 of a Counter."""
    table = keyed(x)
    if type(x) is collections.defaultdict and x.default_factory is not None:
        return set_default(x, key, lambda: call(x.default_factory))
    if type(x) is collections.Counter:
        return get_key(x, key, 0)
    present, at = find_key(table, key)
    lookups.raise_unless(present, KeyError(repr(key)))
    return value_at(table, at)


def look_up_uncertain(x, key, there, call: Callable) -> Any:
    """x[key] of a key that one path only has; there: whether it is that path."""
    if type(x) is collections.Counter:
        return ifexp(there, lambda: only(x[key]), lambda: 0)
    if type(x) is collections.defaultdict and x.default_factory is not None:
        value = ifexp(there, lambda: only(x[key]), lambda: call(x.default_factory))
        note_order(x, key)
        journal.touch_dict(x)
        x[key] = value
        return value
    lookups.raise_unless(there, KeyError(key))
    return only(x[key])


def ask_uncertain(x, name: str, key, *default) -> Any:
    """x.pop(key, *default) or x.setdefault(key, *default) of such a key."""
    there = lookups.presence(x, key)
    if default or name == "setdefault":
        value = lookups.get_uncertain(x, key, *default)
    else:
        value = look_up_uncertain({key: x[key]}, key, there, lookups.raise_here)
    note_order(x, key)
    journal.touch_dict(x)
    if name == "pop":
        del x[key]
    else:
        x[key] = value
    return value


def get_key(x, key, default=None) -> Any:
    """x.get(key, default)"""
    table = keyed(x)
    present, at = find_key(table, key)
    return ifexp(present, lambda: value_at(table, at), lambda: default)


# ---------------------------------------------------------------- to change


def put_traced(x, key, value) -> None:
    """x[key] = value, of a traced key: one that was looked up before is there."""
    known = table_of(x) is None and lookups.is_there(x, key)
    (lookups.put_there if known else put_key_in)(x, key, value)


def note_order(d: dict, key) -> None:
    """A key is set that one path only has: it comes in its place there, else behind all others."""
    held = d.get(key)
    if lacks(held) and next(reversed(d)) != key:
        session().uncertain[id(d)] = d, ORDER, held.where


def put_key_in(x, key, value=None) -> None:
    """x[key] = value, or x.add(key)"""
    journal.tell(x)
    table = keyed(x)
    present, at = find_key(table, key)

    def replace():
        if type(x) is not set:
            _replace_at(table.values, at, value)

    def add():
        _append_to(table.keys, key)
        _append_to(table.values, value)

    if_(present, replace, add, None, None)


def set_default(x, key, make: Callable) -> Any:
    """x.setdefault(key, make())"""
    present = contains_key(x, key)
    if_(present, lambda: None, lambda: put_key_in(x, key, make()), None, None)
    table = keyed(x)
    return value_at(table, find_key(table, key)[1])


def take_key(x, key, *default) -> Any:
    """x.pop(key, *default)"""
    if default:
        value = get_key(x, key, *default)
        discard_key(x, key)
        return value
    journal.tell(x)
    table = keyed(x)
    present, at = find_key(table, key)
    lookups.raise_unless(present, KeyError(repr(key)))
    value = value_at(table, at)
    _take_both(table, at)
    return value


def discard_key(x, key) -> None:
    """x.discard(key)"""
    journal.tell(x)
    table = keyed(x)
    present, at = find_key(table, key)
    if_(present, lambda: _take_both(table, at), None, None)


def _move_key(x, key, last: bool = True) -> None:
    """x.move_to_end(key, last)"""
    value = take_key(x, key)
    if last:
        return put_key_in(x, key, value)
    table = keyed(x)
    for xs, new in ((table.keys, key), (table.values, value)):
        journal.touch_list(xs)
        lists.put_part(xs, slice(0, 0), [new])
    return None


def _pop_item(x, last: bool = True) -> tuple:
    """x.popitem(last)"""
    table = keyed(x)
    keys = _content(table.keys)
    fail_where(keys.length == 0, KeyError("popitem(): dictionary is empty"))
    at = keys.length - 1 if last else 0
    pair = lists.item_at(keys, at, own=True), lists.item_at(_content(table.values), at, own=True)
    _take_both(table, at)
    return pair


def _append_to(xs: list, value) -> None:
    journal.touch_list(xs)
    if bounded(xs) is not None:
        return lists.append(xs, value)
    xs.append(value)
    if journal.is_undone():  # in a loop, the next step looks among what this one has added
        xs[:] = [_content(xs)]


def _replace_at(xs: list, at, value) -> None:
    journal.touch_list(xs)
    if bounded(xs) is not None:
        return lists.put_item_at(xs, at, value)
    if type(at) is not int:
        return lookups.replace_at(xs, at, value)
    xs[at] = value


def _take_both(table: Table, at) -> None:
    """Take out what is at a place that is there."""
    for xs in (table.keys, table.values):
        journal.touch_list(xs)
        if bounded(xs) is None and type(at) is int and xs:
            del xs[at]
            continue
        xs[:] = [lists.shortened(_content(xs), at)]


# ---------------------------------------------------------------- to go over


def pairs_of(table: Table) -> list:
    """x.items(): a list of tuples."""
    if bounded(table.keys) is None:
        return list(zip(table.keys, table.values, strict=True))
    return [_zipped(table)]


def _zipped(table: Table) -> Bounded:
    """The pairs as one content."""
    parts = [_content(xs) for xs in (table.keys, table.values)]
    item = Node(tuple, None, tuple(c.tree.item for c in parts))
    size = min(c.tree.cap for c in parts)
    arrays = [a[:size] for c in parts for a in c.arrays]
    return Bounded(Ragged(item, size, parts[0].tree.fixed), parts[0].length, arrays)


def most_common(x, n=None) -> list:
    """Counter.most_common(n): pairs by their counts, the first of equal ones first."""
    content = _content(keyed(x).values)
    (counts,) = content.arrays
    there = jnp.arange(content.tree.cap) < content.length
    lowest = jnp.iinfo(counts.dtype).min if counts.dtype.kind in "iu" else -jnp.inf
    order = jnp.argsort(jnp.where(there, counts, lowest), stable=True, descending=True)
    whole = _zipped(Table([_content(keyed(x).keys)], [content]))
    most = content.length if n is None else jnp.minimum(content.length, unbox(n))
    return [lists.taken(whole, order, most)]


def takes(x, name: str, args: tuple) -> bool:
    """Whether a method is one of a dict or set with traced keys, or is given the first of them."""
    if type(x) not in KEYED or any(map(is_thing, args[:1])):
        return False
    first = lookups.has_traced(args[:1]) or (name == "update" and any(map(table_of, args)))
    return table_of(x) is not None or (name in _WRITES and first)


def method_of(x, name: str, args: tuple, kwargs: dict, call: Callable) -> Any:
    """A method of a dict or set with traced keys, or of one that is given such a key."""
    table = keyed(x)
    match name, args:
        case "__getitem__", (key,):
            return look_up_key(x, key, call)
        case "__contains__", (key,):
            return contains_key(x, key)
        case "__len__", ():
            return len_(table.keys)
        case "get", (key, *default):
            return get_key(x, key, *default)
        case "setdefault", (key, *default):
            return set_default(x, key, lambda: default[0] if default else None)
        case "add" | "__setitem__", (key, *value):
            return put_key_in(x, key, *value)
        case "discard", (key,):
            return discard_key(x, key)
        case "pop", (key, *default):
            return take_key(x, key, *default)
        case "remove" | "__delitem__", (key,):
            take_key(x, key)
            return None
        case "keys" | "__iter__", ():
            return table.keys
        case "values", ():
            return table.values
        case "items", ():
            return pairs_of(table)
        case "copy", ():
            return copied(x)
        case "most_common", _:
            return most_common(x, *args, **kwargs)
        case "total", ():
            return call(sum, table.values)
        case "move_to_end", (key, *last):
            return _move_key(x, key, *last, **kwargs)
        case "popitem", _:
            return _pop_item(x, *args, **kwargs)
        case "update", (other,) if not kwargs:
            return _update_keys(x, other, call)
        case "clear", ():
            for xs in (table.keys, table.values):
                journal.touch_list(xs)
                xs.clear()
            return None
    return refuse_uncertain(x)


def combined(op: str, x, value, call: Callable) -> Any:
    """x op value, in place, where one of them has traced keys: `|=`."""
    if op != "|=" or type(x) not in KEYED or type(x) is collections.Counter:
        for one in (x, value):
            refuse_uncertain(one)
    _update_keys(x, value, call)
    return x


def _update_keys(x, other, call: Callable) -> None:
    if isinstance(other, dict):
        table = table_of(other)
        other = list(other.items()) if table is None else pairs_of(table)
        each = iterators.count_pairs if type(x) is collections.Counter else iterators.put_pairs
        return call(each, x, other)
    one = {set: iterators.add_each, collections.Counter: iterators.count_each}
    return call(one.get(type(x), iterators.put_pairs), x, other)


def copied(x) -> Any:
    """x.copy()"""
    table = keyed(x)
    new = collections.defaultdict(x.default_factory) if hasattr(x, "default_factory") else type(x)()
    copy = Table(list(table.keys), list(table.values))
    Place(kind_of_place(x), new).write({copy} if type(x) is set else {KEY: copy})
    return new


def made_of(kind: type, args: tuple, kwargs: dict, call: Callable) -> Any:
    """set(xs), Counter(xs), dict(pairs) or a defaultdict, of traced keys; None for others."""
    if kwargs or kind not in KEYED or not args:
        return None
    (source,) = args[-1:]
    if table_of(source) is not None:
        if type(source) is kind is not collections.defaultdict:
            return copied(source)
    elif isinstance(source, dict) or not (any_traced(source) or is_iterator(source)):
        return None
    new = kind(*args[:-1])
    few = type(getattr(source, "length", None)) is int and source.length <= FEW
    if few and isinstance(source, Once) and source.keyed and kind not in (set, collections.Counter):
        return kind(*args[:-1], [*source.rest()])
    if kind is set:
        call(iterators.add_each, new, source)
    else:
        _update_keys(new, source, call)
    return new


def given(owner, name: str, args: tuple) -> tuple:
    """The arguments of a method of a container, which goes over them or keeps them."""
    if name in ("extend", "extendleft", "__iadd__"):
        return tuple(x if (table := table_of(x)) is None else table.keys for x in args)
    if not isinstance(owner, list | dict | collections.deque) or name in _OVER_DICTS:
        refuse_tables(name, args)
    return args


def refuse_tables(name: str, args) -> None:
    """A function that does not know of traced keys is given a dict or set with them."""
    for x in args:
        if name.startswith("dataclasses."):  # which would find what one path only has
            refuse_uncertain(journal.fields(x), False)
        if table_of(x) is not None:
            raise TransformError(
                f"`{name}` is given a {type(x).__name__} with traced keys",
                where=compat.where(),
                hint="go over it in a `for`, or give its keys or values: list(d), list(d.values())",
            )
