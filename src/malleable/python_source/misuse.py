"""Misuse of a transformation: calls that do not fit, and code that has not run yet."""

import contextlib
import difflib
import dis
import functools
import inspect
import os
import reprlib
import types
import typing
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin

import jax
import numpy as np

from malleable import compat
from malleable.errors import MalleableError, TransformError, text
from malleable.signatures import F

_CLASSES = {
    str: "a string",
    bool: "True or False",
    Mapping: "a dict",
    os.PathLike: "a path",
    tuple: "a tuple of strings",
    types.NoneType: "None",
}


def called_as(way: str, *, of: Callable[..., Any] | None = None) -> Callable[[F], F]:
    """Decorate what users call: a call that does not fit is a TypeError that says `way`.

    A function where one belongs, numbers, strings and choices are checked by their annotations,
    where the function does not refuse them itself; its errors get the user's line, and `way` if
    they say no way out.
    of: the user's function, which gets the arguments after the first.

    >>> @called_as("half(fun, digits=2)(*args)")
    ... def half(fun: Callable, *, digits: int = 2): ...
    >>> half(3)
    Traceback (most recent call last):
    TypeError: half takes a function, not 3
      at <doctest malleable.python_source.misuse.called_as[1]>:1 in <module>
      hint: write half(fun, digits=2)(*args)
    """

    def decorate(fun: F) -> F:
        signature = inspect.signature(fun)
        name = way.partition("(")[0] if of else getattr(fun, "__name__", "")

        @functools.wraps(fun)
        def called(*args, **kwargs):
            what, at_once = misfit(name, signature, args, kwargs)
            unfit = TypeError(text(what, compat.where(), f"write {way}")) if what else None
            if unfit and at_once:
                raise unfit
            try:
                out = fun(*args, **kwargs)
            except MalleableError as error:
                error.at(compat.where())
                raise
            except Exception as error:
                if not unfit or _is_refusal(error):  # its own words are better
                    hint = _way_out(error, way, signature, of, args, kwargs)
                    if hint is None or type(error) not in (TypeError, ValueError):
                        raise
                    unfit = type(error)(text(str(error), compat.where(), hint))
            else:
                if not unfit:
                    return out
            raise unfit from None

        return called  # type: ignore[return-value]

    return decorate


def misfit(name: str, signature: inspect.Signature, args: tuple, kwargs: dict) -> tuple[str, bool]:
    """What is wrong with the first argument that does not fit its annotation; "" if all fit.

    And whether it is a function or path that is missing: then nothing else is worth saying.
    """
    parameters = signature.parameters
    positional = [p for p in parameters.values() if p.kind <= p.POSITIONAL_OR_KEYWORD]
    given = [*zip(positional, args, strict=False)]
    given += [(parameters[k], x) for k, x in kwargs.items() if k in parameters]
    for p, x in given:
        if x is not p.default and not _fits(x, p.annotation):
            words = _words(p.annotation)
            if p in positional[:1] and "a function" in words:
                return f"{name} takes a function, not {reprlib.repr(x)}", True
            return f"{name}: {p.name} is {words}, not {reprlib.repr(x)}", "a path" in words
    return "", False


def _fits(x: Any, kind: Any) -> bool:
    """Whether a value may be what an annotation says, as far as that is looked into."""
    origin = get_origin(kind) or getattr(kind, "__bound__", None) or kind
    if origin in (Union, types.UnionType):
        return any(_fits(x, one) for one in get_args(kind))
    if origin is Literal:
        return any(type(x) is type(one) and x == one for one in get_args(kind))
    if Callable in (origin, get_origin(origin)):
        return callable(x)
    if origin in (Sequence, Iterable):
        text_fits = not isinstance(x, str) or get_args(kind) == (str,)
        return isinstance(x, Iterable) and text_fits and not hasattr(x, "dtype")
    if origin is int:
        return isinstance(x, int | compat.Tracer) or getattr(x, "shape", None) == ()
    return (origin is None and x is None) or origin not in _CLASSES or isinstance(x, origin)


def _words(kind: Any) -> str:
    """An annotation in words."""
    origin = get_origin(getattr(kind, "__bound__", kind)) or kind
    if origin in (Union, types.UnionType, Literal):
        each = get_args(kind)
        *most, last = map(repr, each) if origin is Literal else map(_words, each)
        return f"{', '.join(most)} or {last}" if most else last
    words = {int: "an integer", float: "a number", Callable: "a function"}
    words |= dict.fromkeys((Sequence, Iterable), "a list or tuple")
    return (words | _CLASSES).get(origin) or ("None" if kind is None else typing._type_repr(kind))


def _way_out(error, way, signature, of, args, kwargs) -> str | None:
    """The hint for an error of a call, None for one that is not about the call."""
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        unknown = sorted(kwargs.keys() - signature.parameters.keys())
        options = [p.name for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY]
        if not unknown:
            later = ")(" in way and len(args) > 1
            return f"its arguments come in a second call: {way}" if later else f"write {way}"
        near = difflib.get_close_matches(unknown[0], options, 1)
        has = f"options: {', '.join(options)}" if options else f"it has no options: write {way}"
        return f"write {near[0]}=..." if near else has
    if of is not None:
        return None if binds(of, args[1:], kwargs) else f"write {way}"
    return f"write {way}" if "hint:" not in str(error) and _is_refusal(error) else None


def _is_refusal(error: Exception) -> bool:
    """Whether a `raise` of this library made an error, with no code of the user's under way."""
    last = error.__traceback__
    while last is not None and last.tb_frame.f_globals.get("__name__", "").startswith("malleable."):
        if last.tb_next is None:
            return last.tb_frame.f_code.co_code[last.tb_lasti] == dis.opmap["RAISE_VARARGS"]
        last = last.tb_next
    return False


def binds(fun: Callable, args: tuple, kwargs: dict) -> bool:
    """Whether a function takes such arguments; True where that cannot be known."""
    try:
        signature = inspect.signature(fun)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


@contextlib.contextmanager
def numpy_refused(fun: Any) -> Generator[None]:
    """Raise TransformError for a function of NumPy's that fails, as JAX cannot trace it."""
    try:
        yield
    except jax.errors.TracerArrayConversionError:
        if not isinstance(fun, np.ufunc) and getattr(fun, "__module__", "") != "numpy":
            raise
        raise TransformError(
            f"np.{fun.__name__} is a function of NumPy arrays, and JAX cannot trace it",
            where=compat.where(),
            hint=f"transform autograph(np.{fun.__name__}), or the function of jax.numpy",
        ) from None


def refuse_unrun(x: Any) -> None:
    """Raise TransformError for a result that is code which has not run yet."""
    if isinstance(x, types.GeneratorType | types.CoroutineType | types.AsyncGeneratorType):
        if isinstance(x, types.CoroutineType):
            x.close()  # else Python warns that it was never awaited
        raise TransformError(
            f"{x.__qualname__} gives a {type(x).__name__.replace('_', ' ')}: its code has not run "
            "yet, and is not transformed",
            hint="transform a function that runs it and returns arrays: `return list(...)`",
        )
