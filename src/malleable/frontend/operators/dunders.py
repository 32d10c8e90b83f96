"""`a + b`, `-a` and `a < b` where a class of the user's says what they mean.

Python would run `__add__` and its like as they are written; here they go through `call`, so that
they are converted. Numbers, arrays and whatever else has no such method of Python take no detour.
"""

import operator
import re
import types
import weakref
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from jax import numpy as jnp

from malleable import compat
from malleable.arrays.box import Box, any_traced, is_traced, unbox
from malleable.arrays.numbers import is_python_bool, is_python_int
from malleable.arrays.text import Text, as_text
from malleable.errors import TransformError
from malleable.frontend.common.session import session
from malleable.frontend.counterparts.bounded import equal, joined, refuse, repeated
from malleable.frontend.counterparts.scalars import python_scalar
from malleable.frontend.counterparts.sequences import SIGNS, are_rows, compared_sequences
from malleable.frontend.counterparts.texts import by_text, made_later
from malleable.frontend.values import raises
from malleable.frontend.values.conditions import by_case, by_plain, is_, is_of_batch, not_
from malleable.frontend.values.keys import KEYED
from malleable.frontend.values.values import bounded, is_thing, refuse_uncertain
from malleable.notes import note

DIVIDES = frozenset(("/", "//", "%", "**"))
_Function, _BOOL = types.FunctionType, np.dtype(bool)
BINARY: dict[str, tuple[str, Callable]] = {
    **{"+": ("add", operator.add), "-": ("sub", operator.sub), "*": ("mul", operator.mul)},
    **{"/": ("truediv", operator.truediv), "//": ("floordiv", operator.floordiv)},
    **{"%": ("mod", operator.mod), "**": ("pow", operator.pow), "@": ("matmul", operator.matmul)},
    **{"&": ("and", operator.and_), "|": ("or", operator.or_), "^": ("xor", operator.xor)},
    **{"<<": ("lshift", operator.lshift), ">>": ("rshift", operator.rshift)},
}
_MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
COMPARISONS: dict[str, tuple[str, str, Callable]] = {
    sign: (f"__{(name := f.__name__)}__", f"__{_MIRRORED.get(name, name)}__", f)
    for sign, f in SIGNS.items()
}
UNARY: dict[str, tuple[str, Callable]] = {
    "-": ("__neg__", operator.neg),
    "+": ("__pos__", operator.pos),
    "~": ("__invert__", operator.invert),
}
_NAMES = {f"__{r}{name}__" for name, _ in BINARY.values() for r in ("", "r")}
_NAMES |= {name for name, *_ in (*COMPARISONS.values(), *UNARY.values())}
_TYPES = (*(bool, int, float, complex, str, Text, bytes), *(tuple, list, dict, set, frozenset))


def is_repeat(xs, times) -> bool:
    """Whether xs * times repeats a sequence, a traced number of times."""
    if not isinstance(xs, list | tuple | str | bytes) or isinstance(xs, Box):
        return False
    return isinstance(times, Box) and times.traced and times.scalar


def may_be_python_int(x) -> bool:
    """Whether this is an integer of Python's, or in a batch may be one."""
    in_batch = isinstance(x, Box) and raises.is_python_number(x) and x.dtype.kind in "iub"
    return in_batch or is_python_int(unbox(x))


def floated(x):
    """What is raised to a negative power: an integer of Python's gives a float, as no other."""
    if not may_be_python_int(x):
        return x
    if session().options.exact:
        raise TransformError("an integer of JAX has no negative power", where=compat.where())
    if not is_python_int(unbox(x)):
        note("`**` takes a number of a batch for an int of Python's", compat.where())
    return python_scalar(unbox(x), float)


def refuse_none(what: str, a, b) -> None:
    """Raise what Python does of an operator with None, which may happen on this path only."""
    if (a is None or b is None) and (isinstance(a, Box) or isinstance(b, Box)):
        one, other = (getattr(x, "__class__", type(x)).__name__ for x in (a, b))
        raise raises.raised(TypeError(f"{what} {one!r} and {other!r}"))


def refuse_dicts(a, b) -> None:
    """Refuse operands that are dicts or sets of which keys depend on traced values."""
    if session().uncertain or type(a) in KEYED or type(b) in KEYED:
        refuse_uncertain(a, False)
        refuse_uncertain(b, False)


def counted(sign: str, a, b) -> tuple:
    """The operands of `+` or `-`: two bools of a batch count as Python's, which are integers."""
    pair = unbox(a), unbox(b)
    if not all(x is True or x is False or getattr(x, "dtype", None) is _BOOL for x in pair):
        return a, b
    traced = [x for x in (a, b) if is_traced(x)]
    if (
        not traced
        or not all(map(raises.is_python_number, traced))
        or all(map(is_python_bool, pair))
    ):
        return a, b
    note(f"`{sign}` takes a bool of a batch for one of Python's", compat.where())
    return tuple(python_scalar(jnp.asarray(x), int) for x in pair)


class Dunders:
    """The operators of Python's that a class may define; call(method, *args) runs what it wrote."""

    def __init__(self, call: Callable):
        self.call = call
        self._plain = frozenset(
            (*_TYPES, type(None), Box, np.ndarray, np.float64, np.float32, np.int64)
        )
        self._learned: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()

    def _learn(self, kind: type) -> bool:
        """Whether no operator of a type is written in Python."""
        methods = ((getattr(kind, name, None), getattr(Box, name, None)) for name in _NAMES)
        plain = not any(type(m) is _Function and m is not ours for m, ours in methods)
        self._learned[kind] = plain
        return plain

    def is_plain(self, x) -> bool:
        kind = type(x)
        if kind in self._plain:
            return True
        known = self._learned.get(kind)
        return self._learn(kind) if known is None else known

    # ------------------------------------------------------------ the operators

    def binary(self, sign: str, a, b):
        """a + b and its like; `a **- b` is `a ** -b`."""
        if sign == "**-":
            if may_be_python_int(b) and (is_traced(a) or is_traced(b)):
                a = floated(a)
            sign, b = "**", self.unary("-", b)
        elif sign == "**" and type(b) is int and b < 0 and is_traced(a):
            a = floated(a)
        name, plain = BINARY[sign]
        refuse_dicts(a, b)
        if is_thing(a) or is_thing(b):
            return self._by_case(self.binary, sign, a, b)
        raises.present(a, b, what=f"`{sign}`")
        if self.is_plain(a) and self.is_plain(b):
            refuse_none(f"unsupported operand type(s) for {sign}:", a, b)
            if bounded(a) is not None or bounded(b) is not None:
                return joined(a, b) if sign == "+" else refuse(f"`{sign}`")
            if sign == "*" and (is_repeat(a, b) or is_repeat(b, a)):
                return repeated(*((a, b) if is_repeat(a, b) else (b, a)))
            if sign in DIVIDES and raises.is_wanted(raises.DIVISION):
                a, b = raises.operands(sign, a, b)
            if session().lanes and sign in ("+", "-"):
                a, b = counted(sign, a, b)
            traced = type(a) is str and sign == "%" and any_traced(b)
            out = formatted(a, b) if traced else raises.at_floats(plain, sign, a, b)
            raises.note_type(sign, plain, (a, b), out)
            if sign in raises.INTEGERS and raises.is_wanted(raises.WRAPS):
                raises.check_room(sign, a, b, out)
            return out
        out = self._either(a, b, f"__{name}__", f"__r{name}__")
        if out is NotImplemented:
            raise TypeError(
                f"unsupported operand type(s) for {sign}: "
                f"{type(a).__name__!r} and {type(b).__name__!r}"
            )
        return out

    def said_of(self, text: str, x):
        """`text % x` that `print` is given."""
        return made_later(self.binary("%", text, x), operator.mod, (text, x))

    def compare(self, sign: str, a, b):
        """a < b and its like."""
        forward, backward, plain = COMPARISONS[sign]
        refuse_dicts(a, b)
        equality = sign in ("==", "!=")
        options = [o for x in (a, b) if is_thing(x) for o in x.options]
        things = (*options, *(x for x in (a, b) if not is_thing(x))) if equality else ()
        if equality and all(type(x).__eq__ is object.__eq__ for x in things):
            same = is_(a, b)
            return same if sign == "==" else not_(same)
        if options and not (equality and all(map(self.is_plain, options))):
            return self._by_case(self.compare, sign, a, b)
        if not equality:
            raises.present(a, b, what=f"`{sign}`")
        if self.is_plain(a) and self.is_plain(b):
            if not equality:
                refuse_none(f"{sign!r} not supported between instances of", a, b)
            if bounded(a) is not None or bounded(b) is not None:
                if sign not in ("==", "!="):
                    refuse(f"`{sign}`")
                same = equal(a, b)
                return same if sign == "==" else not_(same)
            return compared_sequences(sign, a, b, self.compare) if are_rows(a, b) else plain(a, b)
        out = self._either(a, b, forward, backward)
        if out is not NotImplemented:
            return out
        if sign in ("==", "!="):
            return (a is b) is (sign == "==")
        raise TypeError(
            f"{sign!r} not supported between instances of "
            f"{type(a).__name__!r} and {type(b).__name__!r}"
        )

    def unary(self, sign: str, a):
        """-a and its like."""
        name, plain = UNARY[sign]
        if is_thing(a):
            return by_case(a, lambda o: self.unary(sign, o))
        raises.present(a, what=f"`{sign}`")
        if sign == "-" and session().lanes and is_traced(a):
            a, _ = counted(sign, a, False)
        if sign == "~" and is_of_batch(a):
            note("`~` takes a bool of a batch for one of NumPy's", compat.where())
        method = None if self.is_plain(a) else getattr(type(a), name, None)
        return self.call(method, a) if type(method) is _Function else plain(a)

    def _by_case(self, operator: Callable, sign: str, a, b):
        """`a + b` for each thing that a, or b, may be."""
        if is_thing(a):
            return by_plain(a, lambda one: operator(sign, one, b), b)
        return by_plain(b, lambda one: operator(sign, a, one), a)

    # ------------------------------------------------------------ who is asked

    def _either(self, a, b, forward: str, backward: str):
        """What a says, else b; b first if it is of a class derived from that of a."""
        one, other = type(a), type(b)
        first, second = getattr(one, forward, None), getattr(other, backward, None)
        tries = [(first, a, b), (second, b, a)]
        if (
            one is not other
            and issubclass(other, one)
            and second is not getattr(one, backward, None)
        ):
            tries.reverse()
        if one is other and forward.strip("_") not in ("eq", "ne", "lt", "le", "gt", "ge"):
            tries = tries[:1]
        for method, x, y in tries:
            out, equal = NotImplemented, getattr(type(x), "__eq__", None)
            if method is object.__ne__ and type(equal) is _Function:
                out = self._either(x, y, "__eq__", "__eq__")
                out = out if out is NotImplemented else not_(out)
            elif type(method) is _Function:
                made = method.__code__.co_filename == "<string>" and is_dataclass(x)
                out = (self._by_fields if made else self.call)(method, x, y)
            elif method is not None:
                out = method(x, y)
            if out is not NotImplemented:
                return out
        return NotImplemented

    def _by_fields(self, method, x, y):
        """A comparison that a dataclass has from the decorator: of its fields, in their order."""
        signs = [sign for sign, (name, *_) in COMPARISONS.items() if name == method.__name__]
        if type(x) is not type(y) or not signs:
            return NotImplemented if signs else self.call(method, x, y)
        names = [f.name for f in fields(x) if f.compare]
        rows = (tuple(self.call(getattr, o, name) for name in names) for o in (x, y))
        return compared_sequences(signs[0], *rows, self.compare)


_SPEC = re.compile(r"%(\(.*?\))?[-#0 +]*[0-9]*(\.[0-9]*)?[hlL]?[diouxXeEfFgGcrsa%]")


def formatted(text: str, x) -> Any:
    """`text % x`, where what is traced shows its type, as it does in an f-string."""
    if isinstance(x, tuple):
        return by_text(lambda *xs: _formatted(text, xs), *x)
    return _formatted(text, x)


def _formatted(text: str, x) -> str:
    given = iter(x if isinstance(x, tuple) else (x,))

    def spec(match):
        if match[0][-1] == "%":
            return match[0]
        value = x[match[1][1:-1]] if match[1] else next(given, None)
        return f"%{match[1] or ''}s" if any_traced(value) else match[0]

    return as_text(_SPEC.sub(spec, text) % x)
