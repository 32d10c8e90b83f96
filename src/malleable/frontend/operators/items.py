"""The operators for attributes, items, `in`, `is` and augmented assignment.

Each does what Python does, tells the journal first what it is about to change, and knows what a
traced index, key or element means. Methods of the user's own (`__getitem__`, a property, ...) go
through `call`, so they are converted.
"""

import array
import collections
import enum
import functools
import operator
import sys
import types
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from malleable import compat
from malleable.arrays import journal
from malleable.arrays.box import UNSIZED, Box, Masked, any_traced, is_traced, rebox, unbox
from malleable.arrays.joined import added_to
from malleable.arrays.journal import ABSENT
from malleable.arrays.numbers import is_python_int
from malleable.frontend.common.session import session
from malleable.frontend.counterparts import numpy, sequences
from malleable.frontend.counterparts.bounded import (
    Unlisted,
    hits,
    item,
    joined,
    method,
    part_of_list,
    put_item,
    put_part,
    repeated,
    sliced,
)
from malleable.frontend.counterparts.builtins import TracedRange, if_else, pick
from malleable.frontend.counterparts.functions import VIEWS
from malleable.frontend.counterparts.replaced import is_users_own
from malleable.frontend.counterparts.scalars import python_scalar, truth
from malleable.frontend.operators import chosen, hidden, lookups, tables
from malleable.frontend.operators.chosen import is_place
from malleable.frontend.operators.dunders import BINARY, DIVIDES, floated, is_repeat, refuse_none
from malleable.frontend.values import raises, values
from malleable.frontend.values.conditions import by_case, by_plain, ifexp, only
from malleable.frontend.values.picked import Picked
from malleable.frontend.values.references import with_one_name
from malleable.frontend.values.staging import by_class, refuse_default
from malleable.frontend.values.trees import DICTS, UNSET
from malleable.frontend.values.values import Choice, View, bounded, is_number, is_thing, table_of

_Function = types.FunctionType
_METHODS = (_Function, staticmethod, types.MethodDescriptorType)
_OTHERS = (collections.deque, bytearray, array.array)
_IN_PLACE: dict[str, Callable] = {
    f"{sign}=": getattr(operator, f"i{name}") for sign, (name, _) in BINARY.items()
}
_DUNDERS = {sign: f"__{fun.__name__}__" for sign, fun in _IN_PLACE.items()}


def touch(x) -> None:
    """Tell the journal that a container or a NumPy array of the user's is about to change."""
    if not journal.is_undone():
        return journal.tell(x)
    if isinstance(x, list):
        journal.touch_list(x)
    elif isinstance(x, dict):
        journal.touch_dict(x)
    elif isinstance(x, set):
        journal.touch_set(x)
    elif _is_raw(x) or isinstance(x, _OTHERS):
        journal.touch_object(x)


def _lacks(x, name: str) -> bool:
    """Whether the value that a box stands for has no such attribute, though the box has."""
    return type(x) is Box and not hasattr(x.__class__, name)


def _is_raw(x) -> bool:
    """Whether this is an array of NumPy itself: a Box says that it is one, too."""
    return issubclass(type(x), np.ndarray)


def _of_jax(x) -> bool:
    return isinstance(x, jax.Array) or type(x).__module__.partition(".")[0] in ("jax", "jaxlib")


# ---------------------------------------------------------------- is and in


def writes_cell(reader: Callable) -> None:
    """A nonlocal variable, the one that `reader` returns, is about to be assigned."""
    if journal.is_undone() and reader.__closure__:
        journal.touch_cell(reader.__closure__[0], reader.__code__.co_freevars[0])


def walrus(variable: Callable, value) -> Any:
    """`(x := value)` inside an expression, which may not run: binds what `variable` returns."""
    writes_cell(variable)
    variable.__closure__[0].cell_contents = value
    return value


def writes_global(variables: dict, name: str) -> None:
    journal.touch_global(variables, name)


def raising(exc):
    """What `raise exc` raises, marked as raised on purpose."""
    if type(exc) is Choice:
        return by_case(exc, lookups.raise_here)
    if isinstance(exc, type) and issubclass(exc, BaseException):
        exc = exc()
    if isinstance(exc, BaseException):
        try:
            exc.__malleable_raised__ = True
            code = sys._getframe(1)
            name = code.f_code.co_name
            exc.__malleable_where__ = f"{code.f_code.co_filename}:{code.f_lineno} in {name}"
        except AttributeError:  # a class that says which attributes there are
            return exc
    return exc


def _equal(a, b):
    """`a == b` as a boolean, traced or not; identical things are equal, as in `in`."""
    if a is b:
        return True
    if type(a) is Choice or type(b) is Choice:
        same = a == b
        return truth(same) if is_traced(same) else bool(same)
    strange = any(is_traced(x) and not is_number(y) for x, y in ((a, b), (b, a)))
    if strange and not any(isinstance(x, enum.Enum) for x in (a, b)):
        return False
    same = sequences.compared_sequences("==", a, b) if sequences.are_rows(a, b) else a == b
    return truth(same) if is_traced(same) else bool(same)


def _found(x, items):
    """Whether one of the items equals x: a bool, or a traced boolean scalar."""
    found = None
    for one in items:
        same = _equal(one, x)
        if same is True:
            return True
        if same is not False:
            found = same if found is None else found | same
    return False if found is None else python_scalar(found, bool)


def _in_range(x, items):
    start, stop, step, x = map(unbox, (items.start, items.stop, items.step, x))
    up = (x >= start) & (x < stop)
    down = (x <= start) & (x > stop)
    inside = jnp.where(step > 0, up, down) & ((x - start) % step == 0)
    return python_scalar(inside, bool)


def _setter(o, name: str, how: str = "set") -> tuple | None:
    """A property's function that sets (or deletes), or a descriptor's and the descriptor."""
    member = journal.member(type(o), name)
    if isinstance(member, property):
        put = getattr(member, f"f{how[:3]}")
        return (put,) if type(put) is _Function else None
    put = getattr(type(member), f"__{how}__", None)
    return (put, member) if is_users_own(put) else None


class Items:
    """The operators that may run code of the user's, each a method; call(f, *args) runs it."""

    def __init__(self, call: Callable):
        self.call = call

    def _method(self, x, name: str):
        """The method of a class written in Python, None for any other."""
        method = getattr(type(x), name, None)
        return method if type(method) is _Function else None

    # ------------------------------------------------------------ attributes

    def attr(self, o, name: str):
        if is_thing(name):
            return by_case(name, lambda one: self.attr(o, one))
        kind = type(o)
        if kind is Box or kind is types.ModuleType:
            if kind is Box and session().attempts and _lacks(o, name):
                raise AttributeError(f"{o.__class__.__name__!r} object has no attribute {name!r}")
            return getattr(o, name)
        if kind is Choice:
            return self._of_choice(o, name) if is_place(o) else getattr(o, name)
        member = journal.member(kind, name)
        fields, held = journal.fields(o), self._held(o, name, member)
        if (there := lookups.presence(held, name)) is not True:
            return self._either(o, name, there, dict.get(held, name))
        if type(member) is _Function:
            return getattr(o, name)
        if member is None:
            fallback = self._method(o, "__getattr__")
            own = self._method(o, "__getattribute__") is None and not isinstance(o, type)
            if own and name not in fields and is_users_own(fallback):
                return self._boxed(o, name, self.call(fallback, o, name))
            return self._boxed(o, name, getattr(o, name))
        if isinstance(member, property) and type(member.fget) is _Function:
            return self._computed(o, name, member.fget, o)
        get = getattr(type(member), "__get__", None)
        if is_users_own(get) and (hasattr(type(member), "__set__") or name not in fields):
            return self._computed(o, name, get, member, o, kind)
        if isinstance(member, functools.cached_property) and name not in vars(o):
            value = self.call(member.func, o)
            journal.touch_attr(o, name)
            vars(o)[name] = value
            return value
        return self._boxed(o, name, getattr(o, name))

    def _of_choice(self, o, name):
        if name in VIEWS and all(type(x) is dict for x in o.options):
            return functools.partial(values.walked, o, name)

        def is_there(x) -> bool:
            fields = journal.fields(x)
            known = x is None or (name in fields and not values.lacks(fields[name]))
            return known or type(journal.member(type(x), name)) in _METHODS  # nothing runs

        if all(map(is_there, o.options)):
            return self._of_each(o, name)
        return by_case(o, lambda x: self.attr(x, name), is_there)

    def _of_each(self, o: Choice, name: str):
        """An attribute that reading does not run code for; an option may lack it: a `raise`."""
        there = [x is not None or hasattr(x, name) for x in o.options]
        found = [self.attr(x, name) if there[k] else UNSET for k, x in enumerate(o.options)]
        if not all(there):
            gone = jnp.logical_not(values.entry(there, o.index))
            kinds = " or ".join(dict.fromkeys(type(x).__name__ for x in o.options))
            raises.fail_where(gone, AttributeError(f"{kinds!r} object has no attribute {name!r}"))
        return values.select(o.index, found, o.where)

    def _held(self, o, name: str, member) -> Any:
        """Where an object itself holds an attribute: its dict, or a slot as one."""
        if hasattr(member, "__set__"):
            slot = type(member) is types.MemberDescriptorType
            return {name: journal.Place("attr", o, name).read()} if slot else {}
        if issubclass(type(o), dict) and member is None:
            fallback = self._method(o, "__getattr__")  # of a library's: it looks the name up
            return o if fallback and not is_users_own(fallback) else journal.fields(o)
        return journal.fields(o)

    def _there(self, o, name: str):
        """Whether an attribute that was set on one path only is there: True, or traced."""
        if type(o) in (Box, Choice) or by_class(journal.Place("attr", o, name)):
            return True
        return lookups.presence(self._held(o, name, journal.member(type(o), name)), name)

    def _has(self, o, name: str) -> bool:
        """Whether an object, or each that this may be, holds such an attribute on all paths."""
        options = o.options if type(o) is Choice else [o]
        return all(name in journal.fields(x) and self._there(x, name) is True for x in options)

    def _either(self, o, name: str, there, value: Choice):
        """An attribute that the object itself has on one path only; else what its class gives."""
        member, fallback = journal.member(type(o), name), self._method(o, "__getattr__")
        if isinstance(member, functools.cached_property):
            new = ifexp(there, lambda: only(value), lambda: self.call(member.func, o))
            journal.touch_attr(o, name)
            vars(o)[name] = new
            return new
        get = getattr(type(member), "__get__", None)
        if by_class(journal.Place("attr", o, name)) and not is_users_own(get):
            rest = member if get is None else get(member, o, type(o))
            options = [rest if x is ABSENT else x for x in value.options]
            return values.select(value.index, options, value.where)
        if is_users_own(get) or is_users_own(fallback):
            run = (get, member, o, type(o)) if is_users_own(get) else (fallback, o, name)
            return ifexp(there, lambda: only(value), lambda: self.call(*run))
        self._raise_absent(o, name, there)
        return only(value)

    def _raise_absent(self, o, name: str, there) -> None:
        text = f"{type(o).__name__!r} object has no attribute {name!r}"
        lookups.raise_unless(there, AttributeError(text))

    def _boxed(self, o, name, value):
        """An array in an attribute becomes a box there, so that writes to it stay; see `leave`."""
        numbers = type(value) is np.ndarray and value.dtype != object and not value.dtype.names
        if numbers or issubclass(type(value), jax.Array):
            fields = journal.fields(o)
            if type(fields) is dict and fields.get(name) is value and journal.current() is not None:
                journal.touch_attr(o, name)
                new = Box(value)
                new.immutable = not numbers and not isinstance(value, compat.Tracer)
                fields[name] = value = new
        return value

    def _computed(self, o, name, get, *args):
        """What a property or another descriptor of the user's gives."""
        try:
            return self.call(get, *args)
        except AttributeError:
            fallback = self._method(o, "__getattr__")
            if fallback is None:
                raise
            return self.call(fallback, o, name)

    def getattr(self, o, name: str, *default):
        """The builtin."""
        if not default or self._has(o, name):
            return self.attr(o, name)
        if _lacks(o, name):
            return default[0]
        if type(o) is Choice:
            has = functools.partial(self._has, name=name)
            return by_case(o, lambda x: self.getattr(x, name, *default), has)
        there = self._there(o, name)
        if there is not True:
            rest = lambda: self._by_fallback(o, name, *default)  # noqa: E731
            return ifexp(there, lambda: self.attr(o, name), rest)
        try:
            return self.attr(o, name)
        except AttributeError:
            return default[0]

    def _by_fallback(self, o, name: str, default):
        """What a `__getattr__` of the user's says of an attribute that is not there."""
        fallback = self._method(o, "__getattr__")
        try:
            return self.call(fallback, o, name) if is_users_own(fallback) else default
        except AttributeError:
            return default

    def hasattr(self, o, name: str):
        if type(o) is Choice:
            found = by_case(o, lambda x: self.hasattr(x, name))
            return Box(truth(found), True) if is_traced(found) else found
        if (there := self._there(o, name)) is True:
            return self.getattr(o, name, ABSENT) is not ABSENT
        rest = lambda: self._by_fallback(o, name, ABSENT) is not ABSENT  # noqa: E731
        return ifexp(there, lambda: True, rest) if self._method(o, "__getattr__") else there

    def setattr_(self, value, o, name: str) -> None:
        if type(o) is Choice:
            plain = functools.partial(chosen.is_plain_attribute, name=name)
            if all(map(plain, o.options)):
                return chosen.set_attribute(o, name, value)
            return by_case(o, lambda x: self.setattr_(value, x, name), plain)
        own = self._method(o, "__setattr__")
        if type(o).__setattr__ is dict.__setitem__:
            return self.setitem(value, o, name)
        if own is None:
            return self.set_plainly(value, o, name, setattr)
        if _setter(o, name) is None:
            journal.touch_attr(o, name)
        self.call(own, o, name, value)

    def set_plainly(self, value, o, name: str, run: Callable = object.__setattr__) -> None:
        """object.__setattr__(o, name, value), by the setter that the class may have for it."""
        if (setter := _setter(o, name)) is not None:
            return self.call(*setter, o, value)
        if not isinstance(o, Box):
            refuse_default(o, name, compat.where())
            journal.touch_attr(o, name)
        run(o, name, value)

    def delattr_(self, o, name: str) -> None:
        if type(o) is Choice:
            return by_case(o, lambda x: self.delattr_(x, name))
        if type(o).__delattr__ is dict.__delitem__:
            return self.delitem(o, name)
        if (deleter := _setter(o, name, "delete")) is not None:
            return self.call(*deleter, o)
        refuse_default(o, name, compat.where())
        held = self._held(o, name, journal.member(type(o), name))
        if (there := lookups.presence(held, name)) is not True:
            self._raise_absent(o, name, there)
        journal.touch_attr(o, name)
        delattr(o, name)

    # ------------------------------------------------------------ items

    def getitem(self, x, i):
        kind = type(x)
        if lookups.is_one_of_keys(x, i):
            return by_case(i, lambda key: self.getitem(x, key))
        self._indexed(x, i, "__getitem__")
        if kind is Choice and is_place(x):
            if chosen.reads_plainly(x, i) or any(map(is_number, x.options)):
                return x.each(lambda o: self.getitem(o, i))
            return by_case(x, lambda o: self.getitem(o, i))
        if kind is Box or kind is Masked or issubclass(kind, Box):
            if raises.is_wanted(raises.INDEX):
                raises.within(x, i)
            return x[i]
        if isinstance(x, list | tuple | range) and self._method(x, "__getitem__") is None:
            if bounded(x) is not None:
                return item(x[0], i) if not isinstance(i, slice) else sliced(x[0], i)
            if is_traced(i):
                raises.within(x, i)
                if isinstance(x, range):
                    return x.start + lookups.pick_index(i, len(x)) * x.step
                return pick(x, i)
            if isinstance(x, list) and isinstance(i, slice) and lookups.has_traced(i):
                return part_of_list(x, i)
            lookups.refuse_bound(x, i)
        elif table_of(x) is not None:
            return tables.look_up_key(x, i, self.call)
        elif kind is dict and lookups.has_traced(i):
            return lookups.look_up(x, i)
        elif issubclass(kind, dict) and not lookups.has_traced(i):
            if (there := lookups.presence(x, i)) is not True:
                look = lambda: tables.look_up_uncertain(x, i, there, self.call)  # noqa: E731
                make = self._method(x, "__missing__")
                return look() if make is None else ifexp(there, look, lambda: self.call(make, x, i))
        elif _is_raw(x):
            return Box(x)[i] if lookups.has_traced(i) else x[unbox(i)]
        elif isinstance(x, type):
            return x[i]
        elif _of_jax(x):
            return rebox(x[unbox(i)], True)
        elif bounded(x) is not None:
            return item(x[0], i)
        elif (kind is collections.deque or kind is str) and is_traced(i):
            raises.within(x, i)
            return pick(list(x), i)
        own = self._method(x, "__getitem__")
        if own is not None:
            if own.__module__ == numpy.GRIDS:
                return numpy.grid_item(x, i)
            return self.call(own, x, i)
        if isinstance(x, dict):
            if lookups.has_traced(i):
                return tables.look_up_key(x, i, self.call)
            if isinstance(x, collections.defaultdict) and i not in x:
                journal.touch_dict(x)
        return x[i]

    def _indexed(self, x, i, name: str) -> None:
        """Test whether an index is None or a float; what a class of the user's is asked may be."""
        parts = [p for p in (i if type(i) is tuple else (i,)) if type(p) in (Choice, slice)]
        if parts and (isinstance(x, Box | Masked) or self._method(x, name) is None):
            raises.present(i, what="`[]`")
            ends = (e for p in parts if type(p) is slice for e in (p.start, p.stop, p.step))
            raises.refuse_floats(*ends, text=raises.SLICED)

    def setitem(self, value, x, i) -> None:
        if lookups.is_one_of_keys(x, i):
            return self._set_by_key(value, x, i)
        self._indexed(x, i, "__setitem__")
        if is_place(x):
            if chosen.is_plain_item(x, i):
                return chosen.set_item(x, i, value)
            return by_case(x, lambda o: self.setitem(value, o, i))
        if issubclass(type(x), Box | Masked):
            if raises.is_wanted(raises.INDEX):
                raises.within(x, i)
            x[i] = raises.stored(value, x)
            return
        own = self._method(x, "__setitem__")
        if own is not None:
            touch(x)
            self.call(own, x, i, value)
            return
        held = bounded(x) is not None
        if held or (type(x) is list and isinstance(i, slice) and lookups.has_traced(i)):
            touch(x)
            return (put_part if isinstance(i, slice) else put_item)(x, i, value)
        if isinstance(x, list | collections.deque) and is_traced(i):
            return lookups.put_at(x, i, value)
        if isinstance(x, list):
            lookups.refuse_bound(x, i)
        elif isinstance(x, dict) and (lookups.has_traced(i) or table_of(x) is not None):
            return tables.put_traced(x, i, value)
        elif type(x) in DICTS:
            tables.note_order(x, i)
        elif isinstance(x, np.flatiter):
            lookups.refuse_outside(x.base, value, lookups.has_traced(i))
        elif isinstance(x, np.void):
            lookups.refuse_outside(x, value, False)
            journal.touch_object(x.base)
        elif _is_raw(x):
            lookups.refuse_outside(x, value, lookups.has_traced(i))
            i, value = unbox(i), unbox(value)
        touch(x)
        x[i] = value

    def _set_by_key(self, value, x, key: Choice) -> None:
        """x[key] = value, where the key is one of several."""
        if not lookups.has_all(x, key):
            return by_case(key, lambda k: self.setitem(value, x, k))
        journal.touch_dict(x)
        for number, k in enumerate(key.options):
            x[k] = if_else(jnp.asarray(key.index) == number, value, x[k])

    def delitem(self, x, i) -> None:
        if is_place(x) or lookups.is_one_of_keys(x, i):
            which = x if is_place(x) else i
            return by_case(which, lambda o: self.delitem(*((o, i) if which is x else (x, o))))
        self._indexed(x, i, "__delitem__")
        own = self._method(x, "__delitem__")
        if bounded(x) is not None:
            touch(x)
            return method(x, "pop", (i,)) if not isinstance(i, slice) else put_part(x, i, [])
        if (
            own is None
            and isinstance(x, dict)
            and (lookups.has_traced(i) or table_of(x) is not None)
        ):
            tables.take_key(x, i)
            return None
        if own is None and type(x) in DICTS and lookups.presence(x, i) is not True:
            tables.look_up_uncertain({i: x[i]}, i, lookups.presence(x, i), self.call)
        touch(x)
        if own is not None:
            return self.call(own, x, i)
        if isinstance(x, list) and is_traced(i):
            return lookups.take_out(x, i)
        if isinstance(x, list) and lookups.has_traced(i):
            return put_part(x, i, [])
        del x[i]

    # ------------------------------------------------------------ augmented assignment

    def aug(self, op: str, x, value, held: int = 0):
        """held: how many references the caller has, besides a name of the user's."""
        if is_place(x):
            return self._aug_place(op, x, value)
        exact = session().options.exact
        anew = exact or getattr(x, "immutable", False) is True
        if anew and (type(x) in UNSIZED or (isinstance(x, Box) and (exact or not x.scalar))):
            return BINARY[op[:-1]][1](x, value)
        if isinstance(x, Box) and x.immutable is not False and not x.scalar:
            alone = sys.getrefcount(x) - journal.references(x) <= held + with_one_name()
            return added_to(x, value, _IN_PLACE[op](x.copy(), value), alone)
        if _is_raw(x):
            lookups.refuse_outside(x, value, False)
            value = unbox(value)
            touch(x)
        elif op == "*=" and is_repeat(x, value):
            if type(x) is list:
                touch(x)
                x[:] = repeated(x, value)
                return x
            return repeated(x, value)
        elif table_of(x) is not None or table_of(value) is not None:
            return tables.combined(op, x, value, self.call)
        elif isinstance(x, (list, dict, set, *_OTHERS)):
            touch(x)
            if bounded(x) is not None and bounded(value) is None and op == "+=":
                return method(x, "__iadd__", (value,))
        elif isinstance(x, jax.Array):
            return rebox(_IN_PLACE[op](x, unbox(value)), True)
        if op == "+=" and isinstance(x, list) and bounded(value) is not None:
            x[:] = joined(x, value)
            return x
        if op == "**=" and type(value) is int and value < 0 and is_traced(x):
            x = floated(x)
        if op[:-1] in DIVIDES and raises.is_wanted(raises.DIVISION):
            x, value = raises.operands(op[:-1], x, value)
        if (
            op[:-1] in raises.INTEGERS
            and raises.is_wanted(raises.WRAPS)
            and is_python_int(unbox(x))
        ):
            return raises.check_room(op[:-1], x, value, BINARY[op[:-1]][1](x, value))
        own = self._method(x, _DUNDERS[op])
        if own is not None and not isinstance(x, Box):
            out = self.call(own, x, value)
            if out is not NotImplemented:
                return out
        refuse_none(f"unsupported operand type(s) for {op}:", x, value)
        plain = BINARY[op[:-1]][1]
        out = raises.at_floats(_IN_PLACE[op], op[:-1], x, value, trial=plain)
        if out is not x:
            raises.note_type(op[:-1], plain, (x, value), out)
        return out

    def _aug_place(self, op, x, value):
        """The place itself, where all that it may be changes in place."""
        in_place = []

        def run(o):
            new = self.aug(op, o, value)
            in_place.append(new is o)
            return new

        new = by_plain(x, run, value)
        return x if in_place and all(in_place) else new

    def aug_item(self, op: str, x, i, value: Callable) -> None:
        if is_place(x) and not chosen.holds(x):
            return by_case(x, lambda o: self.aug_item(op, o, i, value))
        if lookups.is_one_of_keys(x, i) and not lookups.has_all(x, i):
            return by_case(i, lambda key: self.aug_item(op, x, key, value))
        old = self.getitem(x, i)
        new = self.aug(op, old, value(), 1)
        if new is old and issubclass(type(old), Box):
            if isinstance(old, Choice | Picked) and (is_place(x) or type(x) in (list, dict)):
                return  # in place: what was written to it is in x
            if issubclass(type(x), Box) and old._base is not None:
                return  # a view, likewise
        self.setitem(new, x, i)

    def aug_attr(self, op: str, o, name: str, value: Callable) -> None:
        if type(o) is Choice and not all(chosen.is_plain_attribute(x, name) for x in o.options):
            return by_case(o, lambda x: self.aug_attr(op, x, name, value))
        old = self.attr(o, name)
        new = self.aug(op, old, value(), 1)
        if new is old and type(o) is Choice and isinstance(old, Choice | Picked):
            return
        self.setattr_(new, o, name)

    # ------------------------------------------------------------ in

    def in_(self, x, items):
        if is_place(items):
            found = by_case(items, lambda o: self.in_(x, o))
            return Box(truth(found), True) if is_traced(found) else found
        hidden.refuse_foreign(items)
        if isinstance(items, Box) or type(items) is Masked:
            if not (is_traced(items) or is_traced(x)):
                return x in items
            return python_scalar(unbox((items == x).any()), bool)
        if lookups.is_one_of_keys(items, x) and isinstance(items, dict | set | frozenset | str):
            return by_case(x, lambda key: self.in_(key, items))
        if table_of(items) is not None:
            return tables.contains_key(items, x)
        if isinstance(items, dict) and (lookups.has_traced(x) or type(items) not in DICTS):
            values.refuse_uncertain(items, False)
        if isinstance(items, dict):
            there = True if lookups.has_traced(x) else lookups.presence(items, x)
            if there is not True:
                return there
        own = self._method(items, "__contains__")
        if own is not None:
            found = self.call(own, items, x)
            return python_scalar(truth(found), bool) if is_traced(found) else bool(found)
        if bounded(items) is not None:
            return python_scalar(hits(items[0], x).any(), bool)
        if isinstance(items, list | tuple | collections.deque | View | type({}.values())):
            known = not any_traced((x, list(items)))
            return x in items if known else _found(x, items)
        if isinstance(items, TracedRange) or (isinstance(items, range) and is_traced(x)):
            return _in_range(x, items)
        if (_is_raw(items) or isinstance(items, jax.Array)) and (is_traced(x) or _of_jax(items)):
            return python_scalar(jnp.any(unbox(items) == unbox(x)), bool)
        if isinstance(items, dict) and lookups.has_traced(x):
            return lookups.contains(items, x)
        if isinstance(items, set | frozenset) and is_traced(type(x) is set or lookups.hashed(x)):
            return _found(x, items)
        if is_traced(x):
            lookups.refuse_key(x)
        return x in items

    def not_in(self, x, items):
        found = self.in_(x, items)
        return python_scalar(~unbox(found), bool) if is_traced(found) else not found

    # ------------------------------------------------------------ iteration

    def iter_(self, iterable):
        """What a comprehension or an unpacking goes over."""
        hidden.refuse_foreign(iterable)
        iterable = hidden.walked(chosen.gone_over(iterable))
        values.refuse_uncertain(iterable)
        if bounded(iterable) is not None:
            return Unlisted(iterable)
        return Box(iterable) if isinstance(iterable, jax.Array) else iterable
