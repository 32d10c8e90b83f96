"""Says which argument makes JAX compile a function again and again."""

import functools
import inspect
import re
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from malleable.compat import Place, frames
from malleable.inspection import places
from malleable.inspection.advice.evidence import creation, wording
from malleable.inspection.advice.evidence.diagnosis import Diagnosis, Said
from malleable.inspection.advice.evidence.trouble import Step, Trouble, here
from malleable.inspection.advice.hint import Advice
from malleable.inspection.advice.watching import running
from malleable.inspection.advice.watching.running import Observer, Run
from malleable.programs.types import type_text
from malleable.python_source.source import closed_over

MANY = 8  # said while the block is open
SEVERAL = 5  # said at its end


@dataclass
class Compilation:
    """What a function was called with when it was compiled. types: {path: text}, of arrays.

    fun: a weak reference to it; which: a number, equal for calls of the same function object;
    owner: of a method, the class.
    """

    fun: Callable[[], Any]
    which: int
    owner: str
    types: dict[str, str]
    statics: dict[str, str]
    inner: dict[str, str]  # what a partial or a closure holds
    structure: Any


@dataclass
class History:
    """The compilations of one user function, however often it is wrapped in a jit."""

    name: str
    defined: Place | None
    programs: dict[int, Any] = field(default_factory=dict)
    made: list[Compilation] = field(default_factory=list)
    caller: Place | None = None
    said: bool = False
    meant: bool = False  # each is compiled once, and kept: several functions made of one code


class Storms(Observer):
    """Counts the compilations of each user function."""

    def __init__(self):
        self.histories: dict[Any, History] = {}

    def met(self, run: Run, caller):
        self.called(run, caller)

    def called(self, run: Run, caller):
        code = code_of(run.fun)
        if code is None or not places.is_own(code.co_filename):
            return
        first = code.co_firstlineno
        place = Place(code.co_filename, first, code.co_qualname, 0, first, 0)
        history = self.histories.setdefault(code, History(name_of(run.fun), place))
        if id(run.program) in history.programs or history.said:
            return
        history.programs[id(run.program)] = run.program  # kept, so that the number stays its own
        history.made.append(compilation(run, history.made))
        history.caller = running.place_in(caller)
        history.meant = all_kept(history.made)
        if len(history.made) >= MANY:
            self.say(history)

    def close(self):
        for history in self.histories.values():
            if len(history.made) >= SEVERAL:
                self.say(history)

    def say(self, history: History):
        if not history.said and not history.meant:
            history.said = True
            running.warn(advice(history), history.caller)


def all_kept(made: list[Compilation]) -> bool:
    """Whether each compilation is of another function, and none of these has been dropped."""
    apart = len({m.which for m in made}) == len(made) > 1
    return apart and all(m.fun() is not None for m in made)


def advice(history: History) -> Advice:
    """Which argument changed, and what to do about it."""
    made, name = history.made, history.name
    what = f"{name} ({places.spell(history.defined)}) was compiled {len(made)} times: "
    changed, hint = changes(made)
    return Advice(what + changed, here(history.caller), hint)


def changes(made: list[Compilation]) -> tuple[str, str]:
    """(what differs between compilations, the way out)."""
    if len({m.which for m in made}) == len(made):
        return changed_function(made)
    statics = differing([m.statics for m in made])
    if statics:
        return changed_static(*next(iter(statics.items())))
    if len({m.structure for m in made}) > 1:
        return changed_structure(made)
    for path, seen in differing([m.types for m in made]).items():
        return changed_type(path, seen)
    return (
        "the settings around its calls changed (a context manager of JAX, or where its arguments "
        "lie), and not their types",
        "enter contexts such as jax.default_device or jax.set_mesh once, outside of the loop",
    )


def changed_type(path: str, seen: list[str]) -> tuple[str, str]:
    shapes = unique(text.partition("[")[2].rstrip("]") for text in seen)
    dtypes = unique(text.partition("[")[0] for text in seen)
    if len(shapes) > 1:
        spelt = listed(f"({s},)" if s and "," not in s else f"({s})" for s in shapes)
        return (
            f"argument `{path}` came with {len(shapes)} different shapes, {spelt}",
            f"pad `{path}` to one shape, or to a few bucket sizes (powers of two, say), and mask "
            "what was added",
        )
    if {d.removeprefix("weak ") for d in dtypes} != set(dtypes):
        what = f"argument `{path}` was sometimes a Python number and sometimes an array, "
        return what + listed(seen), f"always pass an array of one dtype: jnp.asarray({path}, dtype)"
    what = f"argument `{path}` came with {len(dtypes)} different dtypes, {listed(dtypes)}"
    way = "convert it before the call, so that the dtype is always the same: "
    return what, f"{way}jnp.asarray({path}, jnp.float32)"


def changed_static(path: str, seen: list[str]) -> tuple[str, str]:
    plain = [text for text in seen if not text.startswith("object ")]
    if len(unique(plain)) > 1:
        what = f"its static argument `{path}` took {len(unique(plain))} values, "
        what += f"{listed(unique(plain))}; each new value of a static argument is compiled for"
        way = f"pass `{path}` as an array (take it out of static_argnums / static_argnames), or "
        return what, f"{way}allow a few values only"
    kind = seen[0].removeprefix("object ").partition(" ")[0]
    what = (
        f"its static argument `{path}` was a new `{kind}` object each time, and these compare as "
    )
    way = f"make one `{kind}` outside of the loop, or give the class __eq__ and __hash__ by value "
    return f"{what}different", f"{way}(@dataclasses.dataclass(frozen=True))"


def changed_structure(made: list[Compilation]) -> tuple[str, str]:
    roots = {}
    for m in made:
        count: dict[str, int] = {}
        for path in m.types:
            root = path.partition("[")[0].partition(".")[0]
            count[root] = count.get(root, 0) + 1
        for root, n in count.items():
            roots.setdefault(root, []).append(n)
    root, counts = max(roots.items(), key=lambda item: len(set(item[1])))
    if len(set(counts)) > 1:
        return (
            f"argument `{root}` came with different numbers of leaves, {listed(unique(counts))}",
            f"stack the items of `{root}` into one array, pad it to a fixed length and mask the "
            "rest; a list is a new structure at each length",
        )
    what = "its arguments came in different structures (keys of a dictionary, None, or keyword "
    return f"{what}instead of positional arguments)", "pass the same structure each time"


def changed_function(made: list[Compilation]) -> tuple[str, str]:
    owner = made[0].owner
    if owner:
        return (
            f"it is a method, of a new `{owner}` object each time jax.jit(...) runs",
            f"jit it once, outside of the loop, with what it needs of `{owner}` as arguments, or "
            "as a static argument that has __eq__ and __hash__ by value",
        )
    inner = differing([m.inner for m in made])
    if inner:
        some = list(inner.items())[:2]
        held = " and ".join(f"`{path}` = {listed(unique(seen))}" for path, seen in some)
        names = " and ".join(f"`{path}`" for path, _ in some)
        an = "an argument" if len(some) == 1 else "arguments"
        return (
            f"it is a new function each time jax.jit(...) runs, with {held}",
            f"pass {names} as {an} of the jitted function, and jit it once, outside of the loop",
        )
    return (
        "it is a new function object (a lambda, a partial or a nested function) each time "
        "jax.jit(...) runs, and JAX compiles for each",
        "jit it once, outside of the loop, and call that function in the loop",
    )


def not_again(found: re.Match, trouble: Trouble, last: Step) -> Said | None:
    """`jax_no_tracing`: what is new about the call that would be traced again."""
    step: Any = trouble.within(*frames.CACHE_MISS)
    block = running.block()
    fun, args, kwargs = step.held.fun, step.held.args, step.held.kwargs
    history = block.find(Storms).histories.get(code_of(fun)) if block else None
    if history is None:
        what = f"{name_of(fun)} would be traced again, for arguments it has not seen"
        hint = "call it once with arguments of these types before tracing is forbidden"
        return Said(what, hint, weight=2)
    given = arguments(fun, args or (), kwargs or {}).items()
    now = {p: described(leaf) for name, x in given for p, leaf in wording.leaves(x, name)}
    known = [made.types for made in history.made]
    new = {p: t for p, t in now.items() if t not in {k.get(p) for k in known}}
    path, kind = next(iter(new.items()), ("", ""))
    before = listed(k[path] for k in known if path in k)
    what = f"{name_of(fun)} would be traced again: argument `{path}` is {kind}, and was {before} "
    what += "before"
    hint = f"pad `{path}` to the same shape (and keep its dtype), or call it once with such an "
    hint += "argument before tracing is forbidden"
    if path:
        return Said(what, hint)
    return None


NO_TRACING = (Diagnosis("'no_tracing' is set", not_again, frame=frames.CACHE_MISS),)


# ---------------------------------------------------------------- what a call was made of


def compilation(run: Run, before: list[Compilation]) -> Compilation:
    traced = dict(zip(run.names, run.leaves, strict=True))
    types = {path: described(x) for path, x in traced.items()}
    roots = {path.partition("[")[0].partition(".")[0] for path in traced}
    given = arguments(run.fun, run.args, run.kwargs).items()
    statics = {name: static(x) for name, x in given if name not in roots and leaves(x)}
    owner = getattr(run.fun, "__self__", None)
    name = type(owner).__name__ if owner is not None else ""
    which = next((m.which for m in before if m.fun() is run.fun), len(before))
    inner = held(run.fun)
    return Compilation(creation.weak(run.fun), which, name, types, statics, inner, tuple(types))


def described(x) -> str:
    aval = x if hasattr(x, "weak_type") and hasattr(x, "shape") else jax.typeof(x)
    return "weak " * bool(getattr(aval, "weak_type", False)) + type_text(aval)


def static(x) -> str:
    plain = isinstance(
        x, bool | int | float | complex | str | bytes | tuple | frozenset | type(None)
    )
    return repr(x) if plain else f"object {type(x).__name__} {id(x)}"


def leaves(x) -> bool:
    """Whether an argument that is not traced must be static: it has leaves, or is None."""
    return bool(jax.tree.leaves(x)) or x is None


def arguments(fun, args: tuple, kwargs: dict) -> dict[str, Any]:
    """{parameter: argument} of a call."""
    try:
        return dict(inspect.signature(fun).bind(*args, **kwargs).arguments)
    except (TypeError, ValueError):
        return {}


def held(fun) -> dict[str, str]:
    """What a partial fixes and a nested function closes over, as far as it is a plain value."""
    kept: dict[str, Any] = {}
    if isinstance(fun, functools.partial):
        names = list(inspect.signature(fun.func).parameters)
        kept |= dict(zip(names, fun.args, strict=False)) | fun.keywords
        fun = fun.func
    kept |= closed_over(inspect.unwrap(getattr(fun, "__func__", fun)))
    numbers = bool | int | float | complex | str | np.generic
    return {name: repr(x) for name, x in kept.items() if isinstance(x, numbers)}


def code_of(fun) -> types.CodeType | None:
    """The user's code inside of partials, methods and wrappers."""
    while isinstance(fun, functools.partial | types.MethodType):
        fun = fun.func if isinstance(fun, functools.partial) else fun.__func__
    try:
        fun = inspect.unwrap(fun)
    except ValueError:
        return None
    return getattr(fun, "__code__", None)


def name_of(fun) -> str:
    while isinstance(fun, functools.partial):
        fun = fun.func
    name = getattr(fun, "__qualname__", None) or getattr(fun, "__name__", "a function")
    name = name.rpartition("<locals>.")[2]
    return "a lambda" if name == "<lambda>" else f"`{name}`"


def differing(rows: list[dict[str, str]]) -> dict[str, list[str]]:
    """{path: values in order} of what is not always the same."""
    found = {path: [row[path] for row in rows if path in row] for path in rows[0]}
    return {path: seen for path, seen in found.items() if len(set(seen)) > 1}


def unique(items) -> list:
    return list(dict.fromkeys(items))


def listed(items, most: int = 4) -> str:
    items = list(map(str, unique(items)))
    return ", ".join(items[:most]) + (", ..." if len(items) > most else "")
