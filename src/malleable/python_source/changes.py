"""What a function changes in place: found when it was traced, put back when it has run.

A trace hands the function copies of its arguments, which hold tracers. Containers of two kinds,
these copies and what the function reaches without arguments (closures, globals, `self`), are
compared with what they held before. New arrays become results of the program, and once it has
run, the caller's own containers get their values.
"""

import collections
import contextvars
import enum
import functools
import gc
import inspect
import io
import itertools
import operator
import random
import threading
import types
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from malleable import compat
from malleable.errors import MalleableError, TransformError
from malleable.python_source.writes import refuse_write

ELSEWHERE = (
    "give the model to the function as an argument, or split it with nnx.split outside, "
    "give it the state, and make the model inside with nnx.merge"
)
_TRACE_LEVEL = "different trace level"  # flax.nnx: a model that is no argument
_NO_ARGUMENT = "a flax.nnx model is used here that is no argument of the function"
MOST = 300  # what is looked at outside of the arguments, the nearest first


class Place(NamedTuple):
    """A container of the caller's: a path of keys from the arguments, or from a root elsewhere.

    outside: it is no copy, but the caller's own; name: what the root is called.
    """

    path: tuple[Any, ...]
    root: Any = None
    name: str = ""
    outside: bool = False

    def find(self, given: tuple[Any, ...]) -> Any:
        """The container, of the arguments (args, kwargs)."""
        at = given if self.root is None else self.root
        for key in self.path:
            at = contents(at)[key]
        return at

    def spell(self, fun: Callable[..., Any], given: tuple[Any, ...], *keys: Any) -> str:
        """`model.layers[0]`, as the user would write it."""
        path, at, text = (*self.path, *keys), self.root, self.name
        if at is None:
            text, at, path = _argument_name(fun, path[:2]), contents(given[path[0]]), path[1:]
            at, path = at.get(path[0]), path[1:]
        for key in path:
            match _kind(type(at)):
                case "names":
                    text += f".{key}" if text else key
                case "object" | "class" if not key.startswith("_"):
                    text += f".{key}"
                case "list" | "tuple" | "dict":
                    text += f"[{key!r}]"
                case _:
                    pass  # what holds it has no name for it
            at = contents(at).get(key)
        return f"`{text}`"


class Slot(NamedTuple):
    """Stands for an array that the program gives."""

    index: int


@dataclass(frozen=True, eq=False)
class Changes:
    """For each container that changed: its place, its keys in order, and what is new under them.

    Last comes whether keys were put in another order; JAX sorts those of a copy of a dict.
    names: of the containers; outside: of those that are no arguments; once: of those outside
    that changed without a value of this run, and for good; count: how many arrays are needed.
    """

    found: tuple[tuple[Place, tuple[Any, ...], dict[Any, Any], bool], ...] = ()
    names: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    once: tuple[str, ...] = ()
    count: int = 0

    def __bool__(self) -> bool:
        return bool(self.found)

    def put_back(self, given: tuple[Any, ...], values: Sequence[Any]) -> None:
        """Write the arrays that the program gave into the containers of the caller."""
        made: dict = {}

        def value(leaf):
            if isinstance(leaf, Place):
                return leaf.find(given)
            return values[leaf.index] if isinstance(leaf, Slot) else leaf

        def build(tree, leaves, mark):
            if mark not in made:
                made[mark] = jax.tree.unflatten(tree, list(map(value, leaves)))
            return made[mark]

        ready = []
        for place, keys, new, moved in self.found:
            at = place.find(given)
            old = contents(at)
            order = keys if moved else dict.fromkeys([k for k in old if k in keys] + list(keys))
            ready.append((at, {k: build(*new[k]) if k in new else old[k] for k in order}))
        for at, new in ready:
            fill(at, new)


class Watch:
    """What containers held before `fun` ran on `copies` of what was `given`: (args, kwargs)."""

    def __init__(self, fun: Callable, given: tuple, copies: tuple):
        self.fun, self.given = fun, given
        self.places: dict[int, Place] = {}
        self.before: dict[int, tuple[Any, dict]] = {}
        self.stateful: list[tuple[Any, Place]] = []
        outside = collections.deque(_reached(fun))
        for i, (mine, copied) in enumerate(zip(given, copies, strict=True)):
            for key, x in contents(copied).items():
                self._argument(contents(mine)[key], x, Place((i, key)), outside)
        for _ in range(min(MOST, MOST * len(outside))):
            if not outside:
                break
            self._look(*outside.popleft(), outside)

    def _argument(self, mine, copied, place, outside) -> None:
        if mine is copied and not isinstance(mine, tuple):
            outside.append((mine, place._replace(outside=True)))
        elif type(mine) is type(copied) and _kind(type(mine)) and id(copied) not in self.places:
            here = contents(mine)
            for key, x in self._keep(copied, place).items():
                if key in here:
                    self._argument(here[key], x, _below(place, key), outside)

    def _look(self, it, place, outside) -> None:
        if id(it) in self.places:
            return
        if _has_state(it):
            self.places[id(it)] = place
            self.stateful.append((it, place))
        if _is_function(it):
            self.places[id(it)] = place
            outside.extend(_reached(it))
        elif _has_state(it):
            return
        elif kind := _kind(type(it)):
            for key, x in self._keep(it, place).items():
                if _kind(type(x)) or _has_state(x) or (kind != "class" and _is_function(x)):
                    outside.append((x, _below(place, key)))
                elif kind == "names" and isinstance(x, types.ModuleType):
                    outside.append(_of_module(x, it.names))
                elif _has_state(own := _owner(x)):
                    outside.append((own, _root(own, f"the state of {key}")))
            if kind in _KINDS and type(it).__dictoffset__ and _KINDS[kind] is not type:
                held = _attributes(it)
                outside.append(
                    (held, _root(held, f"vars({place.spell(self.fun, self.given)[1:-1]})"))
                )

    def states(self) -> list[tuple[str, Any]]:
        """What sets, arrays, random generators and iterators hold now: (name, that)."""
        names = (place.spell(self.fun, self.given) for _, place in self.stateful)
        held = (jax.tree.map(_summed, _state_of(it)) for it, _ in self.stateful)
        return list(zip(names, held, strict=True))

    def _keep(self, it, place) -> dict:
        held = contents(it)
        self.places[id(it)], self.before[id(it)] = place, (it, held)
        return held

    def _changed(self) -> Iterator[tuple[Any, Place, dict, dict, list]]:
        """(container, place, before, after, keys of what is new) of each that changed."""
        for mark, (it, old) in self.before.items():
            new = contents(it)
            fresh = [k for k, x in new.items() if k not in old or old[k] is not x]
            if fresh or list(old) != list(new):
                yield it, self.places[mark], old, new, fresh

    def undo(self) -> None:
        """Nobody finds a tracer of this run in a container that is no copy."""
        for it, place, old, new, fresh in self._changed():
            if place.outside and any(_holds(new[k], _is_ours) for k in fresh):
                fill(it, old)
        for it, _ in self.stateful:
            if isinstance(it, _CACHE) and any(_holds(x, _is_ours) for x in _kept_by(it)):
                it.cache_clear()

    def written(self) -> str:
        """The name of an argument that changed, or of what elsewhere holds a tracer; else ""."""
        for _, place, _, new, fresh in self._changed():
            if not place.outside or any(_holds(new[k], _is_ours) for k in fresh):
                return place.spell(self.fun, self.given)
        return ""

    def hands_out(self, value) -> bool:
        """Whether a value is one of these containers, or holds one; tuples do not count."""
        todo, seen = [value], set()
        while todo:
            kind = _kind(type(x := todo.pop()))
            if kind and id(x) not in seen:
                if kind != "tuple" and id(x) in self.before:
                    return True
                seen.add(id(x))
                todo += contents(x).values()
        return False

    def run(self, fun: Callable[[], Any], raises: bool) -> tuple[Any, Changes, list, Any]:
        """(fun(), what changed, its arrays, the error that `fun` ended with); raises: that one."""
        try:
            return fun(), *self.found(), None
        except Exception as error:
            return None, *self._found_until(error, raises), error

    def _found_until(self, error: Exception, raises: bool) -> tuple[Changes, list]:
        """As `found`, before an error that Python raises too: after changes, and not of tracing."""
        about = jax.errors.JAXTypeError, jax.errors.JAXIndexError, MalleableError
        odd = any(x in str(error) for x in (_TRACE_LEVEL, "immutable"))
        if raises or odd or isinstance(error, about):
            raise error
        try:
            changes, arrays = self.found()
        except TransformError as other:
            raise error from other
        if not changes:
            raise error
        _let_go(error)
        return changes, arrays

    def found(self) -> tuple[Changes, list]:
        """(what changed, its arrays).

        Raises TransformError for an object that holds a tracer and into which JAX cannot look.
        """
        found, names, outside, once, arrays = [], [], [], [], []
        known = lambda x: id(x) in self.places  # noqa: E731

        def one(x, name):
            if known(x):
                return self.places[id(x)]
            if _is_live(x):
                arrays.append(x)
                return Slot(len(arrays) - 1)
            if _holds(x, _is_live):
                what = f"{name} becomes a {type(x).__name__}, into which JAX cannot look"
                hint = "return the value, or register the class as a pytree: "
                hint += "jax.tree_util.register_dataclass"
                raise TransformError(what, where=line_of_function(self.fun), hint=hint)
            return x

        for _, place, old, new, fresh in self._changed():
            spell = functools.partial(place.spell, self.fun, self.given)
            made = {}
            for key in fresh:
                leaves, tree = jax.tree.flatten(new[key], is_leaf=known)
                ready = [one(x, spell(key)) for x in leaves]
                if place.outside and not any(map(_is_of_run, ready)):  # the very object
                    one(new[key], spell(key))
                    tree, ready = jax.tree.structure(0), [new[key]]
                made[key] = tree, ready, id(new[key])
            name = spell(*fresh) if len(fresh) == 1 else spell()
            if place.outside and not any(_is_of_run(x) for _, r, _ in made.values() for x in r):
                once.append(name)
                continue
            found.append((place, tuple(new), made, _is_moved(old, new)))
            names.append(name)
            outside += [name] * place.outside
        for it, place in self.stateful:
            if any(_holds(x, _is_live) for x in _kept_by(it)):
                what = f"{place.spell(self.fun, self.given)} keeps a value that is traced here"
                hint = "compute it outside, and give it to the function as an argument"
                raise TransformError(what, where=line_of_function(self.fun), hint=hint)
        changes = Changes(tuple(found), tuple(names), tuple(outside), tuple(once), len(arrays))
        return changes, arrays


def _let_go(error: BaseException | None) -> None:
    """An error says the lines it came through, and holds no frame of theirs, nor its tracers."""
    while error is not None:
        lines = compat.lines_of(error)
        error.add_note("malleable: raised at " + ", called at ".join(lines or ["no line of yours"]))
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def line_of_function(fun: Callable) -> str:
    """Where a function begins."""
    code = getattr(inspect.unwrap(fun), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno} in {code.co_name}" if code else ""


def _below(place: Place, key) -> Place:
    return place._replace(path=(*place.path, key))


@contextmanager
def watching(fun: Callable, given: tuple, copies: tuple) -> Generator[Watch, None, None]:
    """A `Watch`; at the end of the block, nothing of the caller's holds a tracer of it."""
    watch = Watch(fun, given, copies)
    try:
        yield watch
    except Exception as error:
        if _TRACE_LEVEL in str(error):
            where = next(filter(compat.is_own, compat.lines_of(error)), "")
            raise TransformError(_NO_ARGUMENT, where=where, hint=ELSEWHERE) from error
        refuse_write(error, given)
        raise
    finally:
        watch.undo()
        watch.before.clear()  # copies may not outlive the trace


@contextmanager
def unchanged(
    fun: Callable, given: tuple, runs: bool = False
) -> Generator[Callable[[], None], None, None]:
    """What `fun` changes in the block, of `given`, (args, kwargs), or elsewhere, is put back.

    It is at the end of the block, and whenever what the block gets is called.
    runs: it gets arrays of NumPy themselves, not tracers for them.
    """
    arrays = [] if runs else jax.tree.leaves(given)
    spared = {id(x) for x in arrays if isinstance(x, np.ndarray)}
    todo = collections.deque([*given[0], *given[1].values()])
    outside = collections.deque(x for x, _ in _reached(fun))
    kept: dict[int, Any] = {}  # an object, and what makes it again what it was
    while todo or (outside and len(kept) < MOST):
        it = (todo or outside).popleft()
        if id(it) not in kept and id(it) not in spared:
            below, put_back = _as_it_was(it)
            kept[id(it)] = it, put_back
            (outside if _is_function(it) else todo if todo else outside).extend(below)

    def all_back():
        for _, put_back in kept.values():
            put_back()

    try:
        yield all_back
    finally:
        all_back()


def _as_it_was(it) -> tuple[list, Callable[[], Any]]:
    """(what an object holds, what makes it again what it is now)."""
    if _is_function(it):
        return [x for x, _ in _reached(it)], bool
    if (kind := _kind(type(it))) and not _has_state(it):
        held = contents(it)
        return list(held.values()), bool if kind == "tuple" else functools.partial(fill, it, held)
    if write := _row(it)[1]:
        return [], functools.partial(write, it, _row(it)[0](it))
    return [], bool


_CACHE: Any = type(functools.lru_cache(len))
_ROWS = ([], (), range(0), range(2**70), "", b"", set(), {}, {}.values(), {}.items())
_ROWS_BACK = ([], range(0), {}, {}.values(), {}.items())
_CURSORS = {*map(type, map(iter, _ROWS)), *map(type, map(reversed, _ROWS_BACK))}
_OVER = (enumerate, filter, map, zip, itertools.chain, itertools.islice, itertools.cycle)
_STATES: dict[Any, tuple[Callable, Callable | None]] = {  # (what it holds, what puts that back)
    set: (set.copy, lambda it, old: (set.clear(it), set.update(it, old)) if it != old else None),
    bytearray: (bytes, lambda it, old: it.__setitem__(slice(None), old)),
    np.ndarray: (np.copy, lambda it, old: np.copyto(it, old) if it.flags.writeable else None),
    random.Random: (random.Random.getstate, random.Random.setstate),
    np.random.Generator: (
        lambda it: it.bit_generator.state,
        lambda it, old: setattr(it.bit_generator, "state", old),
    ),
    np.random.RandomState: (lambda it: it.get_state(), lambda it, old: it.set_state(old)),
    types.GeneratorType: (
        lambda it: it.gi_frame and (it.gi_frame.f_lasti, list(map(id, _kept_by(it)))),
        None,
    ),
    itertools.count: (repr, None),
    **dict.fromkeys(_CURSORS, (operator.length_hint, None)),
    **dict.fromkeys(_OVER, (lambda it: [_state_of(x) for x in _gone_over(it)], None)),
    io.StringIO: (lambda it: it.closed or it.getvalue(), None),
    _CACHE: (bool, None),
}


def _gone_over(it) -> list:
    """The iterators that one goes over."""
    near = gc.get_referents(it)
    near += [x for held in near if type(held) is tuple for x in held]
    return [x for x in near if _has_state(x)]


def _row(it) -> tuple[Callable, Callable | None]:
    """How the state is read of a thing of Python that JAX does not look into, and put back."""
    return next((row for of, row in _STATES.items() if isinstance(it, of)), (bool, None))


def _state_of(it) -> Any:
    return it if isinstance(it, np.ndarray) else _row(it)[0](it)


def _summed(x) -> Any:
    """A check sum of an array, which may be large; anything else as it is."""
    if not isinstance(x, np.ndarray) or x.dtype.hasobject:
        return x.tobytes() if isinstance(x, np.ndarray) else x
    return zlib.crc32(np.ascontiguousarray(x).reshape(-1).view(np.uint8))


def _has_state(it) -> bool:
    return isinstance(it, tuple(_STATES))


def _kept_by(it) -> list:
    """The values in what is no container: a generator, a function that remembers its results."""
    if isinstance(it, types.GeneratorType):
        return list(it.gi_frame.f_locals.values()) if it.gi_frame else []
    near = gc.get_referents(it) if isinstance(it, _CACHE) else []
    return [*near, *(x for held in near if type(held) is dict for x in held.values())]


def _is_ours(x) -> bool:
    return compat.is_inner(x)


def _is_live(x) -> bool:
    return compat.is_live(x)


def _is_of_run(leaf) -> bool:
    """Whether a value to put back is known only when the program has run, or was a copy."""
    return isinstance(leaf, Slot) or (isinstance(leaf, Place) and not leaf.outside)


def _holds(tree, test) -> bool:
    """Whether a leaf passes a test, or what an object among the leaves holds itself."""
    leaves = jax.tree.leaves(tree)
    inside = (list(contents(x).values()) for x in leaves if _kind(type(x)))
    return any(map(test, leaves)) or any(test(x) for held in inside for x in jax.tree.leaves(held))


# ---------------------------------------------------------------- containers


class _Globals(NamedTuple):
    """The global names that a function uses."""

    namespace: dict
    names: tuple


_KINDS: dict[str, Any] = {
    "class": type,
    "cell": types.CellType,
    "context": contextvars.ContextVar,
    "object": threading.local,
    "list": (list, collections.deque),
    "dict": dict,
    "tuple": tuple,
}
_ATOMS = (
    *(types.ModuleType, types.FunctionType, types.MethodType, functools.partial),
    *(str, bytes, int, float, complex, set, frozenset, enum.Enum, jax.Array, compat.Tracer),
)
_OPAQUE = ("jax", "jaxlib", "numpy", "malleable")  # packages whose objects are not looked into


@functools.lru_cache(4096)
def _kind(of: type) -> str:
    """What sort of container a class makes; "object" holds attributes, "" is none."""
    if of is _Globals:
        return "names"
    if issubclass(of, _ATOMS) or of.__module__.partition(".")[0] in _OPAQUE:
        return ""
    kinds = (kind for kind, classes in _KINDS.items() if issubclass(of, classes))
    return next(kinds, "object" if of.__dictoffset__ or _slots(of) else "")


@functools.lru_cache(4096)
def _slots(of: type) -> dict:
    own = (vars(c) for c in reversed(of.__mro__) if "__slots__" in vars(c))
    every = {name: member for names in own for name, member in names.items()}
    return {k: m for k, m in every.items() if isinstance(m, types.MemberDescriptorType)}


def contents(it) -> dict:
    """What a container holds, by key; nothing for what is none."""
    match _kind(type(it)):
        case "list" | "tuple":
            return dict(enumerate(it))
        case "dict":
            return dict(it)
        case "names":
            return {k: it.namespace[k] for k in it.names if k in it.namespace}
        case "cell":
            return {} if (held := _held(it)) is _EMPTY else {"": held}
        case "context":
            return {} if (held := _held(it, lambda it: it.get())) is _EMPTY else {"": held}
        case "class":
            return {k: x for k, x in vars(it).items() if not k.startswith("__")}
        case "object":
            held = _attributes(it)
            slots = {k: _held(it, member.__get__) for k, member in _slots(type(it)).items()}
            return held | {k: x for k, x in slots.items() if x is not _EMPTY}
        case _:
            return {}


def _held(it, get=lambda cell: cell.cell_contents):
    try:
        return get(it)
    except (AttributeError, LookupError, ValueError):  # nothing in it so far
        return _EMPTY


def _attributes(it) -> dict:
    """The `__dict__` of an object; some types of C keep theirs to themselves."""
    if isinstance(it, threading.local):
        return vars(it)
    own = functools.partial(object.__getattribute__, it)
    held = _held("__dict__", own) if type(it).__dictoffset__ else _EMPTY
    return {} if held is _EMPTY else held


_EMPTY: Any = object()


def fill(it, new: dict) -> None:
    """Make a container hold `new`: no code of its class is asked, as it was not by `contents`."""
    old = contents(it)
    fresh = {k: x for k, x in new.items() if k not in old or old[k] is not x}
    gone = [k for k in old if k not in new]
    match _kind(type(it)):
        case "class":
            for name in gone:
                delattr(it, name)
            for name, x in fresh.items():
                setattr(it, name, x)
        case "object":
            slots = _slots(type(it))
            held = _attributes(it)
            for name in gone:
                slots[name].__delete__(it) if name in slots else held.pop(name)
            for name, x in fresh.items():
                slots[name].__set__(it, x) if name in slots else held.__setitem__(name, x)
        case "cell" if gone:
            del it.cell_contents
        case "cell":
            it.cell_contents = new[""]
        case "context":
            it.set(new.get(""))
        case "list" if len(old) != len(new):
            it.clear()
            it.extend(new.values())
        case kind:
            into = it.namespace if kind == "names" else it
            own = next(c for c in _OWN if isinstance(into, c))
            if kind == "dict" and _is_moved(old, new):
                gone, fresh = list(old), new
            for key in gone:
                own.__delitem__(into, key)
            for key, x in fresh.items():
                own.__setitem__(into, key, x)


_OWN: tuple[Any, ...] = (collections.OrderedDict, dict, list, collections.deque)


def _is_moved(old: dict, new: dict) -> bool:
    """Whether the keys stand in another order than where the new ones follow the old."""
    return list(new) != [*(k for k in old if k in new), *(k for k in new if k not in old)]


# ---------------------------------------------------------------- what a function reaches


def _is_function(x) -> bool:
    plain = isinstance(x, types.FunctionType | types.MethodType | functools.partial)
    return plain or (callable(x) and not _kind(type(x)) and hasattr(x, "__wrapped__"))


def _reached(fun) -> Iterator[tuple[Any, Place]]:
    """What a function reaches without its arguments: (container or function, its place)."""
    if isinstance(fun, functools.partial):
        for x in (fun.func, *fun.args, *fun.keywords.values()):
            yield x, _root(x, "a bound argument")
    elif isinstance(fun, types.MethodType):
        yield fun.__self__, _root(fun.__self__, "self")
        yield type(fun.__self__), _root(type(fun.__self__), type(fun.__self__).__name__)
        yield from _reached(fun.__func__)
    elif isinstance(fun, types.FunctionType):
        code = fun.__code__
        yield vars(fun), _root(vars(fun), fun.__name__)
        mine = compat.is_users(code.co_filename)
        for name, cell in zip(code.co_freevars, fun.__closure__ or (), strict=True):
            for x in (cell,) if mine else contents(cell).values():  # JAX may bind its own anew
                yield x, _root(x, name)
        for x in (*(fun.__defaults__ or ()), *(fun.__kwdefaults__ or {}).values()):
            yield x, _root(x, f"a default of {fun.__name__}")
        if mine:
            scope = _Globals(fun.__globals__, global_names(code))
            yield scope, _root(scope, "")
            cells = [contents(cell).get("") for cell in fun.__closure__ or ()]
            yield from (
                _of_module(x, scope.names) for x in cells if isinstance(x, types.ModuleType)
            )
    elif _kind(type(fun)):
        yield fun, _root(fun, type(fun).__name__)
        call = inspect.getattr_static(type(fun), "__call__", None)
        yield from _reached(call) if isinstance(call, types.FunctionType) else ()
    if wrapped := getattr(fun, "__wrapped__", None):
        yield wrapped, _root(wrapped, "")


def _of_module(module: types.ModuleType, names: tuple) -> tuple[Any, Place]:
    """What a function may use of a module: of one into which we do not look, what has a state."""
    held = vars(module)
    if module.__name__.partition(".")[0] in _OPAQUE:
        names = tuple(name for name in names if _leads_on(held.get(name)))
    scope = _Globals(held, names)
    return scope, _root(scope, module.__name__)


def _leads_on(x) -> bool:
    return isinstance(x, types.ModuleType) or _has_state(_owner(x))


def _owner(x) -> Any:
    return x.__self__ if isinstance(x, types.BuiltinMethodType) else None


def _root(x, name: str) -> Place:
    return Place((), x, name, True)


@functools.lru_cache(4096)
def global_names(code: types.CodeType) -> tuple:
    inner = [x for x in code.co_consts if isinstance(x, types.CodeType)]
    return tuple(dict.fromkeys((*code.co_names, *(n for c in inner for n in global_names(c)))))


def _argument_name(fun, start: tuple) -> str:
    """The name of the parameter that a path into (args, kwargs) starts with."""
    which, key = start
    if which:
        return key
    try:
        names = [p.name for p in inspect.signature(fun).parameters.values()]
    except (TypeError, ValueError):
        names = []
    return names[key] if key < len(names) else f"argument {key}"


# ---------------------------------------------------------------- what is there twice


def links(tree) -> tuple[tuple[tuple, tuple], ...]:
    """Where one container stands in a pytree again: (path, the first path to it), by child.

    JAX would make two of it, and what is written to one of them would be missing in the other.

    >>> both = {"w": 1.0}
    >>> links(([both], both)), links(([both], dict(both)))
    ((((1,), (0, 0)),), ())
    """
    seen: list = []
    jax.tree.flatten(tree, is_leaf=lambda x: bool(seen.append(x)))  # sees each node, never true
    many = collections.Counter(id(x) for x in seen if _kind(type(x)) not in ("", "tuple"))
    if not many or max(many.values()) < 2:
        return ()
    first: dict[int, tuple] = {}
    found = []

    def walk(node, path):
        if many[id(node)] > 1 and first.setdefault(id(node), path) != path:
            found.append((path, first[id(node)]))
            return
        for i, child in enumerate(_children(node)[0]):
            if child is not node:  # as that of a leaf
                walk(child, (*path, i))

    walk(tree, ())
    return tuple(found)


def relinked(tree, twice: tuple):
    """A pytree whose `links` are these, of one in which they are lost."""
    if not twice:
        return tree
    again, made = dict(twice), {}

    def copied(node, path):
        if path in again:
            return made[again[path]]
        children, whole = _children(node)
        if len(children) == 1 and children[0] is node:  # a leaf
            return made.setdefault(path, node)
        new = [copied(child, (*path, i)) for i, child in enumerate(children)]
        made[path] = jax.tree.unflatten(whole, new)
        return made[path]

    return copied(tree, ())


def _children(node) -> tuple[list, Any]:
    return jax.tree.flatten(node, is_leaf=lambda x: x is not node)
