"""`mal.jit(fun)`: what compiles is compiled, the rest runs, and every break can be explained."""

import ast
import functools
import inspect
import threading
import types
from collections.abc import Callable
from typing import Any

import jax

from malleable import compat
from malleable.execution import announce, calls, facts
from malleable.execution.cutting import Partition
from malleable.execution.options import Options
from malleable.frontend.rewrite import NoSource
from malleable.notes import note

_CONCRETE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)


class Engine:
    """What functions under one `jit` share: options, hooks, the partition of each callee."""

    def __init__(self, options: Options, root):
        self.options, self.root, self.host = options, root, calls.Host(self)
        self.lock = threading.RLock()
        self.known: dict = {}
        self.failed: dict = {}

    def selective(self, f):
        """`f` cut into regions too, where it is Python of the user's; else f itself."""
        if isinstance(f, types.MethodType):
            inner = self.selective(f.__func__)
            return f if inner is f.__func__ else functools.partial(inner, f.__self__)
        if not isinstance(f, types.FunctionType) or not calls.is_of_user(f):
            return f
        found = self.partition(f)
        return f if found is None else found.residual(f)

    def partition(self, f) -> Partition | None:
        """The partition of a Python function, one per code and the functions it closes over."""
        cells = tuple(_identity(cell) for cell in f.__closure__ or ())
        key = (f.__code__, id(f.__globals__), cells)
        found = self.known.get(key)
        if found is None and key not in self.failed:
            with self.lock:
                if facts.code_waits(f.__code__):
                    self.failed[key] = "it is a generator or a coroutine"
                    return None
                try:
                    found = self.known[key] = Partition(f, self.options, self, f is self.root)
                except NoSource as e:
                    self.failed[key] = str(e)
                    note(f"`{f.__qualname__}` is not cut", "", str(e))
        return found


def _identity(cell):
    try:
        value = cell.cell_contents
    except ValueError:
        return None
    held = isinstance(value, types.FunctionType | types.ModuleType | type) or callable(value)
    return id(value) if held else type(value)


class Selective:
    """A function under `jit`."""

    def __init__(self, fun: Callable, options: Options):
        self.fun, self.options = fun, options
        self.engine = Engine(options, getattr(fun, "__func__", fun))
        functools.update_wrapper(self, fun)
        self.__malleable_selective__ = fun
        self.made: Any = (None, None)
        self.entry: Callable = self.general
        self.said = False  # whether it was said that it is not cut

    def __call__(self, *args, **kwargs):
        return self.entry(*args, **kwargs)

    def __get__(self, owner, kind=None):
        return self if owner is None else types.MethodType(self, owner)

    def __repr__(self):
        return f"<jit of {getattr(self.fun, '__qualname__', self.fun)}>"

    def general(self, *args, **kwargs):
        """Through the residual program."""
        fun = self.fun
        if isinstance(fun, types.MethodType):
            fun, args = fun.__func__, (fun.__self__, *args)
        part = self.engine.partition(fun) if isinstance(fun, types.FunctionType) else None
        if part is None:
            announce.uncut(self)
            return self.fun(*args, **kwargs)
        version, made = self.made
        if version != part.tree.version or made is None:
            made = part.residual(fun)
            self.made = part.tree.version, made
        try:
            out = made(*args, **kwargs)
        except _CONCRETE as e:
            if any(isinstance(x, compat.Tracer) for x in jax.tree.leaves((args, kwargs))):
                raise calls.needs_value(part, e) from e
            raise
        if self.made[0] == part.tree.version:
            self.shorten(part, made, args, kwargs)
        return out

    def shorten(self, part: Partition, made: Callable, args, kwargs) -> None:
        """Call XLA directly from now on, if all of the function is one program."""
        whole = part.whole()
        if whole is None:
            return
        if any(isinstance(x, compat.Tracer) for x in jax.tree.leaves((args, kwargs))):
            return
        bound = inspect.signature(made).bind(*args, **kwargs).arguments
        static = [n for n in whole if n in bound]
        direct = jax.jit(
            part.only_compiled(made), static_argnames=static,
            donate_argnums=self.options.donate_argnums,
        )  # fmt: skip

        def compiled(*args, **kwargs):
            try:
                return direct(*args, **kwargs)
            except (calls.NeedsPython, *_CONCRETE, TypeError, ValueError, IndexError):
                self.entry = self.general
                return self.general(*args, **kwargs)

        self.entry = compiled

    @property
    def source(self) -> str:
        """The residual program, and the regions it calls."""
        part = self.engine.partition(self.fun)
        assert part is not None
        part.residual(self.fun)
        return ast.unparse(ast.fix_missing_locations(part.residual_tree))


def jit(fun: Callable | None = None, **options) -> Callable:
    """`fun`, compiled where it compiles; the rest runs as Python.

    >>> import jax.numpy as jnp
    >>> @jit
    ... def positive(x):
    ...     kept = x[x > 0]
    ...     return jnp.sin(kept).sum(), kept.shape[0]
    >>> total, count = positive(jnp.array([1.0, -2.0, 3.0]))
    >>> round(float(total), 3), count
    (0.983, 2)
    """
    if fun is None:
        return functools.partial(jit, **options)
    if not callable(fun):
        raise TypeError(f"jit takes a function, not {fun!r}")
    return Selective(fun, Options(**options))
