"""The operators with the meaning that Python gives them: what rewriting must not change."""

import collections.abc
import contextlib
import operator
import types

UNSET = object()
slice_ = slice
AUGMENTED = {
    "+=": operator.iadd,
    "-=": operator.isub,
    "*=": operator.imul,
    "/=": operator.itruediv,
    "//=": operator.ifloordiv,
    "%=": operator.imod,
    "**=": operator.ipow,
    "@=": operator.imatmul,
    "<<=": operator.ilshift,
    ">>=": operator.irshift,
    "&=": operator.iand,
    "|=": operator.ior,
    "^=": operator.ixor,
}


def if_(test, body, orelse, state, live):
    check_names(state, live)
    if test:
        body()
    elif orelse is not None:
        orelse()


def try_(groups, handlers, orelse, state, live):
    check_names(state, live)
    try:
        for statement in sum(groups, ()):
            statement()
    except BaseException as e:
        for kinds, handler, ignores in handlers:
            if kinds is None or catches(kinds(), e):
                handler(None if ignores else e)
                break
        else:
            raise
    else:
        if orelse is not None:
            orelse()


def catches(kinds, error):
    kinds = kinds if isinstance(kinds, tuple) else (kinds,)
    if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
        raise TypeError("catching classes that do not inherit from BaseException is not allowed")
    return isinstance(error, kinds)


class Singleton:
    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return other is self.value


true, false, none = map(Singleton, (True, False, None))


def born(x):
    return x


def text(*parts):
    return "".join(parts)


def shown(x, conversion, spec=""):
    convert = {ord("s"): str, ord("r"): repr, ord("a"): ascii}.get(conversion)
    return format(convert(x) if convert else x, spec)


def entered():
    return 0


def finally_(mark):
    return contextlib.nullcontext(types.SimpleNamespace(end=lambda: None))


def walrus(variable, value):
    variable.__closure__[0].cell_contents = value
    return value


def with_(context, _state):
    return context


def while_(test, body, state, live, rebound, exits):
    check_names(state, live, rebound)
    while not stopped(exits) and test():
        body()


def for_(iterable, body, state, live, rebound, exits):
    check_names(state, live, rebound)
    for item in iterable:
        body(item)
        if stopped(exits):
            break


def check_names(state, *names):
    known = () if state is None else state.__code__.co_freevars
    for some in names:
        assert set(some) <= set(known), (some, known)


def stopped(exits):
    return exits is not None and any(exits())


def assert_(test, message):
    if not test:
        raise AssertionError() if message is None else AssertionError(message())


def raising(error):
    return error


def setitem(value, whole, index):
    whole[index] = value


def delitem(whole, index):
    del whole[index]


def setattr_(value, whole, name):
    setattr(whole, name, value)


def delattr_(whole, name):
    delattr(whole, name)


def aug(symbol, left, right):
    return AUGMENTED[symbol](left, right)


def aug_item(symbol, whole, index, value):
    whole[index] = AUGMENTED[symbol](whole[index], value())


def aug_attr(symbol, whole, name, value):
    setattr(whole, name, AUGMENTED[symbol](getattr(whole, name), value()))


def writes_cell(cell):
    assert len(cell.__closure__) == 1


def writes_global(names, name):
    assert isinstance(names, dict) and isinstance(name, str)


def ifexp(test, body, orelse):
    return body() if test else orelse()


def and_(value, *later):
    for thunk in later:
        if not value:
            return value
        value = thunk()
    return value


def or_(value, *later):
    for thunk in later:
        if value:
            return value
        value = thunk()
    return value


def not_(value):
    return not value


def is_(a, b):
    return a is b


def is_not(a, b):
    return a is not b


def in_(a, b):
    return a in b


def not_in(a, b):
    return a not in b


def call(fun, *args, **kwargs):
    return fun(*args, **kwargs)


attr = linked = getattr
getitem = operator.getitem


def iter_(iterable):
    return iterable


def unpacked(iterable, before, after):
    return iterable


def binary(sign, a, b):
    return eval(f"a {sign} b", {"a": a, "b": b})


def compare(sign, a, b):
    return eval(f"a {sign} b", {"a": a, "b": b})


def unary(sign, a):
    return eval(f"{sign}a", {"a": a})


def decorate(decorator):
    return decorator


class Found:
    """What a comprehension collects."""

    def __init__(self):
        self.values = []

    def each(self, items, flag, body, tested):
        for item in items:
            body(item, flag)

    def add(self, flag, make):
        assert flag is True
        self.values.append(make())


def sift(flag, tests, rest):
    if all(test() for test in tests):
        rest(flag)


def collect(kind, run):
    found = Found()
    run(found)
    return {"list": list, "set": set, "dict": dict}[kind](found.values)


def consume(fun, run, plain, *args, **kwargs):
    return fun(plain(), *args, **kwargs)


def displayed(kind, items):
    make = {"list": lambda lists: [x for some in lists for x in some], "set": set, "dict": dict}
    return make[kind](items)


def generated(items, plain, again):
    return plain(items)


listed = list


def spread(xs):
    return xs


def suppressed(manager, *kinds):
    return kinds


def is_sequence(x, size, more):
    listed = isinstance(x, collections.abc.Sequence) and not isinstance(x, str | bytes | bytearray)
    return listed and (len(x) >= size if more else len(x) == size)


def is_mapping(x):
    return isinstance(x, collections.abc.Mapping)


def is_instance(x, kind, size, *names):
    if not isinstance(x, kind):
        return False
    listed = getattr(kind, "__match_args__", ())
    return all(hasattr(x, name) for name in (*listed[:size], *names))


def part(x, kind, at):
    if isinstance(at, str):
        return getattr(x, at)
    return getattr(x, kind.__match_args__[at]) if hasattr(kind, "__match_args__") else x
