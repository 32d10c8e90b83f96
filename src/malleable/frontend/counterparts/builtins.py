"""Python's builtins on traced values; with nothing traced among their arguments, themselves.

`range(n)` of a traced n is a `TracedRange`; `enumerate`, `zip`, `reversed` and `map` of arrays
are `Steps`: a length, and the item for an index that may be traced. Loops know what to do.
"""

import abc
import bisect
import builtins
import collections
import functools
import io
import itertools
import math
import operator
import statistics
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.arrays import journal
from malleable.arrays.box import Box, Masked, any_traced, is_traced, rebox, unbox
from malleable.arrays.content import PYTHON_TYPES
from malleable.arrays.numbers import (
    as_integer,
    is_python_bool,
    is_python_int,
    rounded,
    rounded_whole,
)
from malleable.arrays.rows import gathered
from malleable.arrays.text import Text
from malleable.errors import TransformError
from malleable.frontend.common.session import active, note_line, session
from malleable.frontend.counterparts import bounded, scalars, sequences
from malleable.frontend.counterparts.scalars import content, python_scalar, truth, when_traced
from malleable.frontend.counterparts.texts import outlined
from malleable.frontend.values import conditions, raises, unwinding, values
from malleable.frontend.values.picked import one_of, refuse_mixed
from malleable.frontend.values.raises import may_be_int, note_class, note_type, whole_number
from malleable.frontend.values.trees import DICTS, Leaf, note_types
from malleable.notes import note
from malleable.python_source.effects import effect_of


def _no_length(what: str):
    raise TransformError(
        f"{what} has a length that is known only at run time",
        where=compat.where(),
        hint="go over it in a `for` loop, or give it a length that is a Python number",
    )


@dataclass(frozen=True)
class TracedRange:
    """`range` of which a bound or the step is a traced integer."""

    start: Any
    stop: Any
    step: Any = 1

    @property
    def length(self) -> Box:
        """How many items, as a traced integer."""
        start, stop, step = map(unbox, (self.start, self.stop, self.step))
        up = (stop - start + step - 1) // step if is_traced(step) or step > 0 else 0
        down = (stop - start + step + 1) // step if is_traced(step) or step < 0 else 0
        count = jnp.where(step > 0, up, down) if is_traced(step) else (up if step > 0 else down)
        return Box(jnp.maximum(count, 0), True)

    @property
    def end(self) -> Box:
        """As many as there are, or a number below zero: what a loop compares its counter with."""
        if is_traced(self.step) or self.step != 1:
            return self.length
        start, stop = map(unbox, (self.start, self.stop))
        return Box(jnp.asarray(stop if not is_traced(start) and start == 0 else stop - start), True)

    def item(self, i):
        """The item at an index from 0, not checked against the length."""
        step = i if not is_traced(self.step) and self.step == 1 else i * self.step
        return step if not is_traced(self.start) and self.start == 0 else self.start + step

    def __getitem__(self, i):
        if isinstance(i, slice):
            _no_length("a range with a traced bound")
        return self.item(i + self.length if not is_traced(i) and i < 0 else i)

    def __reversed__(self) -> "TracedRange":
        last = self.item(self.length - 1)
        return TracedRange(last, self.start - self.step, -self.step)

    def __len__(self):
        _no_length("a range with a traced bound")

    __iter__ = __len__


@dataclass(frozen=True)
class Steps:
    """What a loop goes over: get(i) -> item for i in 0..length, both perhaps traced.

    arrays: the arrays of which the items are rows, where they are nothing else.
    """

    length: Any
    get: Callable
    arrays: tuple = ()
    most: int | None = field(default=None, kw_only=True)  # how many there are at most

    def __iter__(self) -> Iterator:
        if is_traced(self.length):
            _no_length("this iterable")
        return map(self.get, builtins.range(self.length))

    def __reversed__(self) -> "Steps":
        return Steps(self.length, lambda i: self.get(self.length - 1 - i), most=self.most)


@dataclass(frozen=True)
class Once(Steps):
    """Steps that are an iterator of Python's: gone over once, as `zip` and `enumerate` are."""

    taken: list = field(default_factory=lambda: [0])
    made: Any = None  # the iterator of Python's that it stands for, where that calls a function
    keyed: bool = False  # its items are pairs, the first of each known

    def rest(self) -> Steps:
        """What is left, for a loop that takes it all; how far that goes, nobody knows later."""
        (start,) = self.taken
        if start is None:
            raise TransformError(
                "an iterator over traced items is gone over a second time",
                where=compat.where(),
                hint="make a new one, by zip(), enumerate(), map() or reversed(), for each loop",
            )
        self.take(None)
        if start == 0:
            return Steps(self.length, self.get, self.arrays, most=self.most)
        return Steps(self.length - start, lambda i: self.get(i + start), most=self.most)

    def __iter__(self):
        return self

    def __next__(self):
        if is_traced(self.length):
            _no_length("this iterable")
        if self.taken[0] is None:
            self.rest()
        if self.taken[0] >= self.length:
            raise StopIteration
        self.take(self.taken[0] + 1)
        return self.get(self.taken[0] - 1)

    def take(self, count: int | None) -> None:
        journal.touch_list(self.taken)
        self.taken[0] = count


def as_steps(x) -> Steps | None:
    """The steps over something traced; None for anything else."""
    if isinstance(x, Steps):
        return x.rest() if isinstance(x, Once) else x
    if isinstance(x, TracedRange):
        return Steps(x.length, x.item)
    if values.bounded(x) is not None:
        return Steps(*bounded.over(x[0], x), most=x[0].tree.cap)
    if type(x) is Masked:
        x = x.in_line()
        at = Box(x.places())
        return Steps(x.count, lambda i: x.held[at[i]], most=x.mask.shape[0])
    if isinstance(x, Box) and is_traced(x) and x.ndim:
        return Steps(x.shape[0], x.__getitem__, (x,))
    return None


def _along(x) -> Steps | None:
    """The steps over something that stands beside a traced one in `zip` or `map`."""
    found = as_steps(x)
    if found is not None:
        return found
    if isinstance(x, builtins.range):
        return Steps(len(x), lambda i: x.start + i * x.step)
    if isinstance(x, np.ndarray | jax.Array | Box) and np.ndim(unbox(x)):
        box = x if isinstance(x, Box) else Box(x)
        return Steps(len(x), box.__getitem__, (box,))
    if isinstance(x, list | tuple) and _alike(x):
        return Steps(len(x), lambda i: pick(x, i) if is_traced(i) else x[i])
    return None


def _alike(xs) -> bool:
    """Whether these are numbers, or arrays of one shape."""
    numbers = all(values.is_number(x) and not values.is_thing(x) for x in xs)
    return numbers and len({np.shape(unbox(x)) for x in xs}) <= 1


def pick(xs, i):
    """xs[i] of a list or tuple, for a traced i; beyond the ends the first or last item."""
    if len(xs) == 0:
        error = IndexError("list index out of range")
        error.__malleable_raised__ = True  # in a branch that is not taken, as one that raises
        raise error
    if is_python_bool(unbox(i)) or conditions.is_of_batch(i):
        i = python_scalar(unbox(i), int)
    raises.refuse_floats(i, text="list indices must be integers or slices, not {}")
    refuse_mixed([x for x in xs if not values.is_thing(x) and values.is_number(x)], known=True)
    at = content(i)
    at = jnp.clip(jnp.where(at < 0, at + len(xs), at), 0, len(xs) - 1)
    chosen = any(type(x) is values.Choice for x in xs)
    places = all(isinstance(x, Box) and not x.scalar for x in xs)
    if not chosen and _alike(xs) and not places:
        rows = jnp.stack([jnp.asarray(unbox(x)) for x in xs])
        row = lax.dynamic_index_in_dim(rows, at, keepdims=False, allow_negative_indices=False)
        return one_of(row, list(xs), lambda k: at == k)
    return values.select(at, list(xs), compat.where())


def if_else(pred, yes, no):
    """`yes if pred else no` for a traced pred and two values that are at hand."""
    choices = any(type(x) is values.Choice for x in (yes, no))
    if values.is_number(yes) and values.is_number(no) and not choices:
        refuse_mixed([yes, no])
        one, other = unbox(yes), unbox(no)
        arrays = isinstance(one, jax.Array) and isinstance(other, jax.Array)
        alike = arrays and jax.typeof(one) == jax.typeof(other)
        new = (lax.select if alike else jnp.where)(pred, one, other)
        return one_of(new, [no, yes], lambda k: pred if k else jnp.logical_not(pred))
    return values.select(pred.astype(np.int32), [no, yes], compat.where())


# ---------------------------------------------------------------- iteration


def range_(*args):
    if not any(map(is_traced, args)):
        return builtins.range(*args)
    if len(args) > 3:
        raise TypeError(f"range expected at most 3 arguments, got {len(args)}")
    start, stop, step = {1: (0, *args, 1), 2: (*args, 1), 3: args}[len(args)]
    raises.refuse_floats(*args)
    if not is_traced(step) and step == 0:
        raise ValueError("range() arg 3 must not be zero")
    return TracedRange(start, stop, step)


def len_(x):
    """Traced for a list that grew under a traced condition."""
    if values.bounded(x) is not None:
        return bounded.length_of(x[0])
    if values.is_thing(x):
        return x.each(len_)
    table = values.table_of(x)
    if table is not None:
        return len_(table.keys)
    if type(x) is Masked:
        return Box(compat.convert(x.count.value, jnp.asarray(0).dtype, True), True)
    if type(x) in DICTS:
        some = [v for v in x.values() if values.lacks(v)]
        count = builtins.len(x) - builtins.len(some)
        for v in some:
            hits = jnp.asarray([o is not journal.ABSENT for o in v.options])
            count = count + python_scalar(hits[v.index], int)
        return count
    if isinstance(x, dict):
        values.refuse_uncertain(x, False)
    if type(x) in (list, collections.deque) and x and x[0] is values.STALE:
        raise values.CannotStage("the length of a list is asked for that grows in every step")
    return builtins.len(x)


def enumerate_(iterable, start=0):
    steps = as_steps(iterable)
    if steps is None:
        return builtins.enumerate(iterable, start)
    get, keyed = lambda i: (start + i, steps.get(i)), not is_traced(start)
    return Once(steps.length, get, steps.arrays, most=steps.most, keyed=keyed)


def _together(iterables) -> list[Steps] | None:
    if not any(isinstance(x, Steps) or as_steps(x) is not None for x in iterables):
        return None
    parts = [_along(x) for x in iterables]
    return None if any(p is None for p in parts) else parts  # type: ignore[return-value]


def _shortest(parts: list[Steps]):
    static = [p.length for p in parts if not is_traced(p.length)]
    traced = [unbox(p.length) for p in parts if is_traced(p.length)]
    if not traced:
        return builtins.min(static)
    return Box(functools.reduce(jnp.minimum, [*traced, *static]), True)


def _refuse_uneven(parts: list[Steps], iterables) -> None:
    """Refuse an iterator that changes something and is asked once more than what is shorter."""
    for k, (part, x) in builtins.enumerate(builtins.zip(parts, iterables, strict=True)):
        sizes = [p.length for p in (part, *parts[k + 1 :])]
        even = builtins.all(not is_traced(n) and n == sizes[0] for n in sizes)
        if not even and (what := acts(x)):
            raise TransformError(
                f"an iterator {what}, and is asked for an item more than what is shorter has",
                where=compat.where(),
                hint="perhaps: put what is shorter first, or make them of one length",
            )


def _most(parts: list[Steps]) -> int | None:
    """How many items the shortest has at most."""
    known = [p.most if is_traced(p.length) else p.length for p in parts]
    return builtins.min((n for n in known if n is not None), default=None)


def zip_(*iterables, strict=False):
    parts = _together(iterables)
    if parts is None:
        return builtins.zip(*iterables, strict=strict)
    lengths = {p.length for p in parts if not is_traced(p.length)}
    if strict and len(lengths) > 1:
        raise ValueError("zip() arguments have different lengths")
    _refuse_uneven(parts, iterables)
    arrays = tuple(a for p in parts for a in p.arrays)
    get = lambda i: tuple(p.get(i) for p in parts)  # noqa: E731
    keyed = len(parts) == 2 and isinstance(iterables[0], builtins.range | list | tuple)
    keyed = keyed and not any_traced(iterables[0])
    return Once(_shortest(parts), get, arrays, most=_most(parts), keyed=keyed)


def map_(fun, *iterables):
    parts = _together(iterables)
    if parts is None:
        return builtins.map(fun, *iterables)
    _refuse_uneven(parts, iterables)
    get = lambda i: fun(*(p.get(i) for p in parts))  # noqa: E731
    made = builtins.map(fun, *(() if isinstance(x, TracedRange) else x for x in iterables))
    return Once(_shortest(parts), get, most=_most(parts), made=made)


def reversed_(iterable):
    if isinstance(iterable, TracedRange):
        return iterable.__reversed__()
    steps = None if isinstance(iterable, Once) else as_steps(iterable)
    if steps is None:
        return builtins.reversed(iterable)
    back = steps.__reversed__()
    return Once(back.length, back.get, most=back.most)


# ---------------------------------------------------------------- reductions

_MISSING: Any = object()


def _extreme(plain: Callable, better: Callable, place: Callable) -> Callable:
    def extreme(*args, key=None, default=_MISSING):
        items = args if len(args) > 1 else gathered(args)[0]
        if values.bounded(items) is not None:
            return _extreme_of(items[0], plain, place, key, default)
        if key is None and is_traced(items) and items.ndim == 1 and items.shape[0]:
            x = unbox(items)
            return Box(x[_first_of(place, x)], True)
        items = items if isinstance(items, tuple | list) else list(items)
        options = {} if default is _MISSING or len(args) > 1 else {"default": default}
        keys = sequences.ranked(items if key is None else [key(x) for x in items])
        if not any_traced(keys):
            if keys is items or not items:
                return plain(items, **options)
            return items[plain(builtins.range(len(items)), key=keys.__getitem__)]
        if not all(map(values.is_number, keys)):
            if (missing := next((k for k in keys if k is None), keys)) is None:
                session().call(operator.lt, missing, next(k for k in keys if any_traced(k)))
            first = sequences.order(keys, plain is builtins.max)[0]
            return values.select(first, list(items), compat.where())
        best, at = keys[0], 0
        for i, k in builtins.enumerate(keys[1:], 1):
            pred = truth(better(jnp.asarray(unbox(k)), jnp.asarray(unbox(best))))
            best, at = if_else(pred, k, best), jnp.where(pred, i, at)
        return best if keys is items else values.select(at, items, compat.where())

    return extreme


def _extreme_of(content, plain: Callable, place: Callable, key, default):
    """The extreme item of a list whose length is traced."""
    there = jnp.arange(content.tree.cap) < content.length
    if key is None and not isinstance(content.tree.item, Leaf):
        bounded.refuse(f"`{plain.__name__}` of the tuples or objects")
    keys = bounded.masked(content).whole if key is None else None
    if keys is None:
        get = bounded.over(content)[1]
        found = [key(get(i)) for i in builtins.range(content.tree.cap)]
        keys = jnp.stack([jnp.asarray(unbox(k)) for k in found])
    best = bounded.over(content)[1](_first_of(place, keys, there))
    if default is not _MISSING:
        return if_else(content.length > 0, best, default)
    bounded.fail_where(content.length == 0, ValueError(f"{plain.__name__}() arg is empty"))
    return best


def _first_of(place: Callable, x: jax.Array, there=True) -> jax.Array:
    """Where the least or largest is by comparing: the first of equals, nan only if it is first."""
    return place(jnp.where(there & ~jnp.isnan(x), x, x[0]))


min_ = _extreme(builtins.min, jnp.less, jnp.argmin)
max_ = _extreme(builtins.max, jnp.greater, jnp.argmax)


def sum_(iterable, /, start=0):
    (iterable,) = gathered((iterable,))
    if values.bounded(iterable) is not None:
        item, rows = iterable[0].tree.item, bounded.masked(iterable[0])
        kind = PYTHON_TYPES.get(rows.dtype.kind) if getattr(item, "weak", False) else None
        if kind and item.scalar:
            return start + python_scalar(unbox(rows.sum()), kind)
        return _added(rows, start)
    traced = is_traced(iterable) and iterable.ndim
    if traced or type(iterable) is Masked:
        return _added(iterable, start)
    return builtins.sum(iterable, start)


def _added(rows, start):
    """start + rows[0] + rows[1] + ..., in the type that the first of these sums has."""
    found = unbox(start), unbox(rows) if type(rows) is Box else rows.dtype
    kind, weak = jax.dtypes.result_type(*found, return_weak_type_flag=True)  # type: ignore[misc]
    if kind.kind == "b":
        return start | rows.any(axis=0)
    out = start + rows.sum(axis=0, dtype=kind)
    if weak and type(rows) is Box and (kind.kind in "fc" or rows.immutable is True):
        out = rebox(compat.convert(unbox(out), kind, True), rows.immutable is True)
    note_type("sum", operator.add, (start, rows), out)
    return out


def acts(iterable) -> str:
    """What an iterator changes as it goes on, for `refuse_acting`."""
    iterable = iterable.made if isinstance(iterable, Once) else iterable
    return getattr(iterable, "effect", "") or effect_of(iterable)


def refuse_acting(what: str) -> None:
    """Refuse an iterator that changes something: Python stops it where an item says so."""
    if not what:
        return
    error = TransformError(
        f"an iterator {what}, and a traced value says after which item it stops",
        where=compat.where(),
        hint="perhaps: write it as one `for` with a `break`, over a list or an array",
    )
    error.__malleable_final__ = True  # type: ignore[attr-defined]
    raise error


def _quantifier(plain: Callable, stops: bool, combine: Callable, whole: Callable) -> Callable:
    def quantifier(iterable):
        if isinstance(iterable, Once):
            refuse_acting(acts(iterable))
        (iterable,) = gathered((iterable,))
        if values.bounded(iterable) is not None:
            iterable = bounded.masked(iterable[0])
        if type(iterable) is Masked and iterable.ndim == 1:
            return getattr(iterable != 0, plain.__name__)()
        if is_traced(iterable) and iterable.ndim == 1:
            return python_scalar(whole(unbox(iterable)), bool)
        found = None
        for x in iterable:
            if is_traced(x):
                if found is None:
                    refuse_acting(acts(iterable))
                found = truth(x) if found is None else combine(found, truth(x))
            elif bool(x) is stops:
                return stops
        return plain(()) if found is None else python_scalar(found, bool)

    return quantifier


any_ = _quantifier(builtins.any, True, jnp.logical_or, jnp.any)
all_ = _quantifier(builtins.all, False, jnp.logical_and, jnp.all)


def sorted_(iterable, /, *, key=None, reverse=False):
    if values.bounded(iterable) is not None:
        return bounded.ordered(iterable[0], reverse) if key is None else bounded.refuse("a key")
    if key is None and is_traced(iterable) and iterable.ndim == 1:
        items = list(iterable)
    else:
        items = iterable if isinstance(iterable, list) else list(iterable)
    keys = sequences.ranked(items if key is None else [key(x) for x in items])
    if not any_traced(keys):
        if keys is items:
            return builtins.sorted(items, reverse=reverse)
        order = builtins.sorted(builtins.range(len(items)), key=keys.__getitem__, reverse=reverse)
        return [items[i] for i in order]
    if keys is items and all(values.is_number(k) and np.ndim(unbox(k)) == 0 for k in keys):
        column = jnp.stack([jnp.asarray(unbox(k)) for k in keys])
        note_types(keys, column.dtype)
        return [Box(x, True) for x in sequences.in_order(column, bool(reverse))]
    found = sequences.order(keys, bool(reverse))
    return [pick(items, Box(i, True)) for i in found]


# ---------------------------------------------------------------- conversions and the rest


def round_(number, ndigits=None):
    if not is_traced(number):
        return builtins.round(number, ndigits)
    raises.refuse_floats(ndigits)
    raw = unbox(number)
    if ndigits is None and raw.ndim == 0:
        return python_scalar(jnp.round(as_integer(unbox(whole_number(number)))), int)
    if raw.ndim == 0 and raw.weak_type and raw.dtype.kind == "f":
        return Box(rounded(raw, int(ndigits or 0)), True)
    out = rounded_whole(as_integer(raw), int(ndigits or 0))
    return python_scalar(out, int) if is_python_int(raw) else Box(out, number.scalar)


def pow_(base, exp, mod=None):
    if mod is None:
        return session().call(operator.pow, base, exp)
    if any(map(is_traced, (base, exp, mod))):
        raise TransformError(
            "pow() with a modulus is given a traced value",
            where=compat.where(),
            hint="write the loop of multiplications and `%` yourself",
        )
    return builtins.pow(base, exp, mod)


def _divmod(x, y):
    return session().call(operator.floordiv, x, y), session().call(operator.mod, x, y)


def type_(*args, **kwargs):
    if len(args) == 1 and type(args[0]) is values.Choice and not kwargs:
        (x,) = args
        return values.select(x.index, list(map(type_, x.options)), compat.where())
    if len(args) == 1 and not kwargs and isinstance(args[0], Box):
        return note_class(lambda cls: cls) if may_be_int(args[0]) else args[0].__class__
    return type(*args, **kwargs)


# what a number of 32 bits may have been before JAX took it: it keeps no 64 by default
_WIDE = {np.float32: np.float64, np.int32: np.int64, np.uint32: np.uint64}
_WIDE |= {np.complex64: np.complex128}


def wide_class(x):
    """The class of 64 bits that the value may have in Python, whose box has one of 32."""
    return _WIDE.get(x.__class__) if is_traced(x) and not jax.config.jax_enable_x64 else None


def isinstance_(x, kinds):
    """Whether the value that a box stands for is of a class, an abstract one too."""
    mixed = type(x) is values.Choice and x.number is None
    mixed = mixed and builtins.any(map(values.is_number, x.options))  # whose use is refused
    if type(x) is values.Choice and not mixed:
        found = [isinstance_(option, kinds) for option in x.options]
        alike = builtins.all(hit is found[0] for hit in found)
        return found[0] if alike else python_scalar(values.entry(found, x.index), bool)
    if not isinstance(x, Box) or mixed:
        return isinstance(x, kinds)
    if may_be_int(x):
        return note_class(lambda cls: issubclass(cls, kinds))
    if isinstance(kinds, tuple | types.UnionType):
        every = kinds if isinstance(kinds, tuple) else kinds.__args__
        return any(isinstance_(x, kind) for kind in every)
    if type(kinds).__instancecheck__ is abc.ABCMeta.__instancecheck__:
        return issubclass(x.__class__, kinds)
    wide = wide_class(x)
    return isinstance(x, kinds) or (wide is not None and issubclass(wide, kinds))


def print_(*args, sep=" ", end="\n", file=None, flush=False):
    """Printed when the program runs, in order; under vmap for each example that comes here.

    Text that is known beforehand, too: else it would come before all that is not.
    """
    arrays: list = []
    shown, out = outlined(args, arrays), sys.stdout if file is None else file
    if any(type(x) is Text for x in jax.tree.leaves(args)):
        what = "text that is made before it is printed shows the types of traced values"
        note_line(what, compat.where(), "perhaps: write the f-string, or the `%`, in the `print`")
    if not arrays and (not active() or not session().is_screen(out)):
        return builtins.print(*args, sep=sep, end=end, file=file, flush=flush)

    def show(here, *found):
        if here:
            parts = shown([np.asarray(x) for x in found])
            builtins.print(*parts, sep=sep, end=end, file=file, flush=flush)

    if isinstance(out, io.StringIO) and not session().is_screen(out):
        raise TransformError(
            "traced values are printed into a StringIO, which is read before the program runs",
            where=compat.where(),
            hint="print to the screen, or return the values",
        )
    raised = [~test for p in unwinding.flags() if isinstance(test := p.read(), jax.Array)]
    tests = [*(test if answer else ~test for test, answer, _ in session().path), *raised]
    here = functools.reduce(jnp.logical_and, tests, True)
    printed(functools.partial(jax.debug.callback, show, here, *arrays, ordered=True))


def printed(say: Callable) -> None:
    """say(), or later, where what happens now may be undone and begun anew."""
    session().said += 1
    book = unwinding.level()
    trials = [b.tried for b in journal.all_open() if b.tried]
    if not trials:
        return say()
    if book is None or book.tried is None:
        raise TransformError(
            "a generator prints in a branch or a loop that is compiled",
            where=compat.where(),
            hint="perhaps: make a list of what it yields, and go over that",
        )
    book.tried.said.append(say)


def warn(message, category=None, stacklevel=1, source=None, **options):
    several = type(message) is values.Choice
    if several or (journal.depth() and not isinstance(message, DeprecationWarning)):
        text = " or ".join(map(str, message.options)) if several else message
        what = f"dropped a warning inside of a staged block: {text}"
        return note(what, compat.where(), "a program on the device cannot warn")
    return warnings.warn(message, category, stacklevel + 2, source, **options)


def _to(kind: type) -> Callable:
    def convert(x=_MISSING, *args, **kwargs):
        if args or kwargs or not is_traced(x):
            return kind(*(() if x is _MISSING else (x,)), *args, **kwargs)
        x = Box(content(x), True)
        return python_scalar(unbox(whole_number(x) if kind is int else x), kind)

    return convert


def _bool(*args):
    found = bool(*args) if len(args) != 1 else conditions.truth(args[0])
    return python_scalar(found, bool) if is_traced(found) else bool(found)


def _complex(*args, **kwargs):
    if not any(map(is_traced, args)):
        return complex(*args, **kwargs)
    parts = [python_scalar(content(x), complex).value for x in args]
    return python_scalar(parts[0] + (1j * parts[1] if len(parts) > 1 else 0), complex)


def _of_list(f: Callable, name: str) -> Callable:
    """A function of numbers that a list whose length is traced may hold, too."""

    def call(xs, *args, **kwargs):
        if values.bounded(xs) is None or args or kwargs:
            return scalars.SCALARS[f](xs, *args, **kwargs)
        out = unbox(getattr(bounded.masked(xs[0]), name)())
        return Box(out, True) if f is math.prod else python_scalar(out, float)

    return call


def _sought(f: Callable, before: Callable) -> Callable:
    """bisect of a list whose length is traced: how many items come before the place."""

    def call(xs, x, *args, **kwargs):
        if values.bounded(xs) is None or builtins.any((*args, *kwargs.values())):
            return scalars.SCALARS[f](xs, x, *args, **kwargs)
        items = bounded.masked(xs[0])
        return python_scalar((before(items.whole, unbox(x)) & items.mask).sum(), int)

    return call


_REDUCTIONS = {math.fsum: "sum", math.prod: "prod"}
_REDUCTIONS |= dict.fromkeys((statistics.mean, statistics.fmean), "mean")
_NAMED = (len_, range_, enumerate_, zip_, map_, reversed_, sum_, sorted_, round_, pow_, type_)
TABLE: dict[Any, Callable] = {
    **scalars.SCALARS,
    **{f: _of_list(f, name) for f, name in _REDUCTIONS.items()},
    bisect.bisect_left: _sought(bisect.bisect_left, jnp.less),
    bisect.bisect_right: _sought(bisect.bisect_right, jnp.less_equal),
    **{getattr(builtins, f.__name__[:-1]): f for f in (*_NAMED, print_, isinstance_)},
    **{builtins.min: min_, builtins.max: max_, builtins.any: any_, builtins.all: all_},
    builtins.divmod: when_traced(builtins.divmod, _divmod),
    builtins.int: _to(int),
    builtins.float: _to(float),
    builtins.complex: _complex,
    builtins.bool: _bool,
    warnings.warn: warn,
}
# C functions and classes that handle boxes well by themselves
PLAIN = {
    *(builtins.len, builtins.abs, builtins.issubclass, builtins.repr),
    *(builtins.str, builtins.format, builtins.hash, builtins.id, builtins.callable),
    *(builtins.iter, builtins.next, builtins.list, builtins.tuple, builtins.dict, builtins.slice),
    *(builtins.object, builtins.chr, builtins.ord, builtins.vars, builtins.dir, builtins.super),
    *(builtins.set, builtins.frozenset, collections.deque, collections.OrderedDict),
    *(collections.defaultdict, collections.Counter, builtins.BaseException, builtins.Exception),
    *(itertools.chain, itertools.product, itertools.count, itertools.repeat, itertools.cycle),
}
# those that call the functions they are given: these are to be converted
HIGHER = {
    *(builtins.map, builtins.filter, builtins.sorted, builtins.min, builtins.max),
    *(functools.reduce, itertools.accumulate, itertools.starmap, itertools.takewhile),
    *(itertools.dropwhile, itertools.filterfalse, builtins.iter),
}
