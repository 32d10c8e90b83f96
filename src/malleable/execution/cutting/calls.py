"""What the residual program calls for its host statements, and what a failed trace means."""

import functools
import types
from collections.abc import Callable

import jax
import numpy as np

from malleable import compat
from malleable.errors import TransformError
from malleable.execution.common.breaks import NeedsPython as NeedsPython
from malleable.execution.common.breaks import nearest
from malleable.execution.host import host
from malleable.execution.host.table import host_function
from malleable.execution.purity.facts import Stays
from malleable.execution.regions.tracing import UNSET
from malleable.frontend.counterparts import replaced
from malleable.notes import first_line

_KINDS = (
    (jax.errors.TracerBoolConversionError, "bool", "a branch needs this value"),
    (jax.errors.TracerIntegerConversionError, "int", "an integer is needed here"),
    (jax.errors.TracerArrayConversionError, "array", "NumPy needs this array"),
    (jax.errors.NonConcreteBooleanIndexError, "mask", "the size of the result depends on a mask"),
    (jax.errors.ConcretizationTypeError, "value", "this value is needed here"),
)  # fmt: skip


NEEDS_VALUE = tuple(kind for kind, _, _ in _KINDS)  # what JAX raises where it has no value


def reason(error: Exception) -> Stays:
    """Why a statement did not trace, in a word and a sentence."""
    if isinstance(error, Stays):
        return error
    for kind, word, text in _KINDS:
        if isinstance(error, kind):
            return Stays(word, text)
    return Stays("error", f"{type(error).__name__}: {first_line(error)}")


def needs_value(part, error: Exception) -> TransformError:
    """A break met under jit, vmap or grad of the function, where no value is to be had."""
    stays, trace, line = reason(error), error.__traceback__, 0
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == part.filename:
            line = trace.tb_lineno
        trace = trace.tb_next
    return TransformError(
        f"this has no value under jit, vmap, scan or grad: {stays.why}",
        where=f"{part.filename}:{line} in {part.name}",
        hint="; ".join(nearest(stays.kind)),
    )


class Host:
    """The hooks of a residual program."""

    UNSET = UNSET
    slice = slice
    Raised = BaseException

    def __init__(self, engine):
        self.engine, self.options = engine, engine.options
        self.sizes = engine.sizes

    @functools.cached_property
    def by_numpy(self) -> bool:
        return self.options.on_host

    def getitem(self, x, index):
        if not isinstance(x, np.ndarray | jax.Array):
            return x[host.arrive_all(index)]
        out = host.getitem(x, index) if self.by_numpy else x[host.arrive_all(index)]
        self.sizes.meet(out, (x,))
        return out

    def method(self, x, name, /, *args, **kwargs):
        if type(x) is list and name == "append" and len(args) == 1 and not kwargs:
            return x.append(host.arrive_all(args[0]))
        if type(x) is types.ModuleType or not self.by_numpy:
            return self.call(getattr(x, name), *args, **kwargs)
        if isinstance(x, np.ndarray | jax.Array) and (host.is_raw(x) or type(x) is not np.ndarray):
            return self.met(host.method(x, name, *args, **kwargs), (x, *args))
        return self.call(getattr(x, name), *args, **kwargs)

    def call(self, f, /, *args, **kwargs):
        if takes_raw(f):
            return self.met(f(*args, **kwargs), args)
        if self.by_numpy and host_function(f) is not None:
            return self.met(host.call(f, *args, **kwargs), args)
        args = [host.arrive_all(x) for x in args]
        kwargs = {k: host.arrive_all(x) for k, x in kwargs.items()}
        chosen = self.engine.selective(f)
        if chosen is f:
            return self.met(f(*args, **kwargs), args)
        return chosen(*args, **kwargs)

    def bound(self, f, /, *args, **kwargs) -> functools.partial:
        """A call whose result nobody reads, to be made where it stands."""
        if takes_raw(f) or (self.by_numpy and host_function(f)):
            return functools.partial(self.call, f, *args, **kwargs)
        args = [host.arrive_all(x) for x in args]
        kwargs = {k: host.arrive_all(x) for k, x in kwargs.items()}
        return functools.partial(self.engine.selective(f), *args, **kwargs)

    def met(self, out, args):
        """What a host statement gave, its sizes noted if they are new."""
        kind = type(out)
        if kind is tuple or kind is list:
            for x in out:
                self.sizes.meet(x, args)
        else:
            self.sizes.meet(out, args)
        return out

    def arrive(self, x):
        """An array of JAX for one of ours; anything else as it is."""
        return host.arrive(x) if host.is_raw(x) else x

    def shown(self, x):
        """What text is made of: JAX writes the values of an array as NumPy does."""
        return x[()] if host.is_raw(x) else host.arrive_all(x)

    def leave(self, x):
        """What is handed out, with arrays of JAX for ours; the very object where it has none."""
        return host.arrive_all(x)

    def keep(self, x):
        """What a callee hands out: its caller takes arrays of ours."""
        return x

    def given(self, read):
        """read(), or UNSET where the variable it reads has no value."""
        try:
            return read()
        except NameError:
            return UNSET

    def first(self, f, *args):
        """Run what stands before a statement that went ahead and raised: it may raise too."""
        f(*map(host.arrive_all, args))

    def iterate(self, x):
        """The items of an array of JAX as raw arrays, which have no weak types."""
        concrete = isinstance(x, jax.Array) and not isinstance(x, compat.Tracer)
        if host.is_raw(x) or (concrete and not host.is_weak(x)):
            return items(np.asarray(x))
        return iter(x)

    def iterate_arrays(self, x):
        """The items of an array of JAX as such ones."""
        return map(self.arrive, self.iterate(x))


def takes_raw(f) -> bool:
    """Whether a statement takes and gives arrays of NumPy; no `__getattr__` is asked."""
    return "__malleable_host__" in getattr(f, "__dict__", ())


def items(x: np.ndarray):
    """The items of an array, as arrays, also where they are scalars."""
    return map(host.own, (x[i, ...] for i in range(len(x)))) if x.ndim else iter(x)


def cut(f, residual_of: Callable):
    """`f` cut into regions too, where it is Python of the user's; else f itself.

    residual_of(f): its residual program, None for a function that is not cut.
    """
    if isinstance(f, types.MethodType):
        inner = cut(f.__func__, residual_of)
        return f if inner is f.__func__ else functools.partial(inner, f.__self__)
    return residual_of(f) or f if replaced.is_users_own(f) else f
