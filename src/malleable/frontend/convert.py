"""`autograph(fun)`: ordinary Python and NumPy code as a JAX function, by an explicit decorator."""

import contextlib
import functools
import inspect
import sys
import types
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, Unpack, overload

import jax
import numpy as np
from jax import numpy as jnp

from malleable import compat
from malleable.arrays import journal
from malleable.arrays.box import Box, Masked, unbox
from malleable.arrays.journal import ABSENT
from malleable.arrays.masked import Columns, raising, unknown_size
from malleable.arrays.numbers import python_bool
from malleable.errors import TransformError
from malleable.frontend.common.frames import named_frame, without_ours
from malleable.frontend.common.session import (
    AutographOptions,
    Options,
    Session,
    active,
    note_line,
    run_in_session,
    session,
)
from malleable.frontend.counterparts import texts
from malleable.frontend.counterparts.bounded import BoundedList, as_jax_list, spread_items, unpacked
from malleable.frontend.operators import (
    callables,
    comprehensions,
    dunders,
    exceptions,
    generators,
    hidden,
    items,
    iteration,
    matching,
    tables,
)
from malleable.frontend.operators.chosen import is_place
from malleable.frontend.syntax.rewrite import NoSource, rewrite, source_of
from malleable.frontend.values import conditions as operators
from malleable.frontend.values import packing, raises, unwinding, values
from malleable.frontend.values.trees import UNSET
from malleable.notes import note
from malleable.python_source.misuse import called_as
from malleable.signatures import P, R, T, options_of

RAN_AS_IS = (
    "nothing was traced, so the function ran as it is, and a function in it met something traced\n"
    "  hint: call it under jax.jit, or decorate the inner function with autograph"
)
Out = TypeVar("Out", covariant=True)
_SHALLOW = (bool, int, float, complex, str, bytes, type(None), np.ndarray, np.generic)


class Converted(Protocol[P, Out]):
    """A function under `autograph`. source: what it was rewritten to, which str() gives."""

    source: Any

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Out: ...

    def __get__(self, owner: Any, kind: Any = None) -> Callable[..., Out]: ...


@overload
def autograph(fun: type[T], **options: Unpack[AutographOptions]) -> type[T]: ...
@overload
def autograph(fun: Callable[P, R], **options: Unpack[AutographOptions]) -> Converted[P, R]: ...
@overload
def autograph(
    fun: None = None, **options: Unpack[AutographOptions]
) -> Callable[[Callable[P, R]], Converted[P, R]]: ...


@called_as("autograph(fun)(*args)")
@options_of(Options)
def autograph(fun: Callable[..., Any] | None = None, **options: Any) -> Any:
    """`fun`, with Python control flow, in-place updates and NumPy calls on traced values.

    if, for, while, break, continue, return, and, or, not, assert, x[i] = y and xs.append(y) become
    cond, scan, while_loop and functional updates where a traced value decides, and stay Python
    elsewhere. What `fun` calls is converted as well. Where nothing is traced, `fun` itself runs.

    checked: a dropped `raise` or `assert` becomes a `jax.experimental.checkify` check.
    max_steps: how many steps a `while` takes at most, which reverse-mode gradients need to know.
    mode: "explicit" converts only what is marked by inline_cond, inline_scan, inline_while.
    See docs/frontend.md for what is converted, and how.

    >>> @autograph
    ... def collatz(n):
    ...     steps = 0
    ...     while n != 1:
    ...         n = n // 2 if n % 2 == 0 else 3 * n + 1
    ...         steps += 1
    ...     return steps
    >>> collatz(6), int(jax.jit(collatz)(6)), jax.vmap(collatz)(jnp.arange(1, 5)).tolist()
    (8, 8, [0, 1, 7, 2])
    """
    if fun is None:
        return functools.partial(autograph, **options)
    if isinstance(fun, type):
        return autograph_class(fun, **options)
    chosen = Options(**options)

    @functools.wraps(fun)
    def autographed(*args, **kwargs):
        if compat.is_idle():
            try:
                return fun(*args, **kwargs)
            except jax.errors.ConcretizationTypeError as e:
                e.add_note(RAN_AS_IS)
                raise
        try:
            return enter(fun, chosen, args, kwargs)
        except Exception as e:
            failed = without_ours(e)
            if chosen.mode == "full" and not active():
                failed = named_frame(failed)
        try:
            raise failed
        finally:
            del failed  # its traceback knows this frame: a circle

    autographed.__malleable_converted__ = fun  # type: ignore[attr-defined]
    autographed.source = Source(fun, chosen.mode)  # type: ignore[attr-defined]
    return autographed


class Source:
    """The rewritten source, made when somebody asks."""

    def __init__(self, fun, mode):
        self.fun, self.mode = fun, mode

    def __str__(self):
        return source_of(inspect.unwrap(self.fun, stop=lambda f: hasattr(f, "__code__")))

    __repr__ = __str__


def autograph_class(cls: type, **options) -> type:
    """A class whose instances are called as converted functions."""
    if "__call__" not in vars(cls):
        raise TransformError(
            f"`{cls.__name__}` has no `__call__` of its own to convert",
            hint="decorate the methods that are to be converted",
        )
    cls.__call__ = autograph(cls.__call__, **options)  # type: ignore[method-assign]
    return cls


def enter(fun: Callable, options: Options, args: tuple, kwargs: dict) -> Any:
    """Run `fun` converted, on boxes; its result holds arrays of JAX."""
    if active():
        if not any_traced((args, kwargs), fun):
            return fun(*args, **kwargs)
        return run_boxed(fun, args, kwargs)
    if not any_traced((args, kwargs), fun):
        return fun(*args, **kwargs)
    here = Session(options, OPERATORS.call, lanes=compat.is_batched())
    token = raising.set((raises.fail_where, raises.within))
    try:
        return run_in_session(here, run_boxed, fun, args, kwargs)
    finally:
        raising.reset(token)


def run_boxed(fun, args, kwargs):
    args, kwargs = box_all((args, kwargs))
    if journal.current() is not None:
        return finish_result(OPERATORS.call(fun, *args, **kwargs))
    with journal.opened(base=True) as book:
        book.made, returned = {}, False
        try:
            out = finish_result(OPERATORS.call(fun, *args, **kwargs))
            returned = True
            return out
        finally:
            tables.put_back(returned)
            for place in book.places.values():
                if place.kind != "box":
                    leave_plain(place)


def leave_plain(place) -> None:
    """What converted code left in an object, list or variable, without boxes."""
    value = place.read()
    if any_traced(value, None, 0) or isinstance(value, Box):
        with contextlib.suppress(TransformError):  # a choice, which only its use makes an error
            place.write(unbox(value))


def any_traced(x, fun=None, depth: int = 4) -> bool:
    """Whether a value is traced, or holds such a one, in its attributes too."""
    if issubclass(type(x), compat.Tracer | Box):
        return True
    if isinstance(x, _SHALLOW):
        return False
    if isinstance(x, list | tuple | set):
        found = any(any_traced(y, None, depth) for y in x)
    elif isinstance(x, dict):
        found = any(any_traced(y, None, depth) for y in x.values())
    elif isinstance(x, functools.partial):
        found = any_traced((x.args, x.keywords), x.func, depth)
    elif isinstance(x, types.MethodType):
        found = any_traced(x.__self__, x.__func__, depth)
    elif isinstance(x, types.FunctionType):
        held = [journal.Place("cell", cell).read() for cell in x.__closure__ or ()]
        found = depth > 2 and any_traced(held, None, depth - 1)
    elif values.is_object(x) and depth > 0:
        found = any_traced(vars(x), None, depth - 1)
    else:
        found = False
    return found or (fun is not None and any_traced(fun, None, depth))


def box_all(x, immutable=False):
    """Arrays become boxes, in lists, tuples and dicts too, which are new; objects stay.

    immutable: what is traced is an array of JAX to who wrote the function; else it may be NumPy's.

    A single boolean counts as one of Python's: JAX does not tell it from one of NumPy's.
    The arrays in the attributes of an object become boxes when they are read.
    """
    kind = type(x)
    if issubclass(kind, Box):
        return x
    if isinstance(x, jax.Array):
        new = Box(x) if x.shape or x.dtype != bool else Box(python_bool(x), True)
        new.immutable = immutable or not isinstance(x, compat.Tracer)
        return new
    if isinstance(x, np.ndarray):
        return x if x.dtype.names else Box(x)
    if kind in (list, tuple):
        return kind(box_all(v, immutable) for v in x)
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return kind(*(box_all(v, immutable) for v in x))
    return {k: box_all(v, immutable) for k, v in x.items()} if kind is dict else x


def finish_result(out) -> Any:
    """The result as JAX wants it: arrays instead of boxes, none where a `raise` was dropped."""
    flags = session().raised._value, session().lost._value
    failed = tuple(flag if isinstance(flag, compat.Tracer) else None for flag in flags)
    return jax.tree.map(functools.partial(finish_leaf, failed, {}), out, is_leaf=is_whole)


def is_whole(x) -> bool:
    return (
        isinstance(x, Box)
        or values.bounded(x) is not None
        or values.table_of(x) is not None
        or compat.is_iterator(x)
    )


def finish_leaf(failed, seen: dict, x) -> Any:
    """One leaf of the result; an object of the user's keeps its identity."""
    if isinstance(x, values.Choice):
        x = result_of_choice(x)
        if not isinstance(x, Box):
            finished = functools.partial(finish_leaf, failed, seen)
            return jax.tree.map(finished, x, is_leaf=is_whole)
    if type(x) is Columns:
        raise unknown_size("a result, x[:, mask],")
    unsized = as_jax(x)
    if unsized is not None:
        return jax.tree.map(functools.partial(spoiled, failed), unsized)
    value = x.value if isinstance(x, Box) else x
    if isinstance(value, jax.Array | np.ndarray | np.number | int | float | complex):
        return spoiled(failed, value)
    if id(value) in seen or not (isinstance(value, dict) or values.is_object(value)):
        return value
    seen[id(value)] = value
    fields = value if isinstance(value, dict) else vars(value)
    for name, inside in list(fields.items()):
        new = jax.tree.map(functools.partial(finish_leaf, failed, seen), inside, is_leaf=is_whole)
        if new is not inside and any_traced(inside):
            fields[name] = new
    return value


def as_jax(x) -> Any:
    """What stands for something of a traced size in a result; None for what has a size."""
    if type(x) is Masked:
        return BoundedList(x.compact(), x.count.value)
    if values.bounded(x) is not None:
        return as_jax_list(x[0])
    return tables.as_jax_table(x) if values.table_of(x) is not None else None


def spoiled(failed: tuple, value):
    """A number that is none where a raise was dropped: a float is NaN.

    An integer is the one farthest from zero where something is looked up that is not there, and a
    bool is False.
    """
    raised, lost = failed
    if raised is not None:
        value = nan_where(raised, value)
    kind = jnp.result_type(value)
    if lost is None or jnp.issubdtype(kind, jnp.inexact):
        return value
    worst = 0 if kind == bool else jnp.iinfo(kind).min or jnp.iinfo(kind).max  # noqa: E721
    return jnp.where(lost, jnp.asarray(worst, kind), value)


def nan_where(failed, value):
    if not jnp.issubdtype(jnp.result_type(value), jnp.inexact):
        return value
    return jnp.where(failed, jnp.asarray(jnp.nan, jnp.result_type(value)), value)


def result_of_choice(x: values.Choice):
    """The one number a choice may be, NaN where it is None; what a chosen container holds."""
    if session().options.exact:
        raise TransformError("a value decides whether this is None", where=x.where)
    if is_place(x):
        members = all(isinstance(o, int) for o in x.options)
        return Box(x.value, True) if members else container_of_choice(x)
    missing = values.entry([o is None or o is ABSENT for o in x.options], x.index)
    if all(o is not None for o in x.options):
        return Box(nan_where(missing, x.value), x.scalar)
    note_none(x)
    return Box(spoiled((missing, missing), x.value), x.scalar)


def note_none(x: values.Choice) -> None:
    why = "floats are NaN there, integers the lowest, bools False: return numbers on every path"
    note_line("the result is None on one path", x.where, why)


def container_of_choice(x: values.Choice):
    """What a chosen list, tuple or dict holds; the numbers in it are none where there is None."""
    rest = [o for o in x.options if o is not None]
    if len(rest) == len(x.options) or not isinstance(rest[0], list | tuple | dict):
        return values.snapshot(x)
    note_none(x)
    gone = next(k for k, o in enumerate(x.options) if o is None)
    if len(rest) > 1:
        index = jnp.where(x.index > gone, x.index - 1, x.index) % len(rest)
        rest = [values.snapshot(values.Choice(index, rest, x.where))]
    missing = x.index == gone
    finished = functools.partial(finish_leaf, (missing, missing), {})
    return jax.tree.map(finished, rest[0], is_leaf=is_whole)


# ---------------------------------------------------------------- the operators, as one namespace


def convert(fun: types.FunctionType, listed: bool = False) -> types.FunctionType | None:
    """The converted clone of a Python function; None, with a note, for one without source.

    listed: of a generator function, one that returns a list of all it yields. Raises NoSource.
    """
    try:
        return rewrite(fun, OPERATORS, session().options.mode, listed)
    except NoSource as e:
        if listed:
            raise
        note(f"`{fun.__qualname__}` is not converted", "", str(e))
        return None


def enter_callback(fun: Callable) -> Callable:
    """A function that JAX or a library on it calls back: it runs converted, on boxed values.

    Raises TransformError if it changes something outside of itself: JAX would not see it.
    """

    @functools.wraps(fun)
    def called_back(*args, **kwargs):
        with journal.opened() as book:
            args, kwargs = box_all((args, kwargs), immutable=True)
            out = unbox(OPERATORS.call(fun, *args, **kwargs))
            changed = [p for p in book.places.values() if values.holds_new(p.read(), {})]
            leaked = [p for p in changed if sys.getrefcount(p.owner) > 3]
            names = [p.name for p in leaked if p.kind in ("attr", "cell", "global")]
            book.undo()
        if names:
            raise TransformError(
                f"`{getattr(fun, '__name__', fun)}` changes `{names[0]}`, which is outside of it",
                where=compat.where(),
                hint="return the new value instead: JAX runs this function by its own rules",
            )
        return out

    return called_back


_caller = callables.Caller(convert, enter_callback)
_dunders = dunders.Dunders(_caller.call)
_NAMES = (  # operators, and what has them
    (_caller, "call"),
    (_caller.items, "attr setattr_ delattr_ getitem setitem delitem aug aug_item aug_attr in_"),
    (_caller.items, "not_in iter_"),
    (_dunders, "binary compare unary said_of"),
    (operators, "if_ ifexp and_ or_ not_ is_ is_not"),
    (iteration, "while_ for_"),
    (exceptions, "try_ suppressed"),
    (raises, "assert_ bound test_names"),
    (items, "raising walrus writes_cell writes_global"),
    (matching, "is_sequence is_mapping"),
    (comprehensions, "collect sift displayed"),
    (generators, "generated"),
)
OPERATORS = types.SimpleNamespace(
    **{name: getattr(owner, name) for owner, names in _NAMES for name in names.split()},
    UNSET=UNSET,
    slice_=slice,
    true=operators.Singleton(True),
    false=operators.Singleton(False),
    none=operators.Singleton(None),
    decorate=lambda decorator: functools.partial(_caller.call, decorator),
    born=hidden.born,
    text=texts.text,
    shown=_caller.texts.shown,
    said=_caller.texts.said,
    said_as=_caller.texts.said_as,
    is_instance=functools.partial(matching.is_instance, _caller.call),
    part=functools.partial(matching.part, _caller.call),
    entered=unwinding.entered,
    finally_=unwinding.Finally,
    linked=functools.partial(packing.linked, _caller.items.attr),
    with_=functools.partial(exceptions.with_, _caller.call),
    grouping=exceptions.grouping,
    listed=functools.partial(_caller.call, list),
    spread=spread_items,
    unpacked=unpacked,
    consume=functools.partial(comprehensions.consume, _caller.call),
)
