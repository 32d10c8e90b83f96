"""Python values as trees of arrays: what may differ between two paths, and what must not.

A value is split into a tree and its leaves, the arrays in it. Two trees join into one that holds
either value; what differs and is no number becomes a `Choice`, which fails only where it is used.
"""

import enum
import functools
import types
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.experimental.checkify
import numpy as np
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.arrays import functions, journal
from malleable.arrays.box import Box, Masked, unbox
from malleable.arrays.joined import Joined, linked
from malleable.arrays.journal import ABSENT
from malleable.errors import TransformError
from malleable.frontend.common.session import drop_raise, session
from malleable.frontend.values.copies import Copied, copies_of, keep, why_refused
from malleable.frontend.values.keys import KEY, ORDER, Bounded, bounded, table_of
from malleable.frontend.values.leaves import inject
from malleable.frontend.values.picked import Picked, entry, one_of, refuse_mixed
from malleable.frontend.values.references import AllKnown
from malleable.frontend.values.trees import (
    DICTS,
    IMMUTABLE,
    PLAIN,
    UNSET,
    Both,
    Either,
    Leaf,
    Made,
    Node,
    Ragged,
    Selected,
    Static,
    Tree,
    count_leaves,
    free,
    is_number,
    join,
    leaf_of,
    note_types,
    raw,
    same,
    spell,
)


class CannotStage(Exception):
    """This loop has no compiled form; `why` says what stands in the way."""

    def __init__(self, why: str):
        self.why = why
        super().__init__(why)


class Choice(Box):
    """One of several values, known only at run time: good for `is`, `==`, and as its one number.

    Other uses apply to each value for which Python allows them.
    """

    __slots__ = ("index", "name", "number", "options", "where")

    def __init__(self, index, options: list, where: str):
        self.index, self.options, self.where, self.name = index, options, where, ""
        self._base = self._index = None
        self.immutable = False
        numbers = [i for i, x in enumerate(options) if is_number(x)]
        rest = [x for x in options if x is not None and x is not ABSENT and not is_number(x)]
        self.number = numbers[0] if len(numbers) == 1 and not rest else None
        self.scalar = True
        if self.number is not None:
            one = options[self.number]
            self.scalar = one.scalar if isinstance(one, Box) else np.ndim(one) == 0
            if not (self.scalar or isinstance(one, Box)):
                one = options[self.number] = Box(one)
            self.immutable = isinstance(one, Box) and one.immutable

    @property
    def _value(self):
        return self.value

    def write(self, new):
        if self.number is None:
            raise self.mixed("written to as one array")
        option = self.options[self.number]
        here = jnp.asarray(self.index) == self.number
        option.write(jnp.where(here, jnp.asarray(new, option.dtype), option.value))

    @property
    def value(self):
        """The one number among the options: whoever uses it has made sure that it is there."""
        if self.number is None:
            if all(isinstance(x, int) for x in self.options):  # members of an IntEnum
                number = entry(list(map(int, self.options)), self.index)
                return compat.convert(number, number.dtype, True)
            if not all(isinstance(x, list | tuple) for x in self.options):
                raise self.mixed("used as one value")
            return functions.nested_array(unbox(snapshot(self)))
        if session().options.checked:
            kinds = " or ".join(map(spell, self.options))
            text = f"`{self.name or 'a value'}` is {kinds}, by {self.where}, and used as a number"
            there = jnp.asarray(self.index) == self.number
            jax.experimental.checkify.check(there, f"{text} at {compat.where()}")
        return compat.as_array(raw(self.options[self.number]))

    def mixed(self, what: str) -> TransformError:
        kinds = " or ".join(dict.fromkeys(map(spell, self.options)))
        name = f"`{self.name}`" if self.name else "this value"
        name = "the result" if self.name.startswith("_ag_") else name
        return TransformError(
            f"{name} is {kinds}, depending on a traced condition, and {what}",
            where=compat.where() or self.where,
            hint=f"give it one type and shape on every path{self.where and f' (see {self.where})'}",
        )

    @property
    def __class__(self):
        if self.number is not None:
            return Box.__class__.fget(self)
        kinds = {type(x) for x in self.options}
        if len(kinds) == 1 and Box not in kinds:
            return kinds.pop()
        raise self.mixed("asked for its type")

    traced = True

    def __eq__(self, other):
        return self.each(lambda x: x == other)

    def __ne__(self, other):
        return self.each(lambda x: x != other)

    __hash__ = Box.__hash__

    def __getitem__(self, index):
        if self.number is not None:
            return Box.__getitem__(self, index)
        return self.each(lambda x: x[index])

    def __len__(self):
        if self.number is not None:
            return Box.__len__(self)
        sizes = set(map(len, self.options))
        if len(sizes) == 1:
            return sizes.pop()
        raise self.mixed("asked for its length")

    def __iter__(self):
        if self.number is not None:
            return Box.__iter__(self)
        found = walked(self)
        if bounded(found) is not None:
            raise self.mixed("gone over by Python, which needs its length")
        return iter(found)

    def __str__(self):
        return f"<one of [{', '.join(map(str, self.options))}]>"

    __repr__ = __str__

    def __format__(self, spec):
        return str(self)

    def each(self, fun: Callable) -> Any:
        """fun of each option, put together again; one for which Python has none is a `raise`."""
        outs, failed = [], {}
        for k, option in enumerate(self.options):
            try:
                outs.append(fun(option))
            except (AttributeError, TypeError, IndexError, KeyError) as e:
                if isinstance(e, jax.errors.JAXTypeError | jax.errors.JAXIndexError):
                    raise
                outs.append(UNSET)
                failed[k] = e
        if len(failed) == len(outs):
            raise failed[0]
        raised = session().raised
        for k, error in failed.items():
            drop_raise(error.with_traceback(None), compat.where() or self.where)
            raised.write(jnp.logical_or(raised.value, jnp.asarray(self.index) == k))
        return select(self.index, outs, self.where)


def is_thing(x) -> bool:
    """Whether this is a choice among things that are no numbers: text, None, tuples, objects."""
    return type(x) is Choice and x.number is None and not any(map(is_number, x.options))


class Stale(Box):
    """An item of a list that grows in the loop being traced: its place holds another next time."""

    __slots__ = ()

    def __init__(self):
        super().__init__(np.nan)
        self._value = None

    @property
    def value(self):
        raise CannotStage("a list is read that grows in every step, other than at its end")

    traced = True

    def __bool__(self):
        return bool(self.value)


STALE = Stale()


def lacks(value) -> bool:
    """Whether this is a choice between a value and none: a key or attribute of one path."""
    return type(value) is Choice and any(x is ABSENT for x in value.options)


def refuse_uncertain(d, order: bool = True) -> None:
    """A dict is asked which keys it has, or in what order: that may hang on a traced value."""
    if table_of(d) is not None:
        raise TransformError(
            f"this {type(d).__name__} has traced keys, so this cannot be asked of it",
            where=compat.where(),
            hint="look a key up, ask `in` and len(), or go over it",
        )
    gone = next((k for k, x in d.items() if lacks(x)), None) if type(d) in DICTS else None
    held = session().uncertain.get(id(d)) if gone is None else (d, gone, d[gone].where)
    if (
        held is None
        or held[0] is not d
        or (type(d) in DICTS and held[1] is not ORDER and gone is None)
    ):
        return
    _, key, where = held
    if key is not ORDER:
        what = f"has the key {key!r} on one path only, by {where}"
        hint = "give the key a value on both paths, say None or nan"
    elif order:
        what = f"has its keys in another order on each path, by {where}"
        hint = "fill it in one order on both paths, or go over sorted(d)"
    else:
        return
    raise TransformError(f"this dict {what}", where=compat.where(), hint=hint)


# ---------------------------------------------------------------- value -> tree and leaves


def flatten(value, leaves: list, seen: dict | None = None, deep: bool = False) -> Tree:
    """The tree of a value; its arrays are appended to `leaves`.

    deep: look into every object, not only into those that were made in the block being traced.
    seen: by id, what the value is in.
    """
    seen = {} if seen is None else seen
    kind = type(value)
    if kind in PLAIN:
        return Static(value)
    if kind is Choice:
        leaves.append(value.index)
        return Either(tuple(flatten(x, leaves, seen, deep) for x in value.options))
    if kind is Stale:
        return Static(value)
    if issubclass(kind, Box):
        content = raw(value)
        leaves.append(content)
        tree = leaf_of(content, value.scalar, value, value.immutable)
        links = value.conditions() if kind is Joined or kind is Picked else []
        links += [] if isinstance(value.immutable, bool) else [(IMMUTABLE, value.immutable)]
        leaves += [condition for _, condition in links]
        return replace(tree, links=tuple(Static(thing) for thing, _ in links)) if links else tree
    if kind is Masked:
        parts = (value.held, Box(value.mask, False))
        return Node(Selected, None, tuple(flatten(x, leaves, seen, deep) for x in parts), value)
    if isinstance(value, jax.Array):
        leaves.append(value)
        known = not isinstance(value, compat.Tracer)  # a tracer is what a box holds
        return leaf_of(value, value.ndim == 0, value, known)
    if isinstance(value, type) or id(value) in seen:
        return Static(value)
    if kind is list and bounded(value) is not None:
        (content,) = value
        leaves += [content.length, *content.arrays]
        return replace(content.tree, origin=value)
    if isinstance(value, list | tuple):
        keys, inside = None, list(value)
    elif isinstance(value, dict):
        keys, inside = tuple(value), list(value.values())
    elif table_of(value) is not None:
        keys, inside = (KEY,), [table_of(value)]
    elif is_object(value) and (deep or is_new(value)):
        keys, inside = tuple(vars(value)), list(vars(value).values())
    else:
        return Static(value)
    seen[id(value)] = value
    children = tuple(flatten(x, leaves, seen, deep) for x in inside)
    del seen[id(value)]
    unsure = session().uncertain.get(id(value), (value,))[1:] if issubclass(kind, dict) else ()
    return Node(kind, keys, children, value, unsure)


_OPAQUE = (type, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType)
_OPAQUE += (enum.Enum,)


def is_object(value) -> bool:
    """Whether a value is an instance of a Python class, known by its attributes."""
    return (
        journal.fields(value, ABSENT) is not ABSENT
        and not isinstance(value, _OPAQUE)
        and not isinstance(value, np.ndarray | BaseException)
        and type(value).__module__.partition(".")[0] not in ("jax", "jaxlib", "builtins")
    )


def is_new(value) -> bool:
    """Whether an object stands for what it holds: it has values of the block, or is remade."""
    book, make = journal.current(), type(value).__new__
    if book is not None and book.repeats and id(value) in book.new:
        hides = hasattr(type(value), "__next__")  # as one in C does: a state that nobody sees
        if not hides and (make is object.__new__ or isinstance(make, types.FunctionType)):
            return True
    return holds_new(value, {}) and not was_there(value)


def was_there(value) -> bool:
    """Whether an object is older than the block being traced, which gave it what is new in it."""
    book = journal.current()
    if book is None or book.base:
        return False
    new = [("attr", id(value), name) for name, x in vars(value).items() if holds_new(x, {})]
    before = [book.before.get(key, ABSENT) for key in new]
    return not any(x is ABSENT or holds_new(x, {}) for x in before)


def holds_new(value, seen: dict) -> bool:
    """Whether an object reaches an array that exists only in the block being traced."""
    kind = type(value)  # a box says that it is of another
    if kind is Bounded:
        return any(map(compat.is_inner, (value.length, *value.arrays)))
    if kind is Choice:
        return compat.is_inner(value.index) or any(holds_new(x, seen) for x in value.options)
    if kind is Picked:
        return compat.is_inner(value.index) or any(holds_new(x, seen) for x in value.items)
    if issubclass(kind, Box):
        if compat.is_inner(value.immutable):
            return True
        while value._base is not None:
            if any(map(compat.is_inner, value._index.traced)):
                return True
            value = value._base
        if type(value) is Picked:
            return holds_new(value, seen)
        if type(value) is Joined and any(compat.is_inner(test) for _, test in value.links):
            return True
        return type(value) is not Stale and (compat.is_inner(value._value) or journal.is_new(value))
    if kind is Masked:
        return compat.is_inner(value.mask) or holds_new(value.held, seen)
    if isinstance(value, jax.Array):
        return compat.is_inner(value)
    if id(value) in seen or kind in PLAIN:
        return False
    seen[id(value)] = value
    if isinstance(value, list | tuple | set):
        return any(holds_new(x, seen) for x in value)
    if isinstance(value, dict):
        return any(holds_new(x, seen) for x in value.values())
    return is_object(value) and any(holds_new(x, seen) for x in vars(value).values())


# ---------------------------------------------------------------- a value as one of a wider tree


def rebuild(tree: Tree, leaves: Iterator, where: str, pred=None, made: dict | None = None) -> Any:
    """A value of the tree with these leaves.

    pred: where the first of the two holds that the tree joins: an array stays linked to both.
    made: what was made of the same two before is that very thing.
    """
    if isinstance(tree, Static):
        return tree.value
    if isinstance(tree, Either):
        index = next(leaves)
        options = [rebuild(option, leaves, where, pred, made) for option in tree.options]
        return select(index, options, where)
    origin = tree.origin if made is not None and isinstance(tree.origin, Both) else None
    key = None if origin is None else (id(origin.one), id(origin.other))
    if isinstance(tree, Leaf):
        new = Box(next(leaves), tree.scalar)
        mine = [(link.value, next(leaves), True) for link in tree.links]
        mine = [link for link in mine if link[1] is not False]
        new.immutable = tree.immutable or next(
            (test for x, test, _ in mine if x is IMMUTABLE), False
        )
        if tree.scalar:
            return new
        if key is not None and pred is not None:
            mine = [(origin.one, pred, True), (origin.other, pred, False), *mine]
        if key in (made or ()):
            return made[key]
        new = with_partners(new, mine, {} if made is None else made)
        if key is None:
            return new
    elif isinstance(tree, Ragged):
        length, *arrays = (next(leaves) for _ in range(count_leaves(tree)))
        new = [Bounded(replace(tree, origin=None), length, arrays)]
    else:
        new = assembled(tree, [rebuild(t, leaves, where, pred, made) for t in tree.children])
        if tree.unsure:
            session().uncertain[id(new)] = new, *tree.unsure
    if key is not None and key not in made and not isinstance(tree, Leaf):
        keep(Copied(new, why) for why in map(why_refused, origin) if why)
    return new if key is None else made.setdefault(key, new)


def with_partners(box: Box, mine: list, made: dict) -> Box:
    """An array, linked to what it may be: arrays from before, and others that a block made.

    mine: (a box or what stands for it, condition, whether the condition is to hold); made: also by
    id of a stand-in, what is linked to that. Of a part of another there is a copy: see `Copied`.
    """
    links = [link for link in mine if isinstance(link[0], Box)]
    new = [link for link in mine if isinstance(link[0], Made)]
    for token, condition, holds in new:
        for other, test, so in made.get(id(token), ()):
            if test is condition and so is holds:
                links.append((other, test, so))
            else:
                tests = (
                    x if y else jnp.logical_not(x) for x, y in ((condition, holds), (test, so))
                )
                links.append((other, jnp.logical_and(*tests), True))
    box = linked(box, links)
    for token, condition, holds in new:
        made.setdefault(id(token), []).append((box, condition, holds))
        keep(copies_of(box, token, made))
    return box


def assembled(tree: Node, children: list) -> Any:
    """A list, tuple, dict or object of these."""
    if tree.keys is None:
        if tree.cls in (list, tuple):
            return tree.cls(children)
        return tree.cls(*children) if hasattr(tree.cls, "_fields") else tree.cls(children)
    fields = {k: x for k, x in zip(tree.keys, children, strict=True) if x is not ABSENT}
    if tree.cls is set:
        return set(fields.values())
    if issubclass(tree.cls, dict):
        if tree.cls is dict:
            return fields
        if tree.cls is defaultdict:
            raise TransformError(
                "a defaultdict is made in a loop or branch",
                hint="make it before",
                where=compat.where(),
            )
        new = tree.cls.__new__(tree.cls)
        dict.update(new, fields)
        return new
    makers = (vars(kind).get("__new__") for kind in tree.cls.__mro__)  # not that of the user's
    new = next(f for f in makers if isinstance(f, types.BuiltinFunctionType))(tree.cls)
    vars(new).update(fields)
    for book in journal.all_open()[-1:]:
        book.new.add(id(new))
    return new


def select(index, values: list, where: str) -> Any:
    """What a traced index chooses among several values: a number, or one of these very things.

    Arrays of one shape become one that shows the chosen one, so that writes reach it.
    """
    index, values = distinct(index, values)
    if len(values) < 2:
        return values[0] if values else UNSET
    numbers = [k for k, x in enumerate(values) if is_number(x)]
    refuse_mixed([values[k] for k in numbers])
    if len(numbers) == len(values):
        if is_one_array(values):
            return Picked(index, values)
    elif len({type(x) for x in values}) == 1 and isinstance(values[0], tuple):
        if len({len(x) for x in values}) == 1:
            columns = [select(index, list(column), where) for column in zip(*values, strict=True)]
            kind = type(values[0])
            return kind(*columns) if hasattr(kind, "_fields") else kind(columns)
    elif len(numbers) < 2:
        return Choice(index, values, where)
    elif is_one_array([values[k] for k in numbers]):
        place = Picked(index, [x if is_number(x) else values[numbers[0]] for x in values])
        rest = [x for x in values if not is_number(x)]
        later = iter(range(1, len(values)))
        order = [0 if is_number(x) else next(later) for x in values]
        return Choice(entry(order, index), [place, *rest], where)
    parts = []
    for value in values:
        leaves: list = []
        parts.append(AllKnown().named(flatten(value, leaves), leaves))
    target = parts[0][0]
    for tree, _ in parts[1:]:
        target = free(join(target, tree))
    columns = [inject(tree, iter(leaves), target) for tree, leaves in parts]
    outs = [
        lax.select_n(jnp.asarray(index, np.int32), *column) for column in zip(*columns, strict=True)
    ]
    if isinstance(target, Either):
        rest = iter(outs[1:])
        return Choice(outs[0], [rebuild(o, rest, where) for o in target.options], where)
    if isinstance(target, Leaf) and target.scalar:
        note_types(values, target.dtype)
    elif isinstance(target, Leaf) and not target.immutable:
        return one_of(outs[0], values, lambda k: jnp.asarray(index) == k)
    return rebuild(target, iter(outs), where)


def is_one_array(values: list) -> bool:
    """Whether these are arrays of one shape, each with a name."""
    arrays = all(isinstance(x, Box) and not x.scalar and type(x) is not Choice for x in values)
    return arrays and len({x.shape for x in values}) == 1


def distinct(index, values: list) -> tuple[Any, list]:
    """The index and the values, each once; a choice among them as its options."""
    found: list = []
    numbers = []

    def number_of(value) -> int:
        if value is UNSET:
            return 0  # nobody reads it
        for k, other in enumerate(found):
            if other is value or (not is_number(value) and same(other, value)):
                return k
        found.append(value)
        return len(found) - 1

    for value in values:
        if isinstance(value, Choice):
            inner = [number_of(option) for option in value.options]
            numbers.append(entry(inner, value.index))
        else:
            numbers.append(number_of(value))
    if all(type(n) is int for n in numbers):
        if numbers == list(range(len(values))):
            return index, found
        return entry(numbers, index), found
    columns = [jnp.asarray(n, np.int32) for n in numbers]
    return lax.select_n(jnp.asarray(index, np.int32), *columns), found


def snapshot(choice: Choice) -> Any:
    """A new container, or object, of what the chosen one holds: its items are the very things."""
    options = choice.options
    fields = [x if isinstance(x, dict) else vars(x) if is_object(x) else None for x in options]
    kinds = {type(x) for x in options}
    if len(kinds) == 1 and None not in fields and len({frozenset(x) for x in fields}) == 1:
        keys = tuple(fields[0])
        items = [select(choice.index, [x[k] for x in fields], choice.where) for k in keys]
        return assembled(Node(kinds.pop(), keys, ()), items)
    if all(isinstance(x, list | tuple) for x in options):
        sizes = {len(x) for x in options}
        if len(sizes) == 1 and all(bounded(x) is None for x in options):
            columns = zip(*options, strict=True)
            return [select(choice.index, list(column), choice.where) for column in columns]
        parts = []
        for option in options:
            leaves: list = []
            parts.append(AllKnown().named(flatten(list(option), leaves), leaves, content=True))
        target = functools.reduce(lambda a, b: free(join(a, b)), (tree for tree, _ in parts))
        if isinstance(target, Ragged):
            columns = [inject(tree, iter(leaves), target) for tree, leaves in parts]
            outs = [lax.select_n(choice.index, *xs) for xs in zip(*columns, strict=True)]
            return rebuild(target, iter(outs), choice.where)
    raise choice.mixed("used as one value")


class View:
    """The items, keys or values of what a choice has chosen, each read when its turn comes."""

    def __init__(self, choice: Choice, kind: str):
        for option in choice.options:
            refuse_uncertain(option)
        self.choice, self.kind = choice, kind
        self.size = len(choice.options[0])

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, k: int):
        options, choose = self.choice.options, functools.partial(select, self.choice.index)
        if any(bounded(o) is not None or len(o) != self.size for o in options):
            raise self.choice.mixed("it changes its length while it is gone over")
        if self.kind == "list":
            return choose([o[k] for o in options], self.choice.where)
        keys = [tuple(o)[k] for o in options]
        key = choose(keys, self.choice.where)
        if self.kind == "keys":
            return key
        value = choose([o[x] for o, x in zip(options, keys, strict=True)], self.choice.where)
        return value if self.kind == "values" else (key, value)


def walked(choice: Choice, kind: str = "keys") -> Any:
    """What to go over in place of one of several lists, or of dicts: their keys, values or items.

    Of lists of several lengths it is a copy.
    """
    kinds, sizes = ({f(x) for x in choice.options} for f in (type, len))
    held = any(bounded(x) is not None for x in choice.options)
    if held or len(sizes) > 1 or not (kinds == {dict} or kinds <= {list, tuple}):
        return snapshot(choice)
    return View(choice, kind if kinds == {dict} else "list")
