"""How converted code makes instances: `__new__`, `__init__` and `__post_init__` are converted."""

import dataclasses
import functools
import inspect
import types
import weakref
from collections.abc import Callable
from typing import Any

from malleable import compat
from malleable.arrays.box import Box
from malleable.frontend.common.session import note_line
from malleable.frontend.counterparts import builtins, numpy
from malleable.frontend.counterparts.replaced import convertible, replacement
from malleable.frontend.values.raises import may_be_int, note_class
from malleable.python_source import kinds
from malleable.python_source.twins import ALWAYS

_Function = types.FunctionType
_HEAP = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class made by a class statement


class Classes:
    """The part of a `Caller` that calls classes."""

    call: Callable
    table: dict
    _builtin: Callable
    _instead: Callable
    _jax: Callable
    _as_it_is: Callable
    _unconverted: Callable

    def __init__(self) -> None:
        self._makers: weakref.WeakKeyDictionary[type, Any] = weakref.WeakKeyDictionary()

    def dispatched(self, f, /, *args, **kwargs):
        """A function of functools.singledispatch, or a method of singledispatchmethod."""
        if not args:
            return f(**kwargs)  # Python's TypeError
        found, held = _by_class(args[0], dispatch_of(f)), inspect.getclosurevars(f).nonlocals
        found = found.__get__(held["obj"], held["cls"]) if "obj" in held else found
        return self.call(found, *args, **kwargs)

    def make(self, cls, args, kwargs):
        if cls in self.table or cls in builtins.PLAIN or cls in builtins.HIGHER or cls in ALWAYS:
            return self._builtin(cls, args, kwargs)
        make = self._makers.get(cls)
        if make is None:
            make = self._makers[cls] = self._maker(cls)
        return make(cls, *args, **kwargs)

    def _maker(self, cls, by_metaclass: bool = True) -> Callable:
        """How instances of a class are made: make(cls, *args, **kwargs)."""
        if "__malleable_skip__" in vars(cls):
            return _instantiate
        called = type(cls).__call__
        if by_metaclass and called is not type.__call__:
            if convertible(called):
                return functools.partial(self.call, called)
            return self._jax if kinds.of_type(cls) else _instantiate
        if kinds.of_type(cls):
            return self._jax
        replaced = replacement(cls)
        if replaced is not None and replaced is not numpy.CONVERT:
            return lambda _, /, *args, **kwargs: self._instead(cls, replaced, args, kwargs)
        own = [m for m in (cls.__new__, cls.__init__) if type(m) is _Function]
        if any(m.__code__.co_filename == "<string>" for m in own):  # a namedtuple or a dataclass
            post = getattr(cls, "__post_init__", None)
            converts = dataclasses.is_dataclass(cls) and convertible(post) and cls.__dictoffset__
            return self._make_dataclass if converts else _instantiate
        if any(map(convertible, own)):
            return self._make
        if kinds.is_standard(cls):
            return self._as_it_is
        return _instantiate if cls.__flags__ & _HEAP else self._unconverted

    def _make(self, cls, /, *args, **kwargs):
        """As type.__call__, with `__new__` and `__init__` converted."""
        new = cls.__new__
        if type(new) is _Function:
            made = self.call(new, cls, *args, **kwargs)
        elif new is object.__new__:
            made = new(cls)
        else:
            made = new(cls, *args, **kwargs)
        if isinstance(made, cls):
            init = made.__class__.__init__
            if type(init) is _Function:
                self.call(init, made, *args, **kwargs)
            elif not isinstance(made, Box):
                init(made, *args, **kwargs)
        return made

    def _make_dataclass(self, cls, /, *args, **kwargs):
        """Run the `__init__` that dataclasses wrote, with `__post_init__` converted."""

        def post(*values):
            del vars(made)["__post_init__"]
            return self.call(cls.__post_init__, made, *values)

        made = cls.__new__(cls)
        vars(made)["__post_init__"] = post
        cls.__init__(made, *args, **kwargs)
        return made


def _instantiate(cls, /, *args, **kwargs):
    return cls(*args, **kwargs)


def _by_class(x, dispatch: Callable):
    """dispatch(the class of x), or of what x was with 64 bits; a note where they differ."""
    if may_be_int(x):
        return note_class(dispatch)
    found, wide = dispatch(x.__class__), builtins.wide_class(x)
    if wide is None or dispatch(wide) is found:
        return found
    what = f"a function is picked by a class that is {x.__class__.__name__} or {wide.__name__}"
    note_line(what, compat.where(), "perhaps: jax.config.update('jax_enable_x64', True)")
    return dispatch(wide) if found is dispatch(object) else found


def dispatch_of(f) -> Any:
    """How a function of functools.singledispatch, or such a method, is picked; None of another."""
    owner = getattr(f.__dict__.get("register"), "__self__", None)
    if isinstance(owner, functools.singledispatchmethod):
        return owner.dispatcher.dispatch
    return f.dispatch if hasattr(f, "dispatch") and hasattr(f, "registry") else None
