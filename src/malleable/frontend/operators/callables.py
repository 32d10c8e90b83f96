"""Calls in converted code: who is converted, who is replaced, who is called as it is.

`make_call(convert, enter)` gives the operator `call`, which `Items` takes. What is injected:

convert(fun) -> the converted clone of a Python function; raises NoSource or returns None for
one without source. Asked once per function object and caller, and only where `convertible(fun)`.
enter(fun) -> a function for JAX to call back: it takes plain arrays, boxes them, runs the
converted `fun` and returns plain arrays. None: callbacks are handed over as they are.
"""

import collections
import contextlib
import copy
import dataclasses
import functools
import inspect
import itertools
import operator
import types
import warnings
import weakref
from collections.abc import Callable

import jax
import numpy as np
from jax import numpy as jnp

from malleable import compat
from malleable.arrays import journal, subclasses
from malleable.arrays.box import UNSIZED, Box, any_traced, is_traced, rebox, unbox
from malleable.arrays.rows import gathered
from malleable.arrays.text import as_text
from malleable.frontend.counterparts import (
    builtins,
    functions,
    iterators,
    numpy,
    scalars,
    scipy,
    texts,
)
from malleable.frontend.counterparts.bounded import joined, list_of_selected, method, refuse
from malleable.frontend.counterparts.builtins import Steps, TracedRange, acts, refuse_acting
from malleable.frontend.counterparts.replaced import (
    convertible,
    full_name,
    kind_of,
    replacement,
    why_left,
)
from malleable.frontend.counterparts.texts import by_text, by_texts, is_text, refuse_text
from malleable.frontend.operators import comprehensions, items, lookups, tables
from malleable.frontend.operators.chosen import gone_over, holds, is_place, settled
from malleable.frontend.operators.classes import Classes, dispatch_of
from malleable.frontend.operators.dunders import BINARY, COMPARISONS, UNARY, Dunders
from malleable.frontend.operators.generators import beginning, passed_on, started, tried
from malleable.frontend.operators.hidden import (
    block,
    born,
    is_iterator,
    new,
    reaching,
    walked,
    watched,
)
from malleable.frontend.values.conditions import by_case
from malleable.frontend.values.raises import fail_where, present, raised
from malleable.frontend.values.trees import DICTS
from malleable.frontend.values.values import Choice, bounded, refuse_uncertain, table_of
from malleable.notes import note
from malleable.python_source import kinds
from malleable.python_source.iterators import reduce
from malleable.python_source.source import NoSource
from malleable.python_source.twins import ALWAYS, ITERATORS, twin

_Function, _Method, _Builtin = types.FunctionType, types.MethodType, types.BuiltinFunctionType
_Descriptors = (types.MethodDescriptorType, types.WrapperDescriptorType)
_ITEMS = frozenset(("__getitem__", "__setitem__", "__delitem__"))
_DUNDERS: dict = {f: f"__{f.__name__}__" for f in (abs, len, round, float, int, complex, next)}
_ANY = {type, id, isinstance, print, repr, str, format, hash, callable, getattr, setattr, hasattr}
_ANY |= {warnings.warn, delattr, zip, enumerate, map, filter, operator.setitem, operator.getitem}
_NUMERIC = {*scalars.SCALARS, abs, float, int, complex, round, pow, divmod}  # of None, a TypeError
_MANAGED = contextlib.contextmanager(iter).__code__  # what the decorator makes of any generator
SMALL = 64  # items of a list up to which heapq and bisect are converted: each step selects of all
_HOLDERS = (list, dict, set, collections.deque)  # these keep a text as any other object
_TRIPPED = (TypeError, jax.errors.JAXTypeError, jax.errors.JAXIndexError)


class Plan:
    """How a caller calls one function, kept among its attributes. A copy elsewhere is void."""

    __slots__ = ("caller", "code", "fun", "run")

    def __init__(self, caller=None, fun=None, run=None):
        self.caller, self.run = caller, run
        self.fun, self.code = fun and weakref.ref(fun), fun and fun.__code__

    def fits(self, caller, fun) -> bool:
        return self.caller is caller and self.fun() is fun and self.code is fun.__code__

    def __reduce__(self):
        return Plan, ()


class Caller(Classes):
    """`call` and what it needs to know: one per front end."""

    def __init__(self, convert: Callable, enter: Callable | None = None):
        self.convert, self.enter = convert, enter
        self.items = items.Items(self.call)
        super().__init__()
        own, self.texts = self.items, texts.Texts(self.call)
        self.table = (
            builtins.TABLE
            | iterators.TABLE
            | {
                getattr: own.getattr,
                setattr: lambda o, name, value: own.setattr_(value, o, name),
                delattr: own.delattr_,
                hasattr: own.hasattr,
                object.__setattr__: lambda o, name, value: own.set_plainly(value, o, name),
                np.ndarray.__new__: subclasses.new,
                operator.getitem: own.getitem,
                operator.setitem: lambda x, i, value: own.setitem(value, x, i),
                operator.delitem: own.delitem,
                operator.contains: lambda xs, x: own.in_(x, xs),
                operator.truth: builtins.TABLE[bool],
                sum: self._sum,
                dataclasses.replace: self._replaced,
                str: self.texts.str,
                repr: self.texts.repr,
                format: self.texts.format,
                **self._operators(),
                **{
                    getattr(operator, name.strip("_")): functools.partial(own.aug, sign)
                    for sign, name in items._DUNDERS.items()
                },
            }
        )

    def _operators(self) -> dict:
        """operator.add and its like."""
        own = self.dunders = Dunders(self.call)
        tables = (own.binary, BINARY), (own.compare, COMPARISONS), (own.unary, UNARY)
        return {
            found[-1]: functools.partial(run, sign)
            for run, table in tables
            for sign, found in table.items()
        }

    def _replaced(self, o, /, **changes):
        """dataclasses.replace: a new object, whose methods that make it are converted."""
        if is_place(o):
            return by_case(o, lambda x: self._replaced(x, **changes))
        known = {f.name: self.items.attr(o, f.name) for f in dataclasses.fields(o) if f.init}
        return self.call(type(o), **{**known, **changes})

    def _sum(self, iterable, /, start=0):
        (iterable,) = gathered((iterable,))
        if is_traced(iterable) or bounded(iterable) is not None:
            return builtins.sum_(iterable, start)
        return functools.reduce(functools.partial(self.dunders.binary, "+"), iterable, start)

    # ------------------------------------------------------------ call

    def call(self, f, /, *args, **kwargs):
        """f(*args, **kwargs), converted where that is possible and of use."""
        kind = type(f)
        if kind is _Function:
            return self._plan(f, self._run).run(*args, **kwargs)
        if kind is _Method:
            if type(f.__self__).__module__.startswith("scipy.stats"):
                replaced = scipy.replacement(f)
                if replaced is not None and replaced is not numpy.CONVERT:
                    return self._instead(f, replaced, args, kwargs)
            if tables.takes(f.__self__, f.__name__, args):  # most_common is written in Python
                return tables.method_of(f.__self__, f.__name__, args, kwargs, self.call)
            if type(f.__self__) is Box:
                return numpy.run_method(self.call, f, args, kwargs)
            if type(f.__self__) in DICTS:  # what Python says of a Counter, in Python
                refuse_uncertain(f.__self__, False)
            return self.call(f.__func__, f.__self__, *args, **kwargs)
        if kind is _Builtin:
            if isinstance(f.__self__, types.ModuleType) or f.__self__ is None:
                return self._builtin(f, args, kwargs)
            return self._method(f, f.__self__, args, kwargs)
        if kind is Choice:
            return by_case(f, lambda option: self.call(option, *args, **kwargs))
        if isinstance(f, type):
            queue = f is collections.deque and len(args) == 1 and not kwargs
            keyed = tables.made_of(f, args, kwargs, self.call)
            if keyed is not None:
                return new(keyed)
            if f in functions.CONTAINERS and args and bounded(args[0]) is not None and not queue:
                refuse(f"`{f.__name__}`")
            if f is list and len(args) == 1 and isinstance(args[0], Steps | TracedRange):
                return comprehensions.listing(args[0])
            return new(self.make(f, args, kwargs))
        return self._object(f, kind, args, kwargs)

    def bound(self, f):
        """An argument of a builtin, if a function then one that Python may call back with boxes."""
        one = f.options[0] if type(f) is Choice else f
        if not callable(one) or hasattr(type(one), "__iter__"):
            return f
        return functools.partial(self.call, f)

    def _is_plain_function(self, f) -> bool:
        if isinstance(f, functools.partial):
            return self._is_plain_function(f.func)
        fun = f.__func__ if type(f) is _Method else f
        return convertible(fun)

    # ------------------------------------------------------------ Python functions

    def _plan(self, f, make: Callable) -> Plan:
        plan = f.__dict__.get("__malleable_plan__")
        if plan is None or not plan.fits(self, f):
            plan = f.__dict__["__malleable_plan__"] = Plan(self, f, make(f))
        return plan

    def _run(self, f) -> Callable:
        """What to call in place of a Python function; it does not keep f alive."""
        original = f.__dict__.get("__malleable_converted__")
        if original is not None and f.__dict__.get("__wrapped__", original) is original:
            return functools.partial(self.call, original)
        if f is Box.__array__:  # the array, still in its box
            return lambda box, dtype=None, copy=None: box if dtype is None else box.astype(dtype)
        if f in self.table:  # of `statistics`
            return self.table[f]
        if "__malleable_skip__" in f.__dict__ or kinds.takes_boxes(f):
            return _weakly(self._as_it_is, f)
        if kinds.is_ours(f.__code__.co_filename):
            return _weakly(self._ours, f)
        if f.__code__ is _MANAGED:  # @contextlib.contextmanager, on a generator of the user's
            inner = f.__wrapped__
            if type(inner) is _Function and convertible(inner):
                converted = self.convert(inner)
                return contextlib.contextmanager(converted) if converted else f
        replaced = replacement(f)
        if isinstance(replaced, scipy.Instead):
            return lambda *args, **kwargs: self.call(replaced.fun, *args, **replaced.kept(kwargs))
        if isinstance(replaced, scipy.CallsBack):
            return lambda *args, **kwargs: replaced(*map(self.bound, args), **kwargs)
        if replaced is not None and replaced is not numpy.CONVERT:
            return replaced
        kind = kind_of(f) if replaced is None else kinds.CONVERT
        if kind == kinds.JAX:
            return _weakly(self._jax, f)
        if kind == kinds.CONVERT:
            return self._clone(f)
        if dispatch_of(f) is not None:
            return _weakly(self.dispatched, f)
        return _weakly(self._as_it_is, f)

    def _clone(self, f) -> Callable:
        try:
            clone = self.convert(f)
        except NoSource as e:
            f.__dict__["__malleable_reason__"], clone = str(e), None
        if clone is not None and f.__code__.co_flags & inspect.CO_GENERATOR:
            return _weakly(functools.partial(self._generator, clone), f)
        return _weakly(self._unconverted, f) if clone is None else clone

    def _generator(self, clone, f, /, *args, **kwargs):
        held = [journal.Place("cell", cell).read() for cell in f.__closure__ or ()]
        as_list = lambda found, named: self.convert(f, True)(*found, **named)  # noqa: E731
        return started(born(clone(*args, **kwargs)), as_list, args, kwargs, held)

    def _lazy(self, f, args, kwargs):
        """An iterator of Python's over others, some of which may have to begin anew as lists."""
        begun, written = any(map(beginning, args)), ITERATORS.get(f)
        what = acts(args[1]) if f is itertools.takewhile and len(args) == 2 else ""
        out = self._called_now(f, args, kwargs)
        if not is_iterator(out) or isinstance(out, Steps) or not (written or begun):
            return out

        def as_list(found, named):
            refuse_acting(what)
            if written is None:
                return self.call(f, *found, **named)
            return self.convert(written, True)(*found, **named)

        return started(born(passed_on(out)), as_list, args, kwargs)

    def _unconverted(self, f, /, *args, **kwargs):
        """Call as it is what cannot be converted; say so, should it be given something traced."""
        if any_traced((args, kwargs)):
            note(f"`{full_name(f)}` is not converted", compat.where(), why_left(f))
        f = reaching(f, self.call) if type(f) is _Function else f
        return self._as_it_is(f, *args, **kwargs)

    def _as_it_is(self, f, /, *args, **kwargs):
        if type(f) is _Function and args and is_place(args[0]) and kinds.is_standard(f):
            return by_case(args[0], lambda x: self._as_it_is(f, x, *args[1:], **kwargs))
        if f is copy.copy and args and table_of(args[0]) is not None:
            return tables.copied(args[0])
        if kinds.is_standard(f):
            tables.refuse_tables(full_name(f), args)
        holds = isinstance(getattr(f, "__self__", None), _HOLDERS)
        if not holds and any(map(is_text, args)) and kinds.is_standard(f):
            return by_text(lambda *xs: self._as_it_is(f, *xs, **kwargs), *args)
        file = f.__code__.co_filename if type(f) is _Function else ""
        if not (kinds.is_ours(file) or kinds.of_file(file) == kinds.CONVERT):
            refuse_text(f, None, args)
        try:
            return as_text(watched(f, lambda: f(*args, **kwargs), None, args, kwargs))
        except LookupError as e:
            if holds and not f.__self__:  # a list that is empty on this path, say
                raised(e)
            raise
        except _TRIPPED as e:
            if any_traced((args, kwargs)):
                e.add_note(
                    f"`{full_name(f)}` is not converted, since {why_left(f)}, and is given a traced"
                    " value\n  hint: write it with NumPy or jax.numpy, or use jax.pure_callback"
                )
            raise

    def _compiled(self, f, /, *args, **kwargs):
        """Call a compiled function of a library: it takes arrays, and makes new ones."""
        if isinstance(f, np.ufunc) or type(f) is type(np.sum):  # these ask a Box themselves
            out = self._as_it_is(f, *args, **kwargs)
        elif any_traced((args, kwargs)):
            try:
                out = self._unconverted(f, *args, **kwargs)
            except TypeError as e:  # it asks for an array of NumPy, and is given a box
                if str(f.__module__).startswith("scipy.") or "got Box" in str(e):
                    scipy.refused(f)()
                raise
        else:
            run = lambda: f(*unbox(args), **unbox(kwargs))  # noqa: E731
            out = watched(f, run, getattr(f, "__self__", None), args, kwargs)
        return Box(out) if type(out) is np.ndarray and out.flags.owndata else out

    # ------------------------------------------------------------ JAX

    def _jax(self, f, /, *args, **kwargs):
        """Call what works on plain arrays only: unbox what goes in, box what comes out."""
        if (getattr(f, "__module__", None) or "").startswith("jax.numpy"):
            present(*args, what=f"`{full_name(f)}`")
            args = gathered(args)
        args = tuple(map(self._callback, unbox(args)))
        kwargs = {name: self._callback(x) for name, x in unbox(kwargs).items()}
        return _boxed(f(*args, **kwargs))

    def _ours(self, f, /, *args, **kwargs):
        """Call an effect or a pass of this library; what that passes on is what it was given."""
        out = self._jax(f, *args, **kwargs)
        same = (x for x in args if type(x) is type(out) is Box and x._value is out._value)
        return next(same, out)

    def _callback(self, x):
        if type(x) in (list, tuple) and any(map(self._is_plain_function, x)):
            return type(x)(map(self._callback, x))
        if type(x) is dict and any(map(self._is_plain_function, x.values())):
            return {key: self._callback(value) for key, value in x.items()}
        return self.enter(x) if self.enter and self._is_plain_function(x) else x

    # ------------------------------------------------------------ C functions and methods

    def _builtin(self, f, args, kwargs):
        if args and is_place(args[0]) and f not in _ANY and isinstance(f, _Builtin | type):
            known = f in self.table or f in builtins.PLAIN
            if f is len or not (known and holds(args[0])):
                return by_case(args[0], lambda x: self.call(f, x, *args[1:], **kwargs))
            lazy = f in functions.LAZY or f in (enumerate, reversed, iter)
            args = tuple(map(gone_over if lazy else settled, args))
        refuse_text(f, None, args)
        return as_text(watched(f, lambda: self._called(f, args, kwargs), None, args, kwargs))

    def _called(self, f, args, kwargs):
        if f in ALWAYS:
            return self.call(ALWAYS[f], *args, **kwargs)
        if f is functools.reduce and len(args) > 1:
            items = args[1] if beginning(args[1]) is None else self.call(list, args[1])
            args = (args[0], items, *args[2:])
            if bounded(items) is not None:
                return self.call(reduce, *args)
        if f in functions.ANY_ORDER:
            args = [table.keys if (table := table_of(x)) else x for x in args]
        if f in functions.LAZY or (f in functions.AT_ONCE and len(args) == 1):
            args = [*map(walked, args)]
        if f in functions.LAZY:
            return self._lazy(f, args, kwargs)
        begun = beginning(args[0]) if args and f in functions.AT_ONCE else None
        if begun is not None:
            what = acts(args[0]) if f in (any, all) else ""

            def anew():
                refuse_acting(what)
                return self.call(f, begun.as_list(), *args[1:], **kwargs)

            return tried(lambda: self._called_now(f, args, kwargs), anew, begun)
        return self._called_now(f, args, kwargs)

    def _called_now(self, f, args, kwargs):
        if f in functions.AT_ONCE and args and comprehensions.is_open(args[0], f):
            args = [comprehensions.listing(args[0]), *args[1:]]
        args = [*map(list_of_selected, args)] if f is list or f is collections.deque else args
        if f in functions.GO_OVER and args:
            args = [x if table_of(x) is None else walked(x) for x in args]
            found = f is not dict and comprehensions.entries(args[0], "keys", f)
            if found and f is sorted and not kwargs:
                return found
            args = [found, *args[1:]] if found else args
            refuse_uncertain(args[0], f not in functions.ANY_ORDER or bool(kwargs))
            compared = f in (min, max) and len(args) > 1
            args = args if compared or f is iter else [*map(walked, args)]
        name = _DUNDERS.get(f)
        if name and args and not isinstance(args[0], (Box, *UNSIZED, iterators.Walker)):
            method = getattr(type(args[0]), name, None)
            if type(method) is _Function:
                run = self._next if f is next and len(args) == 2 else self.call
                return run(method, *args, **kwargs)
        if f in builtins.HIGHER:
            if f in (filter, itertools.filterfalse) and args[0] is None:
                args = [bool, *args[1:]]
            if f not in (min, max, sorted):  # their functions are named: key=
                args = list(map(self.bound, args))
            kwargs = {name: self.bound(x) for name, x in kwargs.items()}
        if f in _NUMERIC:
            present(*args, what=f"`{full_name(f)}`")
        replaced = self.table.get(f)
        if replaced is not None:
            out = replaced(*args, **kwargs)
            return new(out) if f is iter else out
        replaced, written = None if f in builtins.PLAIN else replacement(f), twin(f)
        if written is not None and args and bounded(args[0]) is not None:
            return self.call(written, *args, **kwargs)
        if replaced is None and f not in functions.LISTS:
            tables.refuse_tables(full_name(f), args)
            if any(bounded(x) is not None for x in args):
                refuse(f"`{full_name(f)}`")
        if f in builtins.PLAIN:
            return f(*args, **kwargs)
        compared = written is not None and (
            any_traced((args, kwargs)) or functions.are_ordered(args)
        )
        if compared and len(args[0]) <= SMALL:
            return self.call(written, *args, **kwargs)
        if replaced is not None and not isinstance(f, type):
            return self._instead(f, replaced, args, kwargs)
        plain = isinstance(f, type) or kinds.is_standard(f)
        return (self._unconverted if plain else self._compiled)(f, *args, **kwargs)

    def _next(self, step, iterator, default):
        """next(iterator, default)"""
        try:
            return self.call(step, iterator)
        except StopIteration:
            return default

    def _instead(self, f, replaced, args, kwargs):
        """Call what NumPy's or SciPy's table has for f, something compiled."""
        if isinstance(replaced, scipy.Instead):
            return self.call(replaced.fun, *args, **replaced.kept(kwargs))
        if type(f) is type(np.sum) and f in numpy.CALLS_BACK:
            args = tuple(
                list(map(self.bound, x)) if type(x) is list else self.bound(x) for x in args
            )
        if replaced is not numpy.CONVERT:
            return replaced(*args, **kwargs)
        written = numpy.implementation(f)
        if type(written) is not _Function:
            return self._compiled(f, *args, **kwargs)
        return self._plan(written, self._clone).run(*args, **kwargs)

    def _method(self, f, owner, args, kwargs):
        """A method written in C, bound to its owner."""
        if tables.takes(owner, f.__name__, args):
            return tables.method_of(owner, f.__name__, args, kwargs, self.call)
        if any(table_of(x) is not None for x in args):
            args = tables.given(owner, f.__name__, args)
        if isinstance(owner, str) and any_traced((args, kwargs)):
            return by_texts(
                lambda *xs, **named: self._method_now(f, owner, xs, named), args, kwargs
            )
        return self._method_now(f, owner, args, kwargs)

    def _method_now(self, f, owner, args, kwargs):
        run = lambda: self._method_called(f, owner, args, kwargs)  # noqa: E731
        refuse_text(f, owner, args)
        return run() if isinstance(owner, Box) else as_text(watched(f, run, owner, args, kwargs))

    def _method_called(self, f, owner, args, kwargs):
        name = f.__name__
        if isinstance(owner, Box):
            return f(*args, **kwargs)
        if isinstance(owner, np.ufunc):
            return numpy.replacement(f)(*args, **kwargs)
        if args and name in functions.ASKS and lookups.is_one_of_keys(owner, args[0]):
            return by_case(args[0], lambda key: self.call(f, key, *args[1:], **kwargs))
        if kinds.of_type(type(owner)):
            return self._jax(f, *args, **kwargs)
        if name in functions.MUTATORS:
            if isinstance(owner, np.ndarray):
                lookups.refuse_outside(owner, args, False)
            items.touch(owner)
        elif issubclass(type(owner), np.ndarray | np.generic) and any_traced((args, kwargs)):
            return getattr(Box(owner), name)(*args, **kwargs)
        if name == "__setattr__" and args:
            journal.touch_attr(owner, args[0])
        if isinstance(owner, dict) and name == "get" and not lookups.has_traced(args[0]):
            if lookups.presence(owner, args[0]) is not True:
                return lookups.get_uncertain(owner, *args)
        elif isinstance(owner, dict) and name in functions.DICT_ASKS:
            found = name in functions.VIEWS and comprehensions.entries(owner, name)
            if found:
                return found
            if name in ("pop", "setdefault") and lookups.presence(owner, args[0]) is not True:
                return tables.ask_uncertain(owner, name, *args)
            refuse_uncertain(owner, name in functions.VIEWS or name == "popitem")
        for x in (owner, *args) if name in ("copy", "update", "__or__", "__eq__") else ():
            refuse_uncertain(x, False)
        if name in _ITEMS and isinstance(owner, list | tuple) and is_traced(args[0]):
            return lookups.at_traced(owner, name, *args)
        if isinstance(owner, list):
            grows = name in ("extend", "__iadd__")
            if grows and bounded(more := list_of_selected(args[0])) is not None:
                owner[:] = joined(owner, more)
                return owner if name == "__iadd__" else None
            if name == "sort":
                owner[:] = self.call(sorted, owner, **kwargs)
                return None
            if bounded(owner) is not None:
                return method(owner, name, args)
            if name == "insert" and is_traced(args[0]):
                return lookups.insert(owner, *args)
            if name == "pop" and args and is_traced(args[0]):
                return lookups.take_out(owner, *args)
            if name in ("index", "count", "remove") and any_traced((args, owner)):
                return self._search(owner, name, *args)
        elif bounded(owner) is not None:
            return method(owner, name, args)
        elif isinstance(owner, dict) and name == "get" and args and lookups.has_traced(args[0]):
            return lookups.get(owner, *args)
        elif isinstance(owner, dict) and args and name in ("get", "pop", "setdefault"):
            lookups.refuse_key(args[0])
        elif isinstance(owner, type):
            return self._builtin(f, args, kwargs)
        if kinds.is_standard(f):
            holds = name in functions.MUTATORS or isinstance(owner, list | tuple | dict | set)
            return (self._as_it_is if holds else self._unconverted)(f, *args, **kwargs)
        return self._compiled(f, *args, **kwargs)

    def _search(self, owner, name, x, start=0, end=None):
        if name == "count":
            return self.call(sum, [self.items.in_(x, [item]) + 0 for item in owner])
        found = [self.items.in_(x, [item]) for item in owner[start : None if end is None else end]]
        found = jnp.stack([jnp.asarray(unbox(hit)) for hit in found] or [jnp.asarray(False)])
        words = f"{x!r} is not in list" if name == "index" else "list.remove(x): x not in list"
        fail_where(~found.any(), ValueError(words))
        at = scalars.python_scalar(jnp.argmax(found), int)
        if name == "index":
            return at + builtins.range_(len(owner))[start:].start if start else at
        items.touch(owner)  # once more: this is done only where nothing was raised
        owner[:] = [
            builtins.if_else(k < unbox(at), one, other)
            for k, (one, other) in enumerate(itertools.pairwise(owner))
        ]
        return None

    # ------------------------------------------------------------ other callable objects

    def _object(self, f, kind, args, kwargs):
        if isinstance(f, functools.partial):
            return self.call(f.func, *f.args, *args, **{**f.keywords, **kwargs})
        if kind is operator.attrgetter:
            names = [name.split(".") for name in f.__reduce__()[1]]
            found = [functools.reduce(self.items.attr, name, *args) for name in names]
            return found[0] if len(found) == 1 else tuple(found)
        if isinstance(f, functools._lru_cache_wrapper):
            return self._cached(f, args, kwargs)
        if kind in _Descriptors:
            return self.table.get(f, functools.partial(self._descriptor, f))(*args, **kwargs)
        if kind is types.MethodWrapperType:
            if f.__name__ == "__call__" and isinstance(f.__self__, type):
                return self._maker(f.__self__, False)(f.__self__, *args, **kwargs)
            if f.__qualname__ == "object.__setattr__":
                return self.items.set_plainly(args[1], f.__self__, args[0])
            return self._method(f, f.__self__, args, kwargs)
        if isinstance(f, staticmethod):
            return self.call(f.__func__, *args, **kwargs)
        if inspect.getattr_static(f, "__malleable_skip__", False):
            return f(*args, **kwargs)
        for name in ("__malleable_converted__", "__malleable_selective__"):
            if (original := inspect.getattr_static(f, name, None)) is not None:
                return self.call(original, *args, **kwargs)
        if isinstance(f, np.vectorize):
            return numpy.vectorized(f, functools.partial(self.call, f.pyfunc))(*args, **kwargs)
        method = getattr(kind, "__call__", None)  # noqa: B004
        if inspect.getattr_static(f, "__func__", None) and hasattr(f, "__self__"):
            return self.call(f.__func__, f.__self__, *args, **kwargs)  # equinox's bound method
        if type(method) is _Function:
            return self.call(method, f, *args, **kwargs)
        if (isinstance(f, np.ufunc) and f not in functions.ASKING) or type(f) is type(np.sum):
            present(*args, what=f"`{full_name(f)}`")
        replaced = replacement(f)
        if replaced is not None:
            run = lambda: self._instead(f, replaced, args, kwargs)  # noqa: E731
            return watched(f, run, getattr(f, "__self__", None), args, kwargs)
        if kinds.of_type(kind):
            return self._jax(f, *args, **kwargs)
        plain = kinds.is_standard(f)
        return (self._unconverted if plain else self._compiled)(f, *args, **kwargs)

    def _descriptor(self, f, owner, /, *args, **kwargs):
        """`list.append(xs, x)`: told to the journal as `xs.append(x)` is."""
        if isinstance(owner, Box):  # `np.ndarray.sum(x)`
            return self.call(getattr(owner, f.__name__), *args, **kwargs)
        if f.__name__ in _ITEMS and isinstance(owner, list | tuple) and is_traced(args[0]):
            return lookups.at_traced(owner, f.__name__, *args)
        if f.__name__ in functions.MUTATORS:
            items.touch(owner)
        return self._as_it_is(f, owner, *args, **kwargs)

    def _cached(self, f, args, kwargs):
        """A cache must not keep what is traced, nor be asked for it."""
        if any_traced(lookups.hashed((*args, *kwargs.values()))):
            return self.call(f.__wrapped__, *args, **kwargs)
        here = block()
        if here is None:
            out = f(*args, **kwargs)
            if any_traced((out,)):
                f.cache_clear()
            return out
        key = f, args, tuple(sorted(kwargs.items()))  # what a block does may be undone
        for book in journal.all_open():
            if key in (book.made or ()):
                return book.made[key]
        out = here.made[key] = self.call(f.__wrapped__, *args, **kwargs)
        return out


def _boxed(out):
    """The arrays in a result boxed; an object that holds arrays stays the very object."""
    if isinstance(out, jax.Array) or type(out) is np.ndarray:
        return rebox(out, True)
    if isinstance(out, tuple | list):
        new = map(_boxed, out)
        return type(out)(*new) if hasattr(out, "_fields") else type(out)(new)
    return {k: _boxed(x) for k, x in out.items()} if type(out) is dict else out


def _weakly(method: Callable, f) -> Callable:
    """method(f, ...), without keeping f alive: the result is kept among the attributes of f."""
    ref = weakref.ref(f)
    return lambda *args, **kwargs: method(ref(), *args, **kwargs)


def make_call(convert: Callable, enter: Callable | None = None) -> Callable:
    """The operator for calls: call(f, *args, **kwargs)."""
    return Caller(convert, enter).call
