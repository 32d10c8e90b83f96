"""`mal.jit(fun)`: what compiles is compiled, the rest runs, and every break can be explained."""

import ast
import copy
import dataclasses
import functools
import inspect
import sys
import threading
import types
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, Unpack, overload

import jax
import numpy as np

from malleable import compat
from malleable.errors import TransformError
from malleable.execution.common.leaves import flat_leaves, flatten
from malleable.execution.common.options import JitOptions, Options
from malleable.execution.cutting import announce, calls
from malleable.execution.cutting.cutting import Partition
from malleable.execution.purity import callees, facts, scan
from malleable.execution.purity.reads import Reads
from malleable.execution.regions import signatures, tracing
from malleable.execution.regions.regions import Sizes, Whole
from malleable.frontend.syntax.rewrite import NoSource
from malleable.notes import first_line, note
from malleable.python_source.misuse import called_as
from malleable.signatures import P, R, options_of

_NOT_COMPILED = (
    calls.NeedsPython,
    TransformError,
    *calls.NEEDS_VALUE,
    TypeError,
    ValueError,
    IndexError,
)
Out = TypeVar("Out", covariant=True)
# arguments that no transformation of JAX is behind
KNOWN = signatures.CONCRETE - {np.ndarray} | signatures.FIXED
PARTITIONS = 128  # functions that one `jit` remembers


class Engine:
    """What functions under one `jit` share: options, hooks, the partition of each callee.

    kinds: of the arguments that it serves, see `signatures.kinds`.
    """

    def __init__(self, options: Options, root, kinds: tuple = ()):
        self.options, self.root, self.kinds = options, root, kinds
        self.sizes, self.reads = Sizes(), Reads()
        self.host = calls.Host(self)
        self.lock = threading.RLock()
        self.known: dict = {}
        self.failed: dict = {}
        self.entry: Callable | None = None  # what runs its calls, once no more need be cut
        self.doubts: list[Callable] = []  # each forgets a cut for an error, unless the call ends

    def selective(self, f):
        """`f` cut into regions too, where it is Python of the user's; else f itself."""
        return calls.cut(f, self.residual)

    def residual(self, f) -> Callable | None:
        """The residual program of a Python function; None for one that is not cut."""
        found = self.partition(f)
        return found and found.residual(f)

    def partition(self, f) -> Partition | None:
        """The partition of a Python function, one per code and the functions it closes over."""
        cells = tuple([_identity(cell) for cell in f.__closure__ or ()])
        key = (f.__code__, id(f.__globals__), cells)
        found = self.known.get(key)
        if found is not None:
            return found
        if key not in self.failed:
            with self.lock:
                if facts.code_waits(f.__code__):
                    self.failed[key] = "it is a generator or a coroutine"
                    return None
                try:
                    found = self.known[key] = Partition(f, self.options, self, f is self.root)
                    if len(self.known) > PARTITIONS:  # closures that are made again and again
                        self.known.pop(next(iter(self.known)))
                except TransformError:
                    raise
                except Exception as e:  # NoSource; or a fault of ours: Python runs it then
                    kind = "" if isinstance(e, NoSource) else f"{type(e).__name__}: "
                    self.failed[key] = kind + str(e)
                    note(f"`{f.__qualname__}` is not cut", "", kind + str(e))
        return found

    def settle(self, ended: bool) -> None:
        """After a call: what it cut for errors that are the caller's own is as it was."""
        doubts, self.doubts = self.doubts, []
        for forget in doubts:
            if not ended:
                forget()


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
        self.plain: Any = python_of(fun)  # None, or the function and what is bound to it
        self.engines: dict = {}  # by the kinds of the arguments: a cut serves only those it was for
        self.latest: Engine | None = None  # that of the last call
        self.entry: Callable = self.begin
        self.said = False  # whether it was said that it is not cut
        functools.update_wrapper(self, fun, updated=())
        self.__malleable_selective__ = fun
        self.carry(getattr(fun, "__dict__", {}))

    def __call__(self, *args, **kwargs):
        return self.entry(*args, **kwargs)

    def __get__(self, owner, kind=None):
        return self if owner is None else types.MethodType(self, owner)

    def __repr__(self):
        return f"<jit of {getattr(self.fun, '__qualname__', self.fun)}>"

    def carry(self, attributes) -> None:
        """Have the attributes of the function, but for those that would stand for one of ours."""
        for name, value in attributes.items():
            if name not in vars(self) and not hasattr(Selective, name):
                setattr(self, name, value)
            elif name[:2] != "__" and not isinstance(self.fun, Selective):
                note(f"`.{name}` of {self!r} is not the function's", "", "`jit` has one so named")

    def __reduce__(self):
        """Pickled by name where the name leads here, as Python's functions are; else as `fun`."""
        found = sys.modules.get(self.__module__)
        name: str = vars(self)["__qualname__"]
        for part in name.split("."):
            found = getattr(found, part, None)
        return name if found is self else (Selective, (self.fun, self.options))

    def begin(self, *args, **kwargs):
        """Choose how to run, on the first call."""
        fun = self.fun
        if (reads := scan.reads_of(fun)) is not None:  # of JAX, or made by it: `jax.grad(f)`
            self.entry = self.whole(reads)
        elif self.plain is not None:
            self.entry = self.by_kinds
        else:
            announce.uncut(self)
            self.entry = fun
        return self.entry(*args, **kwargs)

    def whole(self, reads: Reads) -> Callable:
        """A function of JAX's own, under its own jit; as it is where that cannot be."""
        options, fun = self.options, self.fun
        given = {
            name: getattr(options, name)
            for name in ("static_argnums", "static_argnames")
            if getattr(options, name) != "auto"
        }
        anew = functools.wraps(fun)(lambda *args, **kwargs: fun(*args, **kwargs))  # traced again
        direct = jax.jit(anew, donate_argnums=options.donate_argnums, **given)

        def compiled(*args, **kwargs):
            if reads.are_others():
                self.clear_cache()
                return self.entry(*args, **kwargs)
            try:
                return direct(*args, **kwargs)
            except (*calls.NEEDS_VALUE, TypeError) as e:
                note("it is not compiled", "", first_line(e))
                return fun(*args, **kwargs)

        return compiled

    def by_kinds(self, *args, **kwargs):
        """As calls with arguments of these kinds have come to run."""
        engine = self.engine_for(args, kwargs)
        if engine.entry is None:
            return self.through(engine, args, kwargs)
        if engine.entry != self.general:
            self.entry = engine.entry  # until arguments of another kind come
        return engine.entry(*args, **kwargs)

    def general(self, *args, **kwargs):
        """Through the residual program."""
        return self.through(self.engine_for(args, kwargs), args, kwargs)

    def through(self, engine: Engine, args, kwargs, padded: bool = False):
        """Through the residual program of an engine, which is cut where it has to be.

        padded: the sizes of the arguments are as if they depended on values.
        """
        fun, before, named = self.plain
        args, kwargs = (*before, *args), {**named, **kwargs}
        part = engine.partition(fun)
        if part is None:
            announce.uncut(self)
            return self.fun(*args[len(before) :], **kwargs)
        if part.is_stale():
            self.clear_cache()
            return self.general(*args[len(before) :], **kwargs)
        if differentiates((args, kwargs)) and part.has_while():
            return self.stepwise(*args[len(before) :], **kwargs)
        version, made = part.tree.version, part.residual(fun)
        first = engine.entry is None and not before and not named
        try:
            engine.sizes.whole = first and part.is_one_region()
            out = self.execute(engine, part, made, args, kwargs, padded)
        except Whole:
            engine.entry = self.shorten(part, made, args, kwargs)
            if engine.entry not in (None, self.general):
                return engine.entry(*args, **kwargs)
            out = self.execute(engine, part, made, args, kwargs)
        finally:
            engine.sizes.whole = False
        if version == part.tree.version:
            if not part.runs:
                bound = before or named or not part.is_python(made, args, kwargs)
                engine.entry = self.uncut if bound else self.as_python(args, kwargs)
            elif engine.entry is None and first:
                engine.entry = self.shorten(part, made, args, kwargs)
                engine.entry = engine.entry or self.as_before(engine, part, made)
        return out

    def execute(self, engine, part: Partition, made: Callable, args, kwargs, padded=False):
        """Run a residual program."""
        sizes, ended = engine.sizes, False
        outer = sizes.begin(
            (*args, *kwargs.values()), padded or self.options.dynamic_sizes == "bucket"
        )
        try:
            out = made(*args, **kwargs)
            ended = True
            return out
        except TransformError as e:
            at = tracing.user_line(e.where)
            if not at:
                raise
            raise TransformError(e.what, where=at, hint=e.hint) from None
        except calls.NEEDS_VALUE as e:
            if any(isinstance(x, compat.Tracer) for x in flatten((args, kwargs))[0]):
                raise calls.needs_value(part, e) from e
            raise
        finally:
            sizes.end(outer)
            if engine.doubts:
                engine.settle(ended)

    def as_before(self, engine: Engine, part: Partition, made: Callable) -> Callable:
        """What runs calls of this kind while the function stays cut as it is."""
        version = part.tree.version
        kind = engine.kinds  # those before the call, which may change them
        asked = signatures.kinds if type(kind[0]) is tuple else self.key_of
        known = None  # whether these are arguments as in KNOWN; so are all of the same kinds

        def run(*args, **kwargs):
            nonlocal known
            if asked(args, kwargs) != kind:
                return self.by_kinds(*args, **kwargs)
            if known is None:
                given = (*args, *kwargs.values())
                known = all(type(x) in KNOWN or signatures.is_log(x) for x in given)
            if part.tree.version == version and known and not part.is_stale():
                return self.execute(engine, part, made, args, kwargs)
            return self.through(engine, args, kwargs)

        return run

    def uncut(self, *args, **kwargs):
        """Where nothing is left to compile, Python runs alone, until an array comes."""
        engine = self.engines.get(self.key_of(args, kwargs))
        if engine is None or engine.entry != self.uncut:
            return self.by_kinds(*args, **kwargs)
        if any(isinstance(x, jax.Array) for x in (*args, *kwargs.values())):
            return self.general(*args, **kwargs)
        return self.fun(*args, **kwargs)

    def as_python(self, args, kwargs) -> Callable:
        """The function itself, as long as its arguments look as these do: nothing is compiled."""
        fun, looks = self.fun, signatures.outer_kinds(args, kwargs)

        def run(*args, **kwargs):
            if signatures.outer_kinds(args, kwargs) == looks:
                return fun(*args, **kwargs)
            return self.by_kinds(*args, **kwargs)

        return run

    def engine_for(self, args, kwargs) -> Engine:
        """What is known of the function for arguments of these kinds."""
        key = self.key_of(args, kwargs)
        found = self.engines.get(key)
        if found is None:
            found = self.engines[key] = Engine(self.options, self.plain and self.plain[0], key)
            if len(self.engines) > PARTITIONS:
                self.engines.pop(next(iter(self.engines)))
        self.latest = found
        return found

    def key_of(self, args, kwargs) -> tuple:
        """The kinds of arguments; their types alone, if a tree has a static part without a hash."""
        key = signatures.kinds(args, kwargs)
        try:
            hash(key)
        except TypeError:
            return tuple(map(type, (*args, *kwargs.values())))
        return key

    @property
    def engine(self) -> Engine:
        """That of the last call."""
        return self.engine_for((), {}) if self.latest is None else self.latest

    @functools.cached_property
    def stepwise(self) -> "Selective":
        """The same with the loops of Python, through which gradients go backwards."""
        options = dataclasses.replace(self.options, control_flow="host", on_break="split")
        return Selective(self.fun, options)

    def shorten(self, part: Partition, made: Callable, args, kwargs) -> Callable | None:
        """What calls XLA directly from now on, if all of the function is one program."""
        whole = part.whole()
        if whole is None:
            return None
        if part.is_by_value():
            return self.general
        if any(isinstance(x, compat.Tracer) for x in jax.tree.leaves((args, kwargs))):
            return None
        bound = inspect.signature(made).bind(*args, **kwargs).arguments
        static = [n for n in whole if n in bound]
        spec, odd = inspect.getfullargspec(made), (types.FunctionType, float, complex)
        leaves = [x for n in static for x in flatten(bound[n])[0]]
        if {spec.varargs, spec.varkw} & {*static} or any(isinstance(x, odd) for x in leaves):
            return self.general  # made anew for each call; or -0.0, which JAX takes for 0.0
        held = (*(spec.defaults or ()), *(spec.kwonlydefaults or {}).values())
        parts = (*held, *flatten(held)[0])
        if any(isinstance(x, list | dict | set | np.ndarray) for x in parts):
            return self.general  # a default that may change is no argument
        if part.direct is None:
            part.direct = jax.jit(
                part.only_compiled(made, args, kwargs), static_argnames=static,
                donate_argnums=self.options.donate_argnums,
            )  # fmt: skip
        direct, order, engine = part.direct, part.order, self.engine_for(args, kwargs)
        if np.ndarray in map(type, args):
            return self.general
        has_while, kind = part.has_while(), signatures.plain_kinds(args, kwargs)
        leaf_kinds = signatures.leaf_kinds
        looks = [leaf_kinds(args), kwargs and leaf_kinds(kwargs)]  # without tracers

        def compiled(*args, **kwargs):
            if part.is_stale():
                self.clear_cache()
                return self.general(*args, **kwargs)
            if [leaf_kinds(args), kwargs and leaf_kinds(kwargs)] != looks:
                if signatures.plain_kinds(args, kwargs) != kind:
                    mine = self.engine_for(args, kwargs) is engine  # a list of numbers has grown
                    return (self.general if mine else self.by_kinds)(*args, **kwargs)
                if has_while and differentiates((args, kwargs)):
                    return self.stepwise(*args, **kwargs)
            if part.refused and self.key_of(args, kwargs) in part.refused:
                return self.general(*args, **kwargs)
            if part.generic and part.is_new_size(args, kwargs):
                return self.at_any_size(engine, part, args, kwargs)
            try:
                out = direct(*args, **kwargs)
                return out if order is None else tracing.reordered(out, order)
            except _NOT_COMPILED:
                pass
            if part.generic and part.shapes is not None:
                return self.at_any_size(engine, part, args, kwargs)
            out = self.general(*args, **kwargs)  # not in the handler: its errors are the user's
            part.refused.add(self.key_of(args, kwargs))
            return out

        return compiled

    def lower(self, *args, **kwargs) -> jax.stages.Lowered:
        """As `jax.jit(fun).lower(*args)`, where all of the function is one program.

        Raises TransformError where it is not.
        """
        options = self.options
        static = {
            name: getattr(options, name)
            for name in ("static_argnums", "static_argnames")
            if getattr(options, name) != "auto"
        }
        try:
            direct = jax.jit(self.fun, donate_argnums=options.donate_argnums, **static)
            return direct.lower(*args, **kwargs)
        except calls.NEEDS_VALUE as e:
            raise TransformError(
                f"{self!r} is not one program: it needs a value while it runs",
                hint="`explain(f)(*args)` says where; `f.source` and `f.regions` are its programs",
            ) from e

    def at_any_size(self, engine: Engine, part: Partition, args, kwargs):
        """Run one program for all sizes; if there is none, each is compiled from now on."""
        out = self.through(engine, args, kwargs, True)
        if not part.is_sized():
            part.shapes = None
        return out

    def clear_cache(self) -> None:
        """Forget all that was compiled, and how the function was cut."""
        self.engines, self.latest, self.entry = {}, None, self.begin

    def _partition(self) -> Partition:
        part = self.plain and self.engine.partition(self.plain[0])
        if not part:
            raise TransformError(
                f"{self!r} has no residual program",
                hint="only Python functions whose source is at hand are cut",
            )
        return part

    @property
    def source(self) -> str:
        """The residual program: plain Python that calls the regions `_r1`, `_r2`, ..."""
        part = self._partition()
        part.residual(self.plain[0])
        named = copy.copy(part.residual_tree)
        named.name = part.name if part.name.isidentifier() else "fun"  # `<lambda>`
        return ast.unparse(ast.fix_missing_locations(named))

    @property
    def regions(self) -> dict[str, str]:
        """The text of each region of the residual program."""
        part = self._partition()
        part.residual(self.plain[0])
        return part.region_texts()

    def edit(self, source: str) -> None:
        """Run this residual program instead, until `clear_cache`. It may call the regions.

        Raises SyntaxError, or TransformError for a program of other arguments.
        """
        self.entry = self._partition().edited(self.plain[0], source)


def differentiates(values) -> bool:
    """Whether arguments are being differentiated, by values that are at hand."""
    args, kwargs = values
    traced = []
    for value in (*args, *kwargs.values()):
        leaves = signatures.ends(value) if signatures.is_log(value) else flat_leaves(value)
        if any(issubclass(kind, compat.Tracer) for kind in {*map(type, leaves)}):
            traced += [x for x in leaves if isinstance(x, compat.Tracer)]
    return bool(traced) and all(compat.concrete(x) is not None for x in traced)


def python_of(fun) -> tuple[types.FunctionType, tuple, dict] | None:
    """The Python function that a callable runs, and the arguments it puts before the caller's.

    None where there is none, or where JAX made it, of a function that does more than compute.
    """
    if isinstance(fun, types.FunctionType):
        return None if callees.is_jax(fun) else (fun, (), {})
    if isinstance(fun, types.MethodType) and isinstance(fun.__func__, types.FunctionType):
        return fun.__func__, (fun.__self__,), {}
    if isinstance(fun, functools.partial):
        inner = python_of(fun.func)
        return inner and (inner[0], (*inner[1], *fun.args), {**inner[2], **fun.keywords})
    if isinstance(fun, Selective):
        return fun.plain
    called = getattr(type(fun), "__call__", None)  # noqa: B004
    if isinstance(called, types.FunctionType):
        return called, (fun,), {}
    return None


class Jitted(Protocol[P, Out]):
    """What `jit` gives: a function of the same arguments, and what is known of how it runs.

    source: the residual program, as text; regions: the text of each region of it.
    """

    __wrapped__: Callable[..., Any]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Out: ...

    def __get__(self, owner: Any, kind: Any = None) -> Callable[..., Out]: ...

    @property
    def source(self) -> str: ...

    @property
    def regions(self) -> dict[str, str]: ...

    def lower(self, *args: P.args, **kwargs: P.kwargs) -> jax.stages.Lowered: ...

    def edit(self, source: str) -> None: ...

    def clear_cache(self) -> None: ...


@overload
def jit(fun: Callable[P, R], **options: Unpack[JitOptions]) -> Jitted[P, R]: ...
@overload
def jit(
    fun: None = None, **options: Unpack[JitOptions]
) -> Callable[[Callable[P, R]], Jitted[P, R]]: ...


@called_as("jit(fun)(*args)")
@options_of(Options)
def jit(fun: Callable[..., Any] | None = None, **options: Any) -> Any:
    """`fun`, compiled where it compiles; the rest runs as Python. A drop-in for `jax.jit`.

    The first call finds which statements need a value, a size or Python itself. What stands between
    them is compiled, branches and loops too; `f.source` shows the program that is left, and
    `explain(f)(*args)` why each statement stayed.

    static_argnums, static_argnames: arguments whose value is compiled in; "auto" finds those that
    flow into shapes. donate_argnums: as in `jax.jit`, where all of `fun` is one program.
    on_break: "split", "warn" or "error" where a statement stays with Python.
    dynamic_sizes: "auto" runs a region of many sizes through NumPy or in padded buckets; "exact"
    compiles each, "bucket" pads. control_flow: "host" leaves branches and loops on values to
    Python; "lift" compiles them also where Python's numbers lose digits by it: 32 bits for 64.
    host: "numpy" or "jax" for what runs between; "auto" is NumPy on the CPU.
    max_compiles: programs kept per region. passes: those the regions go through, see `optimize`.
    See docs/execution.md.

    >>> import jax.numpy as jnp
    >>> @jit
    ... def positive(x):
    ...     kept = x[x > 0]
    ...     return jnp.sin(kept).sum(), kept.shape[0]
    >>> total, count = positive(jnp.array([1.0, -2.0, 3.0]))
    >>> round(float(total), 3), count
    (0.983, 2)
    """
    known = [field.name for field in dataclasses.fields(Options)]
    if unknown := sorted(options.keys() - set(known)):
        raise TypeError(f"jit has no option {unknown[0]!r}")
    if fun is None:
        return functools.partial(jit, **options)
    return Selective(fun, Options(**options))
